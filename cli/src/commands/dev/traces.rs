//! Removes what a killed part of a `fleet dev` cluster would leave on the machine: processes, control
//! groups, mounts. Touches only what names the cluster's own folder or its own control groups.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where control groups are mounted.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Deeper than any control group fleet makes.
const CGROUP_DEPTH_MAX: usize = 8;
/// How long killed processes may take to be gone.
const GONE_MAX: Duration = Duration::from_secs(5);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Mounts below the folder; each round takes the innermost away.
const MOUNTS_MAX: usize = 10_000;

/// Programs of fleet that run with a path below `folder` among their arguments, and are not this one.
pub(super) fn processes_of(folder: &Path) -> Vec<Pid> {
    let own = std::process::id();
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir("/proc") else { return found };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let program = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        let ours = program
            .file_name()
            .and_then(|name| name.to_str())
            // A program that was built again meanwhile.
            .map(|name| name.trim_end_matches(" (deleted)"))
            .is_some_and(|name| ["fleet-controller", "fleet-agent", "fleet-shim"].contains(&name));
        if pid == own || !ours {
            continue;
        }
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let names_it = arguments
            .split(|b| *b == 0)
            .filter_map(|argument| std::str::from_utf8(argument).ok())
            .any(|argument| Path::new(argument).starts_with(folder));
        if names_it && let Ok(pid) = i32::try_from(pid) {
            found.push(Pid::from_raw(pid));
        }
    }
    found
}

/// Kills what is left of the cluster's own programs: those restarted by hand, and shims.
pub(super) fn kill_processes(folder: &Path) {
    let deadline = Instant::now() + GONE_MAX;
    loop {
        let left = processes_of(folder);
        if left.is_empty() || Instant::now() > deadline {
            return;
        }
        for pid in left {
            // It may have ended since it was seen.
            kill(pid, Signal::SIGKILL).ok();
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Every mounted hierarchy that has a control group of this name, at its top.
fn cgroups_named(name: &str) -> Vec<PathBuf> {
    let mut roots = vec![PathBuf::from(CGROUP_ROOT)];
    if let Ok(entries) = fs::read_dir(CGROUP_ROOT) {
        roots.extend(entries.flatten().map(|entry| entry.path()));
    }
    let mut found: Vec<PathBuf> =
        roots.into_iter().map(|root| root.join(name)).filter(|path| path.is_dir()).collect();
    // Hierarchies are also reachable under second names.
    found.dedup_by_key(|path| fs::canonicalize(path).unwrap_or_default());
    found
}

/// Kills all processes below the node's control group, and removes it in every hierarchy.
pub(super) fn remove_cgroup(name: &str) {
    for top in cgroups_named(name) {
        let deadline = Instant::now() + GONE_MAX;
        while !removed(&top, CGROUP_DEPTH_MAX) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// One round: children first, then the group itself. True when it is gone.
fn removed(group: &Path, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    // cgroup v2 kills a whole tree at once; elsewhere each member is killed.
    fs::write(group.join("cgroup.kill"), "1").ok();
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
    if let Ok(children) = fs::read_dir(group) {
        for child in children.flatten().filter(|child| child.path().is_dir()) {
            removed(&child.path(), depth - 1);
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

/// Takes away every mount below the folder, the innermost first.
pub(super) fn unmount_below(folder: &Path) {
    for _ in 0..MOUNTS_MAX {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let last = table
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .map(|place| PathBuf::from(unescaped(place)))
            .rfind(|place| place.starts_with(folder));
        let Some(place) = last else { return };
        if umount2(&place, MntFlags::MNT_DETACH).is_err() {
            return;
        }
    }
}

/// The kernel writes spaces and the like as `\040`.
fn unescaped(place: &str) -> String {
    let mut text = Vec::new();
    let mut rest = place.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| first == b'\\')
        {
            Some(byte) => {
                text.push(byte);
                rest = &after[3..];
            }
            None => {
                text.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Whether device nodes can be opened in a folder.
pub(super) fn allows_devices(folder: &Path) -> bool {
    let Ok(opened) = fs::File::open(folder) else { return false };
    nix::sys::statvfs::fstatvfs(opened.as_fd())
        .is_ok_and(|info| !info.flags().contains(nix::sys::statvfs::FsFlags::ST_NODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_the_kernel_means_them() {
        assert_eq!(unescaped("/a/b"), "/a/b");
        assert_eq!(unescaped(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescaped(r"/a\9"), r"/a\9");
    }

    #[test]
    fn only_fleets_own_programs_are_found() {
        // This test is no program of fleet's, whatever its arguments are.
        assert_eq!(processes_of(Path::new("/")).iter().find(|pid| **pid == Pid::this()), None);
        assert_eq!(processes_of(Path::new("/nowhere/at/all")), []);
    }
}
