//! The nightly backup of a running controller: one each night, the newest so many are kept.
//!
//! Every controller makes its own, of the state it holds. A failure is an error in the log and is tried
//! again; it never stops the controller. Only files named like ours are ever removed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::Timestamp;
use tokio_util::sync::CancellationToken;

use super::file::{PARTIAL, write};
use super::produce::Contents;
use crate::clock::wall;
use crate::raft::RaftHandle;
use crate::read_only;

/// How often it is looked whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pause after one that failed.
const RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Free space that must be left beside a backup.
const FREE_BYTES_MIN: u64 = 256 << 20;
const PREFIX: &str = "nightly-";
const SUFFIX: &str = ".backup";
const SECONDS_PER_DAY: u64 = 86_400;

/// Where they are kept, and how many.
#[derive(Debug, Clone)]
pub struct Keep {
    pub dir: PathBuf,
    /// 0: none are made.
    pub count: usize,
    /// Hour of the day, UTC.
    pub hour: u64,
}

/// Makes backups until `stop`.
pub async fn keep(keep: Keep, raft: RaftHandle, pki_dir: PathBuf, stop: CancellationToken) {
    if keep.count == 0 {
        return;
    }
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = match keep.step(&raft, &pki_dir, wall()).await {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                let error = read_only::explained(error, keep.dir.display());
                tracing::error!(dir = %keep.dir.display(), "no nightly backup: {error:#}");
                RETRY_AFTER
            }
        };
    }
}

/// Backups of ours in a folder, oldest first.
fn names_in(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if made_at(&name).is_some() {
            names.push(name);
        }
    }
    names.sort_by_key(|name| made_at(name));
    Ok(names)
}

/// When the newest of ours in a folder was made, in Unix seconds.
pub fn newest_in(dir: &Path) -> std::io::Result<Option<u64>> {
    Ok(names_in(dir)?.last().and_then(|name| made_at(name)))
}

impl Keep {
    pub(super) async fn step(
        &self,
        raft: &RaftHandle,
        pki_dir: &Path,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let seconds = now.0 / 1_000;
        let newest = match newest_in(&self.dir) {
            Ok(newest) => newest,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("list {}", self.dir.display()));
            }
        };
        if !is_due(seconds, newest, self.hour) || raft.incarnation() == 0 {
            return Ok(());
        }
        fleet_proto::transport::files::create_private_folder(&self.dir)?;
        self.remove_unfinished()?;
        self.check_space()?;
        let path = self.dir.join(name_of(seconds));
        let written = write(Contents::of(raft, pki_dir), &path).await?;
        tracing::info!(
            file = %path.display(),
            bytes = written.bytes,
            log_index = written.manifest.index,
            "nightly backup written"
        );
        self.remove_old()
    }

    fn remove_old(&self) -> anyhow::Result<()> {
        let names = names_in(&self.dir)?;
        for name in &names[..names.len().saturating_sub(self.count)] {
            self.remove(name)?;
        }
        Ok(())
    }

    /// What was left by one that a full disk, or a power cut, has ended.
    fn remove_unfinished(&self) -> anyhow::Result<()> {
        let unfinished: Vec<String> = std::fs::read_dir(&self.dir)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.strip_suffix(PARTIAL).is_some_and(|name| made_at(name).is_some()))
            .collect();
        unfinished.iter().try_for_each(|name| self.remove(name))
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
    }

    /// The next one is not much larger than the newest.
    fn check_space(&self) -> anyhow::Result<()> {
        let newest = names_in(&self.dir)?.pop();
        let newest = newest.and_then(|name| std::fs::metadata(self.dir.join(name)).ok());
        let newest = newest.map_or(0, |metadata| metadata.len());
        let stat = nix::sys::statvfs::statvfs(&self.dir)
            .with_context(|| format!("ask for the space in {}", self.dir.display()))?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        let Some(needed) = lacking(free, newest) else { return Ok(()) };
        anyhow::bail!(
            "only {} MiB are free in {}, {} MiB are needed; make room, or set `backup_dir`",
            free >> 20,
            self.dir.display(),
            needed >> 20
        )
    }
}

/// How many free bytes are needed, where that is more than there are.
fn lacking(free: u64, newest: u64) -> Option<u64> {
    let needed = newest.saturating_add(FREE_BYTES_MIN);
    (free < needed).then_some(needed)
}

/// Whether a night began since the newest backup was made.
fn is_due(now: u64, newest: Option<u64>, hour: u64) -> bool {
    let Some(newest) = newest else { return true };
    let into_day = hour * 3600;
    // Days whose hour has struck.
    let nights = |at: u64| (at + SECONDS_PER_DAY - into_day) / SECONDS_PER_DAY;
    nights(now) > nights(newest)
}

/// `nightly-2026-11-21T030000Z.backup`.
fn name_of(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let second = seconds % SECONDS_PER_DAY;
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{PREFIX}{year:04}-{month:02}-{day:02}T{h:02}{m:02}{s:02}Z{SUFFIX}")
}

/// When a file named like ours was made.
fn made_at(name: &str) -> Option<u64> {
    let text = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let time = number(11, 13)? * 3600 + number(13, 15)? * 60 + number(15, 17)?;
    let seconds = days(year, month, day)? * SECONDS_PER_DAY + time;
    (name_of(seconds) == name).then_some(seconds)
}

/// Day of the common calendar, from days since 1970-01-01 (Howard Hinnant, "chrono-compatible low-level
/// date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * of_year + 2) / 153;
    let day = of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (y / 400, y % 400);
    let m = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * m + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    (era * 146_097 + of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_dates_and_read_back() {
        assert_eq!(name_of(0), "nightly-1970-01-01T000000Z.backup");
        assert_eq!(name_of(951_782_400), "nightly-2000-02-29T000000Z.backup");
        assert_eq!(name_of(1_795_276_803), "nightly-2026-11-21T160003Z.backup");
        for seconds in (0..4_000_000_000_u64).step_by(12_345_678) {
            assert_eq!(made_at(&name_of(seconds)), Some(seconds));
        }
        for other in ["nightly-.backup", "nightly-2026-02-31T000000Z.backup", "mine.backup"] {
            assert_eq!(made_at(other), None, "{other}");
        }
    }

    #[test]
    fn the_next_one_has_to_fit_beside_the_newest() {
        assert_eq!(lacking(FREE_BYTES_MIN, 0), None, "the first");
        assert_eq!(lacking(FREE_BYTES_MIN - 1, 0), Some(FREE_BYTES_MIN));
        let newest = 2 << 30;
        assert_eq!(lacking(newest, newest), Some(newest + FREE_BYTES_MIN));
        assert_eq!(lacking(newest + FREE_BYTES_MIN, newest), None);
    }

    #[test]
    fn one_is_due_each_night() {
        let (day, hour) = (SECONDS_PER_DAY, 3600);
        assert!(is_due(5 * day, None, 3));
        let made = 5 * day + 3 * hour;
        assert!(!is_due(made, Some(made), 3));
        assert!(!is_due(6 * day + 3 * hour - 1, Some(made), 3));
        assert!(is_due(6 * day + 3 * hour, Some(made), 3));
        // One made by day does not take the night's place.
        assert!(is_due(6 * day + 3 * hour, Some(6 * day), 3));
        assert!(is_due(6 * day, Some(6 * day - 1), 0));
        // A clock that went back makes none.
        assert!(!is_due(made - day, Some(made), 3));
    }
}
