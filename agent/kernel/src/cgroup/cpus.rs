//! The CPUs that an allocation runs on, where it is to keep to some: the cpuset controller.
//!
//! `start` in the shim calls [`Cgroup::place`]. It is set below what systemd manages and delegates, as the other limits
//! are, so no property of a unit says anything of it. It must never keep a job from starting, nor leave it fewer CPUs
//! than its limit: if the set does not come out as wanted, it is taken back. Memory nodes are left alone; v1 lets
//! nobody into a group that names none, so there they are all that the group above has.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Cgroup, CgroupError, Hierarchies, Mode, group, read, write};

const CONTROLLER: &str = "cpuset";
/// Numbers of CPUs that are taken for such; Linux can be built for 8,192.
const NUMBERS_MAX: u32 = 1 << 16;
/// Where the kernel says on which CPUs this process may run: without those that the boot or a service's
/// `CPUAffinity=` sets apart.
const OWN_STATUS: &str = "/proc/self/status";

/// CPUs by their numbers, written as the kernel does: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPUs such as 0-3,8")]
pub struct BadCpuList(String);

impl CpuSet {
    /// Reads the kernel's list format.
    pub fn parse(text: &str) -> Result<Self, BadCpuList> {
        let bad = || BadCpuList(text.to_owned());
        let mut found = BTreeSet::new();
        for range in text.trim().split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n < NUMBERS_MAX);
            let (first, last) = number(first).zip(number(last)).ok_or_else(bad)?;
            found.extend(first..=last);
        }
        Ok(Self(found))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are in both.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Takes in those of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl TryFrom<String> for CpuSet {
    type Error = BadCpuList;

    fn try_from(text: String) -> Result<Self, BadCpuList> {
        Self::parse(&text)
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl Cgroup {
    /// Has the group run on those of `wanted` that it may use at all, if these are at least `at_least` and not all of
    /// them anyway. After an error it is as if nobody had asked.
    ///
    /// On v1 a process takes up the set when it joins, so this comes before the first one. On v2 it comes after it: up to
    /// Linux 6.3 a process that is born in a group by `CLONE_INTO_CGROUP` keeps the CPUs of its parent until the set changes
    /// (`cpuset_fork`; "cgroup/cpuset: Make cpuset_fork() handle CLONE_INTO_CGROUP properly").
    pub fn place(
        &mut self,
        hierarchies: &Hierarchies,
        wanted: &CpuSet,
        at_least: usize,
    ) -> Result<(), CgroupError> {
        let own = allowed_here()?;
        let choose = |allowed: &CpuSet| chosen(wanted, &allowed.common(&own), at_least);
        if let (Mode::Unified, Some(root)) = (self.mode, hierarchies.unified()) {
            // Above its unit systemd has passed it down (`Delegate=`, from 244 on), or has its reasons.
            let delegated = self.unit().unwrap_or(Path::new(""));
            let below = self.relative.strip_prefix(delegated).unwrap_or(&self.relative);
            group::enable_controllers(&root.join(delegated), below, &[CONTROLLER])?;
            return place_unified(&self.controller(CONTROLLER)?, choose);
        }
        let missing =
            || CgroupError::NoController { controller: CONTROLLER, path: self.relative.clone() };
        let point = hierarchies.v1(CONTROLLER).ok_or_else(missing)?;
        if let Some(dir) = place_v1(point, &self.relative, choose)? {
            self.unused.retain(|unused| *unused != dir);
            self.v1.insert(CONTROLLER.to_owned(), dir);
        }
        Ok(())
    }
}

fn chosen(wanted: &CpuSet, allowed: &CpuSet, at_least: usize) -> Option<CpuSet> {
    let both = wanted.common(allowed);
    (both.len() >= at_least.max(1) && both != *allowed).then_some(both)
}

fn place_unified(
    dir: &Path,
    choose: impl Fn(&CpuSet) -> Option<CpuSet>,
) -> Result<(), CgroupError> {
    let effective = dir.join("cpuset.cpus.effective");
    let Some(chosen) = choose(&read_set(&effective)?) else { return Ok(()) };
    let file = dir.join("cpuset.cpus");
    let placed = write(&file, &chosen.to_string()).and_then(|()| verify(&effective, &chosen));
    if placed.is_err() {
        // An empty line is no set of its own. What could not be written needs no taking back.
        write(&file, "\n").ok();
    }
    placed
}

/// Gives the directory, unless nothing is to be done.
fn place_v1(
    point: &Path,
    relative: &Path,
    choose: impl Fn(&CpuSet) -> Option<CpuSet>,
) -> Result<Option<PathBuf>, CgroupError> {
    let mut above = point.to_owned();
    let parts: Vec<_> = relative.components().collect();
    let Some((last, between)) = parts.split_last() else { return Ok(None) };
    for part in between {
        let level = above.join(part);
        group::make(&level)?;
        inherit(&level, &above, "cpuset.cpus")?;
        inherit(&level, &above, "cpuset.mems")?;
        above = level;
    }
    // What the level above may use at this moment: without CPUs that are off.
    let Some(chosen) = choose(&read_set(&above.join("cpuset.effective_cpus"))?) else {
        return Ok(None);
    };
    let dir = above.join(last);
    let place = || {
        group::make(&dir)?;
        inherit(&dir, &above, "cpuset.mems")?;
        write(&dir.join("cpuset.cpus"), &chosen.to_string())?;
        verify(&dir.join("cpuset.effective_cpus"), &chosen)
    };
    let placed = place();
    if placed.is_err() {
        // runc would run the job in a group below it.
        fs::remove_dir(&dir).ok();
    }
    placed.map(|()| Some(dir))
}

/// A new group of v1 names nothing, and then lets nobody in.
fn inherit(dir: &Path, above: &Path, file: &'static str) -> Result<(), CgroupError> {
    let path = dir.join(file);
    if !read_set(&path)?.is_empty() {
        return Ok(());
    }
    write(&path, read(&above.join(file))?.trim())
}

fn verify(effective: &Path, chosen: &CpuSet) -> Result<(), CgroupError> {
    let found = read_set(effective)?;
    if found == *chosen {
        return Ok(());
    }
    Err(CgroupError::NotKept {
        path: effective.to_owned(),
        wanted: chosen.to_string(),
        found: found.to_string(),
    })
}

/// Lists of memory nodes are written in the same way.
fn read_set(path: &Path) -> Result<CpuSet, CgroupError> {
    let bad = |source| CgroupError::CpuList { path: path.to_owned(), source };
    CpuSet::parse(&read(path)?).map_err(bad)
}

/// The CPUs this process may run on, and its children with it.
fn allowed_here() -> Result<CpuSet, CgroupError> {
    let path = Path::new(OWN_STATUS);
    let status = read(path)?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let bad = |source| CgroupError::CpuList { path: path.to_owned(), source };
    CpuSet::parse(list.unwrap_or_default()).map_err(bad)
}

#[cfg(test)]
mod tests;
