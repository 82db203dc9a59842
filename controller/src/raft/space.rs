//! How much room is left on the disk of a store, and which disk that is. Asks, decides nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Free space below which users' commands are refused, so that what must be written still can be:
/// votes, reports of nodes, ends of reservations, a snapshot.
pub(crate) const FREE_BYTES_MIN: u64 = 256 << 20;

/// The system is asked again after this. Until then a busy controller writes some MiB, a small part of what it keeps.
/// An answer for which somebody is refused is never an old one.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// The room on a store's disk. Every change asks for it, the system is asked less often. Clones share the answer.
#[derive(Debug, Clone)]
pub(crate) struct FreeSpace {
    dir: Arc<Path>,
    said: Arc<Mutex<Option<Said>>>,
}

#[derive(Debug, Clone, Copy)]
struct Said {
    at: Instant,
    free_bytes: Option<u64>,
}

impl FreeSpace {
    pub(crate) fn of(dir: &Path) -> FreeSpace {
        FreeSpace { dir: dir.into(), said: Arc::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Free space for unprivileged programs; `None` where the system does not say.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = |said: &Said| said.free_bytes.is_none_or(|free| free >= FREE_BYTES_MIN);
        match *said {
            Some(said) if enough(&said) && said.at.elapsed() < ASKED_EVERY => said.free_bytes,
            _ => {
                let free_bytes = free_bytes(&self.dir);
                *said = Some(Said { at: Instant::now(), free_bytes });
                free_bytes
            }
        }
    }

    /// The file system that the store is on, in words: `/dev/sda1, mounted on /var`.
    pub(crate) fn disk(&self) -> String {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let dir = self.dir.canonicalize().unwrap_or_else(|_| self.dir.to_path_buf());
        named(&mounts, &dir).unwrap_or_else(|| "an unknown disk".to_owned())
    }
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(dir).ok()?;
    Some(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// proc(5): `36 35 98:0 /root /mount options - type source …`, with octal escapes.
fn named(mounts: &str, dir: &Path) -> Option<String> {
    let of_line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mount = PathBuf::from(unescaped(before.split(' ').nth(4)?));
        let source = unescaped(after.split(' ').nth(1)?);
        Some((mount, source))
    };
    // Of two mounts on one folder the later one is on top.
    let holds = mounts.lines().filter_map(of_line).filter(|(mount, _)| dir.starts_with(mount));
    let (mount, source) = holds.max_by_key(|(mount, _)| mount.as_os_str().len())?;
    Some(format!("{source}, mounted on {}", mount.display()))
}

fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_an_answer_that_refuses_nobody_is_used_again() {
        let room = FreeSpace::of(Path::new("/"));
        let remember = |free_bytes| {
            *room.said.lock().unwrap() = Some(Said { at: Instant::now(), free_bytes });
            room.free_bytes()
        };
        let much = Some(u64::MAX);
        assert_eq!(remember(much), much);
        assert_ne!(remember(Some(FREE_BYTES_MIN - 1)), Some(FREE_BYTES_MIN - 1));
    }

    #[test]
    fn the_disk_is_that_of_the_deepest_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 8:2 / /var/lib rw,noatime shared:1 - xfs /dev/sdb\\0401 rw\n\
                      31 22 8:3 / /var/lib/fleetish rw - xfs /dev/sdc rw\n";
        let of = |dir: &str| named(mounts, Path::new(dir)).unwrap();
        assert_eq!(of("/var/lib/fleet/controller"), "/dev/sdb 1, mounted on /var/lib");
        assert_eq!(of("/home"), "/dev/sda1, mounted on /");
        assert_eq!(named("", Path::new("/")), None);
        assert!(free_bytes(Path::new("/")).is_some());
    }
}
