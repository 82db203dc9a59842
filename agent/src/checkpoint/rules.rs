//! What counts as a checkpoint. Pure: names, states and times come in, decisions go out.
//!
//! A file renamed into place is complete at once. A file written in place is complete when its writer has closed it and
//! it then kept its size and time for a while. A file that nobody was seen closing needs longer, and must not be open
//! for writing by any process of the user. A directory counts only when it was renamed into place.

use std::collections::{HashMap, HashSet};

use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

use crate::user::op::{FileKind, FileStat};

/// Endings that say "not finished".
pub const UNFINISHED_SUFFIXES: [&str; 4] = [".tmp", ".partial", ".part", "~"];
/// Deepest directory below the checkpoint directory that is looked into.
pub const DEPTH_MAX: usize = 8;
/// Longest pattern.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// Most files that are followed while they are not complete; more wait for the next scan.
pub const CANDIDATES_MAX: usize = 10_000;

/// One state of one file. The same state is never counted twice, under whatever name: a rename or a hard link of a
/// counted checkpoint is not another one. The device is left out, since NFS gets another one after a remount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    pub ino: u64,
    pub mtime_ns: i64,
    pub size_bytes: u64,
}

impl FileId {
    #[must_use]
    pub fn of(stat: &FileStat) -> Self {
        // The size of a directory itself says nothing, and some file systems change it behind one's back. It is not 0
        // here: that would say "empty file".
        let size_bytes = if stat.kind == FileKind::Dir { u64::MAX } else { stat.size_bytes };
        Self { ino: stat.ino, mtime_ns: stat.mtime_ns, size_bytes }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("checkpoint pattern {pattern:?}: {why}")]
    Bad { pattern: String, why: String },
}

/// A glob over paths relative to the checkpoint directory. `*` does not cross `/`, `**` does.
#[derive(Debug, Clone)]
pub struct Pattern {
    glob: GlobMatcher,
    depth: usize,
}

impl Pattern {
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let bad = |why: &str| PatternError::Bad { pattern: text.to_owned(), why: why.to_owned() };
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            return Err(bad("it must have 1 to 1024 bytes"));
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(bad("it is relative to the checkpoint directory and cannot leave it"));
        }
        let text = text.trim_start_matches("./");
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|error| bad(&error.kind().to_string()))?
            .compile_matcher();
        let slashes = text.matches('/').count();
        let depth = if text.contains("**") { DEPTH_MAX } else { slashes.min(DEPTH_MAX) };
        Ok(Self { glob, depth })
    }

    /// Does this relative path name a checkpoint, finished or not?
    #[must_use]
    pub fn matches(&self, relative: &str) -> bool {
        !never_counts(relative) && self.glob.is_match(relative)
    }

    /// How many levels of sub-directories can hold a match.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }
}

/// Hidden names and names that say "unfinished", anywhere on the path.
#[must_use]
pub fn never_counts(relative: &str) -> bool {
    relative.split('/').any(|part| {
        part.is_empty()
            || part.starts_with('.')
            || UNFINISHED_SUFFIXES.iter().any(|suffix| part.ends_with(suffix))
    })
}

/// How a file came to our notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// Renamed to its name.
    Moved,
    /// Closed by a writer.
    Closed,
    /// Found by looking.
    Scanned,
}

/// Whether some process of the user has the file open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenForWriting {
    Yes,
    No,
    /// Not every process could be asked.
    Unknown,
}

/// How long a file must keep still, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle {
    /// After its writer closed it.
    pub closed_ms: u64,
    /// When no close was seen.
    pub scanned_ms: u64,
    /// When no close was seen and it is not known whether it is open.
    pub unknown_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: FileId,
    closed: bool,
    /// Monotonic time since when it is in this state.
    since_ms: u64,
    /// Wall clock at that time.
    since_unix_ms: u64,
    /// Monotonic time before which it is not looked at again.
    look_again_ms: u64,
}

/// Decides for each file when it becomes a checkpoint.
#[derive(Debug)]
pub struct Tracker {
    settle: Settle,
    known: HashSet<FileId>,
    candidates: HashMap<String, Candidate>,
}

/// The two clocks, read by the caller.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    pub monotonic_ms: u64,
    pub unix_ms: u64,
}

impl Tracker {
    #[must_use]
    pub fn new(settle: Settle, known: HashSet<FileId>) -> Self {
        Self { settle, known, candidates: HashMap::new() }
    }

    /// A file that was there before the attempt.
    pub fn add_known(&mut self, id: FileId) {
        self.known.insert(id);
    }

    #[must_use]
    pub fn is_known(&self, id: &FileId) -> bool {
        self.known.contains(id)
    }

    /// Takes note of a file; the result is when it was completed, if it is complete by this sighting alone.
    pub fn sighted(&mut self, path: &str, id: FileId, how: Sighting, now: Now) -> Option<u64> {
        if self.known.contains(&id) {
            self.candidates.remove(path);
            return None;
        }
        if how == Sighting::Moved {
            return Some(self.count(path, id, now.unix_ms));
        }
        let fresh = self.candidate(id, how == Sighting::Closed, now);
        if self.candidates.len() >= CANDIDATES_MAX && !self.candidates.contains_key(path) {
            return None;
        }
        let candidate = self.candidates.entry(path.to_owned()).or_insert(fresh);
        if candidate.id != id || how == Sighting::Closed {
            *candidate = fresh;
        }
        None
    }

    fn candidate(&self, id: FileId, closed: bool, now: Now) -> Candidate {
        let wait_ms = if closed { self.settle.closed_ms } else { self.settle.scanned_ms };
        let look_again_ms = now.monotonic_ms + wait_ms;
        Candidate {
            id,
            closed,
            since_ms: now.monotonic_ms,
            since_unix_ms: now.unix_ms,
            look_again_ms,
        }
    }

    /// Paths that may have settled, to be looked at again and handed to [`Tracker::settled`].
    #[must_use]
    pub fn due(&self, now: Now) -> Vec<String> {
        let due = self
            .candidates
            .iter()
            .filter(|(_, candidate)| now.monotonic_ms >= candidate.look_again_ms);
        due.map(|(path, _)| path.clone()).collect()
    }

    /// When [`Tracker::due`] next has something, if anything is waiting.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.candidates.values().map(|candidate| candidate.look_again_ms).min()
    }

    /// What was closed by its writer and only has to keep still. When no writer can be left, that is
    /// certain.
    #[must_use]
    pub fn closed(&self) -> Vec<String> {
        let closed = self.candidates.iter().filter(|(_, candidate)| candidate.closed);
        closed.map(|(path, _)| path.clone()).collect()
    }

    /// A due file, looked at again: `Some(when it was completed)` if it counts now.
    pub fn settled(
        &mut self,
        path: &str,
        id: Option<FileId>,
        open: OpenForWriting,
        now: Now,
    ) -> Option<u64> {
        let candidate = *self.candidates.get(path)?;
        let Some(id) = id else {
            self.candidates.remove(path);
            return None;
        };
        if id != candidate.id {
            self.candidates.remove(path);
            return self.sighted(path, id, Sighting::Scanned, now);
        }
        // An empty file that nobody was seen closing is one that somebody is about to write.
        let still_written =
            open == OpenForWriting::Yes || (!candidate.closed && id.size_bytes == 0);
        if still_written {
            self.candidates.insert(path.to_owned(), self.candidate(id, candidate.closed, now));
            return None;
        }
        let waited_ms = now.monotonic_ms.saturating_sub(candidate.since_ms);
        if !candidate.closed
            && open == OpenForWriting::Unknown
            && waited_ms < self.settle.unknown_ms
        {
            let look_again_ms = now.monotonic_ms + self.settle.scanned_ms;
            self.candidates.insert(path.to_owned(), Candidate { look_again_ms, ..candidate });
            return None;
        }
        Some(self.count(path, id, candidate.since_unix_ms))
    }

    fn count(&mut self, path: &str, id: FileId, completed_at_unix_ms: u64) -> u64 {
        self.candidates.remove(path);
        self.known.insert(id);
        completed_at_unix_ms
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SETTLE: Settle = Settle { closed_ms: 100, scanned_ms: 1000, unknown_ms: 5000 };

    fn tracker() -> Tracker {
        Tracker::new(SETTLE, HashSet::new())
    }
    fn at(ms: u64) -> Now {
        Now { monotonic_ms: ms, unix_ms: 1_000_000 + ms }
    }
    fn id(n: u64) -> FileId {
        FileId { ino: n, mtime_ns: 7, size_bytes: 10 }
    }

    #[test]
    fn names() {
        for (pattern, path, expected) in [
            ("*.pt", "step-1.pt", true),
            ("*.pt", "sub/step-1.pt", false),
            ("**/*.pt", "sub/deep/step-1.pt", true),
            ("step-*/model.pt", "step-3/model.pt", true),
            ("*", "anything", true),
            ("*", "x.tmp", false),
            ("*", "x.partial", false),
            ("*", "x.part", false),
            ("*", "x~", false),
            ("*", ".hidden", false),
            ("**", "a.tmp/model", false),
            ("**", ".git/model", false),
            ("./*.pt", "a.pt", true),
            ("{a,b}.pt", "b.pt", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(path), expected, "{pattern} {path}");
        }
        for bad in ["", "/etc/*", "../*", "a/../b", "[", "a{b", &"x".repeat(1025)] {
            assert!(Pattern::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Pattern::new("*.pt").unwrap().depth(), 0);
        assert_eq!(Pattern::new("a/b/*.pt").unwrap().depth(), 2);
        assert_eq!(Pattern::new("**/*.pt").unwrap().depth(), DEPTH_MAX);
    }

    #[test]
    fn a_renamed_file_counts_at_once_and_once() {
        let mut t = tracker();
        assert_eq!(t.sighted("a", id(1), Sighting::Moved, at(5)), Some(1_000_005));
        assert_eq!(t.sighted("a", id(1), Sighting::Moved, at(6)), None);
        assert_eq!(t.sighted("renamed-again", id(1), Sighting::Moved, at(7)), None);
        assert_eq!(
            t.sighted("a", FileId { mtime_ns: 8, ..id(1) }, Sighting::Moved, at(8)),
            Some(1_000_008)
        );
    }

    #[test]
    fn a_closed_file_counts_when_it_kept_still() {
        let mut t = tracker();
        assert_eq!(t.sighted("a", id(1), Sighting::Closed, at(0)), None);
        assert!(t.due(at(99)).is_empty());
        assert_eq!(t.due(at(100)), ["a"]);
        // Written on meanwhile: it is another state, and nobody closed that one.
        let longer = FileId { size_bytes: 20, ..id(1) };
        assert_eq!(t.settled("a", Some(longer), OpenForWriting::No, at(100)), None);
        assert!(t.due(at(200)).is_empty());
        assert_eq!(t.sighted("a", longer, Sighting::Closed, at(300)), None);
        assert_eq!(t.settled("a", Some(longer), OpenForWriting::No, at(400)), Some(1_000_300));
        assert_eq!(t.next_due_ms(), None);
    }

    #[test]
    fn an_open_file_waits_and_an_unknown_one_waits_longer() {
        let mut t = tracker();
        t.sighted("a", id(1), Sighting::Scanned, at(0));
        assert_eq!(t.settled("a", Some(id(1)), OpenForWriting::Yes, at(1000)), None);
        assert!(t.due(at(1999)).is_empty());
        assert_eq!(t.settled("a", Some(id(1)), OpenForWriting::Unknown, at(2000)), None);
        assert_eq!(t.settled("a", Some(id(1)), OpenForWriting::Unknown, at(6000)), Some(1_001_000));
    }

    #[test]
    fn an_empty_file_nobody_closed_never_counts_and_a_gone_one_is_forgotten() {
        let mut t = tracker();
        let empty = FileId { size_bytes: 0, ..id(1) };
        t.sighted("a", empty, Sighting::Scanned, at(0));
        assert_eq!(t.settled("a", Some(empty), OpenForWriting::No, at(60_000)), None);
        assert_eq!(t.settled("a", None, OpenForWriting::No, at(61_000)), None);
        assert_eq!(t.next_due_ms(), None);
    }

    #[test]
    fn what_was_there_before_is_not_new() {
        let mut t = Tracker::new(SETTLE, HashSet::from([id(1)]));
        t.add_known(id(2));
        assert_eq!(t.sighted("a", id(1), Sighting::Moved, at(0)), None);
        assert_eq!(t.sighted("b", id(2), Sighting::Closed, at(0)), None);
        assert_eq!(t.next_due_ms(), None);
    }
}
