//! One allocation's control group across the hierarchies: where it is, making it, joining it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{CgroupError, Hierarchies, Mode, read, write};

/// Controllers we ask of cgroup v2 for every allocation.
const CONTROLLERS: [&str; 4] = ["cpu", "io", "memory", "pids"];

/// Where an allocation's control group is to be, as the agent orders it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupPlan {
    /// `parent/name` in each hierarchy: no service manager to ask.
    Path { parent: String, name: String },
    /// Inside the shim's own systemd unit, which is delegated to it: `unit/shim` and `unit/job`.
    OwnUnit { slice: String, unit: String },
}

impl CgroupPlan {
    /// The job's group relative to each hierarchy's mount point.
    #[must_use]
    pub fn relative(&self) -> PathBuf {
        match self {
            Self::Path { parent, name } => Path::new(parent.trim_matches('/')).join(name),
            Self::OwnUnit { slice, unit } => Path::new(slice).join(unit).join("job"),
        }
    }
}

/// The directories of one allocation's control group. Written into `state.json`, so that the agent
/// finds them after everything else has died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    pub mode: Mode,
    /// The directory in the cgroup2 tree.
    pub unified: Option<PathBuf>,
    /// v1 controller to directory.
    #[serde(default)]
    pub v1: BTreeMap<String, PathBuf>,
    /// Directories in the hierarchies we do not use. runc makes one in each, and they are to go as well.
    #[serde(default)]
    pub unused: Vec<PathBuf>,
    /// The group's path below each mount point, as OCI's `cgroupsPath` wants it.
    pub relative: PathBuf,
}

/// How a new process of an allocation comes in, by a way that waits for nobody.
///
/// A move of a whole process (`cgroup.procs`) takes a lock of the whole system and then waits for an RCU
/// grace period, 5 to 20 ms. A thread that moves itself (`tasks`, v1 only) and a child that is born inside
/// (`CLONE_INTO_CGROUP`, cgroup2 only) do not (kernel/cgroup/cgroup.c: `cgroup_procs_write_start`,
/// `cgroup_css_set_fork`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// v1 `tasks` files, each of which holds limits only: a process of one thread writes "0" to them.
    pub limited: Vec<PathBuf>,
    /// The cgroup2 directory, with the filter.
    pub unified: Option<PathBuf>,
}

impl Cgroup {
    /// Where the plan's group is or would be. For a unit this is where systemd puts it.
    pub fn locate(hierarchies: &Hierarchies, plan: &CgroupPlan) -> Result<Self, CgroupError> {
        let name = match plan {
            CgroupPlan::Path { name, .. } => name,
            CgroupPlan::OwnUnit { unit, .. } => unit,
        };
        // The last part must be the allocation's own: "." would make it the parent of all of them.
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(CgroupError::BadName { name: name.clone() });
        }
        Self::at(hierarchies, &plan.relative())
    }

    pub(super) fn at(hierarchies: &Hierarchies, relative: &Path) -> Result<Self, CgroupError> {
        let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || relative.as_os_str().is_empty() {
            return Err(CgroupError::BadName { name: relative.display().to_string() });
        }
        let v1: BTreeMap<_, _> = hierarchies
            .v1_used()
            .into_iter()
            .map(|(name, point)| (name.to_owned(), point.join(relative)))
            .collect();
        let mut unused: Vec<_> =
            hierarchies.v1_points.iter().map(|point| point.join(relative)).collect();
        unused.retain(|dir| v1.values().all(|used| used != dir));
        Ok(Self {
            mode: hierarchies.mode(),
            unified: hierarchies.unified().map(|point| point.join(relative)),
            v1,
            unused,
            relative: relative.to_owned(),
        })
    }

    /// Makes the group. For a unit on cgroup v2, the calling process first moves itself into `unit/shim`, with
    /// each process that it has started by now: a directory with controllers below it holds no processes of its own.
    pub fn create(hierarchies: &Hierarchies, plan: &CgroupPlan) -> Result<Self, CgroupError> {
        let group = match plan {
            CgroupPlan::Path { .. } => Self::locate(hierarchies, plan)?,
            CgroupPlan::OwnUnit { unit, .. } => {
                let own = own_unit(hierarchies, unit)?;
                if let (Mode::Unified, Some(root)) = (hierarchies.mode(), hierarchies.unified()) {
                    take_seat(&root.join(&own))?;
                }
                Self::at(hierarchies, &own.join("job"))?
            }
        };
        for dir in group.directories() {
            make(dir)?;
        }
        if group.mode == Mode::Unified
            && let Some(root) = hierarchies.unified()
        {
            enable_controllers(root, &group.relative, &CONTROLLERS)?;
        }
        Ok(group)
    }

    /// The unit that the group is in. Systemd leaves the inside of the unit to the shim. `None` without systemd.
    pub(super) fn unit(&self) -> Option<&Path> {
        self.relative.parent().filter(|unit| unit.extension() == Some("service".as_ref()))
    }

    /// Every directory of the group, the cgroup2 one last.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let mut seen: Vec<&Path> = Vec::new();
        for dir in self.v1.values() {
            if !seen.contains(&dir.as_path()) {
                seen.push(dir);
            }
        }
        seen.extend(self.unified.as_deref());
        seen.into_iter()
    }

    /// The directory whose members are the allocation's processes.
    #[must_use]
    pub fn tracking(&self) -> Option<&Path> {
        self.unified.as_deref().or_else(|| self.v1.get("freezer").map(PathBuf::as_path))
    }

    /// Where new processes come in.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let unified = self.unified.clone();
        let limited = self.directories().filter(|dir| Some(*dir) != unified.as_deref());
        Entry { limited: limited.map(|dir| dir.join("tasks")).collect(), unified }
    }

    /// True if the group exists in any hierarchy.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.directories().chain(self.unused.iter().map(PathBuf::as_path)).any(Path::exists)
    }
}

/// Passes controllers down from a directory of cgroup2 to the one at `relative` below it. A level that
/// refuses is not an error here: a limit that then cannot be set is.
pub(super) fn enable_controllers(
    top: &Path,
    relative: &Path,
    controllers: &[&str],
) -> Result<(), CgroupError> {
    let mut level = top.to_owned();
    for part in relative.components() {
        let enabled = read(&level.join("cgroup.subtree_control"))?;
        let offered = read(&level.join("cgroup.controllers"))?;
        for controller in controllers {
            let has = |text: &str| text.split_whitespace().any(|word| word == *controller);
            if has(&offered) && !has(&enabled) {
                let control = level.join("cgroup.subtree_control");
                // EBUSY: processes sit directly in this level. Seen later, as NoController.
                fs::write(control, format!("+{controller}")).ok();
            }
        }
        level.push(part);
    }
    Ok(())
}

/// The unit's path from this process's own membership, checked by name.
fn own_unit(hierarchies: &Hierarchies, unit: &str) -> Result<PathBuf, CgroupError> {
    let membership = read(Path::new("/proc/self/cgroup"))?;
    let wanted = |controllers: &str| {
        if hierarchies.unified().is_some() {
            controllers.is_empty()
        } else {
            controllers == "name=systemd"
        }
    };
    let found = membership
        .lines()
        .find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            wanted(controllers).then(|| parts.next().unwrap_or("/"))
        })
        .unwrap_or("/");
    let path = Path::new(found.trim_start_matches('/'));
    // A second start inside the same unit finds itself in `unit/shim` already.
    let path = if path.ends_with("shim") { path.parent().unwrap_or(path) } else { path };
    if path.file_name().is_none_or(|name| name != unit) {
        return Err(CgroupError::NotInUnit { unit: unit.to_owned(), found: found.to_owned() });
    }
    Ok(path.to_owned())
}

/// Moves all processes of a unit's own directory into `shim` below it: the shim, and the writer of a job's
/// output file, which it has forked already.
fn take_seat(unit: &Path) -> Result<(), CgroupError> {
    let seat = unit.join("shim");
    make(&seat)?;
    let procs = seat.join("cgroup.procs");
    write(&procs, "0")?;
    for pid in read(&unit.join("cgroup.procs"))?.lines() {
        // One that has ended since is nowhere any more.
        fs::write(&procs, pid).ok();
    }
    Ok(())
}

/// Tries of making a directory whose parent an ending allocation's owner removes at the same moment.
const MAKE_TRIES: u32 = 5;

pub(super) fn make(dir: &Path) -> Result<(), CgroupError> {
    let mut result = fs::create_dir_all(dir);
    for _ in 1..MAKE_TRIES {
        match &result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                result = fs::create_dir_all(dir)
            }
            _ => break,
        }
    }
    result.map_err(|source| CgroupError::File { action: "create", path: dir.to_owned(), source })
}
