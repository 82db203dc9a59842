#![allow(clippy::unwrap_used)]

use super::*;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

/// Saturday 2026-11-21 10:31:07 in Berlin.
const NOW: &str = "2026-11-21T09:31:07Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn at(text: &str, zone_name: &str) -> String {
    match parse_when(text, now(), &zone(zone_name)) {
        Ok(When::Now) => "now".to_owned(),
        Ok(When::At(at)) => at.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn times_are_read() {
    for (text, utc) in [
        ("now", "now"),
        ("NOW", "now"),
        ("+2h", "2026-11-21T11:31:07Z"),
        ("+90m", "2026-11-21T11:01:07Z"),
        ("now+60minutes", "2026-11-21T10:31:07Z"),
        ("now + 1d", "error: \"now + 1d\" is not a time"),
        ("today 14:00", "2026-11-21T13:00:00Z"),
        // Already past: the next one.
        ("09:00", "2026-11-22T08:00:00Z"),
        ("14:00", "2026-11-21T13:00:00Z"),
        ("9:00", "2026-11-22T08:00:00Z"),
        ("noon", "2026-11-21T11:00:00Z"),
        ("midnight", "2026-11-21T23:00:00Z"),
        ("tomorrow", "2026-11-21T23:00:00Z"),
        ("tomorrow noon", "2026-11-22T11:00:00Z"),
        ("tomorrow 09:00", "2026-11-22T08:00:00Z"),
        ("Monday 09:00", "2026-11-23T08:00:00Z"),
        ("tue 9:30", "2026-11-24T08:30:00Z"),
        ("thursday", "2026-11-25T23:00:00Z"),
        // Today is a Saturday.
        ("sat 18:00", "2026-11-21T17:00:00Z"),
        ("sat 09:00", "2026-11-28T08:00:00Z"),
        ("2026-11-22", "2026-11-21T23:00:00Z"),
        ("2026-11-22 09:00", "2026-11-22T08:00:00Z"),
        ("2026-11-22 09:00:30", "2026-11-22T08:00:30Z"),
        ("2026-11-22T09:00", "2026-11-22T08:00:00Z"),
        ("2026-11-22T09:00:00Z", "2026-11-22T09:00:00Z"),
        ("2026-11-22 09:00:00Z", "2026-11-22T09:00:00Z"),
        ("2026-11-22T09:00:00-05:00", "2026-11-22T14:00:00Z"),
        ("2026-11-22T09:00:00.5+01:00", "2026-11-22T08:00:00.5Z"),
    ] {
        let read = at(text, "Europe/Berlin");
        if utc.starts_with("error") {
            assert!(read.starts_with("error"), "{text}: {read}");
        } else {
            assert_eq!(read, utc, "{text}");
        }
    }
    assert_eq!(at("tomorrow 09:00", "America/New_York"), "2026-11-22T14:00:00Z");
    assert_eq!(at("tomorrow 09:00", "UTC"), "2026-11-22T09:00:00Z");
    assert_eq!(at("noon", "Asia/Kolkata"), "2026-11-22T06:30:00Z");
}

#[test]
fn what_is_no_time_is_refused() {
    for text in [
        "",
        "soon",
        "25:00",
        "12:60",
        "2026-13-01",
        "2026-02-30",
        "2026-11-22 24:30",
        "22.11.2026",
        "11/22/2026",
        "yesterday",
        "tomorrow 9",
        "-2h",
        "2026-11-22 09:00 CET",
        "9am",
        "12:00:61",
        "tomorrow tomorrow",
        "2026-11-22T",
        "１２:００",
        "t",
        "12:00\n\u{1b}[2J",
    ] {
        let error = parse_when(text, now(), &zone("Europe/Berlin")).unwrap_err();
        assert!(matches!(error, TimeError::NotATime(_)), "{text:?}: {error}");
    }
}

#[test]
fn years_nobody_means_are_refused() {
    for text in [
        "9999-01-01",
        "9999-12-31 23:59",
        "9999-12-31T23:59:59Z",
        "10000-01-01",
        "99999-01-01",
        "0001-01-01 00:00",
        "1969-12-31",
        "1900-01-01T00:00:00Z",
    ] {
        let error = parse_when(text, now(), &zone("Europe/Berlin")).unwrap_err();
        assert!(matches!(error, TimeError::OutOfRange(_)), "{text:?}: {error}");
    }
    assert!(parse_when("9998-12-31", now(), &zone("UTC")).is_ok());
}

#[test]
fn a_skipped_time_is_refused_and_its_neighbours_named() {
    let refused = |text, zone_name| at(text, zone_name);
    assert_eq!(
        refused("2027-03-28 02:30", "Europe/Berlin"),
        "error: 2027-03-28 02:30 does not exist in Europe/Berlin: the clocks are put forward then; \
         say a time before 02:00 or from 03:00 on"
    );
    assert_eq!(
        refused("2027-03-14 02:00", "America/New_York"),
        "error: 2027-03-14 02:00 does not exist in America/New_York: the clocks are put forward \
         then; say a time before 02:00 or from 03:00 on"
    );
    assert_eq!(at("2027-03-28 03:00", "Europe/Berlin"), "2027-03-28T01:00:00Z");
    assert_eq!(at("2027-03-28 01:59", "Europe/Berlin"), "2027-03-28T00:59:00Z");
    // Half an hour, and a gap at midnight.
    assert!(at("2027-10-03 02:15", "Australia/Lord_Howe").contains("from 02:30 on"));
    assert!(at("2027-04-30", "Africa/Cairo").contains("does not exist"));
    // With an offset it exists.
    assert_eq!(at("2027-03-28T02:30:00+01:00", "Europe/Berlin"), "2027-03-28T01:30:00Z");
}

#[test]
fn of_a_time_that_occurs_twice_the_first_is_taken_and_its_zone_shown() {
    let berlin = Clock::standing(NOW, "Europe/Berlin");
    let When::At(first) = parse_when("2027-10-31 02:30", now(), berlin.zone()).unwrap() else {
        panic!("not an instant");
    };
    assert_eq!(first.to_string(), "2027-10-31T00:30:00Z");
    let ms = u64::try_from(first.as_millisecond()).unwrap();
    assert_eq!(berlin.minute(ms), "2027-10-31 02:30 CEST");
    assert_eq!(berlin.minute(ms + 3_600_000), "2027-10-31 02:30 CET");
    let new_york = Clock::standing(NOW, "America/New_York");
    assert_eq!(at("2026-11-01 01:30", "America/New_York"), "2026-11-01T05:30:00Z");
    assert_eq!(new_york.minute(1_793_511_000_000), "2026-11-01 01:30 EDT");
    assert_eq!(new_york.minute(1_793_514_600_000), "2026-11-01 01:30 EST");
}

#[test]
fn relative_times_count_real_hours_across_a_change() {
    let eve: Timestamp = "2027-03-27T20:00:00Z".parse().unwrap();
    let When::At(at) = parse_when("+8h", eve, &zone("Europe/Berlin")).unwrap() else {
        panic!("not an instant");
    };
    assert_eq!(at.to_string(), "2027-03-28T04:00:00Z");
}

#[test]
fn lengths_are_read() {
    const H: u64 = 3_600_000;
    for (text, ms) in [
        ("8h", 8 * H),
        ("90m", 90 * 60_000),
        ("1d12h", 36 * H),
        ("1d 12h", 36 * H),
        ("45s", 45_000),
        ("250ms", 250),
        ("1.5h", H + H / 2),
        ("2w", 14 * 24 * H),
        ("8 hours", 8 * H),
        ("60minutes", H),
        ("8H", 8 * H),
        ("00:30:00", H / 2),
        ("36:00:00", 36 * H),
        ("1-12", 36 * H),
        ("1-12:30", 36 * H + H / 2),
        ("1-12:30:15", 36 * H + H / 2 + 15_000),
        ("0-00:00:01", 1_000),
    ] {
        assert_eq!(parse_length(text), Ok(ms), "{text}");
        assert_eq!(parse_length(&typed_length(ms)), Ok(ms), "{}", typed_length(ms));
    }
}

#[test]
fn what_is_no_length_is_refused_with_a_way_out() {
    use TimeError::{NegativeLength, NoUnit, NotALength, TooLong, TwoParts, ZeroLength};
    for text in ["0h", "0", "0s", "00:00:00", "0-00:00:00", "0.0h"] {
        let error = parse_length(text).unwrap_err();
        assert!(matches!(error, ZeroLength | NoUnit(_)), "{text}: {error}");
    }
    for text in ["-8h", "-1-00:00:00", "-1"] {
        assert_eq!(parse_length(text), Err(NegativeLength), "{text}");
    }
    assert!(matches!(parse_length("90"), Err(NoUnit(_))));
    assert!(matches!(parse_length("1:30"), Err(TwoParts(_))));
    for text in ["99999999999999999999h", "11000d", "9999999:00:00", "99999999999:00:00"] {
        assert!(matches!(parse_length(text), Err(TooLong(_))), "{text}");
    }
    for text in [
        "", "h", "8x", "8h30", "bash", "1:2:3:4", "1-2-3", "1-", "-", "1.h", ".5h", "1e3s", "8h-1",
        "1:60:00", "1-24:00", "8ｈ", "+8h", "8,5h", "1..5h",
    ] {
        let error = parse_length(text).unwrap_err();
        assert!(matches!(error, NotALength(..) | NegativeLength | NoUnit(_)), "{text}: {error}");
    }
}

#[test]
fn times_are_shown_with_their_zone() {
    let clock = Clock::standing(NOW, "Europe/Berlin");
    let ms = clock.now_ms();
    assert_eq!(clock.minute(ms), "2026-11-21 10:31 CET");
    assert_eq!(clock.second(ms), "2026-11-21 10:31:07 CET");
    assert_eq!(clock.day_and_minute(ms), "Sat 2026-11-21 10:31 CET");
    assert_eq!(clock.typed(ms + 1), "2026-11-21T10:31:08+01:00");
    assert_eq!(clock.ago(ms - 185_000), "3m 5s");
    assert_eq!(clock.ago(ms + 5), "0s");
    // Far beyond every calendar: shown, not a panic.
    assert_eq!(clock.minute(u64::MAX), format!("{} ms", u64::MAX));
    let typed = clock.typed(ms);
    assert_eq!(parse_when(&typed, now(), clock.zone()).unwrap().unix_ms(), ms);
}

#[test]
fn a_day_is_whole_and_todays_weekday_is_today() {
    let day = |text: &str, now: &str, zone: &str| {
        let zone = TimeZone::get(zone).unwrap();
        let (from, until) = parse_day(text, now.parse().unwrap(), &zone)?;
        let shown = |ms: u64| timestamp(ms).unwrap().to_string();
        Some((shown(from), shown(until)))
    };
    let of = |from: &str, until: &str| Some((from.to_owned(), until.to_owned()));
    let friday = "2026-11-27T09:10:00Z";
    let today = of("2026-11-26T23:00:00Z", "2026-11-27T23:00:00Z");
    for text in ["today", "friday", "Fri", "2026-11-27"] {
        assert_eq!(day(text, friday, "Europe/Berlin"), today, "{text}");
    }
    let yesterday = of("2026-11-25T23:00:00Z", "2026-11-26T23:00:00Z");
    assert_eq!(day("yesterday", friday, "Europe/Berlin"), yesterday);
    // Its midnight does not exist: the day begins when that is over.
    let cairo = of("2027-04-29T22:00:00Z", "2027-04-30T21:00:00Z");
    assert_eq!(day("2027-04-30", friday, "Africa/Cairo"), cairo);
    assert_eq!(day("09:00", friday, "Europe/Berlin"), None);
    assert_eq!(day("+2h", friday, "Europe/Berlin"), None);
}
