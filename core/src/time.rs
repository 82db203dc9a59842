//! Instants and lengths of time, in milliseconds. No clock is read here: time comes in with the
//! command and the FSM never lets it step back.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// An instant: milliseconds since 1970-01-01T00:00:00Z.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Latest instant accepted from a user: 9999-01-01T00:00:00Z.
    pub const MAX_ACCEPTED: Timestamp = Timestamp(253_370_764_800_000);

    /// How long ago `earlier` was; zero if it is not earlier.
    pub fn since(self, earlier: Timestamp) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Millis> for Timestamp {
    type Output = Timestamp;
    fn add(self, length: Millis) -> Timestamp {
        Timestamp(self.0.saturating_add(length.0))
    }
}

impl Sub<Millis> for Timestamp {
    type Output = Timestamp;
    fn sub(self, length: Millis) -> Timestamp {
        Timestamp(self.0.saturating_sub(length.0))
    }
}

/// A length of time in milliseconds.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    pub const ZERO: Millis = Millis(0);

    pub const fn secs(n: u64) -> Millis {
        Millis(n.saturating_mul(1_000))
    }

    pub const fn minutes(n: u64) -> Millis {
        Millis::secs(n.saturating_mul(60))
    }

    pub const fn hours(n: u64) -> Millis {
        Millis::minutes(n.saturating_mul(60))
    }

    pub const fn days(n: u64) -> Millis {
        Millis::hours(n.saturating_mul(24))
    }

    pub fn saturating_sub(self, other: Millis) -> Millis {
        Millis(self.0.saturating_sub(other.0))
    }
}

impl Add for Millis {
    type Output = Millis;
    fn add(self, other: Millis) -> Millis {
        Millis(self.0.saturating_add(other.0))
    }
}

/// The two largest units, as people say it: `2d 3h`, `20m`, `45s`, `300ms`.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return write!(f, "{}ms", self.0);
        }
        let secs = self.0 / 1_000;
        let parts = [
            (secs / 86_400, 'd'),
            (secs / 3_600 % 24, 'h'),
            (secs / 60 % 60, 'm'),
            (secs % 60, 's'),
        ];
        let first = parts.iter().position(|(n, _)| *n > 0).unwrap_or(parts.len() - 1);
        write!(f, "{}{}", parts[first].0, parts[first].1)?;
        match parts.get(first + 1) {
            Some((n, unit)) if *n > 0 => write!(f, " {n}{unit}"),
            Some(_) | None => Ok(()),
        }
    }
}

/// A half-open time window `[starts_at, ends_at)`; those that begin earlier come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Window {
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
}

impl Window {
    /// Whether the two windows share an instant.
    pub fn overlaps(&self, other: &Window) -> bool {
        self.starts_at < other.ends_at && other.starts_at < self.ends_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_read_like_speech() {
        let said = [Millis(300), Millis::secs(45), Millis::minutes(20), Millis::hours(51)];
        let text: Vec<String> = said.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["300ms", "45s", "20m", "2d 3h"]);
    }

    #[test]
    fn windows_that_touch_do_not_overlap() {
        let w = |a, b| Window { starts_at: Timestamp(a), ends_at: Timestamp(b) };
        assert!(!w(0, 5).overlaps(&w(5, 9)));
        assert!(w(0, 6).overlaps(&w(5, 9)));
    }

    #[test]
    fn arithmetic_never_wraps() {
        assert_eq!(Timestamp(u64::MAX) + Millis::days(1), Timestamp(u64::MAX));
        assert_eq!(Timestamp(1) - Millis(5), Timestamp(0));
    }
}
