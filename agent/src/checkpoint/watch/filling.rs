//! Directories that may become checkpoints: when each is checked next, and what it looked like last.

use std::collections::BTreeMap;

use super::super::rules::FileId;

/// Most directories that are followed while they are not complete.
pub(super) const FILLING_MAX: usize = 10_000;
/// Longest pause between two looks into a directory in which nothing happens, in milliseconds.
const PAUSE_MAX_MS: u64 = 300_000;
/// Shortest pause between two looks into one directory, in milliseconds.
const PAUSE_MIN_MS: u64 = 50;
/// A look may take this part of the time.
const SHARE: u64 = 20;

#[derive(Debug, Clone, Copy)]
struct Filling {
    since_ms: u64,
    look_ms: u64,
    /// How long the next pause is, in looks of the usual pause; doubled while nothing happens.
    pauses: u64,
    /// Before this time it is not checked, whatever happens in it.
    not_before_ms: u64,
    /// What it looked like last.
    state: Option<FileId>,
}

/// When a look was made, and the usual pause to the next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) began_ms: u64,
    pub(super) now_ms: u64,
    pub(super) again_ms: u64,
}

impl Filling {
    fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, look_ms: now_ms, pauses: 1, not_before_ms: 0, state: None }
    }
}

/// By path.
#[derive(Debug, Default)]
pub(super) struct FillingDirs {
    dirs: BTreeMap<String, Filling>,
}

impl FillingDirs {
    /// Something happened in it; false where there are too many.
    pub(super) fn touch(&mut self, path: &str, now_ms: u64) -> bool {
        if self.dirs.len() >= FILLING_MAX && !self.dirs.contains_key(path) {
            return false;
        }
        let one = self.dirs.entry(path.to_owned()).or_insert(Filling::new(now_ms));
        one.pauses = 1;
        one.look_ms = one.look_ms.min(now_ms.max(one.not_before_ms));
        true
    }

    /// It is there; nothing says that anything happened in it.
    pub(super) fn follow(&mut self, path: &str, now_ms: u64) {
        if self.dirs.len() < FILLING_MAX && !self.dirs.contains_key(path) {
            self.dirs.insert(path.to_owned(), Filling::new(now_ms));
        }
    }

    pub(super) fn due(&self, now_ms: u64) -> Vec<String> {
        let due = self.dirs.iter().filter(|(_, one)| one.look_ms <= now_ms);
        due.map(|(path, _)| path.clone()).collect()
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.dirs.keys().cloned().collect()
    }

    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.dirs.values().map(|one| one.look_ms).min()
    }

    /// It is not complete yet, and looked like `state`. How long it has been followed.
    pub(super) fn looked_at(&mut self, path: &str, state: FileId, times: Look) -> u64 {
        let Some(one) = self.dirs.get_mut(path) else { return 0 };
        let Look { began_ms, now_ms, again_ms } = times;
        if one.state.replace(state) != Some(state) {
            one.pauses = 1;
        }
        let cost = now_ms.saturating_sub(began_ms);
        one.not_before_ms = now_ms + (cost * SHARE).max(PAUSE_MIN_MS);
        let pause_ms = again_ms.saturating_mul(one.pauses).min(PAUSE_MAX_MS.max(again_ms));
        one.pauses = one.pauses.saturating_mul(2);
        one.look_ms = (now_ms + pause_ms).max(one.not_before_ms);
        now_ms.saturating_sub(one.since_ms)
    }

    /// It is complete, or gone, or no candidate.
    pub(super) fn forget(&mut self, path: &str) {
        self.dirs.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: FileId = FileId { ino: 1, mtime_ns: 1, size_bytes: 1 };

    #[test]
    fn a_costly_directory_is_looked_at_rarely() {
        let mut dirs = FillingDirs::default();
        assert!(dirs.touch("a", 0));
        assert_eq!(dirs.due(0), ["a"]);
        dirs.looked_at("a", STATE, Look { began_ms: 0, now_ms: 100, again_ms: 2_000 });
        dirs.touch("a", 101);
        assert!(dirs.due(2_099).is_empty(), "the look took 100 ms: the next is 2 s later");
        assert_eq!(dirs.due(2_100), ["a"]);
    }

    #[test]
    fn one_in_which_nothing_happens_is_looked_at_less_and_less() {
        let mut dirs = FillingDirs::default();
        dirs.follow("a", 0);
        let mut now = 0;
        for pause in [10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000] {
            dirs.looked_at("a", STATE, Look { began_ms: now, now_ms: now, again_ms: 10_000 });
            dirs.follow("a", now);
            assert_eq!(dirs.next_due_ms(), Some(now + pause));
            now += pause;
        }
        dirs.looked_at("a", STATE, Look { began_ms: now, now_ms: now, again_ms: 10_000 });
        let other = FileId { size_bytes: 2, ..STATE };
        dirs.looked_at("a", other, Look { began_ms: now, now_ms: now, again_ms: 10_000 });
        assert_eq!(dirs.next_due_ms(), Some(now + 10_000), "another machine wrote into it");
        dirs.touch("a", now + 60);
        assert_eq!(dirs.due(now + 60), ["a"], "something happened in it");
    }

    #[test]
    fn there_is_a_limit() {
        let mut dirs = FillingDirs::default();
        for n in 0..FILLING_MAX {
            assert!(dirs.touch(&n.to_string(), 0));
        }
        assert!(!dirs.touch("one more", 0));
        assert!(dirs.touch("0", 1), "one that is followed stays");
    }
}
