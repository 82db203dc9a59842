//! Limits of a group, written and read back, and what the group has used.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Cgroup, CgroupError, DiskLimits, Mode, keyed, read, write};

/// Scheduling period of the CPU quota, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel refuses a smaller quota.
const CPU_QUOTA_MIN_US: u64 = 1_000;

/// What an allocation may use. `None` leaves the kernel's default, which is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a CPU, as a hard quota.
    #[serde(default)]
    pub cpu_quota_millis: Option<u64>,
    /// Share under contention, 1 to 10,000 (cgroup v2's scale; 100 is the default).
    #[serde(default)]
    pub cpu_weight: Option<u64>,
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    #[serde(default)]
    pub pids_max: Option<u64>,
    #[serde(default)]
    pub disks: DiskLimits,
}

/// What a group has used so far. `None` where this kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_usec: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    pub oom_kills: u64,
    pub pids: Option<u64>,
}

impl Cgroup {
    /// Sets every limit and reads it back. An error leaves the group as far as it got: do not use it.
    pub fn limit(&self, limits: &Limits) -> Result<(), CgroupError> {
        if let Some(millis) = limits.cpu_quota_millis {
            self.limit_cpu_quota(millis)?;
        }
        if let Some(weight) = limits.cpu_weight {
            self.limit_cpu_weight(weight.clamp(1, 10_000))?;
        }
        if let Some(bytes) = limits.memory_bytes {
            self.limit_memory(bytes)?;
        }
        if let Some(count) = limits.pids_max {
            set(&self.controller("pids")?.join("pids.max"), &count.to_string())?;
        }
        self.limit_disks(&limits.disks)
    }

    /// The directory in which a controller's files are.
    pub(super) fn controller(&self, name: &'static str) -> Result<PathBuf, CgroupError> {
        if self.mode != Mode::Unified {
            let relative = self.relative.clone();
            let missing = || CgroupError::NoController { controller: name, path: relative };
            return self.v1.get(name).cloned().ok_or_else(missing);
        }
        let dir = self.unified.clone().unwrap_or_default();
        let offered = read(&dir.join("cgroup.controllers"))?;
        if !offered.split_whitespace().any(|word| word == name) {
            return Err(CgroupError::NoController { controller: name, path: dir });
        }
        Ok(dir)
    }

    fn limit_cpu_quota(&self, millis: u64) -> Result<(), CgroupError> {
        let dir = self.controller("cpu")?;
        let quota = millis.saturating_mul(CPU_PERIOD_US / 1000).max(CPU_QUOTA_MIN_US);
        if self.mode == Mode::Unified {
            return set(&dir.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"));
        }
        set(&dir.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
        set(&dir.join("cpu.cfs_quota_us"), &quota.to_string())
    }

    fn limit_cpu_weight(&self, weight: u64) -> Result<(), CgroupError> {
        let dir = self.controller("cpu")?;
        if self.mode == Mode::Unified {
            return set(&dir.join("cpu.weight"), &weight.to_string());
        }
        // v1's default is 1024 where v2's is 100; the kernel keeps 2 to 262,144.
        set(&dir.join("cpu.shares"), &(weight * 1024 / 100).clamp(2, 262_144).to_string())
    }

    /// Memory with swap counted in where the kernel accounts for it, so that a job cannot escape into swap.
    fn limit_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        let dir = self.controller("memory")?;
        let bytes = bytes - bytes % page_size();
        if self.mode == Mode::Unified {
            set(&dir.join("memory.max"), &bytes.to_string())?;
            set_if_there(&dir.join("memory.swap.max"), "0")?;
            // One process killed by the OOM killer leaves a training run half dead: end all of it.
            return set_if_there(&dir.join("memory.oom.group"), "1");
        }
        set(&dir.join("memory.limit_in_bytes"), &bytes.to_string())?;
        set_if_there(&dir.join("memory.memsw.limit_in_bytes"), &bytes.to_string())
    }

    /// Reads what the group has used. Missing files are `None`, never an error: this is for the report.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let unified = self.unified.as_deref();
        let unified_cpu = unified
            .and_then(|dir| read(&dir.join("cpu.stat")).ok())
            .and_then(|text| keyed(&text, "usage_usec"));
        let number = |controller: &str, file: &str| -> Option<u64> {
            let dir = match self.mode {
                Mode::Unified => unified?,
                Mode::Hybrid | Mode::Legacy => self.v1.get(controller)?,
            };
            read(&dir.join(file)).ok()?.trim().parse().ok()
        };
        if self.mode == Mode::Unified {
            let events = unified.and_then(|dir| read(&dir.join("memory.events")).ok());
            return Usage {
                cpu_usec: unified_cpu,
                memory_bytes: number("memory", "memory.current"),
                memory_peak_bytes: number("memory", "memory.peak"),
                oom_kills: events.and_then(|text| keyed(&text, "oom_kill")).unwrap_or(0),
                pids: number("pids", "pids.current"),
            };
        }
        Usage {
            cpu_usec: unified_cpu
                .or_else(|| number("cpuacct", "cpuacct.usage").map(|nanos| nanos / 1000)),
            memory_bytes: number("memory", "memory.usage_in_bytes"),
            memory_peak_bytes: number("memory", "memory.max_usage_in_bytes"),
            oom_kills: self.v1.get("memory").map_or(0, |dir| oom_kills_v1(dir, 0)),
            pids: number("pids", "pids.current"),
        }
    }
}

/// v1 counts OOM kills where the victim was, not in the group whose limit was hit: add the tree up.
fn oom_kills_v1(dir: &Path, depth: u32) -> u64 {
    const DEPTH_MAX: u32 = 8;
    let own = read(&dir.join("memory.oom_control")).ok();
    let own = own.and_then(|text| keyed(&text, "oom_kill")).unwrap_or(0);
    if depth >= DEPTH_MAX {
        return own;
    }
    let below: u64 =
        super::empty::children(dir).iter().map(|child| oom_kills_v1(child, depth + 1)).sum();
    own + below
}

fn set(path: &Path, value: &str) -> Result<(), CgroupError> {
    write(path, value)?;
    let found = read(path)?;
    if found.trim() != value {
        return Err(CgroupError::NotKept {
            path: path.to_owned(),
            wanted: value.to_owned(),
            found: found.trim().to_owned(),
        });
    }
    Ok(())
}

/// For files a kernel may be built or booted without (swap accounting, older releases).
fn set_if_there(path: &Path, value: &str) -> Result<(), CgroupError> {
    if path.exists() { set(path, value) } else { Ok(()) }
}

fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096)
}
