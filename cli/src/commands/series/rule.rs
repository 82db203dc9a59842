//! The rule of a series as it is typed: `--every`, `--on`, `--until`, `--times`, `--skip` and `--zone`.
//!
//! It asks nobody. Each refusal names the option, its value, the limit and what to type instead.

use std::collections::BTreeSet;

use fleet_core::reservation::SERIES_LENGTH_MAX;
use fleet_proto::v1::SeriesDate;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::args::{ReserveArgs, SeriesArgs};
use crate::commands::Context;
use crate::commands::reserve::LENGTH_DEFAULT_MS;
use crate::errors::Failure;
use crate::output::text::say;
use crate::recurrence::{Every, Last, Occurrence, Rule, RuleError, instant};
use crate::times::{Clock, Edge, When, length, typed_length, weekday};

/// The days of a week, as they are typed.
const WEEKDAYS: &str = "mon, tue, wed, thu, fri, sat or sun";
/// Most days, weeks or months between two reservations.
const INTERVAL_MAX: u32 = 366;
/// Left-out days that a rule names; of more it says how many.
const SKIPPED_NAMED_MAX: usize = 3;

/// The dates of a rule, and the rule in words.
pub(super) struct Dates {
    pub(super) windows: Vec<SeriesDate>,
    pub(super) rule: String,
}

/// The same command in the zone that it names.
pub(super) fn in_zone(context: &Context, args: &SeriesArgs) -> Result<Context, Failure> {
    let Some(name) = &args.zone else { return Ok(context.clone()) };
    let zone = TimeZone::get(name).map_err(|_| {
        let problem = format!("{name:?} is not a time zone; write one like Europe/Berlin or UTC");
        let alike = alike(name).map(|zone| format!("did you mean --zone {zone}?"));
        let failure = Failure::usage("--zone", problem);
        Failure { hint: alike, ..failure }
    })?;
    Ok(Context { clock: context.clock.in_zone(zone), ..context.clone() })
}

/// The zone of a city: `Europe/Berlin` for `berlin`.
fn alike(city: &str) -> Option<String> {
    let city = city.trim().replace(' ', "_").to_ascii_lowercase();
    let names = jiff::tz::db().available().map(|name| name.to_string());
    let of_city = |name: &String| {
        name.rsplit('/').next().map(str::to_ascii_lowercase).as_ref() == Some(&city)
    };
    names.filter(of_city).min()
}

/// Works out the dates of the rule as typed.
pub(super) fn dates(context: &Context, args: &ReserveArgs, every: &str) -> Result<Dates, Failure> {
    let clock = &context.clock;
    let from = args.from.as_deref().unwrap_or("now");
    let first = match context.when("--from", from, Edge::Start)? {
        When::Now => clock.now,
        When::At(at) => at,
    };
    let length_ms = match &args.time {
        Some(text) => context.length("--time", text)?,
        None => LENGTH_DEFAULT_MS,
    };
    let first = first.to_zoned_datetime(clock.zone().clone()).datetime();
    let every = read_every(every, &args.series.on, first.date().weekday())?;
    let last = last(context, args)?;
    let skip = args.series.skip.iter().map(|day| date(day)).collect::<Result<BTreeSet<_>, _>>()?;
    let rule = Rule { every, first, last, length_ms, skip };
    let occurrences = rule.occurrences(clock.zone());
    let occurrences = occurrences.map_err(|error| wrong(&error, &rule, args, clock))?;
    for day in rule.skip.iter().filter(|day| !rule.means(**day, clock.zone())) {
        say(&format!("note: --skip {day} is none of the days of this series"));
    }
    let windows = occurrences.iter().map(|one| SeriesDate {
        starts_at_unix_ms: one.starts_at_ms,
        ends_at_unix_ms: one.ends_at_ms,
    });
    Ok(Dates { windows: windows.collect(), rule: words(&rule, clock.zone()) })
}

/// `daily`, `weekly`, `monthly`, `2 weeks`.
fn read_every(text: &str, on: &[String], first: Weekday) -> Result<Every, Failure> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let unit = unit.trim_start();
    let strange = || {
        let problem =
            format!("{text:?} is not how often; write daily, weekly, monthly or like \"2 weeks\"");
        Failure::usage("--every", problem)
    };
    let interval = match number {
        "" => 1,
        number => number.parse().unwrap_or(u32::MAX),
    };
    let every = match (unit, number) {
        ("daily", "") | ("day" | "days", _) => Every::Days(interval),
        ("weekly", "") | ("week" | "weeks", _) => Every::Weeks(interval, weekdays(on, first)?),
        ("monthly", "") | ("month" | "months", _) => Every::Months(interval),
        _ => return Err(strange()),
    };
    if !(1..=INTERVAL_MAX).contains(&interval) {
        let problem =
            format!("{text:?} is out of range; write 1 to {INTERVAL_MAX}, like \"2 weeks\"");
        return Err(Failure::usage("--every", problem));
    }
    if !on.is_empty() && !matches!(every, Every::Weeks(..)) {
        let on = on.join(",");
        let problem = format!("{on} needs --every weekly; you wrote --every {text}");
        return Err(Failure::usage("--on", problem));
    }
    Ok(every)
}

fn weekdays(on: &[String], first: Weekday) -> Result<Vec<Weekday>, Failure> {
    if on.is_empty() {
        return Ok(vec![first]);
    }
    let one = |text: &String| {
        weekday(&text.trim().to_ascii_lowercase()).ok_or_else(|| {
            Failure::usage("--on", format!("{text:?} is not a weekday; write {WEEKDAYS}"))
        })
    };
    on.iter().map(one).collect()
}

/// When the series ends: exactly one of two options says it.
fn last(context: &Context, args: &ReserveArgs) -> Result<Last, Failure> {
    let most = SERIES_LENGTH_MAX;
    match (args.series.times, &args.until) {
        (Some(_), Some(_)) => {
            Err(Failure::usage("--times", "cannot be used with --until; write one of the two"))
        }
        (None, None) => {
            let problem = format!(
                "needs an end; write --until DAY for the last day, or --times N, at most {most}"
            );
            Err(Failure::usage("--every", problem))
        }
        (Some(times), None) => match times as usize {
            0 => Err(Failure::usage("--times", format!("0 reserves nothing; write 1 to {most}"))),
            many if many > most => {
                let problem = format!(
                    "{many} is more than {most}, the most reservations of one series; write --times {most} or fewer"
                );
                Err(Failure::usage("--times", problem))
            }
            _ => Ok(Last::Times(times)),
        },
        (None, Some(until)) => match context.when("--until", until, Edge::End)? {
            When::Now => Ok(Last::Before(context.clock.now)),
            When::At(at) => Ok(Last::Before(at)),
        },
    }
}

fn date(text: &str) -> Result<Date, Failure> {
    text.trim().parse().map_err(|_| {
        Failure::usage("--skip", format!("{text:?} is not a date; write one like 2026-12-24"))
    })
}

/// Why the rule gives no series, and what to type instead.
fn wrong(error: &RuleError, rule: &Rule, args: &ReserveArgs, clock: &Clock) -> Failure {
    let until = args.until.as_deref().unwrap_or_default();
    let at = |ms: u64| clock.day_and_minute(ms);
    let begins = instant(rule.first, clock.zone());
    let ends_before = match rule.last {
        Last::Before(end) => begins.is_some_and(|begins| end <= begins),
        Last::Times(_) => false,
    };
    match error {
        RuleError::TooMany { next_ms } => {
            let most = SERIES_LENGTH_MAX;
            let problem = format!(
                "{until} allows more than {most} reservations, the most of one series; write a day before {} or --times {most}",
                at(*next_ms)
            );
            Failure::usage("--until", problem)
        }
        RuleError::None if ends_before || rule.skip.is_empty() => {
            let first = rule.first.strftime("%a %Y-%m-%d %H:%M");
            let problem = format!(
                "{until} is before the first reservation could start; write a day after --from ({first})"
            );
            Failure::usage("--until", problem)
        }
        RuleError::None => Failure::usage("--skip", "no day is left; skip fewer days"),
        RuleError::Overlap { one, next_ms } => overlap(one, *next_ms, rule, clock),
        RuleError::OutOfRange => {
            Failure::usage("--every", "reaches beyond the year 9998; write an earlier --until")
        }
    }
}

fn overlap(one: &Occurrence, next_ms: u64, rule: &Rule, clock: &Clock) -> Failure {
    let problem = format!(
        "{} is longer than the time until the next one: the reservation of {} would end {}, and the next one starts {}; \
         write at most -t {}",
        length(rule.length_ms),
        clock.day_and_minute(one.starts_at_ms),
        clock.day_and_minute(one.ends_at_ms),
        clock.day_and_minute(next_ms),
        typed_length(next_ms.saturating_sub(one.starts_at_ms))
    );
    Failure::usage("--time", problem)
}

/// `every 2 weeks on Mon, Wed at 10:00 Europe/Berlin for 2h, until 2027-02-01`.
fn words(rule: &Rule, zone: &TimeZone) -> String {
    let each = |count: u32, unit: &str| match count {
        1 => format!("every {unit}"),
        count => format!("every {count} {unit}s"),
    };
    let every = match &rule.every {
        Every::Days(count) => each(*count, "day"),
        Every::Weeks(count, on) => {
            let offsets: BTreeSet<i8> = on.iter().map(|day| day.to_monday_zero_offset()).collect();
            let name = |offset: &i8| {
                ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
                    [usize::try_from(*offset).unwrap_or(0) % 7]
            };
            let on: Vec<&str> = offsets.iter().map(name).collect();
            format!("{} on {}", each(*count, "week"), on.join(", "))
        }
        Every::Months(count) => format!("{} on day {}", each(*count, "month"), rule.first.day()),
    };
    let time = rule.first.strftime("%H:%M");
    let zone_name = zone.iana_name().unwrap_or("local time");
    let end = match rule.last {
        Last::Times(1) => "once".to_owned(),
        Last::Times(times) => format!("{times} times"),
        Last::Before(end) => format!("until {}", last_day(end, zone)),
    };
    let skipped: Vec<String> = rule.skip.iter().map(ToString::to_string).collect();
    let without = match skipped.len() {
        0 => String::new(),
        few if few <= SKIPPED_NAMED_MAX => format!(", without {}", skipped.join(", ")),
        many => format!(", without {many} days"),
    };
    let lasts = length(rule.length_ms);
    format!("{every} at {time} {zone_name} for {lasts}, {end}{without}")
}

/// The day of the last instant before an end.
fn last_day(end: Timestamp, zone: &TimeZone) -> Date {
    let last = end.checked_sub(SignedDuration::from_millis(1)).unwrap_or(end);
    last.to_zoned_datetime(zone.clone()).date()
}
