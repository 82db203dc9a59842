//! Control groups of an allocation on v2, hybrid and v1 machines: create, limit, read, kill, remove.
//!
//! The shim creates and fills them; the agent uses the same code to clean up after a lost shim. Nothing
//! here ever kills by a stored process id: a group is killed through the kernel's own member list.
//!
//! Limits and what the shim counts are plain files, written and read back here rather than through cgroups-rs: the
//! shim must stay small, and a limit the kernel rounded away must be noticed. What people see of running jobs the
//! agent reads by cgroups-rs (`agent/src/job_use`).

mod cpus;
mod disks;
mod empty;
mod group;
mod limits;
mod oom;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub use cpus::{BadCpuList, CpuSet};
pub use disks::{Disk, DiskLimits};
pub use group::{Cgroup, CgroupPlan, Entry};
pub use limits::{Limits, Usage};
pub use oom::OomWatch;

/// Where systemd and everybody else mount the hierarchies.
pub const ROOT: &str = "/sys/fs/cgroup";
/// The v1 controllers in whose hierarchies systemd makes and removes the groups of units (systemd's
/// `src/basic/cgroup-util.h`: `CGROUP_MASK_V1`), besides its own `name=systemd`.
const OF_SYSTEMD: [&str; 6] = ["blkio", "cpu", "cpuacct", "devices", "memory", "pids"];
/// Between two tries to remove a group.
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// Which kind of hierarchy holds processes and which holds the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// cgroup v2 only.
    Unified,
    /// A bare cgroup2 tree beside v1 controllers.
    Hybrid,
    /// v1 only.
    Legacy,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("no cgroup hierarchy is mounted below {}", root.display())]
    NotMounted { root: PathBuf },
    #[error("controller {controller} is not available for {}", path.display())]
    NoController { controller: &'static str, path: PathBuf },
    #[error("{} reads {found:?} after writing {wanted:?}", path.display())]
    NotKept { path: PathBuf, wanted: String, found: String },
    #[error("{}", path.display())]
    CpuList { path: PathBuf, source: BadCpuList },
    #[error("cgroup name {name:?} is not a plain path")]
    BadName { name: String },
    #[error("this process is not in the unit {unit}: it is in {found}")]
    NotInUnit { unit: String, found: String },
    #[error("{} still has processes", path.display())]
    StillPopulated { path: PathBuf },
}

/// The mounted hierarchies of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    mode: Mode,
    unified: Option<PathBuf>,
    /// v1 controller name to mount point; co-mounted controllers share one.
    v1: BTreeMap<String, PathBuf>,
    /// Every v1 mount point, also of named hierarchies.
    v1_points: Vec<PathBuf>,
}

impl Hierarchies {
    /// Reads `/proc/self/mountinfo`.
    pub fn detect() -> Result<Self, CgroupError> {
        Self::detect_in(Path::new("/proc/self/mountinfo"), Path::new(ROOT))
    }

    /// As [`Self::detect`], from another mount table and counting only mounts at or below `root`.
    pub fn detect_in(mountinfo: &Path, root: &Path) -> Result<Self, CgroupError> {
        let text = read(mountinfo)?;
        Self::parse(&text, root).ok_or_else(|| CgroupError::NotMounted { root: root.to_owned() })
    }

    fn parse(mountinfo: &str, root: &Path) -> Option<Self> {
        let mut unified = None;
        let mut v1 = BTreeMap::new();
        let mut v1_points = Vec::new();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let mut right = right.split(' ');
            let (Some(kind), Some(options)) = (right.next(), right.nth(1)) else { continue };
            let Some(point) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
            if !point.starts_with(root) {
                continue;
            }
            match kind {
                "cgroup2" => unified = unified.or(Some(point)),
                "cgroup" => {
                    for option in options.split(',').filter(|option| !is_mount_flag(option)) {
                        v1.entry(option.to_owned()).or_insert_with(|| point.clone());
                    }
                    v1_points.push(point);
                }
                _ => {}
            }
        }
        let mode = match (&unified, v1.is_empty()) {
            (Some(_), true) => Mode::Unified,
            (Some(_), false) => Mode::Hybrid,
            (None, false) => Mode::Legacy,
            (None, true) => return None,
        };
        Some(Self { mode, unified, v1, v1_points })
    }

    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Mount point of the cgroup2 tree.
    #[must_use]
    pub fn unified(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// Mount point of a v1 controller.
    #[must_use]
    pub fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.get(controller).map(PathBuf::as_path)
    }

    /// Every v1 controller that is mounted.
    pub fn v1_controllers(&self) -> impl Iterator<Item = &str> {
        self.v1.keys().map(String::as_str)
    }

    /// Removes a group that only held others (the parent of allocations) wherever it is empty. For the
    /// agent's own end; where anything is left in it, the kernel refuses, rightly. The last shims may
    /// still be at it, so it is tried until `limit` is over.
    pub fn remove_empty(&self, relative: &Path, limit: Duration) {
        remove_everywhere(self.v1_points.iter().chain(&self.unified), relative, limit);
    }

    /// The same beside systemd, which removes its slices by itself, but only where it makes them: in the hierarchies
    /// of other controllers (freezer) what we made there stays, with the slice above it.
    pub fn remove_empty_beside_systemd(&self, relative: &Path, limit: Duration) {
        let managed: Vec<_> = OF_SYSTEMD.iter().filter_map(|name| self.v1.get(*name)).collect();
        let others = self.v1.values().filter(|point| !managed.contains(point));
        remove_everywhere(others, relative, limit);
    }

    /// The v1 controllers an allocation uses here. What cgroup2 can do beside them is left to cgroup2:
    /// the device filter, freezing, killing, counting CPU time.
    fn v1_used(&self) -> Vec<(&'static str, &Path)> {
        let wanted: &[&'static str] = match self.mode {
            Mode::Unified => &[],
            Mode::Hybrid => &["blkio", "cpu", "memory", "pids"],
            Mode::Legacy => &["blkio", "cpu", "cpuacct", "memory", "pids", "freezer", "devices"],
        };
        wanted.iter().filter_map(|name| self.v1(name).map(|point| (*name, point))).collect()
    }
}

/// Tries until `limit` is over, as the last of who is in there may be ending.
fn remove_everywhere<'a>(
    points: impl Iterator<Item = &'a PathBuf>,
    relative: &Path,
    limit: Duration,
) {
    let mut left: Vec<PathBuf> =
        points.map(|point| point.join(relative)).filter(|group| group.is_dir()).collect();
    let deadline = Instant::now() + limit;
    loop {
        left.retain(|group| fs::remove_dir(group).is_err() && group.is_dir());
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        thread::sleep(REMOVE_PAUSE);
    }
}

/// Options of a v1 mount that are not controllers. Named hierarchies (`name=systemd`) hold none of ours.
fn is_mount_flag(option: &str) -> bool {
    const FLAGS: [&str; 8] = [
        "rw",
        "ro",
        "none",
        "noprefix",
        "clone_children",
        "xattr",
        "cpuset_v2_mode",
        "favordynmods",
    ];
    FLAGS.contains(&option) || option.contains('=')
}

fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, text: &str) -> Result<(), CgroupError> {
    fs::write(path, text).map_err(|source| CgroupError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// The number after `key` in a file of `key value` lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        if name == key { value.trim().parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests;
