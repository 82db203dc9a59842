//! The files of what GPUs did in each minute: one for each day of UTC, rows are only added, and kept for 30 days.
//!
//! Each minute is one write, without a sync: a power cut makes the last minutes unknown. What a write left torn is a line
//! that cannot be read: readers skip it, and the next write begins a new line. Nothing else waits for these files or fails
//! with them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fleet_core::name::GpuUuid;
use fleet_core::time::{Millis, Timestamp};
use fleet_node::minutes::{MinuteRow, merged};
use fleet_proto::transport::files::{self, MODE_PRIVATE};
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::chain::chain;

/// In the state folder. A file is named by its day: `2026-12-01.jsonl`.
pub(crate) const FOLDER: &str = "gpu-minutes";
const EXTENSION: &str = "jsonl";
/// Days before today that are kept.
const KEPT_DAYS: u64 = 30;
/// Longest file: beyond, a day is incomplete. Sixteen GPUs, each with one holder, need a third of it.
const DAY_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// All files together.
const ALL_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Rows of one answer: it must fit into one message.
const ROWS_MAX: usize = 4_096;
/// In a file of which rows were dropped.
const FULL: &str = "{\"full\":true}\n";
/// Longest time of one answer: the day on which the clocks are put back.
const SPAN_MAX: Millis = Millis::hours(25);
const DAY: Millis = Millis::days(1);

/// Where the files are, and how large they may be. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Files {
    folder: PathBuf,
    day_bytes_max: u64,
    all_bytes_max: u64,
}

/// What was read of a time.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// One for each holder and minute, the oldest first.
    pub(crate) rows: Vec<MinuteRow>,
    /// Rows from here on did not fit into the answer.
    pub(crate) cut_at: Option<Timestamp>,
    /// Days of which rows were dropped.
    pub(crate) incomplete_days: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum MinutesError {
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the thread that read the files died")]
    ThreadDied,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MinutesError {
    let path = path.to_owned();
    move |source| MinutesError::File { what, path, source }
}

impl Files {
    pub(super) fn open(state_dir: &Path) -> Self {
        let folder = state_dir.join(FOLDER);
        if let Err(error) = files::create_private_folder(&folder) {
            tracing::warn!(error = chain(&error), "what GPUs did in each minute is not stored");
        }
        Self { folder, day_bytes_max: DAY_BYTES_MAX, all_bytes_max: ALL_BYTES_MAX }
    }

    /// Adds rows, and removes what is too old. The days that are incomplete from now on.
    pub(super) fn append(
        &self,
        now: Timestamp,
        rows: Vec<MinuteRow>,
    ) -> Result<Vec<String>, MinutesError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = self.remove_old(now)?;
        let mut days: BTreeMap<u64, String> = BTreeMap::new();
        for row in rows {
            let text = days.entry(row.from().0 / DAY.0).or_default();
            // It has no maps: it can always be written.
            if let Ok(line) = serde_json::to_string(&row) {
                text.push_str(&line);
                text.push('\n');
            }
        }
        let mut full = Vec::new();
        for (day, text) in days {
            let Some(name) = name_of(day) else { continue };
            let path = self.path_of(&name);
            let length = std::fs::metadata(&path).map_or(0, |known| known.len());
            let more = u64::try_from(text.len()).unwrap_or(u64::MAX);
            let fits = length.saturating_add(more) <= self.day_bytes_max
                && bytes.saturating_add(more) <= self.all_bytes_max;
            if fits {
                add(&path, &text).map_err(failed("write", &path))?;
                bytes = bytes.saturating_add(more);
            } else if !ends_full(&path) {
                add(&path, FULL).map_err(failed("write", &path))?;
                full.push(name);
            }
        }
        Ok(full)
    }

    /// What a GPU did from `from` until `until`, with what is being counted.
    pub(super) fn read(
        &self,
        gpu: &GpuUuid,
        from: Timestamp,
        until: Timestamp,
        counting: Vec<MinuteRow>,
    ) -> Result<Found, MinutesError> {
        let until = until.min(from + SPAN_MAX);
        let wanted = |row: &MinuteRow| row.gpu == *gpu && (from..until).contains(&row.from());
        let mut found = Found::default();
        let mut rows = Vec::new();
        for day in from.0 / DAY.0..=until.0.saturating_sub(1) / DAY.0 {
            let Some(name) = name_of(day) else { break };
            let path = self.path_of(&name);
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("read", &path)(error)),
            };
            let is_full = read_day(file, gpu, |row| {
                if wanted(&row) {
                    rows.push(row);
                }
            });
            if is_full.map_err(failed("read", &path))? {
                found.incomplete_days.push(name);
            }
        }
        rows.extend(counting.into_iter().filter(wanted));
        found.rows = merged(rows);
        found.cut_at = found.rows.get(ROWS_MAX).map(MinuteRow::from);
        if let Some(cut) = found.cut_at {
            // A minute is there as a whole or not at all.
            found.rows.retain(|row| row.from() < cut);
        }
        Ok(found)
    }

    /// How many bytes stay.
    fn remove_old(&self, now: Timestamp) -> Result<u64, MinutesError> {
        let read = || failed("read", &self.folder);
        let oldest = name_of((now.0 / DAY.0).saturating_sub(KEPT_DAYS)).unwrap_or_default();
        let mut bytes = 0_u64;
        for entry in std::fs::read_dir(&self.folder).map_err(read())? {
            let entry = entry.map_err(read())?;
            let path = entry.path();
            if path.extension().is_none_or(|end| end != EXTENSION) {
                continue;
            }
            // The names sort like their days.
            let is_old =
                path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|name| *name < *oldest);
            if is_old {
                std::fs::remove_file(&path).map_err(failed("remove", &path))?;
            } else {
                bytes = bytes.saturating_add(entry.metadata().map_err(read())?.len());
            }
        }
        Ok(bytes)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{EXTENSION}"))
    }
}

/// `2026-12-01` of a number of days since 1970; none far outside of all calendars.
fn name_of(day: u64) -> Option<String> {
    let ms = i64::try_from(day.checked_mul(DAY.0)?).ok()?;
    let at = jiff::Timestamp::from_millisecond(ms).ok()?;
    let date: Date = at.to_zoned_datetime(TimeZone::UTC).date();
    Some(date.to_string())
}

/// Appends whole lines. A file that ends in the middle of one, after a power cut, gets an end of line first.
fn add(path: &Path, text: &str) -> io::Result<()> {
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(MODE_PRIVATE).open(path)?;
    let length = file.metadata()?.len();
    let mut whole = String::new();
    if length > 0 && last_bytes(&mut file, length, 1)? != b"\n" {
        whole.push('\n');
    }
    whole.push_str(text);
    file.write_all(whole.as_bytes()).inspect_err(|_| {
        // A part of a line that stays is skipped by readers, but takes room on a full disk.
        drop(file.set_len(length));
    })
}

fn ends_full(path: &Path) -> bool {
    let ends = || -> io::Result<bool> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(last_bytes(&mut file, length, FULL.len())? == FULL.as_bytes())
    };
    ends().unwrap_or(false)
}

/// As many bytes of the end as there are, at most `count`.
fn last_bytes(file: &mut File, length: u64, count: usize) -> io::Result<Vec<u8>> {
    let count = u64::try_from(count).unwrap_or(u64::MAX).min(length);
    file.seek(SeekFrom::Start(length - count))?;
    let mut bytes = Vec::new();
    file.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Hands out the rows that name the GPU, and says whether rows were dropped. A line that is no row is skipped.
fn read_day(file: File, gpu: &GpuUuid, mut each: impl FnMut(MinuteRow)) -> io::Result<bool> {
    let mut lines = BufReader::new(file.take(2 * DAY_BYTES_MAX));
    let (mut line, mut is_full) = (Vec::new(), false);
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(is_full);
        }
        is_full |= line == FULL.as_bytes();
        // Without its end it is torn, or being written.
        let Some(b'\n') = line.last() else { continue };
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        // Most rows are of other GPUs: to search is faster than to parse.
        if text.contains(gpu.as_str())
            && let Ok(row) = serde_json::from_str(text)
        {
            each(row);
        }
    }
}

#[cfg(test)]
mod tests;
