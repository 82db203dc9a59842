//! A timetable: GPUs as columns, times as rows, names in the cells (`--grid`).
//!
//! The rows above the first time name the GPUs: `titan01:0` in one row, or the node in one and the number below
//! it. A row lasts as it says (`09:00-12:00`), a whole day where it has no time, else until the next row. The
//! same name in rows that follow each other is one reservation, and in columns of one node too.

use std::collections::BTreeMap;

use super::dates::{self, Clock};
use super::gpus::{self, Which};
use super::table::{Problem, Row};
use super::{SheetLine, Times, wording};
use crate::times::When;

/// Words in cells that are nobody.
const NOBODY: [&str; 9] = ["-", "--", "\u{2013}", "\u{2014}", "frei", "free", "leer", "n/a", "."];
/// A row that says no end lasts until the next one, but no longer.
const SLOT_MS_MAX: u64 = 24 * 3_600_000;

/// The lines of the timetable, with all that is wrong.
pub(super) fn lines(rows: &[Row], times: &Times<'_>) -> (Vec<SheetLine>, Vec<Problem>) {
    let Some(first) = rows.iter().position(|row| row.cells.iter().any(|cell| dates::has_day(cell)))
    else {
        let what = "no row of the timetable begins with a date; the first columns are the times";
        return (Vec::new(), vec![Problem::of_file(what)]);
    };
    let (head, body) = rows.split_at(first);
    let leading = leading(body);
    let (columns, mut problems) = columns(head, leading, body);
    let slots = slots(body, leading, times, &mut problems);
    let mut taken: BTreeMap<Key, Vec<String>> = BTreeMap::new();
    for (at, which) in &columns {
        for booking in bookings(body, &slots, *at) {
            let (node, names) = match which {
                Which::These(names) => (node_of(names), names.clone()),
                Which::All(node) => (format!("{node}:all"), Vec::new()),
                Which::Some(_) => continue,
            };
            let (start, end) = (booking.start, booking.end);
            let key = (booking.number, booking.user, node, start, end);
            taken.entry(key).or_default().extend(names);
        }
    }
    let lines = taken.into_iter().map(|((number, user, node, start, end), names)| {
        let gpus = match node.strip_suffix(":all") {
            Some(node) => Which::All(node.to_owned()),
            None => Which::These(names),
        };
        SheetLine::new(number, user, gpus, (When::At(start), When::At(end)))
    });
    (lines.collect(), problems)
}

/// What makes columns one reservation: row, user, node and window.
type Key = (u64, String, String, jiff::Timestamp, jiff::Timestamp);

fn node_of(names: &[String]) -> String {
    let first = names.first().map(String::as_str).unwrap_or_default();
    first.rsplit_once(':').map_or(first, |(node, _)| node).to_owned()
}

/// How many of the first columns hold times.
fn leading(body: &[Row]) -> usize {
    let timely = |column: usize| {
        let mut cells =
            body.iter().map(|row| row.cell(column)).filter(|c| !c.is_empty()).peekable();
        cells.peek().is_some()
            && cells.all(|cell| dates::is_timely(cell) || clock_range(cell).is_some())
    };
    let widest = body.iter().map(|row| row.cells.len()).max().unwrap_or(0);
    (1..widest).find(|column| !timely(*column)).unwrap_or(widest).max(1)
}

/// The GPUs of each column. A column without a header has to be empty.
fn columns(head: &[Row], leading: usize, body: &[Row]) -> (Vec<(usize, Which)>, Vec<Problem>) {
    let widest = body.iter().chain(head).map(|row| row.cells.len()).max().unwrap_or(0);
    let (mut columns, mut problems) = (Vec::new(), Vec::new());
    for at in leading..widest {
        let mut above = head.iter().rev().filter(|row| !row.cell(at).is_empty());
        let lowest = above.next();
        let text = lowest.map(|row| row.cell(at)).unwrap_or_default();
        let which = if gpus::is_index(text) {
            // The node stands above it, or above a column to the left where its cell is not merged.
            let line = lowest.map_or(0, |row| row.number);
            let node = head.iter().rev().filter(|row| row.number < line).find_map(|row| {
                (leading..=at).rev().map(|at| row.cell(at)).find(|cell| !cell.is_empty())
            });
            node.and_then(|node| gpus::of_header(&format!("{node}:{}", text.to_lowercase())))
        } else {
            gpus::of_header(text)
        };
        match which {
            Some(which) => columns.push((at, which)),
            None => {
                let full = body.iter().find(|row| !row.cell(at).is_empty());
                let Some(row) = full else { continue };
                let line = lowest.map_or(row.number, |row| row.number);
                let what = format!(
                    "column {} is headed {text:?}, which is no GPU; write titan01:0, or titan01 above 0",
                    at + 1
                );
                problems.push(Problem::new(line, what));
            }
        }
    }
    if columns.is_empty() && problems.is_empty() {
        problems
            .push(Problem::of_file("no column of the timetable is headed by a GPU, as titan01:0"));
    }
    (columns, problems)
}

/// From when to when a row lasts.
type Slot = Option<(jiff::Timestamp, jiff::Timestamp)>;

/// One for each row; `None` where it has none, an error if somebody is named in it.
fn slots(
    body: &[Row],
    leading: usize,
    times: &Times<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Slot> {
    let mut above = Above::default();
    let mut starts: Vec<Result<Begun, String>> = Vec::new();
    for row in body {
        let cells = row.cells.get(..leading.min(row.cells.len())).unwrap_or_default();
        starts.push(match above.next(cells, times) {
            Ok(begun) => begun,
            Err(why) => {
                problems.push(Problem::new(row.number, why));
                Err(String::new())
            }
        });
    }
    let mut last_length = None;
    let mut slots = Vec::new();
    for (at, (row, start)) in body.iter().zip(&starts).enumerate() {
        let slot = start.clone().and_then(|begun| {
            let end = match begun.end {
                Some(end) => end,
                None => {
                    let next = starts.get(at + 1..).unwrap_or_default().iter();
                    let next = next.filter_map(|next| next.as_ref().ok()).map(|next| next.start);
                    let next = next.into_iter().find(|next| *next > begun.start);
                    length(begun.start, next)
                        .or(last_length)
                        .and_then(|ms| {
                            begun.start.checked_add(jiff::SignedDuration::from_millis(ms)).ok()
                        })
                        .ok_or_else(|| {
                            "how long does this row last? write 09:00-12:00".to_owned()
                        })?
                }
            };
            last_length = length(begun.start, Some(end));
            Ok((begun.start, end))
        });
        let anybody = row.cells.iter().skip(leading).any(|cell| is_somebody(cell));
        match slot {
            Ok((start, end)) if end <= start && anybody => {
                problems.push(Problem::new(row.number, "its end is not after its start"));
                slots.push(None);
            }
            // What is wrong with the row is said already.
            Err(why) if anybody && !why.is_empty() => {
                problems.push(Problem::new(row.number, why));
                slots.push(None);
            }
            slot => slots.push(slot.ok()),
        }
    }
    slots
}

fn length(start: jiff::Timestamp, end: Option<jiff::Timestamp>) -> Option<i64> {
    let ms = end?.as_millisecond() - start.as_millisecond();
    let most = i64::try_from(SLOT_MS_MAX).unwrap_or(i64::MAX);
    (ms > 0).then_some(ms.min(most))
}

#[derive(Debug, Clone, Copy)]
struct Begun {
    start: jiff::Timestamp,
    end: Option<jiff::Timestamp>,
}

/// What a row takes from the rows above it.
#[derive(Debug, Default)]
struct Above {
    /// Empty: no row said one, or the last that did was not understood.
    day: String,
    /// When the last row of this day began.
    clock: Option<Clock>,
}

impl Above {
    /// From the first cells of a row. The inner error counts only where somebody is named in the row.
    ///
    /// # Errors
    ///
    /// A cell that is not understood, or a time that can only be another day's. No row below takes the day then.
    fn next(
        &mut self,
        cells: &[String],
        times: &Times<'_>,
    ) -> Result<Result<Begun, String>, String> {
        let before = std::mem::take(self);
        let (mut start, mut clock, mut range, mut weekday) = (None, None, None, None);
        for cell in cells.iter().filter(|cell| !cell.is_empty()) {
            if let Some(found) = clock_range(cell) {
                range = Some(found);
            } else if let Some(found) = dates::clock_alone(cell) {
                clock = Some(found);
            } else if dates::has_day(cell) {
                // While the order of the dates is open, one error for the whole sheet says so.
                start = Some(times.typed(cell)?);
            } else if let Some(found) = dates::weekday_of(cell) {
                weekday = Some((found, cell));
            } else {
                return Err(not_understood(cell));
            }
        }
        let own = start.as_ref().map(|(typed, _)| typed.split(' ').next().unwrap_or_default());
        let day = own.unwrap_or(&before.day).to_owned();
        if let Some((weekday, cell)) = weekday
            && own.is_none()
            && day.parse().ok().map(jiff::civil::Date::weekday) != Some(weekday)
        {
            return Err(not_understood(cell));
        }
        let begins = range.map(|(from, _)| from).or(clock);
        if let (Some(begins), Some(last)) = (begins, before.clock)
            && day == before.day
            && begins < last
            && (own.is_none() || range.is_none())
        {
            return Err(format!(
                "{begins} comes below {last} without a new date; write the date into this row"
            ));
        }
        *self = Above { clock: begins.or(before.clock.filter(|_| day == before.day)), day };
        Ok(begun(&self.day, start, clock, range, times))
    }
}

fn not_understood(cell: &str) -> String {
    format!("{cell:?} is no date and no time; write 24.11.2026 or 09:00-12:00")
}

fn begun(
    day: &str,
    start: Option<(String, bool)>,
    clock: Option<Clock>,
    range: Option<(Clock, Clock)>,
    times: &Times<'_>,
) -> Result<Begun, String> {
    if day.is_empty() {
        return Err("no date in this row, nor above it".to_owned());
    }
    let at = |clock: Clock| times.on(day, clock);
    match (range, clock, start) {
        (Some((from, until)), _, _) => {
            // A night's slot ends the next day.
            let until = if until <= from { Clock(until.0 + 86_400) } else { until };
            Ok(Begun { start: at(from)?, end: Some(at(until)?) })
        }
        (None, Some(clock), _) => Ok(Begun { start: at(clock)?, end: None }),
        (None, None, Some((typed, false))) => Ok(Begun { start: times.at(&typed)?, end: None }),
        (None, None, Some((_, true))) => {
            Ok(Begun { start: at(Clock(0))?, end: Some(at(Clock(86_400))?) })
        }
        (None, None, None) => Err("no time in this row".to_owned()),
    }
}

/// `09:00-12:00`, `9 – 12 Uhr`.
fn clock_range(cell: &str) -> Option<(Clock, Clock)> {
    let plain =
        cell.replace(['\u{2013}', '\u{2014}'], "-").replace(" bis ", "-").replace(" to ", "-");
    let (from, until) = plain.split_once('-')?;
    let (from, until) = (from.trim(), until.trim());
    let until = dates::clock_alone(until).or_else(|| dates::clock_alone(&format!("{until}h")))?;
    let from = dates::clock_alone(from).or_else(|| dates::clock_alone(&format!("{from}h")))?;
    Some((from, until))
}

/// One name in rows of a column that follow each other.
struct Booking {
    number: u64,
    user: String,
    start: jiff::Timestamp,
    end: jiff::Timestamp,
}

fn bookings(body: &[Row], slots: &[Slot], at: usize) -> Vec<Booking> {
    let mut bookings: Vec<Booking> = Vec::new();
    for (row, slot) in body.iter().zip(slots) {
        let Some((start, end)) = *slot else { continue };
        if !is_somebody(row.cell(at)) {
            continue;
        }
        let user = wording::user(row.cell(at));
        match bookings.last_mut() {
            Some(last) if last.user == user && last.end == start => last.end = end,
            _ => bookings.push(Booking { number: row.number, user, start, end }),
        }
    }
    bookings
}

fn is_somebody(cell: &str) -> bool {
    let name = wording::user(cell);
    !name.is_empty() && !NOBODY.contains(&name.to_lowercase().as_str())
}
