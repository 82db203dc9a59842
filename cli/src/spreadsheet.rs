//! A lab's spreadsheet of reservations, as it is: `.xlsx`, `.ods` or text, with the columns people gave it.
//!
//! Read by `reservation import`. All errors are listed at once, with the lines of the file. Nothing here asks
//! a controller, and nothing is taken from a line that is not plain.

mod archive;
mod columns;
mod dates;
mod excel;
mod export;
mod file;
mod gpus;
mod grid;
mod open_document;
mod table;
mod text;
mod wording;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use columns::is_known;
pub(crate) use columns::{Column, Header, Named, parse_named};
pub(crate) use dates::DateOrder;
use dates::{Clock as DayClock, Dates};
pub(crate) use export::csv;
pub(crate) use gpus::Which;
pub(crate) use table::Problem;
use table::{Row, Table};

use crate::times::{Clock, Edge, Taken, When, end_of_day, read_when};

/// Times that occur twice and are named in the notes: a sheet has one such night a year.
const TWICE_NOTES_MAX: usize = 4;

/// A line that asks for GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SheetLine {
    /// In the file, counted from 1.
    pub(crate) number: u64,
    /// Empty is who imports it.
    pub(crate) user: String,
    pub(crate) gpus: Which,
    pub(crate) node: String,
    pub(crate) start: When,
    pub(crate) end: When,
    pub(crate) note: String,
    pub(crate) project: String,
    pub(crate) with: Vec<String>,
}

impl SheetLine {
    /// Stands for times that a line does not have.
    const SOON: (When, When) = (When::Now, When::Now);

    fn new(number: u64, user: String, gpus: Which, (start, end): (When, When)) -> Self {
        Self {
            number,
            user,
            gpus,
            node: String::new(),
            start,
            end,
            note: String::new(),
            project: String::new(),
            with: Vec::new(),
        }
    }
}

/// How the sheet is to be read, where it does not say so itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) sheet: Option<String>,
    pub(crate) dates: Option<DateOrder>,
    pub(crate) columns: Vec<Named>,
    pub(crate) grid: bool,
    /// Only these lines of the file.
    pub(crate) lines: Option<RangeInclusive<u64>>,
}

/// A sheet that was read.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) lines: Vec<SheetLine>,
    /// Lines with something wrong: only their user, node and named GPUs mean anything.
    pub(crate) broken: Vec<SheetLine>,
    pub(crate) problems: Vec<Problem>,
    /// One sentence each, for the one who imports.
    pub(crate) notes: Vec<String>,
    /// What the sheet calls its columns.
    pub(crate) header: Header,
}

/// All lines that ask for something, and all that is wrong.
///
/// # Errors
///
/// What the file is, where it is no sheet that can be read.
pub(crate) fn read(bytes: &[u8], options: &Options, clock: &Clock) -> Result<Sheet, String> {
    let named = &options.columns;
    let known = |cell: &str| is_known(cell, named);
    let table = file::read(bytes, options.sheet.as_deref(), known)?;
    let mut sheet =
        if options.grid { timetable(table, options, clock) } else { listed(table, options, clock) };
    if sheet.lines.is_empty() && sheet.problems.is_empty() {
        sheet.problems.push(Problem::of_file("no line asks for GPUs"));
    }
    sheet.problems.sort();
    Ok(sheet)
}

fn wanted(row: &Row, options: &Options) -> bool {
    is_wanted(row.number, options)
}

fn is_wanted(line: u64, options: &Options) -> bool {
    options.lines.as_ref().is_none_or(|lines| lines.contains(&line))
}

fn timetable(table: Table, options: &Options, clock: &Clock) -> Sheet {
    let cells = table.rows.iter().flat_map(|row| {
        row.cells.iter().filter(|cell| dates::has_day(cell)).map(|cell| (row.number, cell.clone()))
    });
    let cells: Vec<(u64, String)> = cells.collect();
    let mut sheet = Sheet { notes: table.notes, problems: table.problems, ..Sheet::default() };
    if !table.separated {
        let widest = table.rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
        for at in 0..widest {
            let cells: Vec<(u64, &str)> =
                table.rows.iter().map(|row| (row.number, row.cell(at))).collect();
            sheet.problems.extend(Dates::partly_text(&(at + 1).to_string(), &cells));
        }
    }
    let dates = sheet.decide(&cells, options.dates);
    let times = Times::new(dates, clock);
    let (lines, problems) = grid::lines(&table.rows, &times);
    sheet.notes.extend(times.notes());
    sheet.lines = lines.into_iter().filter(|line| is_wanted(line.number, options)).collect();
    // While the order of the dates is open, what follows from it is not said again.
    if dates.is_some() {
        sheet.problems.extend(problems);
    }
    sheet
}

fn listed(table: Table, options: &Options, clock: &Clock) -> Sheet {
    let mut sheet = Sheet { notes: table.notes, problems: table.problems, ..Sheet::default() };
    let (header, first, notes) = match Header::find(&table.rows, &options.columns) {
        Ok(found) => found,
        Err(problems) => {
            sheet.problems.extend(problems);
            return sheet;
        }
    };
    sheet.notes.extend(notes);
    let head = table.rows.get(first.saturating_sub(1)).cloned();
    let body = table.rows.get(first..).unwrap_or_default();
    let mut idle = Vec::new();
    let asks = |row: &&Row| {
        let asks = asks_for_something(&header, row);
        // A header that is repeated on each page is none of the lines.
        asks && head.as_ref().is_none_or(|head| head.cells != row.cells)
    };
    let named = body.iter().filter(|row| wanted(row, options));
    idle.extend(named.filter(|row| !asks(row)).map(|row| row.number.to_string()));
    // What a column means follows from all of it, also where only some lines are imported.
    let rows: Vec<&Row> = body.iter().filter(asks).collect();
    let cells = rows.iter().flat_map(|row| {
        [
            moment(&header, row, Column::Start, Column::StartTime),
            moment(&header, row, Column::End, Column::EndTime),
        ]
        .map(|text| (row.number, text.unwrap_or_default()))
    });
    let cells: Vec<(u64, String)> = cells.collect();
    if !table.separated {
        for column in
            [Column::Day, Column::Start, Column::End].into_iter().filter(|c| header.has(*c))
        {
            let cells =
                rows.iter().map(|row| (row.number, header.cell(row, column).unwrap_or_default()));
            let cells: Vec<(u64, &str)> = cells.collect();
            sheet.problems.extend(Dates::partly_text(header.called(column), &cells));
        }
    }
    let dates = sheet.decide(&cells, options.dates);
    let either = numbers_mean_either(&header, &rows, &options.columns);
    let rows: Vec<&Row> = rows.into_iter().filter(|row| wanted(row, options)).collect();
    let serials = cells
        .iter()
        .filter(|(line, text)| is_wanted(*line, options) && dates::is_serial(text))
        .count();
    if serials > 0 {
        let note = format!(
            "{serials} times are plain numbers, read as days since 1899-12-30, as Excel counts them"
        );
        sheet.notes.push(note);
    }
    if !idle.is_empty() {
        sheet.notes.push(format!("ignored lines that ask for nothing: {}", few(&idle)));
    }
    if !header.has(Column::User) {
        sheet.notes.push("no column names users: every line is for you".to_owned());
    }
    let times = Times::new(dates, clock);
    for row in rows {
        let extra = row.cells.iter().skip(header.width).any(|cell| !cell.is_empty());
        if table.separated && extra {
            let what = format!(
                "{} cells, and the header (line {}) has {}; put text that holds a separator in quotes",
                row.cells.len(),
                header.line,
                header.width
            );
            sheet.problems.push(Problem::new(row.number, what));
            continue;
        }
        match line(&header, row, &times, either) {
            Ok(line) => sheet.lines.push(line),
            Err(broken) => {
                let (wrong, rest) = *broken;
                sheet.problems.extend(wrong.into_iter().map(|what| Problem::new(row.number, what)));
                sheet.broken.push(rest);
            }
        }
    }
    sheet.notes.extend(times.notes());
    sheet.header = header;
    sheet
}

impl Sheet {
    fn decide(&mut self, cells: &[(u64, String)], said: Option<DateOrder>) -> Option<Dates> {
        match Dates::decide(cells, said) {
            Ok((dates, note)) => {
                self.notes.extend(note);
                Some(dates)
            }
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }
}

/// Whether a number in the column for how many GPUs may be the one that is meant: other cells of it name GPUs. Not where
/// the one who imports says what the column is, nor without a column for the node.
fn numbers_mean_either(header: &Header, rows: &[&Row], named: &[Named]) -> bool {
    let cells = || rows.iter().filter_map(|row| header.cell(row, Column::Gpus));
    let said = named.iter().any(|(_, column)| *column == Column::Gpus);
    !said && header.has(Column::Node) && cells().any(gpus::names_some)
}

/// Titles between the lines, and rows that only have a running number, ask for nothing.
fn asks_for_something(header: &Header, row: &Row) -> bool {
    let columns =
        [Column::User, Column::Gpus, Column::Gpu, Column::Start, Column::End, Column::Day];
    if columns.iter().all(|column| header.cell(row, *column).unwrap_or_default().is_empty()) {
        return false;
    }
    let mut cells = row.cells.iter().filter(|cell| !cell.is_empty());
    let first = cells.next().map(String::as_str).unwrap_or_default();
    // A title is in the first cell, or merged over several.
    let merged = cells.next().is_some();
    let one_text = row.cells.iter().all(|cell| cell.is_empty() || cell == first);
    let title = one_text && (merged || row.cell(0) == first) && !dates::is_timely(first);
    !title || header.width == 1
}

fn few(numbers: &[String]) -> String {
    let shown = numbers.get(..8).unwrap_or(numbers).join(", ");
    if numbers.len() > 8 { format!("{shown} and {} more", numbers.len() - 8) } else { shown }
}

/// How times of the sheet are read.
struct Times<'a> {
    /// `None`: nobody knows yet whether the day or the month comes first.
    dates: Option<Dates>,
    clock: &'a Clock,
    /// Times that the clocks show twice, as they are read.
    twice: RefCell<BTreeSet<String>>,
}

impl<'a> Times<'a> {
    fn new(dates: Option<Dates>, clock: &'a Clock) -> Self {
        Self { dates, clock, twice: RefCell::default() }
    }

    fn read(&self, typed: &str, edge: Edge) -> Result<When, String> {
        let read = read_when(typed, self.clock.now, self.clock.zone(), edge);
        let read = read.map_err(|error| error.to_string())?;
        let twice = read.taken.iter().filter(|taken| matches!(taken, Taken::FirstOfTwo { .. }));
        self.twice.borrow_mut().extend(twice.map(|taken| taken.sentence(typed, self.clock)));
        Ok(read.when)
    }

    /// ISO text as an instant.
    fn at(&self, typed: &str) -> Result<jiff::Timestamp, String> {
        Ok(match self.read(typed, Edge::Start)? {
            When::At(at) => at,
            When::Now => self.clock.now,
        })
    }

    /// One note for each time that occurs twice, the first few of them.
    fn notes(self) -> impl Iterator<Item = String> {
        self.twice.into_inner().into_iter().take(TWICE_NOTES_MAX)
    }

    /// A time of day of a day, which may reach into the next one.
    fn on(&self, day: &str, clock: DayClock) -> Result<jiff::Timestamp, String> {
        let date: jiff::civil::Date = day.parse().map_err(|_| format!("{day:?} is no date"))?;
        let (next, text) = clock.typed();
        let date = if next { date.tomorrow().map_err(|error| error.to_string())? } else { date };
        self.at(&format!("{date} {text}"))
    }

    /// The same time of day on the next day, which is 23 to 25 hours later.
    fn on_the_day_after(
        &self,
        at: jiff::Timestamp,
        clock: DayClock,
    ) -> Result<jiff::Timestamp, String> {
        let day = at.to_zoned_datetime(self.clock.zone().clone()).date().tomorrow();
        self.on(&day.map_err(|error| error.to_string())?.to_string(), clock)
    }

    /// A cell that holds a date as ISO text, and whether it has no time.
    fn typed(&self, text: &str) -> Result<(String, bool), String> {
        let dates = self.dates.ok_or("the order of its date is not known")?;
        dates.typed(text).unwrap_or_else(|| Err(format!("{text:?} is no date")))
    }

    /// `None`: a date whose order is not known, one error for the whole sheet.
    fn when(&self, text: &str, is_end: bool) -> Result<Option<When>, String> {
        if text.is_empty() {
            return Err("empty".to_owned());
        }
        if dates::has_day(text) {
            let Some(dates) = self.dates else { return Ok(None) };
            if let Some(read) = dates.typed(text) {
                let (typed, alone) = read?;
                let at = self.at(&typed)?;
                return Ok(Some(When::At(if alone && is_end { self.day_after(at)? } else { at })));
            }
        }
        let text = dates::with_its_offset(text);
        match self.read(&text, if is_end { Edge::End } else { Edge::Start })? {
            // The API has no word for it: an end that is now would be read as one that nobody said.
            When::Now if is_end => Err("that is now: no time at all".to_owned()),
            when => Ok(Some(when)),
        }
    }

    fn day_after(&self, at: jiff::Timestamp) -> Result<jiff::Timestamp, String> {
        end_of_day(at, self.clock.zone()).ok_or_else(|| "beyond the calendar".to_owned())
    }
}

/// Start or end of a row in one text, from a column for the day and one for the time where the sheet has them.
///
/// # Errors
///
/// The column for the time, where its cell is none or there is one already, and why.
fn moment(
    header: &Header,
    row: &Row,
    whole: Column,
    time: Column,
) -> Result<String, (Column, String)> {
    let cell = |column| header.cell(row, column).unwrap_or_default();
    let (day, said) = (cell(Column::Day), cell(whole));
    let said = if header.has(time) { dates::without_midnight(said) } else { said };
    let mut text = said.to_owned();
    if !day.is_empty() && !dates::has_day(said) {
        let clock = dates::clock_in_its_column(said).map(|clock| clock.to_string());
        let clock = clock.as_deref().unwrap_or(said);
        text = format!("{} {clock}", dates::without_midnight(day)).trim().to_owned();
    }
    if cell(time).is_empty() {
        return Ok(text);
    }
    let clock = dates::clock_in_its_column(cell(time))
        .ok_or_else(|| (time, format!("{:?} is no time of day; write 09:00", cell(time))))?;
    if dates::has_clock(&text) {
        return Err((
            time,
            format!("{:?} beside {text:?}, which has a time; keep one", cell(time)),
        ));
    }
    Ok(format!("{text} {clock}").trim().to_owned())
}

/// What is wrong with a line, and what it says of users and GPUs all the same.
type Broken = (Vec<String>, SheetLine);

/// A line; else what is wrong with it, and what it says of users and GPUs. Nothing is said of dates whose order is not
/// known: one error for the whole sheet says so.
fn line(
    header: &Header,
    row: &Row,
    times: &Times<'_>,
    either: bool,
) -> Result<SheetLine, Box<Broken>> {
    let cell = |column| header.cell(row, column).unwrap_or_default();
    let text = |column| wording::in_one_line(cell(column));
    let mut problems = Vec::new();
    let mut time = |whole: Column, part: Column| {
        let text = match moment(header, row, whole, part) {
            Ok(text) => text,
            Err((column, why)) => {
                problems.push(format!("{}: {why}", header.called(column)));
                return None;
            }
        };
        let read = if dates::lacks_a_date(&text) {
            // Typed at a shell it is the next one; a sheet that is imported later would mean another.
            let day = header.called(Column::Day);
            Err(format!("{text:?} has no date; fill the column {day}"))
        } else {
            times.when(&text, whole == Column::End)
        };
        read.map_err(|why| problems.push(format!("{}: {why}", header.called(whole)))).ok()
    };
    let (start, end) = (time(Column::Start, Column::StartTime), time(Column::End, Column::EndTime));
    let user = wording::user(cell(Column::User));
    if header.has(Column::User) && user.is_empty() {
        problems.push(format!("{}: empty", header.called(Column::User)));
    }
    let node = text(Column::Node);
    let (some, these) = (text(Column::Gpus), text(Column::Gpu));
    let counted = !some.is_empty() || (these.is_empty() && header.has(Column::Gpus));
    let gpus_column = if counted { Column::Gpus } else { Column::Gpu };
    let gpus = if either && gpus::is_plain_number(&some) {
        let called = header.called(Column::Gpus);
        Err(format!(
            "{some:?} may be how many GPUs, or which one; say --columns \"{called}=gpu\" if the column names GPUs, \
             --columns \"{called}=gpus\" if it counts them"
        ))
    } else {
        gpus::which(&some, &these, &node)
    };
    let gpus =
        gpus.map_err(|why| problems.push(format!("{}: {why}", header.called(gpus_column)))).ok();
    let node =
        if matches!(gpus, Some(Which::These(_) | Which::All(_))) { String::new() } else { node };
    let any = Which::Some(crate::gpu_wish::GpuWish { count: 1, model: None });
    let rest = SheetLine {
        node: node.clone(),
        ..SheetLine::new(row.number, user.clone(), gpus.clone().unwrap_or(any), SheetLine::SOON)
    };
    let (Some(Some(start)), Some(Some(mut end))) = (start, end) else {
        return Err(Box::new((problems, rest)));
    };
    let from = if let When::At(at) = start { at } else { times.clock.now };
    if let When::At(until) = end
        && until <= from
    {
        // From 22:00 to 06:00 of one day is a night.
        let clock = dates::clock_in_its_column(cell(Column::End));
        let night = clock.filter(|_| header.has(Column::Day) && until < from);
        match night.map(|clock| times.on_the_day_after(until, clock)) {
            Some(Ok(next)) if next > from => end = When::At(next),
            Some(Err(why)) => problems.push(format!("{}: {why}", header.called(Column::End))),
            Some(Ok(_)) | None => problems.push(format!(
                "{}: {:?} is not after {} {:?}",
                header.called(Column::End),
                cell(Column::End),
                header.called(Column::Start),
                cell(Column::Start)
            )),
        }
    }
    let Some(gpus) = gpus.filter(|_| problems.is_empty()) else {
        return Err(Box::new((problems, rest)));
    };
    let with = text(Column::With);
    let with = with.split([' ', ',', ';']).filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(SheetLine {
        // Empty where the names of GPUs say it already.
        node,
        note: text(Column::Note),
        project: text(Column::Project),
        with: with.collect(),
        ..SheetLine::new(row.number, user, gpus, (start, end))
    })
}

#[cfg(test)]
mod tests;
