//! What a typed time is taken for, and what to say where its text leaves that open.
//!
//! The commands that take a start or an end call it. It never refuses what [`super::parse_when`] reads.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{Clock, TimeError, When, YEARS};
use super::{checked, end_of_day_date, named_day, out_of_range, parse, parse_clock, weekday};

/// What a time stands for: a day alone is its beginning or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    Start,
    End,
}

/// What the text does not say itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A day alone, up to its end.
    WholeDay(Timestamp),
    /// A time of day that is over today.
    Tomorrow(Timestamp),
    /// A time of today's weekday that is over today.
    InAWeek(Timestamp),
    /// The clocks show it twice.
    FirstOfTwo { first: Timestamp, second: Timestamp },
}

/// A time, and what the one who typed it should know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) when: When,
    pub(crate) taken: Vec<Taken>,
}

/// Reads a time like [`parse_when`](super::parse_when), with a day alone as the beginning of the day or its end.
pub(crate) fn read_when(
    text: &str,
    now: Timestamp,
    zone: &TimeZone,
    edge: Edge,
) -> Result<Read, TimeError> {
    let lower = text.trim().to_ascii_lowercase();
    let here = now.to_zoned_datetime(zone.clone()).datetime();
    // The end of today is still to come, unlike its beginning.
    if edge == Edge::End
        && let Some(date) = named_day(&lower, here.date(), |_| true)
    {
        let end = whole_day(text, date, zone)?;
        return Ok(Read { when: When::At(end), taken: vec![Taken::WholeDay(end)] });
    }
    let (when, local) = parse(text, now, zone)?;
    let (When::At(at), Some(local)) = (when, local) else {
        return Ok(Read { when, taken: Vec::new() });
    };
    let day = lower.split(' ').next().unwrap_or_default();
    let mut taken = Vec::new();
    // Midnight is the next one for everybody.
    if lower != "midnight" && parse_clock(&lower).is_some() && local.date() != here.date() {
        taken.push(Taken::Tomorrow(at));
    }
    if weekday(day).is_some_and(|weekday| weekday == here.weekday()) && local.date() != here.date()
    {
        taken.push(Taken::InAWeek(at));
    }
    if let Some(second) = second_of(local, zone) {
        taken.push(Taken::FirstOfTwo { first: at, second });
    }
    Ok(Read { when, taken })
}

fn whole_day(text: &str, date: Date, zone: &TimeZone) -> Result<Timestamp, TimeError> {
    let end = Some(date).filter(|date| YEARS.contains(&date.year()));
    let end = end.and_then(|date| end_of_day_date(date, zone)).ok_or_else(|| out_of_range(text))?;
    checked(text, end)?;
    Ok(end)
}

/// The later instant of a local time that occurs twice.
fn second_of(local: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    ambiguous.is_ambiguous().then(|| ambiguous.later().ok()).flatten()
}

impl Taken {
    /// One sentence about `typed`, the option and its value.
    pub(crate) fn sentence(&self, typed: &str, clock: &Clock) -> String {
        let shown = |at: &Timestamp| clock.day_and_minute(milliseconds(*at));
        match self {
            Taken::WholeDay(at) => format!("{typed} is the end of that day: {}", shown(at)),
            Taken::Tomorrow(at) => {
                format!("{typed} is tomorrow, because that time is over today: {}", shown(at))
            }
            Taken::InAWeek(at) => {
                format!("{typed} is in a week, because that time is over today: {}", shown(at))
            }
            Taken::FirstOfTwo { first, second } => format!(
                "{typed} occurs twice, because the clocks are set back; the first is meant: {}. For the second write {}",
                shown(first),
                clock.typed(milliseconds(*second))
            ),
        }
    }
}

/// What to say of a length of days that begins at `from_ms`, where the clocks change before its end.
pub(crate) fn across_a_change(clock: &Clock, from_ms: u64, length_ms: u64) -> Option<String> {
    let offset = |ms: u64| {
        let at = Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
        Some(clock.zone().to_offset(at))
    };
    let end_ms = from_ms.checked_add(length_ms)?;
    let day_ms = u64::try_from(SignedDuration::from_hours(24).as_millis()).ok()?;
    let changes = length_ms >= day_ms && offset(from_ms)? != offset(end_ms)?;
    changes.then(|| {
        format!(
            "a day of --time is 24 hours, and the clocks change before the end: {}",
            clock.day_and_minute(end_ms)
        )
    })
}

fn milliseconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_millisecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn said(text: &str, now: &str, edge: Edge) -> String {
        let clock = Clock::standing(now, "Europe/Berlin");
        let read = read_when(text, clock.now, clock.zone(), edge).unwrap();
        let taken = read.taken.iter().map(|taken| taken.sentence(text, &clock));
        match read.when {
            When::At(at) if read.taken.is_empty() => clock.day_and_minute(milliseconds(at)),
            _ => taken.collect::<Vec<_>>().join("; "),
        }
    }

    /// A Saturday, 10:31 in Berlin.
    const NOW: &str = "2026-11-21T09:31:07Z";

    #[test]
    fn a_day_alone_is_its_beginning_or_its_end() {
        for (text, end) in [
            ("friday", "Sat 2026-11-28 00:00 CET"),
            ("today", "Sun 2026-11-22 00:00 CET"),
            ("Tomorrow", "Mon 2026-11-23 00:00 CET"),
            ("2026-11-27", "Sat 2026-11-28 00:00 CET"),
            // The end of this Saturday is still to come.
            ("sat", "Sun 2026-11-22 00:00 CET"),
        ] {
            assert_eq!(said(text, NOW, Edge::End), format!("{text} is the end of that day: {end}"));
        }
        assert_eq!(said("friday", NOW, Edge::Start), "Fri 2026-11-27 00:00 CET");
        assert_eq!(said("friday 08:00", NOW, Edge::End), "Fri 2026-11-27 08:00 CET");
        assert!(read_when("soon", Timestamp::now(), &TimeZone::UTC, Edge::End).is_err());
        let beyond = read_when("9999-01-01", Timestamp::now(), &TimeZone::UTC, Edge::End);
        assert!(matches!(beyond, Err(TimeError::OutOfRange(_))), "{beyond:?}");
        // The clocks skip midnight on this day, which has an end all the same.
        let cairo = TimeZone::get("Africa/Cairo").unwrap();
        let read = read_when("2027-04-30", NOW.parse().unwrap(), &cairo, Edge::End).unwrap();
        assert_eq!(read.when, When::At("2027-04-30T21:00:00Z".parse().unwrap()));
    }

    #[test]
    fn a_time_that_is_over_today_names_the_day_that_is_meant() {
        assert_eq!(
            said("08:00", NOW, Edge::End),
            "08:00 is tomorrow, because that time is over today: Sun 2026-11-22 08:00 CET"
        );
        assert_eq!(
            said("sat 09:00", NOW, Edge::Start),
            "sat 09:00 is in a week, because that time is over today: Sat 2026-11-28 09:00 CET"
        );
        assert_eq!(said("14:00", NOW, Edge::End), "Sat 2026-11-21 14:00 CET");
        assert_eq!(said("sat 14:00", NOW, Edge::End), "Sat 2026-11-21 14:00 CET");
        assert_eq!(said("midnight", NOW, Edge::End), "Sun 2026-11-22 00:00 CET");
        assert_eq!(said("tomorrow 08:00", NOW, Edge::End), "Sun 2026-11-22 08:00 CET");
    }

    #[test]
    fn a_time_that_occurs_twice_names_both() {
        let eve = "2026-10-24T12:00:00Z";
        assert_eq!(
            said("2026-10-25 02:30", eve, Edge::Start),
            "2026-10-25 02:30 occurs twice, because the clocks are set back; the first is meant: \
             Sun 2026-10-25 02:30 CEST. For the second write 2026-10-25T02:30:00+01:00"
        );
        assert!(said("02:30", eve, Edge::End).contains("is tomorrow"));
        assert!(said("02:30", eve, Edge::End).contains("occurs twice"));
        // With an offset, or hours from now, it is one instant.
        let second = said("2026-10-25T02:30:00+01:00", eve, Edge::Start);
        assert_eq!(second, "Sun 2026-10-25 02:30 CET");
        assert_eq!(said("+12h30m", eve, Edge::Start), "Sun 2026-10-25 02:30 CEST");
    }

    #[test]
    fn a_day_of_24_hours_across_a_change_says_when_it_ends() {
        let clock = Clock::standing("2026-10-24T07:00:00Z", "Europe/Berlin");
        let day = 86_400_000;
        assert_eq!(
            across_a_change(&clock, clock.now_ms(), day).unwrap(),
            "a day of --time is 24 hours, and the clocks change before the end: Sun 2026-10-25 08:00 CET"
        );
        assert_eq!(across_a_change(&clock, clock.now_ms() + day, day), None);
        assert_eq!(across_a_change(&clock, clock.now_ms(), day - 1), None);
    }
}
