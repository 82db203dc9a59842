//! Defines the stable JSON of fleet: one struct for each noun, made from the messages of the network API.
//!
//! The command line prints it, and everything else that hands the fleet's state to programs uses the same structs,
//! so that all of it agrees. JSON is versioned (`schema`), snake_case, times RFC 3339 in UTC, sizes in bytes, null
//! for what is not known. Fields are only ever added. Nothing here knows of a terminal, a time zone or a table.

pub mod authority;
pub mod calendar;
pub mod checkpoint;
pub mod class;
pub mod controller;
pub mod feed;
pub mod forecast;
pub mod gpu;
pub mod gpu_minute;
pub mod gpu_stay;
pub mod held;
pub mod image;
pub mod job;
pub mod job_use;
pub mod limits;
pub mod local;
pub mod log_level;
pub mod node;
pub mod node_gpus;
pub mod notices;
pub mod project;
pub mod reservation;
pub mod status;
pub mod story;
pub mod token;
pub mod usage;
pub mod user;
pub mod values;

use serde::Serialize;

/// A thing that has a stable JSON.
pub trait Document: Serialize {
    /// `schema` of one.
    const SCHEMA: &'static str;
    /// `schema` of a list.
    const LIST_SCHEMA: &'static str;
    /// The fields in the order of the struct: also the columns of CSV.
    const FIELDS: &'static [&'static str];
}

/// What stands around a list.
#[derive(Debug, Serialize)]
pub struct List<'a, T> {
    /// Which JSON it is, with its version: [`Document::LIST_SCHEMA`].
    pub schema: &'static str,
    /// The things, in the order in which the caller has them.
    pub items: &'a [T],
}

impl<'a, T: Document> List<'a, T> {
    /// The list of these.
    pub fn of(items: &'a [T]) -> Self {
        Self { schema: T::LIST_SCHEMA, items }
    }
}

/// What stands around one thing: its own fields follow `schema`.
#[derive(Debug, Serialize)]
pub struct One<'a, T> {
    /// Which JSON it is, with its version: [`Document::SCHEMA`].
    pub schema: &'static str,
    /// The thing itself.
    #[serde(flatten)]
    pub item: &'a T,
}

impl<'a, T: Document> One<'a, T> {
    /// This one.
    pub fn of(item: &'a T) -> Self {
        Self { schema: T::SCHEMA, item }
    }
}

/// A list as JSON for people and programs: indented, with a newline at the end.
pub fn list<T: Document>(items: &[T]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&List::of(items))? + "\n")
}

/// One thing as JSON for people and programs: indented, with a newline at the end.
pub fn one<T: Document>(item: &T) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&One::of(item))? + "\n")
}

/// One thing as a line of JSON, with a newline at the end.
pub fn line<T: Document>(item: &T) -> serde_json::Result<String> {
    Ok(serde_json::to_string(&One::of(item))? + "\n")
}

#[cfg(test)]
mod tests;
