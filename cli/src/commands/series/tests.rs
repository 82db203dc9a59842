#![allow(clippy::unwrap_used, reason = "tests")]

use clap::Parser;
use fleet_core::name::{GpuUuid, NodeName, UserName};
use fleet_core::rejection::Holding;

use super::*;
use crate::args::{Cli, Verb};
use crate::client::Requests;

/// A Sunday.
fn context() -> Context {
    Context {
        config: None,
        json: false,
        clock: Clock::standing("2026-11-29T09:31:07Z", "Europe/Berlin"),
        vouched: None,
        login: None,
        requests: Requests::default(),
    }
}

fn typed(rule: &[&str]) -> ReserveArgs {
    let words = ["fleet", "reserve", "-G", "2", "--from", "mon 10:00", "--every"];
    match Cli::try_parse_from(words.iter().chain(rule)).unwrap().verb {
        Verb::Reserve(args) => args,
        other => panic!("{other:?}"),
    }
}

fn dates(rule: &[&str]) -> Result<rule::Dates, Failure> {
    let args = typed(rule);
    let context = rule::in_zone(&context(), &args.series)?;
    rule::dates(&context, &args, args.series.every.as_deref().unwrap())
}

fn refusal(rule: &[&str]) -> String {
    let Err(failure) = dates(rule) else { panic!("{rule:?} is taken") };
    assert_eq!(failure.exit, Exit::Usage);
    let hint = failure.hint.map_or(String::new(), |hint| format!(" | {hint}"));
    format!("{}{hint}", failure.message)
}

#[test]
fn a_rule_is_written_for_people() {
    let cases: [(&[&str], &str, usize); 5] = [
        (
            &["weekly", "--on", "wed,mon", "-t", "2h", "--until", "2027-02-01"],
            "every week on Mon, Wed at 10:00 Europe/Berlin for 2h, until 2027-02-01",
            19,
        ),
        (&["daily", "--times", "3"], "every day at 10:00 Europe/Berlin for 8h, 3 times", 3),
        (
            &["2 weeks", "--times", "4", "--skip", "2026-12-14"],
            "every 2 weeks on Mon at 10:00 Europe/Berlin for 8h, 4 times, without 2026-12-14",
            3,
        ),
        (
            &["monthly", "--times", "1"],
            "every month on day 30 at 10:00 Europe/Berlin for 8h, once",
            1,
        ),
        (
            &["3days", "--times", "2", "--zone", "asia/tokyo"],
            "every 3 days at 10:00 Asia/Tokyo for 8h, 2 times",
            2,
        ),
    ];
    for (typed, wanted, count) in cases {
        let dates = dates(typed).unwrap();
        assert_eq!((dates.rule.as_str(), dates.windows.len()), (wanted, count));
    }
    // 10:00 in Tokyo.
    let tokyo = dates(&["daily", "--times", "1", "--zone", "Asia/Tokyo"]).unwrap();
    assert_eq!(
        context().clock.typed(tokyo.windows[0].starts_at_unix_ms),
        "2026-11-30T02:00:00+01:00"
    );
}

#[test]
fn a_wrong_rule_is_refused_with_the_option_its_value_and_what_to_type() {
    let cases: [(&[&str], &[&str]); 17] = [
        (&["hourly", "--times", "2"], &["--every: \"hourly\"", "daily, weekly, monthly"]),
        (&["0 weeks", "--times", "2"], &["--every: \"0 weeks\"", "1 to 366"]),
        (&["99999999999 days", "--times", "2"], &["--every: ", "1 to 366"]),
        (&["2 weekly", "--times", "2"], &["--every: \"2 weekly\""]),
        (&["daily"], &["--every: needs an end", "--until DAY", "--times N", "366"]),
        (&["daily", "--times", "2", "--until", "fri"], &["--times: cannot be used with --until"]),
        (&["daily", "--times", "0"], &["--times: 0", "1 to 366"]),
        (&["daily", "--times", "10000"], &["--times: 10000", "more than 366", "--times 366"]),
        (
            &["daily", "--until", "2060-01-01"],
            &["--until: 2060-01-01", "more than 366", "before Wed 2027-12-01 10:00 CET"],
        ),
        (&["daily", "--until", "today"], &["--until: today is before", "Mon 2026-11-30 10:00"]),
        (&["daily", "--on", "mon", "--times", "2"], &["--on: mon needs --every weekly"]),
        (&["weekly", "--on", "mon,mo", "--times", "2"], &["--on: \"mo\"", "mon, tue, wed"]),
        (
            &["daily", "--times", "2", "--zone", "berlin"],
            &["--zone: \"berlin\"", "| did you mean --zone Europe/Berlin?"],
        ),
        (
            &["daily", "--times", "2", "--zone", "Moon/Base"],
            &["--zone: \"Moon/Base\"", "Europe/Berlin"],
        ),
        (&["daily", "--times", "2", "--skip", "xmas"], &["--skip: \"xmas\"", "2026-12-24"]),
        (&["daily", "--times", "1", "--skip", "2026-11-30"], &["--skip: no day is left"]),
        (
            &["daily", "--times", "2", "-t", "30h"],
            &["--time: 1d 6h is longer", "Tue 2026-12-01 16:00 CET", "-t 1d"],
        ),
    ];
    for (typed, wanted) in cases {
        let said = refusal(typed);
        for part in wanted {
            assert!(said.contains(part), "{typed:?}: {said:?} lacks {part:?}");
        }
    }
}

#[test]
fn refused_dates_are_listed_with_their_holders_and_what_to_type() {
    let holding = Holding {
        gpu: GpuUuid::parse("GPU-1").unwrap(),
        node: NodeName::parse("titan01").unwrap(),
        index: 1,
        owner: UserName::parse("bob").unwrap(),
        holder: "res-9d2fwm".to_owned(),
        until: Some(Timestamp(1_796_036_400_000)),
    };
    let held =
        Rejection::GpusHeld { wanted: "2 GPUs".to_owned(), holdings: vec![holding], next: None };
    let far = Rejection::field("starts_at", "at most 365d ahead");
    let at = |ms| Window { starts_at: Timestamp(ms), ends_at: Timestamp(ms + 1) };
    let problems = vec![
        DateProblem { window: at(1_796_029_200_000), why: held },
        DateProblem { window: at(1_827_565_200_000), why: far },
    ];
    let failure = refused(problems, 12, &typed(&["weekly", "--times", "12"]), &context().clock);
    assert_eq!(failure.exit, Exit::NoCapacity);
    assert_eq!(failure.message, "nothing was reserved: 2 of 12 dates are not available");
    assert_eq!(
        failure.details,
        [
            "Mon 2026-11-30 10:00 CET: titan01:1  bob (res-9d2fwm) until Mon 2026-11-30 12:00 CET",
            "Tue 2027-11-30 10:00 CET: --from: at most 365d ahead"
        ]
    );
    assert_eq!(failure.hint.unwrap(), "--skip-conflicts reserves the other 10 dates");
}
