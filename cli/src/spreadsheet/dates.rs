//! Dates as sheets write them: `28.11.2026 09:00`, `12/9/2026 7:00 PM`, `28. Nov 2026`, `2026-11-28`, 46354.375.
//!
//! Pure: only text becomes ISO text here, which `times` reads. The order of day and month is guessed only where
//! every date of the sheet agrees on one; else the one who imports says it.

use std::borrow::Cow;
use std::fmt;

use clap::ValueEnum;
use jiff::civil::{Date, Weekday};

use super::excel::day_of;
use super::table::Problem;

/// Days that a number in a column of times may mean: of the years 2000 to 2199.
const SERIALS: std::ops::Range<i64> = 36_526..109_575;

/// The order of the numbers of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DateOrder {
    /// Day, month, year: 28.11.2026
    Dmy,
    /// Month, day, year: 11/28/2026
    Mdy,
    /// Only year, month, day: 2026-11-28
    Iso,
}

impl DateOrder {
    pub(crate) fn word(self) -> &'static str {
        match self {
            DateOrder::Dmy => "dmy",
            DateOrder::Mdy => "mdy",
            DateOrder::Iso => "iso",
        }
    }

    fn said(self) -> &'static str {
        match self {
            DateOrder::Dmy => "day, month, year",
            DateOrder::Mdy => "month, day, year",
            DateOrder::Iso => "year, month, day",
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
    fn in_order(self, order: DateOrder) -> Option<Date> {
        match (self, order) {
            (Day::Certain(date), _) => Some(date),
            (Day::Either { first, second, year, .. }, DateOrder::Dmy) => {
                Date::new(year, second, first).ok()
            }
            (Day::Either { first, second, year, .. }, DateOrder::Mdy) => {
                Date::new(year, first, second).ok()
            }
            (Day::Either { .. }, DateOrder::Iso) => None,
        }
    }
}

/// A cell of a column of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    day: Option<Day>,
    clock: Option<Clock>,
}

/// A time of day, in seconds; 24:00 is one. Shown as a cell would have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Clock(pub(super) u32);

impl Clock {
    /// As `times` reads it on a day, with whether that is the next one.
    pub(super) fn typed(self) -> (bool, String) {
        let (next, second) = (self.0 >= 86_400, self.0 % 86_400);
        (next, format!("{:02}:{:02}:{:02}", second / 3_600, second % 3_600 / 60, second % 60))
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 3_600, self.0 % 3_600 / 60)?;
        if self.0.is_multiple_of(60) { Ok(()) } else { write!(f, ":{:02}", self.0 % 60) }
    }
}

/// How the dates of a sheet are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dates(DateOrder);

impl Dates {
    /// `cells`: all of the sheet that hold times, with their lines. What is to be said about a guess beside it.
    pub(super) fn decide(
        cells: &[(u64, String)],
        said: Option<DateOrder>,
    ) -> Result<(Self, Option<String>), Problem> {
        if let Some(order) = said {
            return Ok((Self(order), None));
        }
        let open: Vec<(u64, &str, Day)> = cells
            .iter()
            .filter_map(|(line, text)| Some((*line, text.as_str(), moment(text)?.day?)))
            // 5/5/2026 is the same day in both.
            .filter(|(_, _, day)| day.in_order(DateOrder::Dmy) != day.in_order(DateOrder::Mdy))
            .collect();
        let Some((first_line, first, _)) = open.first() else {
            return Ok((Self(DateOrder::Dmy), None));
        };
        let orders = [DateOrder::Dmy, DateOrder::Mdy];
        let against = |order: DateOrder| {
            let other = if order == DateOrder::Dmy { DateOrder::Mdy } else { DateOrder::Dmy };
            // A date in neither order says nothing about the others.
            open.iter()
                .find(|(_, _, day)| day.in_order(order).is_none() && day.in_order(other).is_some())
        };
        let dotted = open.iter().all(|(_, _, day)| matches!(day, Day::Either { dotted: true, .. }));
        let guess = |order: DateOrder| {
            let note = format!(
                "dates are read as {}, as every line agrees (--dates {})",
                order.said(),
                order.word()
            );
            (Self(order), Some(note))
        };
        match orders.map(against) {
            [None, Some(_)] => Ok(guess(DateOrder::Dmy)),
            [Some(_), None] => Ok(guess(DateOrder::Mdy)),
            // Nobody writes the month first and dots.
            [None, None] if dotted => {
                let note = "dates with dots are read as day, month, year (--dates dmy)".to_owned();
                Ok((Self(DateOrder::Dmy), Some(note)))
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

    /// What is wrong with a column of a workbook that has some of its dates as text: the program that made dates of the
    /// others, from text in another order than its own, could do so only where the day is no more than 12.
    pub(super) fn partly_text(column: &str, cells: &[(u64, &str)]) -> Option<Problem> {
        let day = |text: &str| moment(text)?.day;
        let is_typed = |text: &str| {
            // Dates of a workbook become ISO text as it is read.
            is_serial(text)
                || (text.get(4..5) == Some("-") && matches!(day(text), Some(Day::Certain(_))))
        };
        let is_open = |text: &str| match day(text) {
            Some(found @ Day::Either { dotted, .. }) => {
                let (dmy, mdy) = (found.in_order(DateOrder::Dmy), found.in_order(DateOrder::Mdy));
                !dotted || (dmy.is_some() && mdy.is_some() && dmy != mdy)
            }
            _ => false,
        };
        let (typed_line, typed) = cells.iter().find(|(_, text)| is_typed(text))?;
        let (line, text) = cells.iter().find(|(_, text)| is_open(text))?;
        Some(Problem::of_file(format!(
            "the column {column} has dates (line {typed_line}: {typed}) and dates as text (line {line}: {text:?}): the \
             program that saved it may have swapped day and month of the others; format the whole column as dates, and \
             check each"
        )))
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

/// Whether the cell is a date that no list of numbers looks like: `8,9,10` is none. Its year has four digits, or its
/// month a name.
pub(super) fn is_plainly_a_date(text: &str) -> bool {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    has_day(text) && (numbers.any(|number| number.len() >= 4) || text.contains(char::is_alphabetic))
}

/// Whether the cell has a time of day, perhaps with a date.
pub(super) fn has_clock(text: &str) -> bool {
    moment(text).is_some_and(|moment| moment.clock.is_some())
}

/// Whether the cell is a time of day without a date.
pub(super) fn clock_alone(text: &str) -> Option<Clock> {
    let moment = moment(text)?;
    moment.day.is_none().then_some(moment.clock)?
}

/// `2026-11-28 09:00:00 -0800` without the blank before its offset, as `times` reads it; any other text as it is.
pub(super) fn with_its_offset(text: &str) -> Cow<'_, str> {
    let joined = text.trim().rsplit_once(' ').filter(|(at, offset)| {
        let digits = offset.strip_prefix(['+', '-']).map(|offset| offset.replace(':', ""));
        let offset = digits.is_some_and(|d| d.len() == 4 && d.bytes().all(|b| b.is_ascii_digit()));
        offset && at.contains(':')
    });
    joined.map_or(Cow::Borrowed(text), |(at, offset)| Cow::Owned(format!("{at}{offset}")))
}

/// A time of day in a column that holds only those: `09:00`, `9`, `0800`, `9.30`.
pub(super) fn clock_in_its_column(text: &str) -> Option<Clock> {
    let text = text.trim();
    let numbers = |hour: &str, minute: &str| {
        let plain = minute.len() == 2 && two_digits(hour).is_some() && two_digits(minute).is_some();
        plain.then(|| clock(&format!("{hour}:{minute}"))).flatten()
    };
    clock_alone(text).or_else(|| match text.split_once('.') {
        Some((hour, minute)) => numbers(hour, minute),
        None if text.len() == 4 => numbers(text.get(..2)?, text.get(2..)?),
        None => numbers(text, "00"),
    })
}

/// A cell for a day, without the midnight that a workbook shows where the cell has the format of a time.
pub(super) fn without_midnight(text: &str) -> &str {
    let Some(Moment { day: Some(found), clock: Some(Clock(0)) }) = moment(text) else {
        return text;
    };
    let ends = text.match_indices(|c: char| c.is_whitespace() || c == ',' || c == 'T');
    let mut days = ends.filter_map(|(at, _)| text.get(..at));
    let same = |part: &&str| matches!(moment(part), Some(Moment { day, clock: None }) if day == Some(found));
    days.find(same).unwrap_or(text)
}

/// Whether the cell is a time of day or a weekday, which `times` takes for the next one: `14:00`, `monday 09:00`.
pub(super) fn lacks_a_date(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    let (day, clock) = text.split_once(' ').unwrap_or((&text, ""));
    let is_clock = |text: &str| matches!(text, "noon" | "midnight") || clock_alone(text).is_some();
    is_clock(&text) || (weekday_alone(day) && (clock.is_empty() || is_clock(clock)))
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

/// The weekday that a cell is, without any date.
pub(super) fn weekday_of(text: &str) -> Option<Weekday> {
    let lower = text.trim().to_lowercase();
    weekday_alone(text).then(|| lower.get(..2)).flatten().and_then(|start| {
        Some(match start {
            "mo" => Weekday::Monday,
            "tu" | "di" => Weekday::Tuesday,
            "we" | "mi" => Weekday::Wednesday,
            "th" | "do" => Weekday::Thursday,
            "fr" => Weekday::Friday,
            "sa" => Weekday::Saturday,
            "su" | "so" => Weekday::Sunday,
            _ => return None,
        })
    })
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
        // Parts of a second say nothing here; an offset behind them says much, and `times` reads it.
        let (whole, rest) = part.split_once('.').filter(|_| at == 2).unwrap_or((*part, "0"));
        let number = u32::try_from(two_digits(whole)?).ok()?;
        if rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
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
