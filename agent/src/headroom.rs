//! Whether this node has what it takes to begin and to end an attempt: room on its own disk, processes, memory.
//!
//! Below a limit it says so and begins nothing; a shortage is over only well above the limit, so that a job that
//! writes and deletes does not open and close the node all the time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fleet_core::health::Shortage;
use nix::sys::statvfs::{FsFlags, statvfs};

/// Kept free on the disk of `state_dir`, but not more than this part of a small one: the records of some attempts.
const DISK_BYTES_MIN: u64 = 64 << 20;
const DISK_PART_MIN: u64 = 8;
/// An attempt takes a dozen.
const INODES_MIN: u64 = 1_000;
/// A shim, a runtime and an init, for each attempt of a full node.
const PROCESSES_MIN: u64 = 256;
/// A runtime takes some 20 MiB while it starts.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// What was found at one look; `None` where the system does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Figures {
    disk_bytes: Option<u64>,
    disk_free: Option<u64>,
    inodes_free: Option<u64>,
    read_only: bool,
    processes_free: Option<u64>,
    memory_free: Option<u64>,
}

/// See the module's doc.
#[derive(Debug)]
pub(crate) struct Headroom {
    state_dir: PathBuf,
    short: BTreeSet<Shortage>,
}

impl Headroom {
    pub(crate) fn of(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), short: BTreeSet::new() }
    }

    /// All that is lacking now, each with what was seen. The words stay the same while it is so.
    pub(crate) fn look(&mut self) -> Vec<(Shortage, String)> {
        let figures = Figures::of(&self.state_dir);
        let dir = self.state_dir.display();
        let mib = |bytes: u64| bytes >> 20;
        // True for as long as the condition holds: also above the first limit, and below the second.
        let words = |shortage| match shortage {
            Shortage::Disk => {
                let min = figures.disk_min();
                let (stop, start) = (mib(min), mib(enough(min)));
                format!(
                    "the disk of {dir} is nearly full: new work stops below {stop} MiB free and starts again at {start} MiB"
                )
            }
            Shortage::Inodes => {
                let start = enough(INODES_MIN);
                format!(
                    "the disk of {dir} has few inodes left: new work stops below {INODES_MIN} and starts again at {start}"
                )
            }
            Shortage::ReadOnly => format!("the disk of {dir} is read-only"),
            Shortage::Processes => {
                let start = enough(PROCESSES_MIN);
                format!(
                    "the machine has few process ids left: new work stops below {PROCESSES_MIN} and starts again at {start}"
                )
            }
            Shortage::Memory => {
                let (stop, start) = (mib(MEMORY_BYTES_MIN), mib(enough(MEMORY_BYTES_MIN)));
                format!(
                    "the machine has little memory left: new work stops below {stop} MiB and starts again at {start} MiB"
                )
            }
        };
        self.short = figures.lacking(&self.short);
        self.short.iter().map(|shortage| (*shortage, words(*shortage))).collect()
    }
}

/// From here on a shortage is over.
fn enough(min: u64) -> u64 {
    min + min / 2
}

impl Figures {
    fn of(state_dir: &Path) -> Self {
        let mut figures = Self {
            processes_free: processes_free(),
            memory_free: memory_free(),
            ..Self::default()
        };
        // Where the disk cannot even be asked, what wants to write there says so.
        let Ok(stat) = statvfs(state_dir) else { return figures };
        figures.read_only = stat.flags().contains(FsFlags::ST_RDONLY);
        // A file system without a size of its own, such as an unlimited tmpfs, says 0 of both.
        if stat.blocks() > 0 {
            figures.disk_bytes = Some(stat.blocks().saturating_mul(stat.fragment_size()));
            // Root may use what is kept from others.
            figures.disk_free = Some(stat.blocks_free().saturating_mul(stat.fragment_size()));
        }
        // btrfs makes inodes as it needs them.
        figures.inodes_free = (stat.files() > 0).then(|| stat.files_free());
        figures
    }

    fn disk_min(&self) -> u64 {
        self.disk_bytes.map_or(DISK_BYTES_MIN, |bytes| (bytes / DISK_PART_MIN).min(DISK_BYTES_MIN))
    }

    /// What was lacking before still is until there is half as much again.
    fn lacking(&self, before: &BTreeSet<Shortage>) -> BTreeSet<Shortage> {
        let below = |shortage: Shortage| {
            let (free, min) = match shortage {
                Shortage::ReadOnly => return self.read_only,
                Shortage::Disk => (self.disk_free, self.disk_min()),
                Shortage::Inodes => (self.inodes_free, INODES_MIN),
                Shortage::Processes => (self.processes_free, PROCESSES_MIN),
                Shortage::Memory => (self.memory_free, MEMORY_BYTES_MIN),
            };
            let limit = if before.contains(&shortage) { enough(min) } else { min };
            free.is_some_and(|free| free < limit)
        };
        Shortage::ALL.into_iter().filter(|shortage| below(*shortage)).collect()
    }
}

/// How many tasks the kernel lets live at once: ids are of tasks, of which a process has one or more.
fn processes_max() -> Option<u64> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    Some(number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?))
}

/// Of the processes and threads that one job may have by the settings, no more than half of what the kernel lets live:
/// one that forks without end must not stop the machine. Small machines have as few ids as a job may have by default.
pub(crate) fn processes_for_a_job(wanted: u64) -> u64 {
    share_of(processes_max(), wanted)
}

fn share_of(machine: Option<u64>, wanted: u64) -> u64 {
    machine.map_or(wanted, |most| wanted.min(most / 2))
}

/// How many more of them it lets live.
fn processes_free() -> Option<u64> {
    let most = processes_max()?;
    // proc_loadavg(5): the fourth field is running/existing.
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let (_, exist) = load.split_whitespace().nth(3)?.split_once('/')?;
    Some(most.saturating_sub(exist.parse().ok()?))
}

fn memory_free() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_has_half_of_the_process_ids_at_most() {
        assert_eq!(share_of(Some(32_768), 32_768), 16_384);
        assert_eq!(share_of(Some(4_194_304), 32_768), 32_768);
        assert_eq!(share_of(None, 32_768), 32_768, "it is not known how many there are");
    }

    const PLENTY: Figures = Figures {
        disk_bytes: Some(1 << 40),
        disk_free: Some(1 << 39),
        inodes_free: Some(1 << 20),
        read_only: false,
        processes_free: Some(30_000),
        memory_free: Some(1 << 34),
    };

    fn lacking(figures: Figures, before: &[Shortage]) -> Vec<Shortage> {
        figures.lacking(&before.iter().copied().collect()).into_iter().collect()
    }

    #[test]
    fn each_limit_has_its_shortage() {
        assert_eq!(lacking(PLENTY, &Shortage::ALL), []);
        assert_eq!(
            lacking(Figures::default(), &Shortage::ALL),
            [],
            "what is not known is not lacking"
        );
        let short = |figures| lacking(figures, &[]);
        let disk = |disk_free| short(Figures { disk_free: Some(disk_free), ..PLENTY });
        assert_eq!(
            (disk(DISK_BYTES_MIN), disk(DISK_BYTES_MIN - 1)),
            (vec![], vec![Shortage::Disk])
        );
        assert_eq!(short(Figures { inodes_free: Some(999), ..PLENTY }), [Shortage::Inodes]);
        assert_eq!(short(Figures { read_only: true, ..PLENTY }), [Shortage::ReadOnly]);
        assert_eq!(short(Figures { processes_free: Some(255), ..PLENTY }), [Shortage::Processes]);
        assert_eq!(short(Figures { memory_free: Some(1), ..PLENTY }), [Shortage::Memory]);
    }

    #[test]
    fn a_small_disk_keeps_a_part_and_a_shortage_is_over_only_well_above_the_limit() {
        let small = |disk_free| Figures {
            disk_bytes: Some(16 << 20),
            disk_free: Some(disk_free),
            ..PLENTY
        };
        assert_eq!(lacking(small(2 << 20), &[]), []);
        assert_eq!(lacking(small((2 << 20) - 1), &[]), [Shortage::Disk]);
        assert_eq!(lacking(small((3 << 20) - 1), &[Shortage::Disk]), [Shortage::Disk]);
        assert_eq!(lacking(small(3 << 20), &[Shortage::Disk]), []);
    }

    #[test]
    fn this_machine_says_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let figures = Figures::of(dir.path());
        assert!(figures.processes_free.is_some_and(|free| free > 0), "{figures:?}");
        assert!(figures.memory_free.is_some_and(|free| free > 0), "{figures:?}");
        assert!(!figures.read_only);
        assert!(figures.disk_free <= figures.disk_bytes);
    }
}
