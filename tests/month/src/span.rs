//! Times of the month, in milliseconds from its beginning, and stretches of them.

use fleet_core::time::Timestamp;

pub(crate) const MINUTE: u64 = 60_000;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
pub(crate) const WEEK: u64 = 7 * DAY;
/// Four weeks.
pub(crate) const MONTH: u64 = 4 * WEEK;
/// More is asked for than there is in weeks 2 and 3.
pub(crate) const AT_LOAD: Span = Span { from: WEEK, to: 3 * WEEK };

/// A Monday: 2026-11-30T00:00:00Z.
const BEGINNING: u64 = 1_795_996_800_000;

/// In the fleet's time.
pub(crate) fn stamp(at: u64) -> Timestamp {
    Timestamp(BEGINNING + at)
}

pub(crate) fn from_stamp(at: Timestamp) -> u64 {
    at.0.saturating_sub(BEGINNING)
}

/// From one time to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Span {
    pub(crate) fn length(self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// What both have.
    pub(crate) fn both(self, other: Span) -> Span {
        let from = self.from.max(other.from);
        Span { from, to: self.to.min(other.to).max(from) }
    }
}

/// In hours.
pub(crate) fn hours(millis: u64) -> f64 {
    // A month of all GPUs is far below 2^53 milliseconds.
    millis as f64 / HOUR as f64
}
