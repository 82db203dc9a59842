//! Rules against a slow form that is obviously right: it walks day by day, and finds an instant by trying all of them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use jiff::civil::date;

use super::*;

const ZONES: [&str; 5] = [
    "Europe/Berlin",
    "America/New_York",
    // Half an hour.
    "Australia/Lord_Howe",
    // Their clocks skip midnight.
    "Africa/Cairo",
    "America/Santiago",
];
const RULES: usize = 12_000;
const QUARTER: SignedDuration = SignedDuration::from_mins(15);

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn rule(every: Every, first: DateTime, last: Last) -> Rule {
    Rule { every, first, last, length_ms: 3_600_000, skip: BTreeSet::new() }
}

/// The starts as the zone shows them.
fn starts(rule: &Rule, name: &str) -> Vec<String> {
    let zone = zone(name);
    let shown = |one: &Occurrence| {
        let at = Timestamp::from_millisecond(i64::try_from(one.starts_at_ms).unwrap()).unwrap();
        at.to_zoned_datetime(zone.clone()).strftime("%a %m-%d %H:%M %Z").to_string()
    };
    rule.occurrences(&zone).unwrap().iter().map(shown).collect()
}

#[test]
fn weeks_begin_on_monday_and_days_before_the_first_do_not_count() {
    // A Wednesday.
    let first = date(2026, 12, 2).at(10, 0, 0, 0);
    let on = vec![Weekday::Wednesday, Weekday::Monday];
    let each = rule(Every::Weeks(1, on.clone()), first, Last::Times(3));
    let wanted = ["Wed 12-02 10:00 CET", "Mon 12-07 10:00 CET", "Wed 12-09 10:00 CET"];
    assert_eq!(starts(&each, "Europe/Berlin"), wanted);
    let second = rule(Every::Weeks(2, on), first, Last::Times(3));
    let wanted = ["Wed 12-02 10:00 CET", "Mon 12-14 10:00 CET", "Wed 12-16 10:00 CET"];
    assert_eq!(starts(&second, "Europe/Berlin"), wanted);
}

#[test]
fn a_month_without_the_day_has_none() {
    let monthly = rule(Every::Months(1), date(2027, 1, 31).at(9, 0, 0, 0), Last::Times(3));
    assert_eq!(
        starts(&monthly, "UTC"),
        ["Sun 01-31 09:00 UTC", "Wed 03-31 09:00 UTC", "Mon 05-31 09:00 UTC"]
    );
}

#[test]
fn the_wall_clock_stays_and_gaps_and_folds_have_one_instant() {
    let spring = rule(Every::Days(1), date(2027, 3, 27).at(2, 30, 0, 0), Last::Times(3));
    let wanted = ["Sat 03-27 02:30 CET", "Sun 03-28 03:00 CEST", "Mon 03-29 02:30 CEST"];
    assert_eq!(starts(&spring, "Europe/Berlin"), wanted);
    let autumn = rule(Every::Days(1), date(2027, 10, 30).at(2, 30, 0, 0), Last::Times(3));
    let wanted = ["Sat 10-30 02:30 CEST", "Sun 10-31 02:30 CEST", "Mon 11-01 02:30 CET"];
    assert_eq!(starts(&autumn, "Europe/Berlin"), wanted);
}

#[test]
fn left_out_days_count_as_times() {
    let mut daily = rule(Every::Days(1), date(2026, 12, 23).at(9, 0, 0, 0), Last::Times(4));
    daily.skip = [date(2026, 12, 24), date(2026, 12, 25)].into();
    assert_eq!(starts(&daily, "UTC"), ["Wed 12-23 09:00 UTC", "Sat 12-26 09:00 UTC"]);
    let means = |day| daily.means(day, &TimeZone::UTC);
    assert!(means(date(2026, 12, 24)) && !means(date(2026, 12, 22)));
    // After its end it has no days, as of a year that was mistyped.
    assert!(means(date(2026, 12, 26)) && !means(date(2026, 12, 27)) && !means(date(2027, 12, 24)));
}

#[test]
fn rules_that_give_no_series_say_why() {
    let first = date(2026, 12, 1).at(9, 0, 0, 0);
    let utc = TimeZone::UTC;
    let before = |day: Date| Last::Before(utc.to_timestamp(day.at(0, 0, 0, 0)).unwrap());
    let said = |rule: Rule| rule.occurrences(&utc).unwrap_err();
    let year = rule(Every::Days(1), first, before(date(2027, 12, 2)));
    assert_eq!(year.occurrences(&utc).unwrap().len(), SERIES_LENGTH_MAX);
    let longer = rule(Every::Days(1), first, before(date(2060, 1, 1)));
    assert!(matches!(said(longer), RuleError::TooMany { .. }));
    assert_eq!(said(rule(Every::Days(1), first, before(date(2026, 11, 1)))), RuleError::None);
    let mut long = rule(Every::Days(1), first, Last::Times(2));
    long.length_ms = 25 * 3_600_000;
    assert!(matches!(said(long), RuleError::Overlap { .. }));
    let never = rule(Every::Days(366), date(9990, 1, 1).at(9, 0, 0, 0), Last::Times(366));
    assert_eq!(said(never), RuleError::OutOfRange);
    let no_day = rule(Every::Weeks(1, Vec::new()), first, Last::Times(1));
    assert_eq!(said(no_day), RuleError::OutOfRange);
}

/// `SplitMix64`.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % most
    }

    fn number(&mut self, most: u64) -> i64 {
        i64::try_from(self.below(most)).unwrap()
    }

    fn rule(&mut self, zone: &TimeZone) -> Rule {
        let day = date(2026, 1, 1).checked_add(days_of(self.number(900)).unwrap()).unwrap();
        // The clocks change at night.
        let quarters = if self.below(2) == 0 { 16 } else { 96 };
        let minutes = self.number(quarters) * 15;
        let first = day.at(0, 0, 0, 0).checked_add(Span::new().minutes(minutes)).unwrap();
        let interval = u32::try_from(1 + self.below(4)).unwrap();
        let every = match self.below(3) {
            0 => Every::Days(interval),
            1 => {
                let mut on = vec![first.date().weekday()];
                let more = self.below(4);
                on.extend(
                    (0..more)
                        .map(|_| Weekday::from_monday_zero_offset(self.number(7) as i8).unwrap()),
                );
                if self.below(2) == 0 && on.len() > 1 {
                    on.remove(0);
                }
                Every::Weeks(interval, on)
            }
            _ => Every::Months(interval),
        };
        let last = match self.below(2) {
            0 => Last::Times(u32::try_from(1 + self.below(10)).unwrap()),
            _ => {
                let end =
                    first.checked_add(Span::new().days(self.number(60)).hours(self.number(24)));
                Last::Before(zone.to_ambiguous_timestamp(end.unwrap()).compatible().unwrap())
            }
        };
        let skip =
            (0..self.below(4)).map(|_| day.checked_add(days_of(self.number(20)).unwrap()).unwrap());
        let skip: BTreeSet<Date> = skip.collect();
        Rule { every, first, last, length_ms: 900_000, skip }
    }
}

/// Whether the rule has a day, by counting from its first day.
fn is_day_of(rule: &Rule, day: Date) -> bool {
    let first = rule.first.date();
    let between = |a: Date, b: Date| i64::from(a.until(b).unwrap().get_days());
    match &rule.every {
        Every::Days(n) => between(first, day) % i64::from(*n) == 0,
        Every::Weeks(n, on) => {
            let monday = |day: Date| {
                (0..7)
                    .map(|back| day.checked_sub(days_of(back).unwrap()).unwrap())
                    .find(|day| day.weekday() == Weekday::Monday)
                    .unwrap()
            };
            on.contains(&day.weekday())
                && between(monday(first), monday(day)) / 7 % i64::from(*n) == 0
        }
        Every::Months(n) => {
            let number = |day: Date| i64::from(day.year()) * 12 + i64::from(day.month());
            day.day() == first.day() && (number(day) - number(first)) % i64::from(*n) == 0
        }
    }
}

/// The first instant at which the clocks show this or more.
fn slow_instant(at: DateTime, zone: &TimeZone) -> Timestamp {
    let utc = TimeZone::UTC.to_timestamp(at).unwrap();
    let mut candidate = utc.checked_sub(SignedDuration::from_hours(13)).unwrap();
    while zone.to_datetime(candidate) < at {
        candidate = candidate.checked_add(QUARTER).unwrap();
    }
    candidate
}

fn slow(rule: &Rule, zone: &TimeZone) -> Vec<u64> {
    let (mut starts, mut count, mut day) = (Vec::new(), 0, rule.first.date());
    loop {
        if is_day_of(rule, day) {
            let start = slow_instant(day.to_datetime(rule.first.time()), zone);
            let over = match rule.last {
                Last::Before(end) => start >= end,
                Last::Times(times) => count == times,
            };
            if over {
                return starts;
            }
            count += 1;
            if !rule.skip.contains(&day) {
                starts.push(u64::try_from(start.as_millisecond()).unwrap());
            }
        }
        day = day.tomorrow().unwrap();
    }
}

#[test]
fn random_rules_give_what_walking_day_by_day_gives() {
    let mut draw = Draw(20_261_129);
    let zones: Vec<TimeZone> = ZONES.iter().map(|name| zone(name)).collect();
    let (mut windows, mut changed) = (0, 0);
    for number in 0..RULES {
        let zone = &zones[number % zones.len()];
        let rule = draw.rule(zone);
        let wanted = slow(&rule, zone);
        let found = match rule.occurrences(zone) {
            Ok(all) => all.iter().map(|one| one.starts_at_ms).collect(),
            Err(RuleError::None) => Vec::new(),
            Err(other) => panic!("{rule:?}: {other:?}"),
        };
        assert_eq!(found, wanted, "{:?} {rule:?}", zone.iana_name());
        windows += found.len();
        // Days apart that are no whole days: the clocks changed between.
        changed += found.windows(2).filter(|pair| (pair[1] - pair[0]) % 86_400_000 != 0).count();
    }
    assert!(windows > 4 * RULES && changed > 500, "{windows} windows, {changed} over a change");
}

/// Prints the starts of each rule that it reads, one JSON text a line.
const DATEUTIL: &str = r"
import json, sys
from datetime import datetime
from dateutil.rrule import DAILY, MO, MONTHLY, WEEKLY, rrule, rruleset
for line in sys.stdin:
    rule = json.loads(line)
    end = rule['until'] and datetime.fromisoformat(rule['until'])
    days = rruleset()
    days.rrule(rrule([DAILY, WEEKLY, MONTHLY][rule['freq']], dtstart=datetime.fromisoformat(rule['first']),
        interval=rule['interval'], byweekday=rule['on'] or None, wkst=MO, count=rule['count'], until=end))
    for day in rule['skip']:
        days.exdate(datetime.fromisoformat(day))
    print(json.dumps([at.isoformat() for at in days]))
";

/// The rule for [`DATEUTIL`], whose ends belong to the series.
fn for_dateutil(rule: &Rule) -> serde_json::Value {
    let (freq, interval, on) = match &rule.every {
        Every::Days(n) => (0, n, Vec::new()),
        Every::Weeks(n, on) => (1, n, on.iter().map(|day| day.to_monday_zero_offset()).collect()),
        Every::Months(n) => (2, n, Vec::new()),
    };
    let (count, until) = match rule.last {
        Last::Times(times) => (Some(times), None),
        Last::Before(end) => {
            let last = end.checked_sub(SignedDuration::from_secs(1)).unwrap();
            (None, Some(TimeZone::UTC.to_datetime(last).to_string()))
        }
    };
    let skip = rule.skip.iter().map(|day| day.to_datetime(rule.first.time()).to_string());
    serde_json::json!({
        "freq": freq, "interval": interval, "on": on, "count": count, "until": until,
        "first": rule.first.to_string(), "skip": skip.collect::<Vec<_>>(),
    })
}

/// Another implementation of iCalendar's rules, where it is installed. The zone plays no part in it.
#[test]
fn random_rules_give_what_python_dateutil_gives() {
    let mut python = Command::new("python3");
    if !python.args(["-c", "import dateutil"]).status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: python3 has no dateutil");
        return;
    }
    let mut draw = Draw(7);
    let rules: Vec<Rule> = (0..RULES).map(|_| draw.rule(&TimeZone::UTC)).collect();
    let mut python = Command::new("python3");
    let python = python.args(["-c", DATEUTIL]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let lines: String = rules.iter().map(|rule| for_dateutil(rule).to_string() + "\n").collect();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let said = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.lines().count(), RULES);
    for (rule, wanted) in rules.iter().zip(said.lines()) {
        let found = rule.occurrences(&TimeZone::UTC).unwrap_or_default();
        let at = |one: &Occurrence| {
            let at = Timestamp::from_millisecond(i64::try_from(one.starts_at_ms).unwrap());
            TimeZone::UTC.to_datetime(at.unwrap()).to_string()
        };
        let found: Vec<String> = found.iter().map(at).collect();
        assert_eq!(found, serde_json::from_str::<Vec<String>>(wanted).unwrap(), "{rule:?}");
    }
}
