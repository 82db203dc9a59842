//! Calendar months: as people write them, and from when to when one is in a time zone.

use std::fmt;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// A calendar month; written as `2026-11`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month {
    first: Date,
}

impl Month {
    /// The one that it is at that time in the zone.
    pub fn at(time: Timestamp, zone: &TimeZone) -> Self {
        Self { first: time.to_zoned_datetime(zone.clone()).date().first_of_month() }
    }

    /// Reads `2026-11`, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('-')?;
        let digits =
            |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(year, 4) || !digits(month, 2) {
            return None;
        }
        Date::new(year.parse().ok()?, month.parse().ok()?, 1).ok().map(|first| Self { first })
    }

    /// The month before; `None`: no calendar has it.
    pub fn before(self) -> Option<Self> {
        self.first.checked_sub(Span::new().months(1)).ok().map(|first| Self { first })
    }

    /// The next month; `None`: no calendar has it.
    pub fn after(self) -> Option<Self> {
        self.first.checked_add(Span::new().months(1)).ok().map(|first| Self { first })
    }

    /// From its first midnight to the next month's. `None`: no clock has them.
    pub fn span(self, zone: &TimeZone) -> Option<(Timestamp, Timestamp)> {
        let start = |month: Self| {
            // Where the clocks are put forward at midnight the month begins when that is over.
            let midnight = zone.to_ambiguous_timestamp(month.first.to_datetime(Time::midnight()));
            midnight.compatible().ok()
        };
        Some((start(self)?, start(self.after()?)?))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.first.year(), self.first.month())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn months_follow_each_other_over_the_year() {
        let december = Month::parse("2026-12").unwrap();
        assert_eq!(december.after().unwrap().to_string(), "2027-01");
        assert_eq!(december.after().unwrap().before(), Some(december));
        assert_eq!(Month::parse("9999-12").unwrap().after(), None);
        for text in ["2026-13", "2026-00", "2026", "2026-1", "11-2026", "+026-11", "2026-1é", ""] {
            assert_eq!(Month::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_month_is_as_long_as_the_zone_has_it() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let (from, until) = Month::parse("2026-10").unwrap().span(&zone).unwrap();
        assert_eq!((from.to_string(), until.to_string()), {
            ("2026-09-30T22:00:00Z".to_owned(), "2026-10-31T23:00:00Z".to_owned())
        });
        // It is December there.
        assert_eq!(
            Month::at("2026-11-30T23:30:00Z".parse().unwrap(), &zone).to_string(),
            "2026-12"
        );
    }
}
