//! A rule that repeats a reservation, as windows: `fleet reserve --every`.
//!
//! Pure: the first day, the time of day and the zone come in. The controllers get the windows, never the rule, because
//! what a wall clock shows changes with each release of the zone database. A time of day that the clocks skip becomes
//! the first instant after the gap; of one that they show twice the first counts.

use std::collections::BTreeSet;

use fleet_core::reservation::SERIES_LENGTH_MAX;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};

/// How often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Every {
    /// Every so many days.
    Days(u32),
    /// On these days of every so many weeks, the first of which is the week of the first day, from Monday on.
    Weeks(u32, Vec<Weekday>),
    /// On the same day of every so many months. A month without that day has none.
    Months(u32),
}

/// When a series ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// The last one starts before this instant.
    Before(Timestamp),
    /// So many days, those that are left out counted.
    Times(u32),
}

/// A rule, its first day and how long each window is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) every: Every,
    /// The first day that may be one, and the time of day of all.
    pub(crate) first: DateTime,
    pub(crate) last: Last,
    pub(crate) length_ms: u64,
    /// Left out.
    pub(crate) skip: BTreeSet<Date>,
}

/// From when to when, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub(crate) starts_at_ms: u64,
    pub(crate) ends_at_ms: u64,
}

/// Why a rule gives no series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleError {
    /// More than [`SERIES_LENGTH_MAX`]; this would be the first too many.
    TooMany { next_ms: u64 },
    /// No day is left.
    None,
    /// One reaches into the next.
    Overlap { one: Occurrence, next_ms: u64 },
    /// Beyond the years that there are times for.
    OutOfRange,
}

impl Rule {
    /// All windows, in order.
    pub(crate) fn occurrences(&self, zone: &TimeZone) -> Result<Vec<Occurrence>, RuleError> {
        let mut all: Vec<Occurrence> = Vec::new();
        let mut days = Days::of(&self.every, self.first.date());
        let mut count: u32 = 0;
        loop {
            if matches!(self.last, Last::Times(times) if count >= times) {
                break;
            }
            let Some(day) = days.next() else { return Err(RuleError::OutOfRange) };
            let at = DateTime::from_parts(day, self.first.time());
            let start = instant(at, zone).ok_or(RuleError::OutOfRange)?;
            if matches!(self.last, Last::Before(end) if start >= end) {
                break;
            }
            count += 1;
            if self.skip.contains(&day) {
                continue;
            }
            let starts_at_ms =
                u64::try_from(start.as_millisecond()).map_err(|_| RuleError::OutOfRange)?;
            if all.len() >= SERIES_LENGTH_MAX {
                return Err(RuleError::TooMany { next_ms: starts_at_ms });
            }
            if let Some(one) = all.last().filter(|one| one.ends_at_ms > starts_at_ms) {
                return Err(RuleError::Overlap { one: *one, next_ms: starts_at_ms });
            }
            let ends_at_ms = starts_at_ms.saturating_add(self.length_ms);
            all.push(Occurrence { starts_at_ms, ends_at_ms });
        }
        if all.is_empty() { Err(RuleError::None) } else { Ok(all) }
    }

    /// Whether a day is one of the rule, left out or not.
    pub(crate) fn means(&self, day: Date, zone: &TimeZone) -> bool {
        let mut days = Days::of(&self.every, self.first.date()).take_while(|one| *one <= day);
        match self.last {
            Last::Times(times) => days.take(times as usize).any(|one| one == day),
            Last::Before(end) => {
                let start = instant(day.to_datetime(self.first.time()), zone);
                days.any(|one| one == day) && start.is_some_and(|start| start < end)
            }
        }
    }
}

/// The days of a rule, without an end.
struct Days {
    first: Date,
    step: Step,
    /// Steps taken.
    taken: i64,
    /// Days of the week that this step began, still to come.
    left: Vec<Date>,
}

enum Step {
    Days(i64),
    /// Offsets from Monday.
    Weeks(i64, Vec<i64>),
    Months(i64),
}

impl Days {
    fn of(every: &Every, first: Date) -> Self {
        let step = match every {
            Every::Days(days) => Step::Days(i64::from(*days)),
            Every::Weeks(weeks, on) => {
                let offset = |day: &Weekday| i64::from(day.to_monday_zero_offset());
                // The last one comes first: they are taken from the end.
                let offsets: BTreeSet<i64> = on.iter().map(offset).collect();
                Step::Weeks(i64::from(*weeks), offsets.into_iter().rev().collect())
            }
            Every::Months(months) => Step::Months(i64::from(*months)),
        };
        Self { first, step, taken: 0, left: Vec::new() }
    }
}

impl Iterator for Days {
    type Item = Date;

    fn next(&mut self) -> Option<Date> {
        loop {
            if let Some(day) = self.left.pop() {
                if day >= self.first {
                    return Some(day);
                }
                continue;
            }
            let taken = self.taken;
            self.taken += 1;
            match &self.step {
                Step::Days(days) => {
                    return self.first.checked_add(days_of(days.checked_mul(taken)?)?).ok();
                }
                Step::Months(months) => {
                    let month = self.first.first_of_month();
                    let month = month
                        .checked_add(Span::new().try_months(months.checked_mul(taken)?).ok()?)
                        .ok()?;
                    if let Ok(day) = month.with().day(self.first.day()).build() {
                        return Some(day);
                    }
                }
                Step::Weeks(weeks, offsets) => {
                    let back = i64::from(self.first.weekday().to_monday_zero_offset());
                    let monday = weeks.checked_mul(taken)?.checked_mul(7)?.checked_sub(back)?;
                    let day = |offset: &i64| {
                        self.first.checked_add(days_of(monday.checked_add(*offset)?)?).ok()
                    };
                    self.left = offsets.iter().map(day).collect::<Option<_>>()?;
                    if self.left.is_empty() {
                        return None;
                    }
                }
            }
        }
    }
}

fn days_of(days: i64) -> Option<Span> {
    Span::new().try_days(days).ok()
}

/// The instant of a wall clock: the first of two; for none the end of the gap.
pub(crate) fn instant(at: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let ambiguous = zone.to_ambiguous_timestamp(at);
    let after = ambiguous.compatible().ok()?;
    match ambiguous.offset() {
        AmbiguousOffset::Gap { .. } => {
            // Strictly before: the transition itself must count.
            let later = after.checked_add(SignedDuration::from_secs(1)).ok()?;
            zone.preceding(later).next().map(|transition| transition.timestamp())
        }
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => Some(after),
    }
}

#[cfg(test)]
mod tests;
