//! Who has a GPU open: by the driver's word, and by the descriptors in `/proc`.
//!
//! Everything here reads `/proc` and may take a while on a busy node: call it on a thread of its own, and
//! only where a GPU is concerned. Nothing here ends a process.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fleet_core::id::AllocationId;
use fleet_core::name::GpuUuid;

use crate::gpu::GpuSnapshot;
use crate::proc_stat::started_ticks;

/// Descriptors of one process that are looked at.
const DESCRIPTORS_MAX: usize = 65_536;

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    /// Who started it, whatever it has become.
    pub real_uid: u32,
    pub real_gid: u32,
    /// When, in ticks since boot: with its number, that is this process and no other.
    pub started: u64,
    pub name: String,
    /// Its control groups, as the kernel lists them.
    pub cgroups: String,
    /// The file it runs, and whether that belongs to root.
    exe: Option<(std::path::PathBuf, bool)>,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {}, uid {})", self.name, self.pid, self.uid)
    }
}

impl Process {
    /// Whether it runs in the control group of that attempt.
    pub fn is_of(&self, id: &AllocationId) -> bool {
        let unit = crate::unit::unit_name(id.as_str());
        self.cgroups.split(['/', '\n']).any(|part| part == id.as_str() || part == unit)
    }

    /// As it was called; its name where that cannot be read.
    pub fn command(&self) -> String {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.trim().is_empty() { self.name.clone() } else { line.trim().to_owned() }
    }

    /// Whether it is one of the administrator's own, or ours.
    pub fn is_baseline(&self, names: &[String]) -> bool {
        let Some((exe, of_root)) = &self.exe else { return false };
        let ours = fs::read_link("/proc/self/exe").is_ok_and(|own| own == *exe);
        let name = exe.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ours || (*of_root && names.iter().any(|known| known == name))
    }
}

/// What `/proc` says of a process; `None` when there is none.
pub fn process(pid: u32) -> Option<Process> {
    let dir = Path::new("/proc").join(pid.to_string());
    let started = started_ticks(&pid.to_string())?;
    let uid = fs::metadata(&dir).ok()?.uid();
    let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
    let real = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let (real_uid, real_gid) = (real("Uid:").unwrap_or(uid), real("Gid:").unwrap_or(0));
    let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
    let cgroups = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
    let exe = fs::read_link(dir.join("exe")).ok().map(|path| {
        let of_root = fs::metadata(dir.join("exe")).is_ok_and(|meta| meta.uid() == 0);
        (path, of_root)
    });
    let name = name.trim().chars().filter(|c| !c.is_control()).collect();
    Some(Process { pid, uid, real_uid, real_gid, started, name, cgroups, exe })
}

/// A process on a GPU that nothing explains. Some drivers list pids that do not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    pub pid: u32,
    pub found: Option<Process>,
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.found {
            Some(found) => write!(f, "{found}"),
            None => write!(f, "pid {}, which is not in /proc", self.pid),
        }
    }
}

/// The processes that the driver shows on a GPU and that nothing explains: neither one of the attempts,
/// nor one of these users, nor the baseline.
pub fn foreign_processes(
    snapshot: &GpuSnapshot,
    gpu: &GpuUuid,
    attempts: &[AllocationId],
    uids: &[u32],
    baseline: &[String],
) -> Vec<Foreign> {
    let Some(state) = snapshot.gpu(gpu) else { return Vec::new() };
    let Some(listed) = state.telemetry.processes.value() else { return Vec::new() };
    let mut pids: Vec<u32> = listed.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let foreign = |pid: u32| match process(pid) {
        None => Some(Foreign { pid, found: None }),
        Some(found) => {
            let explained = uids.contains(&found.uid)
                || attempts.iter().any(|id| found.is_of(id))
                || found.is_baseline(baseline);
            (!explained).then_some(Foreign { pid, found: Some(found) })
        }
    };
    pids.into_iter().filter_map(foreign).collect()
}

/// The processes that have a GPU's device node open, by their descriptors, but for the baseline.
pub fn by_descriptor(minor: u32, device_dir: &Path, baseline: &[String]) -> Vec<Process> {
    let found = by_descriptors(&[minor], device_dir, baseline);
    found.into_iter().map(|(_, process)| process).collect()
}

/// The same for several GPUs, with their minor numbers.
pub fn by_descriptors(
    minors: &[u32],
    device_dir: &Path,
    baseline: &[String],
) -> Vec<(u32, Process)> {
    let nodes = minors.iter().map(|minor| (*minor, format!("nvidia{minor}")));
    let nodes: Vec<(u32, String)> =
        nodes.filter(|(_, name)| device_dir.join(name).exists()).collect();
    let mut found = Vec::new();
    if nodes.is_empty() {
        return found;
    }
    let Ok(entries) = fs::read_dir("/proc") else { return found };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let open = opened(pid, &nodes);
        let Some(holder) = (!open.is_empty()).then(|| process(pid)).flatten() else { continue };
        if !holder.is_baseline(baseline) {
            found.extend(open.into_iter().map(|minor| (minor, holder.clone())));
        }
    }
    found
}

/// Which of these device nodes a process has open.
fn opened(pid: u32, nodes: &[(u32, String)]) -> BTreeSet<u32> {
    // A process that went away while we looked has nothing open.
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let targets = descriptors.take(DESCRIPTORS_MAX).filter_map(Result::ok);
    let targets = targets.filter_map(|entry| fs::read_link(entry.path()).ok());
    let minor = |target: std::path::PathBuf| {
        let name = target.file_name()?.to_str()?;
        nodes.iter().find(|(_, known)| known == name).map(|(minor, _)| *minor)
    };
    targets.filter_map(minor).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_told_by_its_group_and_its_file() {
        let own = process(std::process::id()).unwrap();
        assert!(own.is_baseline(&[]), "the agent's own program is no dirt");
        let id = AllocationId::parse("alloc-a-1").unwrap();
        let made = |cgroups: &str| Process { cgroups: cgroups.to_owned(), ..own.clone() };
        assert!(made("0::/fleet/alloc-a-1\n").is_of(&id));
        assert!(made("0::/fleet.slice/fleet-alloc-a-1.service/job\n").is_of(&id));
        assert!(!made("0::/fleet/alloc-a-11\n").is_of(&id));
        assert_eq!(process(u32::MAX), None);
    }

    #[test]
    fn an_open_descriptor_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nvidia77");
        let _held = fs::File::create(&path).unwrap();
        fs::File::create(dir.path().join("nvidia78")).unwrap();
        let found = by_descriptors(&[77, 78], dir.path(), &["-".to_owned()]);
        // The agent's own program is no dirt.
        assert_eq!(found, []);
        let nodes = [77, 78].map(|minor| (minor, format!("nvidia{minor}")));
        assert_eq!(opened(std::process::id(), &nodes), BTreeSet::from([77]));
    }
}
