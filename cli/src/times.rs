//! Times and lengths as people type them, and as they are shown.
//!
//! Typed in local time, sent as UTC milliseconds, shown in local time with the zone. Everything here
//! is pure: now and the zone are passed in. An instant that the clocks skip is refused, never moved
//! silently; of one that occurs twice the first is taken, and [`typed`] says so.

mod open_hours;
mod past;
mod typed;

use std::fmt;
use std::sync::OnceLock;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};

pub(crate) use open_hours::OpenHours;
pub(crate) use past::{parse_month, parse_past, parse_past_day};
pub(crate) use typed::{Edge, Taken, across_a_change, read_when};

/// Longest length accepted, in seconds: ten years. What is sensible is decided by the controller.
const LENGTH_SECONDS_MAX: u64 = 10 * 366 * 86_400;

/// Years that a typed time may have.
const YEARS: std::ops::RangeInclusive<i16> = 1970..=9998;

/// Why a text is not a time or a length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TimeError {
    #[error("{0:?} is not a time; write one like now, +2h, tomorrow 09:00 or 2026-11-22 09:00")]
    NotATime(String),
    #[error(
        "{0:?} is not a past time; write one like 2h, 09:00, yesterday 14:00, tuesday or 2026-11-20"
    )]
    NotAPastTime(String),
    #[error("{0:?} is not a month; write one like 2026-11, or last")]
    NotAMonth(String),
    #[error("{0:?} has not begun")]
    MonthToCome(String),
    #[error("{0:?} is not a length; write one like 8h, 90m, 1d12h or 1-12:00:00{1}")]
    NotALength(String, &'static str),
    #[error("{0:?} has no unit; write 90m for minutes, 8h for hours")]
    NoUnit(String),
    #[error("{0:?} could be hours or minutes; write 1h30m or 1m30s, or HH:MM:SS")]
    TwoParts(String),
    #[error("a length must be longer than zero")]
    ZeroLength,
    #[error("a length cannot be negative")]
    NegativeLength,
    #[error("{0:?} is longer than ten years")]
    TooLong(String),
    #[error("{0:?} is not between 1970 and 9998")]
    OutOfRange(String),
    #[error(
        "{local} does not exist in {zone}: the clocks are put forward then; say a time before {before} or from {after} on"
    )]
    Skipped { local: String, zone: String, before: String, after: String },
}

/// A time as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// As soon as the controller gets it.
    Now,
    At(Timestamp),
}

impl When {
    /// The instant, where now is this.
    fn or(self, now: Timestamp) -> Timestamp {
        match self {
            When::Now => now,
            When::At(at) => at,
        }
    }

    /// Milliseconds for the API, where 0 is now.
    pub(crate) fn unix_ms(self) -> u64 {
        match self {
            When::Now => 0,
            When::At(at) => u64::try_from(at.as_millisecond()).unwrap_or(0),
        }
    }
}

/// Reads a time. `now` and `zone` are what relative and local times refer to.
pub(crate) fn parse_when(text: &str, now: Timestamp, zone: &TimeZone) -> Result<When, TimeError> {
    parse(text, now, zone).map(|(when, _)| when)
}

/// A time, and what the clocks here show then where the text says only that.
fn parse(
    text: &str,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<(When, Option<DateTime>), TimeError> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    if lower == "now" {
        return Ok((When::Now, None));
    }
    let relative = lower.strip_prefix("now").unwrap_or(&lower);
    if let Some(length) = relative.strip_prefix('+') {
        let length = parse_length(length.trim())?;
        let at = i64::try_from(length).ok().map(SignedDuration::from_millis);
        let at = at.and_then(|length| now.checked_add(length).ok());
        return Ok((checked(text, at.ok_or_else(|| out_of_range(text))?)?, None));
    }
    // A whole instant says its offset itself.
    if lower.as_bytes().get(10).is_some_and(|b| matches!(b, b't' | b' '))
        && let Ok(at) = lower.to_ascii_uppercase().replacen(' ', "T", 1).parse::<Timestamp>()
    {
        return Ok((checked(text, at)?, None));
    }
    let local = parse_local(&lower, now, zone).ok_or_else(|| {
        // jiff's calendar ends with the year 9999; later years are times all the same.
        if begins_with_a_strange_year(&lower) {
            out_of_range(text)
        } else {
            TimeError::NotATime(shortened(text))
        }
    })?;
    if !YEARS.contains(&local.year()) {
        return Err(out_of_range(text));
    }
    Ok((checked(text, resolve(local, zone)?)?, Some(local)))
}

fn begins_with_a_strange_year(text: &str) -> bool {
    let Some((year, _)) = text.split_once('-') else { return false };
    let digits = year.len() >= 4 && year.bytes().all(|b| b.is_ascii_digit());
    digits && year.parse::<i16>().map_or(true, |year| !YEARS.contains(&year))
}

fn checked(text: &str, at: Timestamp) -> Result<When, TimeError> {
    let max = fleet_core::Timestamp::MAX_ACCEPTED.0;
    match u64::try_from(at.as_millisecond()) {
        Ok(ms) if ms > 0 && ms < max => Ok(When::At(at)),
        Ok(_) | Err(_) => Err(out_of_range(text)),
    }
}

fn out_of_range(text: &str) -> TimeError {
    TimeError::OutOfRange(shortened(text))
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

/// `noon`, `14:00`, `tomorrow 9:00`, `monday 09:00`, `2026-11-22`, `2026-11-22 09:00`.
fn parse_local(lower: &str, now: Timestamp, zone: &TimeZone) -> Option<DateTime> {
    let here = now.to_zoned_datetime(zone.clone()).datetime();
    let today = here.date();
    if let Some(time) = parse_clock(lower) {
        // The next time the clock shows this.
        let day =
            if DateTime::from_parts(today, time) > here { today } else { today.tomorrow().ok()? };
        return Some(DateTime::from_parts(day, time));
    }
    let (day, clock) = match lower.split_once([' ', 't']) {
        // A `t` within a word such as `tomorrow` separates nothing.
        Some((day, clock)) if parse_date(day).is_some() || lower.contains(' ') => {
            match lower.split_once(' ') {
                Some((day, clock)) if parse_date(day).is_none() => (day, Some(clock)),
                _ => (day, Some(clock)),
            }
        }
        _ => (lower, None),
    };
    let time = match clock {
        Some(clock) => parse_clock(clock.trim())?,
        None => Time::midnight(),
    };
    let date = named_day(day, today, |today| DateTime::from_parts(today, time) > here)?;
    Some(DateTime::from_parts(date, time))
}

/// The day of a text that is one. Today's weekday is today only where `comes` says so, else in a week.
fn named_day(day: &str, today: Date, comes: impl Fn(Date) -> bool) -> Option<Date> {
    match day {
        "today" => Some(today),
        "tomorrow" => today.tomorrow().ok(),
        _ => match weekday(day) {
            Some(weekday) if today.weekday() == weekday && comes(today) => Some(today),
            Some(weekday) => today.nth_weekday(1, weekday).ok(),
            None => parse_date(day),
        },
    }
}

fn parse_clock(text: &str) -> Option<Time> {
    match text {
        "noon" => return Some(Time::constant(12, 0, 0, 0)),
        "midnight" => return Some(Time::midnight()),
        _ => {}
    }
    let numbers: Vec<i8> = text.split(':').map(two_digits).collect::<Option<_>>()?;
    match numbers.as_slice() {
        [hour, minute] => Time::new(*hour, *minute, 0, 0).ok(),
        [hour, minute, second] => Time::new(*hour, *minute, *second, 0).ok(),
        _ => None,
    }
}

fn two_digits(text: &str) -> Option<i8> {
    let legal = matches!(text.len(), 1 | 2) && text.bytes().all(|b| b.is_ascii_digit());
    legal.then(|| text.parse().ok()).flatten()
}

fn parse_date(text: &str) -> Option<Date> {
    let plain = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    plain.then(|| text.parse().ok()).flatten()
}

/// The weekday of a lower-case text: `mon`, `monday`.
pub(crate) fn weekday(text: &str) -> Option<Weekday> {
    Some(match text {
        "monday" | "mon" => Weekday::Monday,
        "tuesday" | "tue" => Weekday::Tuesday,
        "wednesday" | "wed" => Weekday::Wednesday,
        "thursday" | "thu" => Weekday::Thursday,
        "friday" | "fri" => Weekday::Friday,
        "saturday" | "sat" => Weekday::Saturday,
        "sunday" | "sun" => Weekday::Sunday,
        _ => return None,
    })
}

/// The instant of a local time; the first of two, an error for none.
fn resolve(local: DateTime, zone: &TimeZone) -> Result<Timestamp, TimeError> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    if let AmbiguousOffset::Gap { before, after } = ambiguous.offset() {
        let length = after.seconds() - before.seconds();
        // Read with the offset before the gap, the skipped time is after it, and the reverse.
        let gap_end = zone.to_ambiguous_timestamp(local).compatible().ok().and_then(|at| {
            // Strictly before: the transition itself must count.
            let mut transitions =
                zone.preceding(at.checked_add(SignedDuration::from_secs(1)).ok()?);
            transitions.next().map(|t| t.timestamp())
        });
        let shown = |at: Option<Timestamp>| match at {
            Some(at) => at.to_zoned_datetime(zone.clone()).strftime("%H:%M").to_string(),
            None => "it".to_owned(),
        };
        let wall_before = gap_end.and_then(|end| {
            let wall = end.to_zoned_datetime(zone.clone()).datetime();
            wall.checked_sub(Span::new().seconds(i64::from(length))).ok()
        });
        return Err(TimeError::Skipped {
            local: local.strftime("%Y-%m-%d %H:%M").to_string(),
            zone: zone.iana_name().unwrap_or("this time zone").to_owned(),
            before: wall_before.map_or("it".to_owned(), |w| w.strftime("%H:%M").to_string()),
            after: shown(gap_end),
        });
    }
    ambiguous.compatible().map_err(|_| TimeError::OutOfRange(local.to_string()))
}

/// Reads a length in milliseconds; never zero.
///
/// `8h`, `1d12h`, `1.5h`, and Slurm's `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`.
pub(crate) fn parse_length(text: &str) -> Result<u64, TimeError> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(TimeError::NegativeLength);
    }
    let ms = if text.contains([':', '-']) { clock_length(text) } else { unit_length(text) }?;
    match ms {
        0 => Err(TimeError::ZeroLength),
        ms if ms > LENGTH_SECONDS_MAX * 1_000 => Err(TimeError::TooLong(shortened(text))),
        ms => Ok(ms),
    }
}

fn not_a_length(text: &str) -> TimeError {
    TimeError::NotALength(shortened(text), "")
}

fn clock_length(text: &str) -> Result<u64, TimeError> {
    let number = |digits: &str| -> Result<u64, TimeError> {
        let legal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !legal {
            return Err(not_a_length(text));
        }
        // Only digits: what does not fit is too long.
        digits.parse::<u32>().map(u64::from).map_err(|_| TimeError::TooLong(shortened(text)))
    };
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(number).collect::<Result<_, _>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        (None, [_, _]) => return Err(TimeError::TwoParts(shortened(text))),
        _ => return Err(not_a_length(text)),
    };
    if minutes > 59 || seconds > 59 || (days.is_some() && hours > 23) {
        return Err(TimeError::NotALength(
            shortened(text),
            ": there are 24 hours, 60 minutes, 60 seconds",
        ));
    }
    Ok((days.unwrap_or(0) * 86_400 + hours * 3_600 + minutes * 60 + seconds) * 1_000)
}

fn unit_length(text: &str) -> Result<u64, TimeError> {
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        if !number.is_empty() && unit.is_empty() && next.is_empty() && total == 0 {
            return Err(TimeError::NoUnit(shortened(text)));
        }
        let scale = unit_ms(unit).ok_or_else(|| not_a_length(text))?;
        let part = scaled(number, scale).ok_or_else(|| not_a_length(text))?;
        let sum = part.and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(|| TimeError::TooLong(shortened(text)))?;
        rest = next.trim_start();
    }
    if text.is_empty() { Err(not_a_length(text)) } else { Ok(total) }
}

fn unit_ms(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "ms" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        "w" | "week" | "weeks" => 7 * 86_400_000,
        _ => return None,
    })
}

/// `None`: no number. `Some(None)`: too large.
fn scaled(number: &str, scale: u64) -> Option<Option<u64>> {
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some((whole, fraction)) => (whole, fraction),
        None => (number, ""),
    };
    if whole.is_empty() || fraction.len() > 6 || fraction.contains('.') {
        return None;
    }
    let places = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(scale));
    let part = fraction.checked_mul(scale).map(|part| part / places);
    Some(whole.and_then(|whole| whole.checked_add(part?)))
}

/// How times are shown: now and the zone, fixed for one run of the command.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    pub(crate) now: Timestamp,
    zone: OnceLock<TimeZone>,
    /// It does not go with this machine's clock.
    stands: bool,
}

impl Clock {
    /// This machine's clock. Its zone is looked up when it is needed first: that reads a folder of
    /// files, and a job that starts at once shows no time.
    pub(crate) fn of_this_machine() -> Self {
        Self { now: Timestamp::now(), zone: OnceLock::new(), stands: false }
    }

    /// The same clock as it was at another instant; this one where that is none.
    pub(crate) fn at(&self, unix_ms: u64) -> Self {
        let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Self { now: at.unwrap_or(self.now), zone: self.zone.clone(), stands: true }
    }

    /// A clock that stands.
    #[cfg(test)]
    pub(crate) fn standing(now: &str, zone: &str) -> Self {
        let zone = TimeZone::get(zone).expect("a zone of the database");
        Self { now: now.parse().expect("an instant"), zone: zone.into(), stands: true }
    }

    /// The same clock in another zone.
    pub(crate) fn in_zone(&self, zone: TimeZone) -> Self {
        Self { zone: zone.into(), ..self.clone() }
    }

    /// The same clock as it is now: a view that is drawn again and again would show old lengths.
    pub(crate) fn read_again(&self) -> Self {
        let now = if self.stands { self.now } else { Timestamp::now() };
        Self { now, ..self.clone() }
    }

    pub(crate) fn zone(&self) -> &TimeZone {
        self.zone.get_or_init(TimeZone::system)
    }

    /// `2026-11-21 10:31 CET`.
    pub(crate) fn minute(&self, unix_ms: u64) -> String {
        self.format(unix_ms, "%Y-%m-%d %H:%M %Z")
    }

    /// `2026-11-21 10:31`: of what was, where the zone is that of all the others beside it.
    pub(crate) fn past(&self, unix_ms: u64) -> String {
        self.format(unix_ms, "%Y-%m-%d %H:%M")
    }

    /// `10:31`: of one day that is named beside it.
    pub(crate) fn of_day(&self, unix_ms: u64) -> String {
        self.format(unix_ms, "%H:%M")
    }

    /// As short as nobody can mistake it: `10:31` today, `Fri 09:00` in the next six days, else the date. A weekday is
    /// always one that comes.
    pub(crate) fn brief(&self, unix_ms: u64) -> String {
        let Some(at) = timestamp(unix_ms) else { return format!("{unix_ms} ms") };
        let at = at.to_zoned_datetime(self.zone().clone());
        let today = self.now.to_zoned_datetime(self.zone().clone()).date();
        let days = today.until(at.date()).map_or(i32::MAX, |span| span.get_days());
        let format = match days {
            0 => "%H:%M",
            1..=6 => "%a %H:%M",
            _ => "%Y-%m-%d",
        };
        at.strftime(format).to_string()
    }

    /// `2026-11-21 10:31:07 CET`.
    pub(crate) fn second(&self, unix_ms: u64) -> String {
        self.format(unix_ms, "%Y-%m-%d %H:%M:%S %Z")
    }

    /// `Sat 2026-11-21 10:31 CET`, for sentences.
    pub(crate) fn day_and_minute(&self, unix_ms: u64) -> String {
        self.format(unix_ms, "%a %Y-%m-%d %H:%M %Z")
    }

    /// As it can be typed back, exact: `2026-11-21T10:31:00+01:00`. Parts of a second are rounded
    /// up, so that a start is not before the instant.
    pub(crate) fn typed(&self, unix_ms: u64) -> String {
        self.format(unix_ms.div_ceil(1_000).saturating_mul(1_000), "%Y-%m-%dT%H:%M:%S%:z")
    }

    /// As a sheet holds it, to the millisecond: `2026-11-21 10:31:00+01:00`.
    pub(crate) fn exact(&self, unix_ms: u64) -> String {
        let parts = if unix_ms.is_multiple_of(1_000) { "" } else { "%.3f" };
        self.format(unix_ms, &format!("%Y-%m-%d %H:%M:%S{parts}%:z"))
    }

    fn format(&self, unix_ms: u64, format: &str) -> String {
        match timestamp(unix_ms) {
            Some(at) => at.to_zoned_datetime(self.zone().clone()).strftime(format).to_string(),
            None => format!("{unix_ms} ms"),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.now.as_millisecond()).unwrap_or(0)
    }

    /// How long ago, as `3m`; `0s` for the future.
    pub(crate) fn ago(&self, unix_ms: u64) -> String {
        length(self.now_ms().saturating_sub(unix_ms))
    }
}

fn timestamp(unix_ms: u64) -> Option<Timestamp> {
    i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok())
}

/// The first instant of the day after the one that `at` is in.
pub(crate) fn end_of_day(at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    end_of_day_date(at.to_zoned_datetime(zone.clone()).date(), zone)
}

fn end_of_day_date(date: Date, zone: &TimeZone) -> Option<Timestamp> {
    let next = date.tomorrow().ok()?;
    // Where the clocks are put forward at midnight the day begins when that is over.
    zone.to_ambiguous_timestamp(next.to_datetime(Time::midnight())).compatible().ok()
}

/// A whole day that is typed, today's weekday as today: its first instant and that of the next one, in milliseconds.
pub(crate) fn parse_day(text: &str, now: Timestamp, zone: &TimeZone) -> Option<(u64, u64)> {
    let today = now.to_zoned_datetime(zone.clone()).date();
    let day = match text.trim().to_ascii_lowercase().as_str() {
        "yesterday" => today.yesterday().ok()?,
        day => named_day(day, today, |_| true)?,
    };
    let end = |date| u64::try_from(end_of_day_date(date, zone)?.as_millisecond()).ok();
    Some((end(day.yesterday().ok()?)?, end(day)?))
}

/// A length for people, in its two largest units: `2d 3h`, `20m`, `0s`.
pub(crate) fn length(ms: u64) -> String {
    if ms < 1_000 { "0s".to_owned() } else { fleet_core::Millis(ms).to_string() }
}

/// A length that [`parse_length`] reads back to the millisecond: `1d12h`.
pub(crate) fn typed_length(ms: u64) -> String {
    let parts = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let mut rest = ms;
    let mut text = String::new();
    for (scale, unit) in parts {
        if rest >= scale {
            text.push_str(&format!("{}{unit}", rest / scale));
            rest %= scale;
        }
    }
    text
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Now => f.write_str("now"),
            When::At(at) => at.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
