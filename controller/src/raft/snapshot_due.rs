//! Whether a snapshot is worth its bytes.
//!
//! openraft asks the state machine every so many entries. A snapshot is the whole state, so with a large state
//! and many small changes one after another would be written, on every member. It is due once the entries since
//! the last one take several times as much as that took: whatever the state's size, snapshots are a small part of
//! what is written. The log that is left to replay or to send is bounded by it all the same. It never holds back one that somebody asked for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What an entry takes in the log, about.
const ENTRY_BYTES: u64 = 500;
/// The log since the last snapshot, in units of that snapshot, at which the next one is due.
const LOG_TO_STATE: u64 = 4;
/// Room for growth beside the last snapshot's size: an eighth.
const GROWTH_SHIFT: u32 = 3;
/// A snapshot smaller than this costs nothing to speak of.
const SMALL_BYTES: u64 = 1 << 20;

/// The newest snapshot, and whether somebody waits for another.
#[derive(Debug, Default)]
pub(crate) struct SnapshotDue {
    bytes: AtomicU64,
    /// Of the last entry in it.
    index: AtomicU64,
    asked: AtomicBool,
}

impl SnapshotDue {
    /// A snapshot that ends with entry `index` was made, read or received.
    pub(crate) fn made(&self, index: u64, bytes: usize) {
        self.index.fetch_max(index, Ordering::Relaxed);
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// About how large the next one will be.
    pub(crate) fn expected_bytes(&self) -> usize {
        let bytes = self.bytes.load(Ordering::Relaxed);
        usize::try_from(bytes + (bytes >> GROWTH_SHIFT)).unwrap_or_default()
    }

    /// The next one is due whatever it costs.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether one that would end with entry `applied` is to be made.
    pub(crate) fn is_due(&self, applied: u64) -> bool {
        let asked = self.asked.swap(false, Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        let since = applied.saturating_sub(self.index.load(Ordering::Relaxed));
        asked
            || bytes < SMALL_BYTES
            || since.saturating_mul(ENTRY_BYTES) >= bytes.saturating_mul(LOG_TO_STATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_state_is_written_when_its_log_has_grown_by_several_times_as_much() {
        let worth = SnapshotDue::default();
        assert!(worth.is_due(5_000), "there is none yet");
        worth.made(5_000, 1 << 19);
        assert!(worth.is_due(5_001), "it is small");
        worth.made(5_001, 50_000_000);
        assert!(!worth.is_due(405_000));
        assert!(worth.is_due(405_001));
        worth.ask();
        assert!(worth.is_due(5_002), "somebody asked for it");
        assert!(!worth.is_due(5_002), "and got it");
    }
}
