//! The hours of the day in which an offer may be open, as people type them: `8-22`, `22-8`, `8:30-18`, `0-24`.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// Hours that are the same on each day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenHours {
    /// Minutes since midnight.
    from: u16,
    /// The same, up to 24:00. Before `from`, it is on the next day.
    until: u16,
}

impl FromStr for OpenHours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "write the hours like 8-22, 8:30-18, 22-8 (over midnight) or 0-24".to_owned();
        let (from, until) = text.split_once('-').ok_or_else(wrong)?;
        let (from, until) = (minutes(from).ok_or_else(wrong)?, minutes(until).ok_or_else(wrong)?);
        if from == DAY || from == until {
            return Err(wrong());
        }
        Ok(Self { from, until })
    }
}

/// Of `8`, `08:30` or `24`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':').unwrap_or((text, "00"));
    let digits = |text: &str, most: usize| {
        let plain = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2).filter(|_| minutes.len() == 2)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= DAY).then_some(all)
}

impl fmt::Display for OpenHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = |at: u16| format!("{}:{:02}", at / 60, at % 60);
        match (self.from, self.until) {
            (0, DAY) => f.write_str("at any time"),
            (from, until) => write!(f, "between {} and {}", clock(from), clock(until)),
        }
    }
}

impl OpenHours {
    /// The rest of the time, as milliseconds: from one instant to a day behind the other, as the controllers' clock may
    /// differ. A time that the clocks skip is that of the change.
    pub(crate) fn quiet(self, from_ms: u64, until_ms: u64, zone: &TimeZone) -> Vec<(u64, u64)> {
        let until_ms = until_ms.saturating_add(86_400_000);
        let (Some(first), Some(last)) = (date(from_ms, zone), date(until_ms, zone)) else {
            return Vec::new();
        };
        let first = first.checked_sub(Span::new().days(1)).unwrap_or(first);
        let (mut quiet, mut since) = (Vec::new(), from_ms);
        for day in first.series(Span::new().days(1)).take_while(|day| *day <= last) {
            let Some((opens, closes)) = self.on(day, zone) else { continue };
            let opens = opens.max(since);
            if closes <= opens || opens >= until_ms {
                continue;
            }
            if since < opens {
                quiet.push((since, opens));
            }
            since = closes;
        }
        if since < until_ms {
            quiet.push((since, until_ms));
        }
        quiet
    }

    /// When they begin on a day, and when they end.
    fn on(self, day: Date, zone: &TimeZone) -> Option<(u64, u64)> {
        let next = || day.checked_add(Span::new().days(1)).ok();
        let ends = if self.until <= self.from || self.until == DAY { next()? } else { day };
        let until = if self.until == DAY { 0 } else { self.until };
        Some((instant(day, self.from, zone)?, instant(ends, until, zone)?))
    }
}

fn date(unix_ms: u64, zone: &TimeZone) -> Option<Date> {
    let at = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?;
    Some(at.to_zoned_datetime(zone.clone()).date())
}

fn instant(day: Date, minutes: u16, zone: &TimeZone) -> Option<u64> {
    let (hour, minute) = (i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?);
    let local = day.to_datetime(Time::new(hour, minute, 0, 0).ok()?);
    let at = zone.to_ambiguous_timestamp(local).compatible().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3_600_000;

    fn zone() -> TimeZone {
        TimeZone::get("Europe/Berlin").unwrap()
    }

    fn ms(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap()
    }

    fn open(text: &str) -> OpenHours {
        text.parse().unwrap()
    }

    #[test]
    fn hours_are_read_and_shown() {
        let read =
            ["8-22", "08:00-22:00", "22-8", "8:30-18", "0-24"].map(|text| open(text).to_string());
        assert_eq!(
            read,
            [
                "between 8:00 and 22:00",
                "between 8:00 and 22:00",
                "between 22:00 and 8:00",
                "between 8:30 and 18:00",
                "at any time"
            ]
        );
        for wrong in
            ["", "8", "8-8", "24-8", "8-25", "8-24:01", "8:5-9", "a-b", "-8-9", "8:60-9", "+8-9"]
        {
            assert!(wrong.parse::<OpenHours>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nights_are_quiet_also_when_the_clocks_change() {
        // Put forward on March 29 at 2:00, back on October 25 at 3:00.
        let (from, until) = (ms("2026-03-28T12:00:00Z"), ms("2026-03-29T12:00:00Z"));
        let quiet = open("8-22").quiet(from, until, &zone());
        assert_eq!(quiet[0], (ms("2026-03-28T21:00:00Z"), ms("2026-03-29T06:00:00Z")));
        assert_eq!(quiet[0].1 - quiet[0].0, 9 * HOUR);
        let (from, until) = (ms("2026-10-24T12:00:00Z"), ms("2026-10-25T12:00:00Z"));
        let quiet = open("8-22").quiet(from, until, &zone());
        assert_eq!(quiet[0].1 - quiet[0].0, 11 * HOUR);
        assert_eq!(open("0-24").quiet(from, until, &zone()), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Whatever the clocks do, the windows are in order, and an instant is in one of them if its hour is not open.
        #[test]
        fn an_instant_is_quiet_if_the_clock_shows_a_closed_hour(
            from_hour in 0..24_u16,
            until_hour in 0..=24_u16,
            start in 0..(365 * 24_u64),
            hours in 0..(70 * 24_u64),
        ) {
            prop_assume!(from_hour != until_hour);
            let open = OpenHours { from: from_hour * 60, until: until_hour * 60 };
            let begins = ms("2026-01-01T00:17:00Z") + start * HOUR;
            let ends = begins + hours * HOUR;
            let quiet = open.quiet(begins, ends, &zone());
            prop_assert!(quiet.iter().all(|(a, b)| a < b));
            prop_assert!(quiet.windows(2).all(|two| two[0].1 < two[1].0));
            let wraps = until_hour <= from_hour;
            for at in (begins..=ends).step_by(3_600_000) {
                let shown = Timestamp::from_millisecond(i64::try_from(at).unwrap()).unwrap();
                let hour = u16::try_from(shown.to_zoned_datetime(zone()).hour()).unwrap();
                let is_open = match wraps {
                    true => hour >= from_hour || hour < until_hour,
                    false => (from_hour..until_hour).contains(&hour),
                };
                let is_quiet = quiet.iter().any(|(a, b)| (*a..*b).contains(&at));
                // An hour that occurs twice may be counted with either, and one that is skipped is none.
                let changes = [2, 3].contains(&hour);
                prop_assert!(changes || is_quiet != is_open, "{at}: hour {hour}, open {is_open}");
            }
        }
    }
}
