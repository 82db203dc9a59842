//! How results are printed: tables for people, JSON and CSV for programs.
//!
//! Each noun has one struct here ([`Row`]) that is both the stable JSON and the source of the table,
//! so that the two cannot disagree. JSON is versioned (`schema`), snake_case, times RFC 3339, sizes
//! in bytes, null for what is not known; fields are only ever added.

pub(crate) mod authority;
pub(crate) mod checkpoint;
pub(crate) mod controller;
pub(crate) mod doctor;
pub(crate) mod gpu;
pub(crate) mod held;
pub(crate) mod image;
pub(crate) mod imported;
pub(crate) mod job;
pub(crate) mod limits;
pub(crate) mod local;
pub(crate) mod log_level;
pub(crate) mod node;
pub(crate) mod partial;
pub(crate) mod process;
pub(crate) mod reservation;
pub(crate) mod status;
pub(crate) mod story;
mod table;
pub(crate) mod text;
pub(crate) mod token;
pub(crate) mod user;
pub(crate) mod values;

use serde::Serialize;

use crate::args::{Format, OutputArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::times::Clock;

pub(crate) use table::Column;

/// A thing that can be listed and shown.
pub(crate) trait Row: Serialize + Sized + 'static {
    /// `schema` of one.
    const SCHEMA: &'static str;
    /// `schema` of a list.
    const LIST_SCHEMA: &'static str;
    /// The fields in the order of the struct: the columns of CSV.
    const FIELDS: &'static [&'static str];

    fn columns() -> Vec<Column<Self>>;

    /// All of it, line by line, for `show`. Lines without a value are left out.
    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)>;
}

#[derive(Serialize)]
struct List<'a, T> {
    schema: &'static str,
    items: &'a [T],
}

#[derive(Serialize)]
struct One<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    item: &'a T,
}

/// How this run of the command prints.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    pub(crate) format: Format,
    header: bool,
    colour: bool,
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
        Ok(Self { format, header: !args.no_header, colour, clock })
    }

    /// Whether people read it, not programs.
    pub(crate) fn for_people(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// A list as text.
    pub(crate) fn list<T: Row>(&self, items: &[T]) -> Result<String, Failure> {
        match self.format {
            Format::Table | Format::Wide => {
                let wide = self.format == Format::Wide;
                let (header, colour) = (self.header, self.colour);
                Ok(table::render(items, T::columns(), wide, header, colour, &self.clock))
            }
            Format::Json => pretty(&List { schema: T::LIST_SCHEMA, items }),
            Format::Jsonl => {
                let lines: Result<Vec<String>, Failure> =
                    items.iter().map(|item| compact(&One { schema: T::SCHEMA, item })).collect();
                Ok(lines?.concat())
            }
            Format::Csv => table::csv(items, self.header),
        }
    }

    /// A table that only people see: part of a screen.
    pub(crate) fn table<T>(&self, items: &[T], columns: Vec<Column<T>>) -> String {
        table::render(items, columns, false, self.header, self.colour, &self.clock)
    }

    /// One thing as text.
    pub(crate) fn one<T: Row>(&self, item: &T) -> Result<String, Failure> {
        match self.format {
            Format::Table | Format::Wide => Ok(table::lines(&item.lines(&self.clock))),
            Format::Json => pretty(&One { schema: T::SCHEMA, item }),
            Format::Jsonl => compact(&One { schema: T::SCHEMA, item }),
            Format::Csv => table::csv(std::slice::from_ref(item), self.header),
        }
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

fn pretty<T: Serialize>(value: &T) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| unprintable(&error))?;
    Ok(text + "\n")
}

fn compact<T: Serialize>(value: &T) -> Result<String, Failure> {
    let text = serde_json::to_string(value).map_err(|error| unprintable(&error))?;
    Ok(text + "\n")
}

fn unprintable(error: &serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot write JSON: {error}"))
}

#[cfg(test)]
mod tests;
