//! Times that were, as people type them: for what happened, where a plain time of day or weekday is the last one.

use fleet_proto::month::Month;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use super::{TimeError, parse_length, parse_when};

/// Reads a time that was. `2h` and `2h ago` are two hours ago, `tuesday` the last one, `14:00` the last time that the
/// clock showed it. A text that names its day may be in the future.
pub(crate) fn parse_past(
    text: &str,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<Timestamp, TimeError> {
    let lower = text.trim().to_ascii_lowercase();
    let ago = lower.strip_suffix("ago").map(str::trim_end).or_else(|| lower.strip_prefix('-'));
    if let Some(length) = ago {
        return before(text, now, parse_length(length)?);
    }
    if lower.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.')
        && let Ok(length) = parse_length(&lower)
    {
        return before(text, now, length);
    }
    let (day, clock) = lower.split_once(' ').unwrap_or((&lower, ""));
    let (typed, step) = match day {
        "yesterday" if clock.is_empty() => ("today".to_owned(), Span::new().days(1)),
        "yesterday" => (format!("today {clock}"), Span::new().days(1)),
        _ if super::weekday(day).is_some() => (lower.clone(), Span::new().weeks(1)),
        _ if super::parse_clock(day).is_some() => (lower.clone(), Span::new().days(1)),
        _ => {
            let read = parse_when(&lower, now, zone).map(|read| read.or(now));
            return read.map_err(|error| match error {
                TimeError::NotATime(text) => TimeError::NotAPastTime(text),
                other => other,
            });
        }
    };
    // Back by the calendar first: the clocks may skip this time on another day, or show it twice.
    let not_a_time = || TimeError::NotAPastTime(super::shortened(text));
    let mut local = super::parse_local(&typed, now, zone).ok_or_else(not_a_time)?;
    if day == "yesterday" || local > now.to_zoned_datetime(zone.clone()).datetime() {
        local = local.checked_sub(step).map_err(|_| TimeError::OutOfRange(text.to_owned()))?;
    }
    super::resolve(local, zone)
}

/// The day that a text means, from its midnight to the next.
pub(crate) fn parse_past_day(
    text: &str,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<(Timestamp, Timestamp), TimeError> {
    let at = parse_past(text, now, zone)?.to_zoned_datetime(zone.clone());
    let out_of_range = || TimeError::OutOfRange(text.to_owned());
    let start = at.start_of_day().map_err(|_| out_of_range())?;
    let end = start.tomorrow().and_then(|next| next.start_of_day()).map_err(|_| out_of_range())?;
    Ok((start.timestamp(), end.timestamp()))
}

/// The calendar month that a text means, from its first midnight to the next month's: `2026-11`, or `last`; without a
/// text the one that it is now. A month that has not begun is none of the past.
pub(crate) fn parse_month(
    text: Option<&str>,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<(Timestamp, Timestamp), TimeError> {
    let this = Month::at(now, zone);
    let out_of_range = || TimeError::OutOfRange(text.unwrap_or_default().to_owned());
    let month = match text.map(str::trim) {
        None => this,
        Some("last") => this.before().ok_or_else(out_of_range)?,
        Some(text) => {
            Month::parse(text).ok_or_else(|| TimeError::NotAMonth(super::shortened(text)))?
        }
    };
    if month > this {
        return Err(TimeError::MonthToCome(super::shortened(text.unwrap_or_default())));
    }
    month.span(zone).ok_or_else(out_of_range)
}

fn before(text: &str, now: Timestamp, length_ms: u64) -> Result<Timestamp, TimeError> {
    let length = i64::try_from(length_ms).ok().map(jiff::SignedDuration::from_millis);
    let at = length.and_then(|length| now.checked_sub(length).ok());
    at.filter(|at| at.as_millisecond() > 0).ok_or_else(|| TimeError::OutOfRange(text.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A Saturday, 10:31 in Berlin.
    fn shown(text: &str) -> String {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let now: Timestamp = "2026-11-21T09:31:07Z".parse().unwrap();
        match parse_past(text, now, &zone) {
            Ok(at) => at.to_zoned_datetime(zone).strftime("%a %m-%d %H:%M").to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_time_of_what_happened_is_the_last_one() {
        for (text, at) in [
            ("now", "Sat 11-21 10:31"),
            ("2h", "Sat 11-21 08:31"),
            ("2h ago", "Sat 11-21 08:31"),
            ("-90m", "Sat 11-21 09:01"),
            ("1d12h", "Thu 11-19 22:31"),
            ("09:00", "Sat 11-21 09:00"),
            ("14:00", "Fri 11-20 14:00"),
            ("today", "Sat 11-21 00:00"),
            ("yesterday", "Fri 11-20 00:00"),
            ("yesterday 18:30", "Fri 11-20 18:30"),
            ("tuesday", "Tue 11-17 00:00"),
            ("tue 09:00", "Tue 11-17 09:00"),
            ("saturday", "Sat 11-21 00:00"),
            ("saturday 23:00", "Sat 11-14 23:00"),
            ("2026-11-01", "Sun 11-01 00:00"),
            ("2026-12-24 08:00", "Thu 12-24 08:00"),
        ] {
            assert_eq!(shown(text), at, "{text}");
        }
        assert!(shown("last tuesday").contains("is not a past time"), "{}", shown("last tuesday"));
        // Examples in the future would mislead.
        for text in ["last tuesday", "tuesday 9", "yesterday 9"] {
            assert!(
                shown(text)
                    .ends_with("write one like 2h, 09:00, yesterday 14:00, tuesday or 2026-11-20"),
                "{}",
                shown(text)
            );
        }
        assert!(shown("ten days ago").contains("is not a length"), "{}", shown("ten days ago"));
    }

    #[test]
    fn a_time_that_the_clocks_skip_on_another_day_is_none_of_todays_business() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let at = |now: &str, text: &str| {
            let read = parse_past(text, now.parse().unwrap(), &zone);
            read.map(|at| at.to_string()).map_err(|error| error.to_string())
        };
        // The clocks are put forward on Sunday, 2026-03-29, at 02:00.
        let saturday = "2026-03-28T12:00:00Z";
        assert_eq!(at(saturday, "02:30").unwrap(), "2026-03-28T01:30:00Z");
        assert_eq!(at(saturday, "sunday 02:30").unwrap(), "2026-03-22T01:30:00Z");
        let monday = "2026-03-30T00:15:00Z";
        assert!(at(monday, "yesterday 02:30").unwrap_err().contains("does not exist"));
    }

    #[test]
    fn a_month_is_one_of_the_viewers_zone() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let now: Timestamp = "2026-11-30T23:30:00Z".parse().unwrap();
        let read = |text: Option<&str>| {
            let read = parse_month(text, now, &zone);
            read.map(|(from, until)| format!("{from} {until}")).map_err(|error| error.to_string())
        };
        // It is December in Berlin.
        let this = "2026-11-30T23:00:00Z 2026-12-31T23:00:00Z";
        assert_eq!(read(None).unwrap(), this);
        assert_eq!(read(Some("2026-12")).unwrap(), this);
        let last = "2026-10-31T23:00:00Z 2026-11-30T23:00:00Z";
        assert_eq!(read(Some("last")).unwrap(), last);
        assert_eq!(read(Some(" 2026-11 ")).unwrap(), last);
        // The clocks are put back in it.
        assert_eq!(read(Some("2026-10")).unwrap(), "2026-09-30T22:00:00Z 2026-10-31T23:00:00Z");
        for text in ["2026-13", "2026-00", "2026", "2026-1", "11-2026", "november", "+026-11", ""] {
            assert!(read(Some(text)).unwrap_err().contains("is not a month"), "{text}");
        }
        assert!(read(Some("2027-01")).unwrap_err().contains("has not begun"));
        assert!(read(Some("9999-12")).unwrap_err().contains("has not begun"));
    }

    #[test]
    fn a_day_is_as_long_as_it_is() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let now: Timestamp = "2026-10-27T12:00:00Z".parse().unwrap();
        let hours = |text: &str| {
            let (from, until) = parse_past_day(text, now, &zone).unwrap();
            (until.as_second() - from.as_second()) / 3_600
        };
        assert_eq!(hours("monday"), 24);
        assert_eq!(hours("sunday"), 25, "the clocks were put back");
    }
}
