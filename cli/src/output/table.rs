//! Tables, `key: value` lines and CSV.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;

use super::Row;
use super::text::harmless;
use super::tone::Tone;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::times::Clock;

/// One column of a table.
#[derive(Debug)]
pub(crate) struct Column<T> {
    title: &'static str,
    wide: bool,
    tone: Option<fn(&T) -> Tone>,
    right: bool,
    cell: fn(&T, &Clock) -> String,
}

impl<T> Column<T> {
    /// A column of every table.
    pub(crate) fn new(title: &'static str, cell: fn(&T, &Clock) -> String) -> Self {
        Self { title, wide: false, tone: None, right: false, cell }
    }

    /// Only with `-o wide`.
    pub(crate) fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// A state: coloured on a terminal, beside its word.
    pub(crate) fn state(mut self, tone: fn(&T) -> Tone) -> Self {
        self.tone = Some(tone);
        self
    }

    /// Numbers.
    pub(crate) fn right(mut self) -> Self {
        self.right = true;
        self
    }
}

pub(super) fn render<T>(
    items: &[T],
    columns: Vec<Column<T>>,
    wide: bool,
    header: bool,
    colour: bool,
    clock: &Clock,
) -> String {
    let columns: Vec<Column<T>> = columns.into_iter().filter(|c| wide || !c.wide).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    if header {
        table.set_header(columns.iter().map(|column| column.title));
    }
    for item in items {
        table.add_row(columns.iter().map(|column| {
            let text = harmless(&(column.cell)(item, clock));
            let mut cell = Cell::new(text);
            if let Some(colour) = column.tone.and_then(|tone| tone(item).colour()) {
                cell = cell.fg(colour);
            }
            if column.right { cell.set_alignment(CellAlignment::Right) } else { cell }
        }));
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(shown) = table.column_mut(index) {
            shown.set_padding((0, 2));
            if column.right {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    // A table without any line is an empty text, not an empty line.
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    if items.is_empty() && !header { String::new() } else { lines.concat() }
}

/// `key: value` lines, values in one column; a value of several lines is indented.
pub(super) fn lines(lines: &[(&'static str, String)]) -> String {
    let width = lines.iter().map(|(key, _)| key.len()).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for (key, value) in lines {
        for (number, line) in value.lines().enumerate() {
            let label = if number == 0 { format!("{key}:") } else { String::new() };
            text.push_str(format!("{label:width$}{}", harmless(line)).trim_end());
            text.push('\n');
        }
    }
    text
}

/// Comma-separated values with the fields of the JSON; lists and objects are JSON in their cell.
pub(super) fn csv<T: Row>(items: &[T], header: bool) -> Result<String, Failure> {
    let mut text = String::new();
    if header {
        text.push_str(&T::FIELDS.join(","));
        text.push_str("\r\n");
    }
    for item in items {
        let value = serde_json::to_value(item)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot write CSV: {error}")))?;
        let cells: Vec<String> = T::FIELDS.iter().map(|field| csv_cell(&value[*field])).collect();
        text.push_str(&cells.join(","));
        text.push_str("\r\n");
    }
    Ok(text)
}

fn csv_cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}
