//! How much room is left on the disk of a store, and which disk that is. Asks, decides nothing.

use std::path::{Path, PathBuf};

/// Free space below which users' commands are refused, so that what must be written still can be:
/// votes, reports of nodes, ends of reservations, a snapshot.
pub(crate) const FREE_BYTES_MIN: u64 = 256 << 20;

/// Free space for unprivileged programs in `dir`; `None` where the system does not say.
pub(crate) fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(dir).ok()?;
    Some(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// The file system that `dir` is on, in words: `/dev/sda1, mounted on /var`.
pub(crate) fn disk_of(dir: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    named(&mounts, &dir).unwrap_or_else(|| "an unknown disk".to_owned())
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
