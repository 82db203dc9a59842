//! Dates as sheets write them: `28.11.2026 09:00`, `12/9/2026 7:00 PM`, `28. Nov 2026`, `2026-11-28`, 46354.375.
//!
//! Pure: only text becomes ISO text here, which `times` reads. The order of day and month is guessed only where
//! every date of the sheet agrees on one; else the one who imports says it.

use clap::ValueEnum;
use jiff::civil::Date;

use super::excel::day_of;
use super::table::Problem;

/// Days that a number in a column of times may mean: of the years 2000 to 2199.
const SERIALS: std::ops::Range<i64> = 36_526..109_575;

/// The order of the numbers of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Day, month, year: 28.11.2026
    Dmy,
    /// Month, day, year: 11/28/2026
    Mdy,
    /// Only year, month, day: 2026-11-28
    Iso,
}

impl Order {
    fn word(self) -> &'static str {
        match self {
            Order::Dmy => "dmy",
            Order::Mdy => "mdy",
            Order::Iso => "iso",
        }
    }

    fn said(self) -> &'static str {
        match self {
            Order::Dmy => "day, month, year",
            Order::Mdy => "month, day, year",
            Order::Iso => "year, month, day",
        }
    }
}

/// A date as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Day {
    Certain(Date),
    /// Two numbers and a year.
    Either {
        first: i8,
        second: i8,
        year: i16,
        dotted: bool,
    },
}

impl Day {
    fn in_order(self, order: Order) -> Option<Date> {
        match (self, order) {
            (Day::Certain(date), _) => Some(date),
            (Day::Either { first, second, year, .. }, Order::Dmy) => {
                Date::new(year, second, first).ok()
            }
            (Day::Either { first, second, year, .. }, Order::Mdy) => {
                Date::new(year, first, second).ok()
            }
            (Day::Either { .. }, Order::Iso) => None,
        }
    }
}

/// A cell of a column of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    day: Option<Day>,
    clock: Option<Clock>,
}

/// A time of day, in seconds; 24:00 is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Clock(pub(super) u32);

impl Clock {
    /// As `times` reads it on a day, with whether that is the next one.
    pub(super) fn typed(self) -> (bool, String) {
        let (next, second) = (self.0 >= 86_400, self.0 % 86_400);
        (next, format!("{:02}:{:02}:{:02}", second / 3_600, second % 3_600 / 60, second % 60))
    }
}

/// How the dates of a sheet are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dates(Order);

impl Dates {
    /// `cells`: all of the sheet that hold times, with their lines. What is to be said about a guess beside it.
    pub(super) fn decide(
        cells: &[(u64, String)],
        said: Option<Order>,
    ) -> Result<(Self, Option<String>), Problem> {
        if let Some(order) = said {
            return Ok((Self(order), None));
        }
        let open: Vec<(u64, &str, Day)> = cells
            .iter()
            .filter_map(|(line, text)| Some((*line, text.as_str(), moment(text)?.day?)))
            // 5/5/2026 is the same day in both.
            .filter(|(_, _, day)| day.in_order(Order::Dmy) != day.in_order(Order::Mdy))
            .collect();
        let Some((first_line, first, _)) = open.first() else {
            return Ok((Self(Order::Dmy), None));
        };
        let orders = [Order::Dmy, Order::Mdy];
        let against = |order: Order| {
            let other = if order == Order::Dmy { Order::Mdy } else { Order::Dmy };
            // A date in neither order says nothing about the others.
            open.iter()
                .find(|(_, _, day)| day.in_order(order).is_none() && day.in_order(other).is_some())
        };
        let dotted = open.iter().all(|(_, _, day)| matches!(day, Day::Either { dotted: true, .. }));
        let guess = |order: Order| {
            let note = format!(
                "dates are read as {}, as every line agrees (--dates {})",
                order.said(),
                order.word()
            );
            (Self(order), Some(note))
        };
        match orders.map(against) {
            [None, Some(_)] => Ok(guess(Order::Dmy)),
            [Some(_), None] => Ok(guess(Order::Mdy)),
            // Nobody writes the month first and dots.
            [None, None] if dotted => {
                let note = "dates with dots are read as day, month, year (--dates dmy)".to_owned();
                Ok((Self(Order::Dmy), Some(note)))
            }
            [None, None] => {
                let what = format!(
                    "dates such as {first:?} (line {first_line}) may be day first or month first; say --dates dmy or --dates mdy"
                );
                Err(Problem::of_file(what))
            }
            [Some((month_line, month_first, _)), Some((day_line, day_first, _))] => {
                let what = format!(
                    "the dates have two orders: {day_first:?} (line {day_line}) has the day first, {month_first:?} (line {month_line}) \
                     the month; correct those of one order, or say --dates dmy or --dates mdy to see each"
                );
                Err(Problem::of_file(what))
            }
        }
    }

    /// A cell as ISO text that `times` reads, and whether it has no time of day; `None`: no date is in it.
    pub(super) fn typed(self, text: &str) -> Option<Result<(String, bool), String>> {
        let Moment { day, clock } = moment(text)?;
        let order = self.0;
        let Some(date) = day?.in_order(order) else {
            return Some(Err(format!(
                "{text:?} is no date in the order {} (--dates {})",
                order.said(),
                order.word()
            )));
        };
        let (next, clock_text) = clock.map_or((false, String::new()), Clock::typed);
        let date = if next { date.tomorrow().ok()? } else { date };
        let typed = if clock.is_some() { format!("{date} {clock_text}") } else { date.to_string() };
        Some(Ok((typed, clock.is_none())))
    }
}

/// Whether the cell is a date or a time of day, in any order.
pub(super) fn is_timely(text: &str) -> bool {
    moment(text).is_some() || weekday_alone(text)
}

/// Whether the cell is a date, perhaps with a time.
pub(super) fn has_day(text: &str) -> bool {
    moment(text).is_some_and(|moment| moment.day.is_some())
}

/// Whether the cell is a time of day without a date.
pub(super) fn clock_alone(text: &str) -> Option<Clock> {
    let moment = moment(text)?;
    moment.day.is_none().then_some(moment.clock)?
}

/// Whether a cell is a day as a number: what a sheet shows that has lost the format of its dates.
pub(super) fn is_serial(text: &str) -> bool {
    serial(text).is_some()
}

/// `None`: neither a date nor a time.
fn moment(text: &str) -> Option<Moment> {
    // Sheets write all kinds of blanks, also narrow ones before PM.
    let text: Vec<&str> = text.split_whitespace().collect();
    let text = text.join(" ").to_lowercase();
    if let Some(moment) = serial(&text) {
        return Some(moment);
    }
    let text = without_weekday(&text);
    if let Some(clock) = clock(text) {
        return Some(Moment { day: None, clock: Some(clock) });
    }
    if let Some(day) = day(text) {
        return Some(Moment { day: Some(day), clock: None });
    }
    // A date, then a time: at each place where one could end.
    let ends = text.match_indices([' ', ',', 't', '\u{2013}']).map(|(at, part)| (at, part.len()));
    ends.into_iter().find_map(|(at, length)| {
        let (date, time) = (text.get(..at)?, text.get(at + length..)?);
        let time = time.trim_start_matches([' ', ',']);
        let time =
            ["um ", "at ", "ab ", "bis "].iter().find_map(|w| time.strip_prefix(w)).unwrap_or(time);
        let (day, clock) = (day(date.trim())?, clock(time.trim())?);
        Some(Moment { day: Some(day), clock: Some(clock) })
    })
}

/// 46354.375, also with a decimal comma.
fn serial(text: &str) -> Option<Moment> {
    let (days, part) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !(digits(days) && digits(part) && part.len() <= 17) {
        return None;
    }
    let days: i64 = days.parse().ok().filter(|days| SERIALS.contains(days))?;
    let part: f64 = format!("0.{part}").parse().ok()?;
    // Below one day and whole.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a day")]
    let seconds = (part * 86_400.0).round() as u32;
    let clock = (seconds > 0).then_some(Clock(seconds));
    Some(Moment { day: Some(Day::Certain(day_of(days, false)?)), clock })
}

const WEEKDAYS: [&str; 35] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "montag",
    "dienstag",
    "mittwoch",
    "donnerstag",
    "freitag",
    "samstag",
    "sonnabend",
    "sonntag",
    "mon",
    "tue",
    "tues",
    "wed",
    "thu",
    "thur",
    "thurs",
    "fri",
    "sat",
    "sun",
    "mo",
    "di",
    "mi",
    "do",
    "fr",
    "sa",
    "so",
    "tu",
    "we",
    "th",
];

/// `Sa 28.11.2026` without its weekday, where something follows that begins with a number or a month.
fn without_weekday(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let rest = rest.trim_start_matches(['.', ',', ' ']);
    if WEEKDAYS.contains(&word) && day_begins(rest) { rest } else { text }
}

fn day_begins(text: &str) -> bool {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    // `monday 09:00` is a time as everywhere: the next Monday.
    (number && clock(text).is_none())
        || month(text.split([' ', '.', '-']).next().unwrap_or("")).is_some()
}

fn weekday_alone(text: &str) -> bool {
    let lower = text.trim().trim_end_matches('.').to_lowercase();
    WEEKDAYS.contains(&lower.as_str())
}

/// `28.11.2026`, `28/11/26`, `2026-11-28`, `20261128`, `28. nov 2026`, `nov 28, 2026`.
fn day(text: &str) -> Option<Day> {
    let text = text.trim_end_matches([',', '.', ' ']);
    if text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit()) {
        let (year, rest) = text.split_at(4);
        let (month, day) = rest.split_at(2);
        return certain(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    }
    let parts: Vec<&str> =
        text.split(['.', '/', '-', ' ', ',']).filter(|part| !part.is_empty()).collect();
    let [one, two, three] = parts.as_slice() else { return None };
    if let (Some(month), Some(day), Some(year)) = (month(two), day_number(one), year(three)) {
        return certain(year, month, day);
    }
    if let (Some(month), Some(day), Some(year)) = (month(one), day_number(two), year(three)) {
        return certain(year, month, day);
    }
    if one.len() == 4 {
        let month = month(two).or_else(|| two_digits(two))?;
        return certain(year(one)?, month, two_digits(three)?);
    }
    let (first, second, year) = (two_digits(one)?, two_digits(two)?, year(three)?);
    Some(Day::Either { first, second, year, dotted: text.contains('.') })
}

fn certain(year: i16, month: i8, day: i8) -> Option<Day> {
    Date::new(year, month, day).ok().map(Day::Certain)
}

fn two_digits(text: &str) -> Option<i8> {
    let legal = matches!(text.len(), 1 | 2) && text.bytes().all(|b| b.is_ascii_digit());
    legal.then(|| text.parse().ok()).flatten()
}

/// `28`, `28th`.
fn day_number(text: &str) -> Option<i8> {
    let bare = ["st", "nd", "rd", "th"].iter().find_map(|end| text.strip_suffix(end));
    two_digits(bare.unwrap_or(text))
}

/// `2026`, `26`.
fn year(text: &str) -> Option<i16> {
    match text.len() {
        4 if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        2 => two_digits(text).map(|year| 2_000 + i16::from(year)),
        _ => None,
    }
}

/// English and German, whole or shortened.
fn month(text: &str) -> Option<i8> {
    let text = text.trim_end_matches('.');
    let known: [&[&str]; 12] = [
        &["jan", "january", "januar", "jän", "jänner"],
        &["feb", "february", "februar"],
        &["mar", "march", "märz", "mär", "mrz", "maerz"],
        &["apr", "april"],
        &["may", "mai"],
        &["jun", "june", "juni"],
        &["jul", "july", "juli"],
        &["aug", "august"],
        &["sep", "sept", "september"],
        &["oct", "october", "okt", "oktober"],
        &["nov", "november"],
        &["dec", "december", "dez", "dezember"],
    ];
    (1..).zip(known).find(|(_, names)| names.contains(&text)).map(|(number, _)| number)
}

/// `09:00`, `9:00:30`, `7 pm`, `7:00 p.m.`, `9 uhr`, `09.00 uhr`, `9h30`, `24:00`.
fn clock(text: &str) -> Option<Clock> {
    let text = text.trim();
    let (text, half) = ["p.m.", "pm", "p.m"]
        .iter()
        .find_map(|end| text.strip_suffix(end).map(|rest| (rest, Some(12))))
        .or_else(|| {
            ["a.m.", "am", "a.m"]
                .iter()
                .find_map(|end| text.strip_suffix(end).map(|rest| (rest, Some(0))))
        })
        .unwrap_or((text, None));
    let (text, said) = match text.trim_end().strip_suffix("uhr").or_else(|| text.strip_suffix("h"))
    {
        Some(rest) => (rest.trim_end(), true),
        None => (text.trim_end(), half.is_some()),
    };
    let parts: Vec<&str> = if text.contains(':') {
        text.split(':').collect()
    } else if said {
        text.split('.').collect()
    } else {
        // `9h30`.
        let (hour, minute) = text.split_once('h')?;
        vec![hour, minute]
    };
    if parts.len() == 1 && !said {
        return None;
    }
    let number = |at: usize, most: u32| -> Option<u32> {
        let Some(part) = parts.get(at) else { return Some(0) };
        // Parts of a second say nothing here.
        let whole =
            if at == 2 { part.split_once('.').map_or(*part, |(whole, _)| whole) } else { part };
        let number = u32::try_from(two_digits(whole)?).ok()?;
        (number <= most).then_some(number)
    };
    let (hour, minute, second) = (number(0, 24)?, number(1, 59)?, number(2, 59)?);
    let hour = match half {
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some(half) => hour % 12 + half,
        None => hour,
    };
    let seconds = hour * 3_600 + minute * 60 + second;
    (parts.len() <= 3 && seconds <= 86_400).then_some(Clock(seconds))
}
