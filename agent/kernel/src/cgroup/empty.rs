//! Ending a group: is anybody left, signal them, kill them, remove the directories.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Cgroup, CgroupError, keyed, read, write};

/// Passes of the kill loop where the kernel has no `cgroup.kill`: a fork bomb is frozen, so few are needed.
const KILL_PASSES_MAX: u32 = 32;
/// Deepest nesting of sub-groups that is walked.
const DEPTH_MAX: u32 = 16;
/// How long `remove` waits for the kernel to release a group whose last process has just gone.
const REMOVE_WAIT: Duration = Duration::from_secs(1);
/// How long to wait for the v1 freezer, which freezes in its own time.
const FREEZE_WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);

impl Cgroup {
    /// True while any process, also in a sub-group, is alive. A missing group is empty.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        if let Some(dir) = &self.unified {
            let path = dir.join("cgroup.events");
            return match fs::read_to_string(&path) {
                Ok(text) => Ok(keyed(&text, "populated") != Some(0)),
                Err(error) if gone(&error) => Ok(false),
                Err(source) => Err(CgroupError::File { action: "read", path, source }),
            };
        }
        Ok(!self.members()?.is_empty())
    }

    /// File whose POLLPRI says that `populated` may have changed; none on pure v1.
    #[must_use]
    pub fn events_file(&self) -> Option<PathBuf> {
        self.unified.as_ref().map(|dir| dir.join("cgroup.events"))
    }

    /// Process ids in the group and below it, now. Empty for a missing group.
    pub fn members(&self) -> Result<Vec<i32>, CgroupError> {
        let mut found = Vec::new();
        if let Some(dir) = self.tracking() {
            collect(dir, 0, &mut found)?;
        }
        Ok(found)
    }

    /// Sends a signal to each process of the group. Forks during the walk may be missed: use
    /// [`Self::kill_all`] for an end that must be final.
    pub fn signal_all(&self, signal: Signal) -> Result<(), CgroupError> {
        for pid in self.members()? {
            // It may have gone since; the list is from this moment, not stored.
            kill(Pid::from_raw(pid), signal).ok();
        }
        Ok(())
    }

    /// Kills every process of the group, forks included. Returns at once: processes die in their own
    /// time (one in uninterruptible sleep later, or never), so wait for [`Self::populated`].
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        if let Some(dir) = &self.unified {
            let path = dir.join("cgroup.kill");
            match fs::write(&path, "1") {
                Ok(()) => return Ok(()),
                Err(_) if !dir.exists() => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // before Linux 5.14
                Err(source) => return Err(CgroupError::File { action: "write", path, source }),
            }
        }
        for _ in 0..KILL_PASSES_MAX {
            self.freeze(true);
            let members = self.members();
            self.signal_all(Signal::SIGKILL)?;
            self.freeze(false);
            if members?.is_empty() {
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Best effort: freezing only keeps the kill loop from racing with forks.
    fn freeze(&self, frozen: bool) {
        if let Some(dir) = &self.unified {
            write(&dir.join("cgroup.freeze"), if frozen { "1" } else { "0" }).ok();
        } else if let Some(dir) = self.v1.get("freezer") {
            let path = dir.join("freezer.state");
            write(&path, if frozen { "FROZEN" } else { "THAWED" }).ok();
            let deadline = Instant::now() + FREEZE_WAIT;
            while frozen
                && read(&path).is_ok_and(|state| state.trim() == "FREEZING")
                && Instant::now() < deadline
            {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Removes the group's directories with everything below them. Refuses while a process is left.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + REMOVE_WAIT;
        let unused = self.unused.iter().map(PathBuf::as_path);
        for dir in self.directories().chain(unused) {
            remove_tree(dir, 0, deadline)?;
        }
        // In hierarchies that systemd does not manage, nobody else removes what was made for a unit. Where
        // it does, the shim is still in there and the kernel refuses, rightly.
        if self.unit().is_some() {
            for dir in self.v1.values().chain(&self.unused) {
                dir.parent().map(fs::remove_dir);
            }
        }
        Ok(())
    }
}

/// Sub-groups of a group.
pub(super) fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn collect(dir: &Path, depth: u32, found: &mut Vec<i32>) -> Result<(), CgroupError> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => found.extend(text.lines().filter_map(|line| line.trim().parse::<i32>().ok())),
        Err(error) if gone(&error) => return Ok(()),
        Err(source) => return Err(CgroupError::File { action: "read", path, source }),
    }
    if depth < DEPTH_MAX {
        for child in children(dir) {
            collect(&child, depth + 1, found)?;
        }
    }
    Ok(())
}

fn remove_tree(dir: &Path, depth: u32, deadline: Instant) -> Result<(), CgroupError> {
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if gone(&error) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let below = children(dir);
                if below.is_empty() || depth >= DEPTH_MAX {
                    if Instant::now() >= deadline {
                        return Err(CgroupError::StillPopulated { path: dir.to_owned() });
                    }
                    thread::sleep(PAUSE);
                }
                for child in below {
                    remove_tree(&child, depth + 1, deadline)?;
                }
            }
            Err(source) => {
                return Err(CgroupError::File { action: "remove", path: dir.to_owned(), source });
            }
        }
    }
}

/// A group that was removed while we looked: ENOENT on open, ENODEV on read.
fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
