//! How results are printed: tables for people, JSON and CSV for programs.
//!
//! The stable JSON of a noun is defined in `fleet_proto::json`, once for all who hand it out. Here its struct gets
//! the columns of its table and its lines for `show` ([`Row`]), so that people and programs are shown the same. What
//! has no message of the API is defined here: findings of `fleet doctor`, lines of a spreadsheet.

pub(crate) mod authority;
pub(crate) mod calendar;
pub(crate) mod checkpoint;
pub(crate) mod class;
pub(crate) mod controller;
pub(crate) mod doctor;
pub(crate) mod feed;
mod fit;
pub(crate) mod forecast;
pub(crate) mod gpu;
mod gpu_minute;
pub(crate) mod gpu_picture;
mod gpu_stay;
pub(crate) mod held;
pub(crate) mod image;
pub(crate) mod imported;
pub(crate) mod job;
pub(crate) mod job_use;
pub(crate) mod limits;
pub(crate) mod local;
pub(crate) mod log_level;
pub(crate) mod node;
mod node_gpus;
mod notices;
pub(crate) mod partial;
pub(crate) mod process;
pub(crate) mod project;
pub(crate) mod reservation;
pub(crate) mod status;
pub(crate) mod story;
mod table;
pub(crate) mod text;
pub(crate) mod token;
mod tone;
mod usage;
pub(crate) mod user;
pub(crate) mod values;

use fleet_proto::json::{self, Document};

use unicode_width::UnicodeWidthStr;

use crate::args::{Format, OutputArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::times::Clock;

pub(crate) use table::Column;

/// A thing that can be listed and shown.
pub(crate) trait Row: Document + Sized + 'static {
    fn columns() -> Vec<Column<Self>>;

    /// All of it, line by line, for `show`. Lines without a value are left out.
    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)>;
}

/// Says how many columns a table may take; `None`: as many as it needs.
type Columns = fn() -> Option<usize>;

/// How this run of the command prints.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    pub(crate) format: Format,
    header: bool,
    colour: bool,
    /// The columns of the terminal, where tables are for one. Asked for each table: a window can change its size.
    columns: Columns,
    pub(crate) clock: Clock,
}

impl Printer {
    pub(crate) fn new(json: bool, args: &OutputArgs, clock: Clock) -> Result<Self, Failure> {
        let format = match (json, args.format) {
            (true, None | Some(Format::Json)) => Format::Json,
            (true, Some(_)) => {
                return Err(Failure::new(Exit::Usage, "--json and another -o exclude each other"));
            }
            (false, format) => format.unwrap_or_default(),
        };
        let colour = text::colour_wanted();
        Ok(Self { format, header: !args.no_header, colour, columns: text::columns, clock })
    }

    /// The columns of the terminal, where there is one.
    pub(crate) fn columns(&self) -> Option<usize> {
        (self.columns)()
    }

    /// Whether people read it, not programs.
    pub(crate) fn for_people(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// A list as text.
    pub(crate) fn list<T: Row>(&self, items: &[T]) -> Result<String, Failure> {
        match self.format {
            Format::Table | Format::Wide => {
                Ok(table::render(items, T::columns(), self.look(&self.clock.read_again())))
            }
            Format::Json => json::list(items).map_err(|error| unprintable(&error)),
            Format::Jsonl => {
                let lines: Result<Vec<String>, _> = items.iter().map(json::line).collect();
                Ok(lines.map_err(|error| unprintable(&error))?.concat())
            }
            Format::Csv => table::csv(items, self.header),
        }
    }

    /// A table that only people see: part of a screen.
    pub(crate) fn table<T>(&self, items: &[T], columns: Vec<Column<T>>) -> String {
        table::render(items, columns, self.look(&self.clock.read_again()))
    }

    /// Parts of a line that people read, three spaces apart, on as few lines as the terminal allows.
    pub(crate) fn flow(&self, parts: &[String]) -> String {
        let columns = (self.columns)().unwrap_or(usize::MAX);
        let mut text = String::new();
        let mut used = 0;
        for part in parts {
            let width = part.width();
            let between = match used {
                0 => "",
                used if used + 3 + width <= columns => "   ",
                _ => "\n",
            };
            used = if between == "   " { used + 3 + width } else { width };
            text.push_str(between);
            text.push_str(part);
        }
        text + "\n"
    }

    /// With `-o wide` nothing is left out or clipped.
    fn look<'a>(&self, clock: &'a Clock) -> table::Look<'a> {
        let wide = self.format == Format::Wide;
        table::Look {
            wide,
            header: self.header,
            colour: self.colour,
            columns: (self.columns)().filter(|_| !wide),
            clock,
        }
    }

    /// One thing as text.
    pub(crate) fn one<T: Row>(&self, item: &T) -> Result<String, Failure> {
        match self.format {
            Format::Table | Format::Wide => Ok(table::lines(&item.lines(&self.clock))),
            Format::Json => json::one(item).map_err(|error| unprintable(&error)),
            Format::Jsonl => json::line(item).map_err(|error| unprintable(&error)),
            Format::Csv => table::csv(std::slice::from_ref(item), self.header),
        }
    }

    /// One thing, for people with more lines than its own.
    pub(crate) fn one_with<T: Row>(
        &self,
        item: &T,
        more: Vec<(&'static str, String)>,
    ) -> Result<String, Failure> {
        if !self.for_people() {
            return self.one(item);
        }
        let mut lines = item.lines(&self.clock);
        lines.extend(more);
        Ok(table::lines(&lines))
    }

    /// What a changing verb answers: the id for people and their scripts, else the whole thing.
    pub(crate) fn changed<T: Row>(
        &self,
        items: &[T],
        id: fn(&T) -> &str,
    ) -> Result<String, Failure> {
        match (self.for_people(), items) {
            (true, items) => Ok(items.iter().map(|item| format!("{}\n", id(item))).collect()),
            (false, [one]) => self.one(one),
            (false, many) => self.list(many),
        }
    }
}

fn unprintable(error: &serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot write JSON: {error}"))
}

#[cfg(test)]
mod tests;
