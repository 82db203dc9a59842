#![allow(clippy::unwrap_used, reason = "tests")]

use fleet_proto::v1;

use super::*;

/// In Berlin, where the clocks go back on 2026-10-25.
fn clock() -> Clock {
    Clock::standing("2026-10-01T09:31:07Z", "Europe/Berlin")
}

fn ms(at: &str) -> u64 {
    u64::try_from(at.parse::<jiff::Timestamp>().unwrap().as_millisecond()).unwrap()
}

fn date(starts: &str) -> Reservation {
    Reservation::from(v1::Reservation {
        id: "res-1".to_owned(),
        state: "scheduled".to_owned(),
        starts_at_unix_ms: ms(starts),
        ends_at_unix_ms: ms(starts) + 7_200_000,
        ..v1::Reservation::default()
    })
}

fn times(starts_at_ms: u64, ends_at_ms: u64, length_ms: u64) -> Times {
    Times { starts_at_ms, ends_at_ms, length_ms }
}

/// The new start and length in minutes of a date, where those of the first are known.
fn moved(times: &Times, starts: &str) -> (String, u64) {
    let first = date("2026-10-19T08:00:00Z");
    let moved = Moved::of(times, &first, &clock()).unwrap();
    let (new, end) = moved.window(ms(starts), &clock()).unwrap();
    let begins = if new == 0 { ms(starts) } else { new };
    let at = jiff::Timestamp::from_millisecond(i64::try_from(new).unwrap()).unwrap();
    (at.to_string(), end.saturating_sub(begins) / 60_000)
}

#[test]
fn the_time_of_day_is_the_same_before_and_after_the_clocks_change() {
    // From Monday 10:00 to Tuesday 14:00.
    let to = times(ms("2026-10-20T12:00:00Z"), 0, 0);
    assert_eq!(moved(&to, "2026-10-19T08:00:00Z"), ("2026-10-20T12:00:00Z".to_owned(), 0));
    assert_eq!(moved(&to, "2026-10-26T09:00:00Z"), ("2026-10-27T13:00:00Z".to_owned(), 0));
    // One that was moved by an hour before keeps that hour.
    assert_eq!(moved(&to, "2026-10-26T10:00:00Z"), ("2026-10-27T14:00:00Z".to_owned(), 0));
}

#[test]
fn all_dates_get_the_length_of_the_first() {
    let longer = times(0, ms("2026-10-19T11:00:00Z"), 0);
    assert_eq!(moved(&longer, "2026-10-26T09:00:00Z").1, 180);
    let both = times(ms("2026-10-19T12:00:00Z"), 0, 90 * 60_000);
    assert_eq!(moved(&both, "2026-10-26T09:00:00Z"), ("2026-10-26T13:00:00Z".to_owned(), 90));
    let first = date("2026-10-19T08:00:00Z");
    let early = times(0, ms("2026-10-19T07:00:00Z"), 0);
    let failure = Moved::of(&early, &first, &clock()).err().unwrap();
    assert!(failure.message.contains("is not after the start of the first date"), "{failure:?}");
}
