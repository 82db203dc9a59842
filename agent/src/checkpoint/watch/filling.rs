//! Directories that may become checkpoints: when each is looked at next, and what was said of it.

use std::collections::BTreeMap;

/// Most directories that are followed while they are not complete.
pub(super) const FILLING_MAX: usize = 1_024;
/// Shortest pause between two looks into one directory, in milliseconds.
const PAUSE_MIN_MS: u64 = 50;
/// A look may take this part of the time.
const SHARE: u64 = 20;

#[derive(Debug, Clone, Copy)]
struct Filling {
    since_ms: u64,
    look_ms: u64,
    /// Before this it is not looked at, whatever happens in it.
    not_before_ms: u64,
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
        let fresh = Filling { since_ms: now_ms, look_ms: now_ms, not_before_ms: 0 };
        let one = self.dirs.entry(path.to_owned()).or_insert(fresh);
        one.look_ms = one.look_ms.min(now_ms.max(one.not_before_ms));
        true
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

    /// It is not complete yet. How long it has been followed.
    pub(super) fn looked_at(
        &mut self,
        path: &str,
        began_ms: u64,
        now_ms: u64,
        again_ms: u64,
    ) -> u64 {
        let Some(one) = self.dirs.get_mut(path) else { return 0 };
        let cost = now_ms.saturating_sub(began_ms);
        one.not_before_ms = now_ms + (cost * SHARE).max(PAUSE_MIN_MS);
        one.look_ms = (now_ms + again_ms).max(one.not_before_ms);
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

    #[test]
    fn a_costly_directory_is_looked_at_rarely() {
        let mut dirs = FillingDirs::default();
        assert!(dirs.touch("a", 0));
        assert_eq!(dirs.due(0), ["a"]);
        dirs.looked_at("a", 0, 100, 2_000);
        dirs.touch("a", 101);
        assert!(dirs.due(2_099).is_empty(), "the look took 100 ms: the next is 2 s later");
        assert_eq!(dirs.due(2_100), ["a"]);
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
