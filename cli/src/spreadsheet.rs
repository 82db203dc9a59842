//! A lab's spreadsheet of reservations, as CSV.
//!
//! Read by `reservation import`. The first line names the columns, in any order and case, parted by commas,
//! semicolons or tabs. Everything that is wrong is told at once, by the lines of the file. Nothing here asks
//! a controller.

use csv::{ReaderBuilder, StringRecord, Trim};

use crate::gpu_wish::GpuWish;
use crate::times::{TimeError, When};

/// Most GPUs one line may name.
const NAMES_MAX: usize = 16;
const SEPARATORS: [char; 3] = [',', ';', '\t'];

/// A line that asks for GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
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
}

/// The GPUs of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    Some(GpuWish),
    /// These very ones, as `titan01:3` or UUID.
    These(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    User,
    Gpus,
    Gpu,
    Node,
    Start,
    End,
    Note,
    Project,
}

impl Column {
    /// Its names: the first is the documented one.
    const NAMES: [(Column, &'static [&'static str]); 8] = [
        (Column::User, &["user", "owner"]),
        (Column::Gpus, &["gpus"]),
        (Column::Gpu, &["gpu"]),
        (Column::Node, &["node", "server"]),
        (Column::Start, &["start", "from"]),
        (Column::End, &["end", "until"]),
        (Column::Note, &["note", "comment"]),
        (Column::Project, &["project"]),
    ];

    fn named(text: &str) -> Option<Column> {
        let lower = text.to_ascii_lowercase();
        let found = Self::NAMES.iter().find(|(_, names)| names.contains(&lower.as_str()));
        found.map(|(column, _)| *column)
    }

    fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(column, _)| *column == self);
        found.and_then(|(_, names)| names.first()).copied().unwrap_or_default()
    }
}

/// Where each column is.
struct Header(Vec<Column>);

impl Header {
    fn read(record: &StringRecord) -> Result<Self, Vec<String>> {
        let (mut columns, mut problems) = (Vec::new(), Vec::new());
        for text in record {
            match Column::named(text) {
                Some(column) if columns.contains(&column) => {
                    problems.push(format!("line 1: two columns are {}", column.name()));
                }
                Some(column) => columns.push(column),
                None => {
                    let known: Vec<_> = Column::NAMES.iter().map(|(c, _)| c.name()).collect();
                    let known = known.join(", ");
                    problems.push(format!("line 1: {text:?} is no column; there are {known}"));
                }
            }
        }
        let has = |column| columns.contains(&column);
        for column in [Column::Start, Column::End].into_iter().filter(|c| !has(*c)) {
            problems.push(format!("line 1: there is no column {}", column.name()));
        }
        if !has(Column::Gpus) && !has(Column::Gpu) {
            problems.push("line 1: there is no column gpus, and none gpu".to_owned());
        }
        if problems.is_empty() { Ok(Self(columns)) } else { Err(problems) }
    }

    fn cell<'a>(&self, record: &'a StringRecord, column: Column) -> Option<&'a str> {
        let at = self.0.iter().position(|c| *c == column)?;
        Some(record.get(at).unwrap_or_default())
    }
}

/// All lines that ask for something. `when` reads a time as it is typed.
pub(crate) fn read(
    text: &str,
    when: impl Fn(&str) -> Result<When, TimeError>,
) -> Result<Vec<Line>, Vec<String>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = ReaderBuilder::new()
        .delimiter(separator(text))
        .flexible(true)
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let unreadable = |error: csv::Error| vec![format!("not CSV: {error}")];
    let header = Header::read(reader.headers().map_err(unreadable)?)?;
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    let mut numbers = Numbers { text, at: 0, line: 1 };
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        let number = numbers.of(&record);
        if record.iter().all(str::is_empty) {
            continue;
        }
        if record.len() > header.0.len() {
            problems.push(format!(
                "line {number}: {} cells, and the first line names {}; put text with separators in quotes",
                record.len(),
                header.0.len()
            ));
            continue;
        }
        match line(&header, &record, number, &when) {
            Ok(line) => lines.push(line),
            Err(wrong) => {
                problems.extend(wrong.iter().map(|wrong| format!("line {number}: {wrong}")));
            }
        }
    }
    if lines.is_empty() && problems.is_empty() {
        problems.push("there is no line below the first".to_owned());
    }
    if problems.is_empty() { Ok(lines) } else { Err(problems) }
}

/// Numbers the lines of the file. The reader's own numbers are those of where it began to look, before blank
/// lines and the second half of a CRLF.
struct Numbers<'a> {
    text: &'a str,
    at: usize,
    line: u64,
}

impl Numbers<'_> {
    fn of(&mut self, record: &StringRecord) -> u64 {
        let bytes = self.text.as_bytes();
        let from = record.position().map_or(0, csv::Position::byte);
        let mut to = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
        to += bytes[to..].iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        let passed = bytes.get(self.at..to).unwrap_or_default();
        self.line += passed.iter().filter(|b| **b == b'\n').count() as u64;
        self.at = self.at.max(to);
        self.line
    }
}

/// What parts the cells: what is oftenest in the first line.
fn separator(text: &str) -> u8 {
    let first = text.lines().next().unwrap_or_default();
    let count = |separator: &char| first.matches(*separator).count();
    // The last of equals is taken; commas are to be it.
    let oftenest = SEPARATORS.into_iter().rev().max_by_key(count);
    oftenest.and_then(|separator| u8::try_from(separator).ok()).unwrap_or(b',')
}

fn line(
    header: &Header,
    record: &StringRecord,
    number: u64,
    when: &impl Fn(&str) -> Result<When, TimeError>,
) -> Result<Line, Vec<String>> {
    let cell = |column| header.cell(record, column);
    let text = |column| cell(column).unwrap_or_default().to_owned();
    let mut problems = Vec::new();
    let mut time = |column: Column| {
        let said = cell(column).unwrap_or_default();
        let read = if said.is_empty() {
            Err("empty".to_owned())
        } else if column == Column::End && is_day(said) {
            Err(format!("{said:?} has no time of day; the end of a day is 00:00 of the next"))
        } else {
            match when(said) {
                // The API has no word for it: an end that is now would be read as one that nobody said.
                Ok(When::Now) if column == Column::End => {
                    Err("that is now: no time at all".to_owned())
                }
                read => read.map_err(|error| error.to_string()),
            }
        };
        read.map_err(|why| problems.push(format!("{}: {why}", column.name()))).ok()
    };
    let (start, end) = (time(Column::Start), time(Column::End));
    if cell(Column::User).is_some_and(str::is_empty) {
        problems.push("user: empty".to_owned());
    }
    let (some, these) = (text(Column::Gpus), text(Column::Gpu));
    let gpus = which(&some, &these, &text(Column::Node)).map_err(|why| problems.push(why)).ok();
    match (start, end, gpus) {
        (Some(start), Some(end), Some(gpus)) if problems.is_empty() => Ok(Line {
            number,
            user: text(Column::User),
            // The names of GPUs say it already.
            node: if matches!(gpus, Which::These(_)) { String::new() } else { text(Column::Node) },
            gpus,
            start,
            end,
            note: text(Column::Note),
            project: text(Column::Project),
        }),
        _ => Err(problems),
    }
}

/// A day alone: as an end its owner surely means to have it whole.
fn is_day(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn which(some: &str, these: &str, node: &str) -> Result<Which, String> {
    match (some, these) {
        ("", "") => Err("gpus: empty, and no gpu is named".to_owned()),
        (some, "") => some.parse().map(Which::Some).map_err(|error| format!("gpus: {error}")),
        ("", these) => named(these, node).map(Which::These),
        (_, _) => Err("gpus and gpu: say how many, or which, not both".to_owned()),
    }
}

/// `titan01:0 titan01:1`, or `0 1` beside a node.
fn named(these: &str, node: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for word in these.split([' ', ',', ';', '+']).filter(|word| !word.is_empty()) {
        let number = word.bytes().all(|b| b.is_ascii_digit());
        let name = match (number, node) {
            (true, "") => return Err(format!("gpu: {word} of which node? write titan01:{word}")),
            (true, node) => format!("{node}:{word}"),
            (false, _) => word.to_owned(),
        };
        if names.contains(&name) {
            return Err(format!("gpu: {name} is named twice"));
        }
        names.push(name);
    }
    if names.len() > NAMES_MAX {
        return Err(format!("gpu: {} named, at most {NAMES_MAX}", names.len()));
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
