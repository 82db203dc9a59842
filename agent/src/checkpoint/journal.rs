//! The numbers of an allocation's checkpoints on disk: `checkpoints.jsonl` and `checkpoint-baseline.json` in the
//! allocation's directory.
//!
//! A checkpoint is appended and fsynced before it is reported. A last line without its end was never reported, so it is
//! cut off; any other unreadable line means the file was damaged, and then nothing is numbered any more.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::observer::CheckpointSeen;
use super::rules::FileId;

const JOURNAL: &str = "checkpoints.jsonl";
const BASELINE: &str = "checkpoint-baseline.json";
/// Lines at which the journal is shortened.
const LINES_MAX: usize = 20_000;
/// Lines kept when it is.
pub(super) const LINES_KEPT: usize = 2_000;
/// Longest file that is read back: far above what `LINES_MAX` lines take.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Version of both files.
const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} line {line} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, line: usize, why: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct JournalLine {
    v: u32,
    #[serde(rename = "id")]
    file: FileId,
    seen: CheckpointSeen,
}

/// File states that are not new: those from before the attempt, and those of shortened-away lines.
#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    v: u32,
    #[serde(default)]
    files: Vec<FileId>,
}

/// The journal of one allocation. One owner at a time: the observer's task.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    file: File,
    lines: usize,
    next_seq: u64,
    /// The newest [`LINES_KEPT`] or more, oldest first.
    pub(super) recent: Vec<(FileId, CheckpointSeen)>,
    /// `None` until the directory was listed before the attempt.
    pub(super) baseline: Option<HashSet<FileId>>,
}

impl Journal {
    pub(super) fn open(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(JOURNAL);
        let io = |what| move |source| JournalError::Io { what, path: dir.join(JOURNAL), source };
        let baseline = read_baseline(&dir.join(BASELINE))?;
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(io("open checkpoint journal"))?;
        let mut text = Vec::new();
        (&mut file)
            .take(FILE_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(io("read checkpoint journal"))?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let recent = parse(&path, &text[..whole])?;
        if whole < text.len() {
            let whole = u64::try_from(whole).unwrap_or(u64::MAX);
            file.set_len(whole)
                .and_then(|()| file.sync_all())
                .map_err(io("cut checkpoint journal"))?;
        }
        sync_dir(dir)?;
        let next_seq = recent.last().map_or(0, |(_, seen)| seen.seq) + 1;
        Ok(Self { dir: dir.to_path_buf(), file, lines: recent.len(), next_seq, recent, baseline })
    }

    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Every file state that is not new.
    pub(super) fn known(&self) -> HashSet<FileId> {
        let mut known = self.baseline.clone().unwrap_or_default();
        known.extend(self.recent.iter().map(|(file, _)| *file));
        known
    }

    /// Appends and fsyncs the checkpoint; only then may the caller report it.
    pub(super) fn append(
        &mut self,
        file: FileId,
        seen: CheckpointSeen,
    ) -> Result<(), JournalError> {
        let io = |what| {
            let path = self.dir.join(JOURNAL);
            move |source| JournalError::Io { what, path, source }
        };
        let mut line = serde_json::to_vec(&JournalLine { v: VERSION, file, seen: seen.clone() })
            .map_err(|error| io("encode checkpoint for")(error.into()))?;
        line.push(b'\n');
        let before = self.file.metadata().map_err(io("stat checkpoint journal"))?.len();
        if let Err(source) = self.file.write_all(&line).and_then(|()| self.file.sync_data()) {
            // Half a line must not be followed by a whole one. If even this fails, opening cuts it.
            let _second_failure = self.file.set_len(before);
            return Err(io("append to checkpoint journal")(source));
        }
        self.lines += 1;
        self.next_seq = seen.seq + 1;
        self.recent.push((file, seen));
        if self.lines > LINES_MAX {
            self.shorten()?;
        }
        Ok(())
    }

    pub(super) fn set_baseline(&mut self, files: HashSet<FileId>) -> Result<(), JournalError> {
        let text =
            serde_json::to_vec(&Baseline { v: VERSION, files: files.iter().copied().collect() });
        let path = self.dir.join(BASELINE);
        let text = text.map_err(|error| JournalError::Io {
            what: "encode",
            path: path.clone(),
            source: error.into(),
        })?;
        replace(&path, &text)?;
        self.baseline = Some(files);
        Ok(())
    }

    /// Moves the identities of old lines into the baseline, then drops the lines.
    fn shorten(&mut self) -> Result<(), JournalError> {
        self.set_baseline(self.known())?;
        let old = self.recent.len().saturating_sub(LINES_KEPT);
        self.recent.drain(..old);
        let mut text = Vec::new();
        let path = self.dir.join(JOURNAL);
        let io = |what| {
            let path = path.clone();
            move |source| JournalError::Io { what, path, source }
        };
        for (file, seen) in &self.recent {
            let line = JournalLine { v: VERSION, file: *file, seen: seen.clone() };
            serde_json::to_writer(&mut text, &line).map_err(|error| io("encode")(error.into()))?;
            text.push(b'\n');
        }
        replace(&path, &text)?;
        self.file = OpenOptions::new().read(true).append(true).open(&path).map_err(io("open"))?;
        self.lines = self.recent.len();
        Ok(())
    }
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<(FileId, CheckpointSeen)>, JournalError> {
    let damaged = |line, why: String| JournalError::Damaged { path: path.to_path_buf(), line, why };
    let mut all: Vec<(FileId, CheckpointSeen)> = Vec::new();
    for (index, line) in
        text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty())
    {
        let number = index + 1;
        let line: JournalLine =
            serde_json::from_slice(line).map_err(|error| damaged(number, error.to_string()))?;
        if line.v > VERSION {
            return Err(damaged(
                number,
                format!("version {} was written by a newer fleet", line.v),
            ));
        }
        if let Some((_, last)) = all.last()
            && line.seen.seq != last.seq + 1
        {
            return Err(damaged(number, format!("number {} follows {}", line.seen.seq, last.seq)));
        }
        all.push((line.file, line.seen));
    }
    Ok(all)
}

fn read_baseline(path: &Path) -> Result<Option<HashSet<FileId>>, JournalError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(JournalError::Io { what: "read", path: path.to_path_buf(), source });
        }
    };
    let damaged = |why: String| JournalError::Damaged { path: path.to_path_buf(), line: 1, why };
    let baseline: Baseline =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if baseline.v > VERSION {
        return Err(damaged(format!("version {} was written by a newer fleet", baseline.v)));
    }
    Ok(Some(baseline.files.into_iter().collect()))
}

fn replace(path: &Path, text: &[u8]) -> Result<(), JournalError> {
    let temporary = path.with_extension("new");
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(text).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|source| JournalError::Io {
        what: "write",
        path: path.to_path_buf(),
        source,
    })?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> Result<(), JournalError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|source| JournalError::Io { what: "sync", path: dir.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::observer::Source;
    use super::*;

    fn file(n: u64) -> FileId {
        FileId { ino: n, mtime_ns: 1, size_bytes: 1 }
    }

    fn add(journal: &mut Journal) {
        let seq = journal.next_seq();
        let path = format!("/c/{seq}");
        let seen = CheckpointSeen {
            seq,
            path,
            size_bytes: 1,
            completed_at_unix_ms: 9,
            source: Source::Observed,
            counted_at_unix_ms: 9,
            facts: fleet_core::checkpoint::Facts::default(),
        };
        journal.append(file(seq), seen).unwrap();
    }

    #[test]
    fn numbers_go_on_after_reopening_and_after_a_cut_at_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert_eq!((journal.next_seq(), journal.baseline.clone()), (1, None));
        journal.set_baseline(HashSet::from([file(100)])).unwrap();
        for _ in 0..3 {
            add(&mut journal);
        }
        drop(journal);
        let text = std::fs::read(dir.path().join(JOURNAL)).unwrap();
        for cut in 0..=text.len() {
            std::fs::write(dir.path().join(JOURNAL), &text[..cut]).unwrap();
            let whole = text[..cut].iter().filter(|byte| **byte == b'\n').count();
            let mut journal = Journal::open(dir.path()).unwrap();
            assert_eq!(journal.next_seq(), u64::try_from(whole).unwrap() + 1, "cut at {cut}");
            assert!(journal.known().contains(&file(100)));
            add(&mut journal);
            assert_eq!(Journal::open(dir.path()).unwrap().recent.len(), whole + 1, "cut at {cut}");
        }
    }

    #[test]
    fn a_damaged_line_or_a_newer_version_is_refused_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        for _ in 0..3 {
            add(&mut journal);
        }
        let path = dir.path().join(JOURNAL);
        let text = std::fs::read_to_string(&path).unwrap();
        for (bad, line) in [
            (text.replace("\"seq\":2", "\"seq\":9"), 2),
            (text.replacen("{\"v\":1", "[\"v\":1", 1), 1),
            (text.replacen("\"v\":1", "\"v\":2", 1), 1),
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = Journal::open(dir.path()).unwrap_err();
            assert!(
                matches!(error, JournalError::Damaged { line: at, .. } if at == line),
                "{error}"
            );
        }
    }

    #[test]
    fn a_long_journal_is_shortened_without_forgetting() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        add(&mut journal);
        for _ in 0..LINES_KEPT + 5 {
            let seq = journal.next_seq();
            let path = String::new();
            let seen = CheckpointSeen {
                seq,
                path,
                size_bytes: 1,
                completed_at_unix_ms: 9,
                source: Source::Observed,
                counted_at_unix_ms: 9,
                facts: fleet_core::checkpoint::Facts::default(),
            };
            journal.recent.push((file(seq), seen));
            journal.next_seq += 1;
        }
        let next = journal.next_seq();
        journal.shorten().unwrap();
        let mut again = Journal::open(dir.path()).unwrap();
        assert_eq!((again.next_seq(), again.recent.len()), (next, LINES_KEPT));
        assert!(again.known().contains(&file(1)));
        add(&mut again);
        assert_eq!(Journal::open(dir.path()).unwrap().next_seq(), next + 1);
    }

    #[test]
    fn hostile_journals() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        for _ in 0..3 {
            add(&mut journal);
        }
        let good = [std::fs::read(dir.path().join(JOURNAL)).unwrap()];
        assert_eq!(parse(Path::new("/j"), &good[0]).unwrap().len(), 3);
        fleet_hostile_bytes::throw_at(&good, |bytes| parse(Path::new("/j"), bytes).is_ok());
    }
}
