//! The gate as the kernel has it: one device program on a control group, and its maps.
//!
//! Used by the gate's task and by `fleet-agent gate`. The program stays where it is when the agent ends, however it
//! ends: it lives with the control group, and its maps with it. A later agent finds all of it again by asking the
//! control group, and puts a program of its own in the place of that one, over the same maps, in one step. Nothing
//! here decides who passes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::program::{EVERY_GPU, EVERY_GPU_FOR_GROUP, JOBS, Shape, assemble, stands_for};
use crate::containers::{self, NOBODY};
use crate::unit::group_path;
use fleet_kernel::bpf::call as bpf;
use fleet_kernel::bpf::call::{Map, MapKind};
use fleet_kernel::cgroup::{CgroupError, Hierarchies};
use fleet_kernel::filter::NVIDIA_MAJOR_USUAL;
use fleet_user::Subordinates;
use fleet_user::subordinate::Prefix;

/// Seen in `bpftool prog`; the mode is in the name for those who look there.
const PROGRAM_ON: &str = "fleet_gate_on";
const PROGRAM_WARN: &str = "fleet_gate_warn";
const MAP_PASSES: &str = "fleet_passes";
const MAP_DENIALS: &str = "fleet_denials";
const MAP_TREES: &str = "fleet_groups";
const MAP_SUBORDINATES: &str = "fleet_subuids";

/// Most who may pass: users times GPUs.
pub const PASSES_MAX: u32 = 65_536;
/// Most pairs of user and GPU whose denials are counted.
const DENIALS_MAX: u32 = 16_384;
const TREES_MAX: u32 = 16_384;
/// Most prefixes of subordinate numbers.
pub const SUBORDINATES_MAX: u32 = 65_536;

/// A user, and a GPU by its minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pass {
    pub(super) who: u32,
    pub(super) gpu: u32,
}

impl Pass {
    /// This user, this GPU.
    #[must_use]
    pub fn user(uid: u32, minor: u32) -> Self {
        Self { who: uid, gpu: minor }
    }

    /// This user, every GPU.
    #[must_use]
    pub fn exempt_user(uid: u32) -> Self {
        Self { who: uid, gpu: EVERY_GPU }
    }

    /// Everybody whose own group is this one, every GPU.
    #[must_use]
    pub fn exempt_group(gid: u32) -> Self {
        Self { who: gid, gpu: EVERY_GPU_FOR_GROUP }
    }

    fn key(self) -> [u8; 8] {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&self.who.to_ne_bytes());
        key[4..].copy_from_slice(&self.gpu.to_ne_bytes());
        key
    }

    fn of_key(key: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = key;
        Self { who: u32::from_ne_bytes([a, b, c, d]), gpu: u32::from_ne_bytes([e, f, g, h]) }
    }
}

/// Who is counted as denied: a user and a minor number.
pub type Denied = (u32, u32);

/// What the gate is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Else it only counts.
    pub deny: bool,
    /// Major number of the GPUs' device nodes.
    pub cards: u32,
    pub passes: BTreeSet<Pass>,
}

#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("no cgroup2 tree is mounted here: this machine has cgroup v1 alone")]
    NoCgroup2,
    #[error("{action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("this kernel does not take the program: {log}")]
    Load { log: String, source: io::Error },
    #[error("{action}")]
    Bpf { action: &'static str, source: io::Error },
    #[error("{count} entries, at most {PASSES_MAX}")]
    TooMany { count: usize },
    #[error("{count} prefixes of subordinate numbers, at most {SUBORDINATES_MAX}")]
    TooManySubordinates { count: usize },
}

fn bpf_error(action: &'static str) -> impl FnOnce(io::Error) -> GateError {
    move |source| GateError::Bpf { action, source }
}

/// Where the gate is, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    cgroup: PathBuf,
    /// The group of all jobs; none where the gate is not above it.
    jobs: Option<PathBuf>,
    /// The group of dockerd's containers; the same.
    containers: Option<PathBuf>,
    /// The tree's own root is there; another group is made.
    is_root: bool,
}

impl Site {
    /// The root of the cgroup2 tree, or `below` it. `jobs` is the name of the group of all jobs, `containers` that of
    /// dockerd's containers.
    pub fn find(below: Option<&str>, jobs: &str, containers: &str) -> Result<Self, GateError> {
        let hierarchies = Hierarchies::detect()?;
        let root = hierarchies.unified().ok_or(GateError::NoCgroup2)?;
        let cgroup = below.map_or_else(|| root.to_owned(), |below| root.join(below));
        let beneath = |group: PathBuf| {
            let group = root.join(group);
            (group.starts_with(&cgroup) && group != cgroup).then_some(group)
        };
        let (jobs, containers) = (beneath(group_path(jobs)), beneath(PathBuf::from(containers)));
        Ok(Self { jobs, containers, is_root: below.is_none(), cgroup })
    }

    /// The groups that show which user their processes run for, by their ids, as the program reads it; and the users
    /// who have such a group for their containers.
    fn groups(&self) -> (BTreeMap<[u8; 8], u64>, BTreeSet<u32>) {
        let (mut groups, mut users) = (BTreeMap::new(), BTreeSet::new());
        // One that is not there says nothing.
        let id = |path: &Path| Some(std::fs::metadata(path).ok()?.ino().to_ne_bytes());
        groups.extend(self.jobs.as_deref().and_then(id).map(|id| (id, JOBS)));
        let Some(parent) = &self.containers else { return (groups, users) };
        groups.extend(id(parent).map(|id| (id, stands_for(NOBODY))));
        for uid in containers::users_below(parent) {
            if let Some(id) = id(&parent.join(containers::slice_of(uid))) {
                groups.insert(id, stands_for(uid));
                users.insert(uid);
            }
        }
        (groups, users)
    }

    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    fn open(&self) -> Result<File, GateError> {
        let source = |source| GateError::File { action: "open", path: self.cgroup.clone(), source };
        File::open(&self.cgroup).map_err(source)
    }

    fn make(&self) -> Result<(), GateError> {
        if self.is_root {
            return Ok(());
        }
        let made = std::fs::create_dir_all(&self.cgroup);
        made.map_err(|source| GateError::File { action: "make", path: self.cgroup.clone(), source })
    }
}

#[derive(Debug)]
struct Maps {
    passes: Map<8>,
    denials: Map<8>,
    trees: Map<8>,
    subordinates: Map<8>,
}

fn new_map(kind: MapKind, name: &str, most: u32) -> Result<Map<8>, GateError> {
    bpf::map_create(kind, name, 8, 8, most).and_then(Map::new).map_err(bpf_error("make a map"))
}

impl Maps {
    /// Those of a program, as far as it has them: what one of an earlier version lacks is made.
    fn of(ids: &[u32]) -> Result<Self, GateError> {
        let mut found: BTreeMap<String, OwnedFd> = BTreeMap::new();
        // A map that cannot be opened any more is made.
        for map in ids.iter().filter_map(|id| bpf::map_by_id(*id).ok()) {
            if let Ok(facts) = bpf::map_facts(map.as_fd()) {
                found.insert(facts.name, map);
            }
        }
        let mut take = |kind, name: &str, most| {
            let known = found.remove(name).and_then(|map| Map::new(map).ok());
            known.map_or_else(|| new_map(kind, name, most), Ok)
        };
        Ok(Self {
            passes: take(MapKind::Hash, MAP_PASSES, PASSES_MAX)?,
            denials: take(MapKind::Hash, MAP_DENIALS, DENIALS_MAX)?,
            trees: take(MapKind::Hash, MAP_TREES, TREES_MAX)?,
            subordinates: take(MapKind::LongestPrefix, MAP_SUBORDINATES, SUBORDINATES_MAX)?,
        })
    }
}

/// A prefix as the kernel finds numbers by it: how many bits, then the number with its highest bits first.
fn prefix_key(prefix: Prefix) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&prefix.bits.to_ne_bytes());
    key[4..].copy_from_slice(&prefix.first.to_be_bytes());
    key
}

/// One of our programs on a control group.
#[derive(Debug)]
struct Found {
    id: u32,
    program: OwnedFd,
    deny: bool,
    maps: Vec<u32>,
}

fn find(cgroup: &File) -> Result<Vec<Found>, GateError> {
    let ids = bpf::query(cgroup.as_fd()).map_err(bpf_error("query the programs of the cgroup"))?;
    let mut found = Vec::new();
    for id in ids {
        // One that went away meanwhile is not there.
        let Ok(program) = bpf::program_by_id(id) else { continue };
        let facts =
            bpf::program_facts(program.as_fd()).map_err(bpf_error("ask what a program is"))?;
        if facts.name == PROGRAM_ON || facts.name == PROGRAM_WARN {
            found.push(Found { id, program, deny: facts.name == PROGRAM_ON, maps: facts.maps });
        }
    }
    Ok(found)
}

/// The gate in force.
#[derive(Debug)]
pub struct Gate {
    site: Site,
    id: u32,
    deny: bool,
    cards: u32,
    maps: Maps,
    passes: BTreeSet<Pass>,
    /// As this gate last wrote them to the kernel.
    subordinates: Option<Arc<Subordinates>>,
    /// Whether the kernel tells jobs by their control group; else their owners pass.
    tells_jobs: bool,
}

/// What there is of a gate, as `fleet-agent gate show` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub deny: bool,
    pub passes: Vec<Pass>,
    pub denials: Vec<(Denied, u64)>,
}

impl Gate {
    /// Puts the gate in force, in the place of one that is there. Until the moment at which the new one is in
    /// force the old one is; where there is none, nobody is kept out before.
    pub fn install(site: Site, wish: &Wish) -> Result<Self, GateError> {
        site.make()?;
        let cgroup = site.open()?;
        let before = find(&cgroup)?;
        let maps = Maps::of(before.first().map_or(&[], |found| &found.maps))?;
        let held = maps.passes.entries(entries_max()).map_err(bpf_error("read the map"))?;
        let passes = held.into_iter().map(|(key, _)| Pass::of_key(key)).collect();
        let (deny, cards) = (wish.deny, wish.cards);
        let (subordinates, tells_jobs) = (None, true);
        let mut gate = Self { site, id: 0, deny, cards, maps, passes, subordinates, tells_jobs };
        gate.set_passes(&wish.passes)?;
        gate.set_trees()?;
        gate.put(&cgroup, &before)?;
        Ok(gate)
    }

    fn put(&mut self, cgroup: &File, before: &[Found]) -> Result<(), GateError> {
        let name = if self.deny { PROGRAM_ON } else { PROGRAM_WARN };
        let (program, tells_jobs) = load(&self.maps, self.deny, self.cards, name)?;
        self.tells_jobs = tells_jobs;
        self.id =
            bpf::program_id(program.as_fd()).map_err(bpf_error("ask for the program's id"))?;
        let old = before.first().map(|found| found.program.as_fd());
        let replaced =
            old.is_some_and(|old| bpf::attach(cgroup.as_fd(), program.as_fd(), Some(old)).is_ok());
        let mut rest = before.iter().skip(usize::from(replaced));
        if !replaced {
            // Before Linux 5.6: the new one first, and for a moment both.
            bpf::attach(cgroup.as_fd(), program.as_fd(), None)
                .map_err(bpf_error("attach the gate to the cgroup"))?;
        }
        rest.try_for_each(|found| bpf::detach(cgroup.as_fd(), found.program.as_fd()))
            .map_err(bpf_error("take the gate before this one off the cgroup"))?;
        if self.is_there()? {
            return Ok(());
        }
        let source = io::Error::other("the kernel does not list it");
        Err(GateError::Bpf { action: "see the gate on the cgroup", source })
    }

    /// Whether nobody has taken it off.
    pub fn is_there(&self) -> Result<bool, GateError> {
        let cgroup = self.site.open()?;
        let ids = bpf::query(cgroup.as_fd()).map_err(bpf_error("query the programs"))?;
        Ok(ids.contains(&self.id))
    }

    /// Whether it is what it is to be, but for who passes.
    #[must_use]
    pub fn has_shape(&self, wish: &Wish) -> bool {
        self.deny == wish.deny && self.cards == wish.cards
    }

    #[must_use]
    pub fn denies(&self) -> bool {
        self.deny
    }

    #[must_use]
    pub fn tells_jobs(&self) -> bool {
        self.tells_jobs
    }

    /// Who passes from now on. Acts at once; who may not any more goes first.
    pub fn set_passes(&mut self, wanted: &BTreeSet<Pass>) -> Result<(), GateError> {
        if wanted.len() > entries_max() {
            return Err(GateError::TooMany { count: wanted.len() });
        }
        let gone: Vec<Pass> = self.passes.difference(wanted).copied().collect();
        for pass in gone {
            self.maps.passes.remove(&pass.key()).map_err(bpf_error("take an entry away"))?;
            self.passes.remove(&pass);
        }
        let new: Vec<Pass> = wanted.difference(&self.passes).copied().collect();
        for pass in new {
            self.maps.passes.set(&pass.key(), 1).map_err(bpf_error("add an entry"))?;
            self.passes.insert(pass);
        }
        Ok(())
    }

    /// The groups of jobs and of containers may be made and removed as those come and go: each time it is another one.
    /// Gives the users who have one of the latter; none where the kernel does not go by groups.
    pub fn set_trees(&self) -> Result<Option<BTreeSet<u32>>, GateError> {
        let (groups, users) = self.site.groups();
        set_map(&self.maps.trees, TREES_MAX, &groups)?;
        let goes_by_groups = self.tells_jobs && self.site.containers.is_some();
        Ok(goes_by_groups.then_some(users))
    }

    /// Sets which user each range of subordinate numbers stands for, from now on.
    pub fn set_subordinates(&mut self, subordinates: &Arc<Subordinates>) -> Result<(), GateError> {
        if self.subordinates.as_ref().is_some_and(|known| known == subordinates) {
            return Ok(());
        }
        let wanted: BTreeMap<[u8; 8], u64> = subordinates
            .prefixes()
            .map(|(prefix, owner)| (prefix_key(prefix), stands_for(owner)))
            .collect();
        if wanted.len() > usize_of(SUBORDINATES_MAX) {
            return Err(GateError::TooManySubordinates { count: wanted.len() });
        }
        set_map(&self.maps.subordinates, SUBORDINATES_MAX, &wanted)?;
        self.subordinates = Some(Arc::clone(subordinates));
        Ok(())
    }

    /// How often each user was denied each GPU since the gate was made first.
    pub fn denials(&self) -> Result<BTreeMap<Denied, u64>, GateError> {
        Ok(denials_of(&self.maps)?.into_iter().collect())
    }
}

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn entries_max() -> usize {
    usize_of(PASSES_MAX)
}

/// Brings a map to these entries. What is not among them goes first.
fn set_map(map: &Map<8>, most: u32, wanted: &BTreeMap<[u8; 8], u64>) -> Result<(), GateError> {
    let held = map.entries(usize_of(most)).map_err(bpf_error("read the map"))?;
    let held: BTreeMap<[u8; 8], u64> = held.into_iter().collect();
    for key in held.keys().filter(|key| !wanted.contains_key(*key)) {
        map.remove(key).map_err(bpf_error("take an entry away"))?;
    }
    for (key, value) in wanted.iter().filter(|(key, value)| held.get(*key) != Some(*value)) {
        map.set(key, *value).map_err(bpf_error("add an entry"))?;
    }
    Ok(())
}

fn denials_of(maps: &Maps) -> Result<Vec<(Denied, u64)>, GateError> {
    let entries =
        maps.denials.entries(usize_of(DENIALS_MAX)).map_err(bpf_error("read the denials"))?;
    let denied = |(key, count)| {
        let Pass { who, gpu } = Pass::of_key(key);
        ((who, gpu), count)
    };
    Ok(entries.into_iter().map(denied).collect())
}

/// Loads the program, and says whether it tells jobs by their control group.
fn load(
    maps: &Maps,
    deny: bool,
    cards: u32,
    name: &'static str,
) -> Result<(OwnedFd, bool), GateError> {
    let shape = Shape {
        cards,
        deny,
        passes: maps.passes.as_fd().as_raw_fd(),
        denials: maps.denials.as_fd().as_raw_fd(),
        subordinates: maps.subordinates.as_fd().as_raw_fd(),
        trees: Some(maps.trees.as_fd().as_raw_fd()),
    };
    let (first, first_log) = match bpf::load(&assemble(shape), name) {
        Ok(program) => return Ok((program, true)),
        Err(refused) => refused,
    };
    // Most likely a kernel on which device programs cannot ask for the control group.
    match bpf::load(&assemble(Shape { trees: None, ..shape }), name) {
        Ok(program) => Ok((program, false)),
        Err((_, log)) if log.is_empty() => Err(GateError::Load { log: first_log, source: first }),
        Err((source, log)) => Err(GateError::Load { log, source }),
    }
}

/// Whether this kernel takes the program, without putting it anywhere: whether it would tell jobs.
pub fn try_out() -> Result<bool, GateError> {
    let (_, tells_jobs) = load(&Maps::of(&[])?, false, NVIDIA_MAJOR_USUAL, PROGRAM_WARN)?;
    Ok(tells_jobs)
}

/// What gate is in force there, no matter who installed it; `None` where there is none.
pub fn show(site: &Site) -> Result<Option<Shown>, GateError> {
    if !site.cgroup.is_dir() {
        return Ok(None);
    }
    let found = find(&site.open()?)?;
    let Some(one) = found.first() else { return Ok(None) };
    let maps = Maps::of(&one.maps)?;
    let passes = maps.passes.entries(entries_max()).map_err(bpf_error("read the map"))?;
    let mut passes: Vec<Pass> = passes.into_iter().map(|(key, _)| Pass::of_key(key)).collect();
    passes.sort_unstable();
    let mut denials = denials_of(&maps)?;
    denials.sort_unstable();
    Ok(Some(Shown { deny: one.deny, passes, denials }))
}

/// Takes every gate of ours off. Says whether there was one.
pub fn remove(site: &Site) -> Result<bool, GateError> {
    if !site.cgroup.is_dir() {
        return Ok(false);
    }
    let cgroup = site.open()?;
    let found = find(&cgroup)?;
    for one in &found {
        tracing::debug!(id = one.id, "taking the gate off");
        bpf::detach(cgroup.as_fd(), one.program.as_fd())
            .map_err(bpf_error("take the gate off the cgroup"))?;
    }
    Ok(!found.is_empty())
}
