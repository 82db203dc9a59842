//! When something that appeared is complete. Pure: names, states and times come in, decisions go out.
//!
//! A file renamed into place is complete at once. A file written in place is complete when its writer has closed it and
//! it then kept its size and time for a while. A file that nobody was seen closing needs longer, and must not be open
//! for writing by any process of the user. A directory that its rule calls complete must keep still as a closed file does.

use std::collections::{HashMap, HashSet};

pub use fleet_user::op::watch::FileId;

/// Most files that are followed while they are not complete; more wait for the next scan.
pub const CANDIDATES_MAX: usize = 10_000;

/// How a file came to our notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// Renamed to its name.
    Moved,
    /// Closed by a writer.
    Closed,
    /// A directory that its rule calls complete.
    Filled,
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
    /// It keeps still as a closed file does, after each change again: a directory.
    filled: bool,
    closed: bool,
    /// Monotonic time of the first sighting under this name.
    first_ms: u64,
    /// Monotonic time since when it is in this state.
    since_ms: u64,
    /// Wall clock at that time.
    since_unix_ms: u64,
    /// Monotonic time before which it is not checked again.
    look_again_ms: u64,
}

impl Candidate {
    fn how(&self) -> Sighting {
        match (self.filled, self.closed) {
            (true, _) => Sighting::Filled,
            (false, true) => Sighting::Closed,
            (false, false) => Sighting::Scanned,
        }
    }
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
        let fresh = self.candidate(id, how, now);
        if self.candidates.len() >= CANDIDATES_MAX && !self.candidates.contains_key(path) {
            return None;
        }
        let candidate = self.candidates.entry(path.to_owned()).or_insert(fresh);
        if candidate.id != id
            || how == Sighting::Closed
            || (how == Sighting::Filled && !candidate.filled)
        {
            *candidate = Candidate { first_ms: candidate.first_ms, ..fresh };
        }
        None
    }

    /// What one look through the directory found, from `began_ms` on, becomes due together: a long look would otherwise
    /// count in the order of the directory's entries.
    pub fn found_together(&mut self, began_ms: u64, now: Now) {
        let found =
            |one: &&mut Candidate| one.how() == Sighting::Scanned && one.since_ms >= began_ms;
        for candidate in self.candidates.values_mut().filter(found) {
            candidate.since_ms = now.monotonic_ms;
            candidate.since_unix_ms = now.unix_ms;
            candidate.look_again_ms = now.monotonic_ms + self.settle.scanned_ms;
        }
    }

    fn candidate(&self, id: FileId, how: Sighting, now: Now) -> Candidate {
        let filled = how == Sighting::Filled;
        let closed = filled || how == Sighting::Closed;
        let wait_ms = if closed { self.settle.closed_ms } else { self.settle.scanned_ms };
        let look_again_ms = now.monotonic_ms + wait_ms;
        Candidate {
            id,
            filled,
            closed,
            first_ms: now.monotonic_ms,
            since_ms: now.monotonic_ms,
            since_unix_ms: now.unix_ms,
            look_again_ms,
        }
    }

    /// Paths that may have settled, for the caller to check again and hand to [`Tracker::settled`]. The oldest state
    /// comes first, since they get their numbers in this order.
    #[must_use]
    pub fn due(&self, now: Now) -> Vec<String> {
        self.in_order(|candidate| now.monotonic_ms >= candidate.look_again_ms)
    }

    fn in_order(&self, wanted: impl Fn(&Candidate) -> bool) -> Vec<String> {
        let found = self.candidates.iter().filter(|(_, candidate)| wanted(candidate));
        let mut found: Vec<_> = found.map(|(path, one)| (one.id.mtime_ns, path)).collect();
        found.sort();
        found.into_iter().map(|(_, path)| path.clone()).collect()
    }

    /// When [`Tracker::due`] next has something, if anything is waiting.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.candidates.values().map(|candidate| candidate.look_again_ms).min()
    }

    /// How long something of that name has been waited for, through all its changes.
    #[must_use]
    pub fn waited_ms(&self, path: &str, now: Now) -> Option<u64> {
        self.candidates.get(path).map(|one| now.monotonic_ms.saturating_sub(one.first_ms))
    }

    /// Has the path checked again later, whatever its state.
    pub fn postpone(&mut self, path: &str, now: Now) {
        if let Some(candidate) = self.candidates.get_mut(path) {
            candidate.look_again_ms = now.monotonic_ms + self.settle.scanned_ms;
        }
    }

    /// Nothing of that name is waited for any more.
    pub fn forget(&mut self, path: &str) {
        self.candidates.remove(path);
    }

    /// What was closed by its writer and only has to keep still.
    #[must_use]
    pub fn closed(&self) -> Vec<String> {
        self.in_order(|candidate| candidate.closed)
    }

    /// Takes a due file that was checked again: `Some(when it was completed)` if it counts now.
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
            let how = if candidate.filled { Sighting::Filled } else { Sighting::Scanned };
            return self.sighted(path, id, how, now);
        }
        // An empty file that nobody was seen closing is one that somebody is about to write.
        let still_written =
            open == OpenForWriting::Yes || (!candidate.closed && id.size_bytes == 0);
        if still_written {
            let how = candidate.how();
            let first_ms = candidate.first_ms;
            let again = Candidate { first_ms, ..self.candidate(id, how, now) };
            self.candidates.insert(path.to_owned(), again);
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
    fn what_was_written_first_gets_its_number_first() {
        let mut t = tracker();
        for (path, mtime_ns) in [("c", 30), ("a", 10), ("d", 40), ("b", 20)] {
            t.sighted(path, FileId { mtime_ns, ..id(1) }, Sighting::Closed, at(0));
        }
        assert_eq!(t.due(at(100)), ["a", "b", "c", "d"]);
        assert_eq!(t.closed(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_long_look_counts_in_the_order_of_the_writing() {
        let mut t = tracker();
        // In the order of the directory's entries, each a while after the one before.
        for (path, mtime_ns, ms) in [("b", 20, 50), ("c", 30, 60), ("a", 10, 90)] {
            t.sighted(path, FileId { mtime_ns, ..id(1) }, Sighting::Scanned, at(ms));
        }
        t.found_together(50, at(95));
        assert!(t.due(at(1_094)).is_empty(), "none goes ahead");
        assert_eq!(t.due(at(1_095)), ["a", "b", "c"]);
        // A later look finds the same again, and puts nothing off.
        t.sighted("a", FileId { mtime_ns: 10, ..id(1) }, Sighting::Scanned, at(500));
        t.found_together(500, at(510));
        assert_eq!(t.due(at(1_095)), ["a", "b", "c"]);
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
