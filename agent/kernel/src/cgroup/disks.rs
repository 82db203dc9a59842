//! How fast an allocation may read from and write to the machine's own disks.
//!
//! Called by [`Cgroup::limit`]. If runc makes a group below, runc gets the same limits as well, because v1 holds
//! each group by its own limit only. The kernel wants a limit for each disk by its numbers (Documentation/admin-guide/
//! cgroup-v2.rst, `io.max`; cgroup-v1/blkio-controller.rst, `blkio.throttle.*`), so a disk that is plugged in later is
//! not held for who runs already. Where v1's controller has it, what goes through the page cache is written by the
//! kernel for nobody in particular and passes unheld; on cgroup2 it counts for its writer. It must never limit loop
//! devices, RAM disks and the layers above a disk (LVM, RAID): what goes to them comes to disks (but for ZFS, RAID 5 and 6 and
//! dm-multipath, whose own threads do it: they are not held).

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Cgroup, CgroupError, Mode, read, write};

/// Block devices of the machine; those with hardware behind them have a `device`.
const BLOCK_DEVICES: &str = "/sys/block";

/// In bytes a second, on each disk. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskLimits {
    #[serde(default)]
    pub read_bytes_per_s: Option<u64>,
    #[serde(default)]
    pub write_bytes_per_s: Option<u64>,
}

impl Cgroup {
    /// Sets them for every disk there is and reads them back.
    pub(super) fn limit_disks(&self, limits: &DiskLimits) -> Result<(), CgroupError> {
        let wanted = [limits.read_bytes_per_s, limits.write_bytes_per_s];
        if wanted == [None, None] {
            return Ok(());
        }
        let unified = self.mode == Mode::Unified;
        let dir = self.controller(if unified { "io" } else { "blkio" })?;
        for disk in Disk::all() {
            for (limit, [key, v1]) in wanted.into_iter().zip([
                ["rbps", "blkio.throttle.read_bps_device"],
                ["wbps", "blkio.throttle.write_bps_device"],
            ]) {
                match limit {
                    Some(limit) if unified => {
                        set(&dir.join("io.max"), disk, &format!("{key}={limit}"))?;
                    }
                    Some(limit) => set(&dir.join(v1), disk, &limit.to_string())?,
                    None => {}
                }
            }
        }
        Ok(())
    }
}

/// A block device with hardware behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    pub major: i64,
    pub minor: i64,
}

impl Disk {
    /// All of this machine.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Self::all_in(Path::new(BLOCK_DEVICES))
    }

    fn all_in(devices: &Path) -> Vec<Self> {
        let entries = fs::read_dir(devices).into_iter().flatten().flatten();
        let real = entries.map(|entry| entry.path()).filter(|path| path.join("device").exists());
        let numbers = real.filter_map(|device| fs::read_to_string(device.join("dev")).ok());
        let mut disks: Vec<Self> = numbers.filter_map(|text| Self::parse(text.trim())).collect();
        disks.sort();
        disks
    }

    fn parse(numbers: &str) -> Option<Self> {
        let (major, minor) = numbers.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Disk {
    /// As the kernel writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One value of one disk, in a file that has a line for each.
fn set(path: &Path, disk: Disk, value: &str) -> Result<(), CgroupError> {
    let disk = disk.to_string();
    write(path, &format!("{disk} {value}"))?;
    let found = read(path)?;
    let line = found.lines().find(|line| line.split(' ').next() == Some(&disk)).unwrap_or_default();
    if line.split(' ').skip(1).all(|word| word != value) {
        return Err(CgroupError::NotKept {
            path: path.to_owned(),
            wanted: format!("{disk} {value}"),
            found: line.to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_devices_with_hardware_behind_them_are_disks() {
        let sys = tempfile::tempdir().unwrap();
        for (name, numbers, real) in
            [("vda", "254:0\n", true), ("loop0", "7:0\n", false), ("nvme0n1", "259:1\n", true)]
        {
            let device = sys.path().join(name);
            fs::create_dir_all(device.join(if real { "device" } else { "queue" })).unwrap();
            fs::write(device.join("dev"), numbers).unwrap();
        }
        let found: Vec<String> = Disk::all_in(sys.path()).iter().map(Disk::to_string).collect();
        assert_eq!(found, ["254:0", "259:1"]);
        assert!(Disk::all_in(&sys.path().join("nothing")).is_empty());
    }

    #[test]
    fn a_limit_that_the_kernel_did_not_take_is_an_error() {
        let refused =
            set(Path::new("/dev/null"), Disk { major: 254, minor: 0 }, "rbps=1048576").unwrap_err();
        assert!(matches!(refused, CgroupError::NotKept { .. }), "{refused}");
    }
}
