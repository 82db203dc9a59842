//! Tables, `key: value` lines and CSV.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use fleet_proto::json::values::Time;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::Row;
use super::fit::{GAP, Measured, fit};
use super::text::{clipped, harmless};
use super::tone::Tone;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::times::Clock;

/// Least width of a text that may be clipped, unless its column says another.
const CLIP_MIN: usize = 16;

/// One column of a table.
#[derive(Debug)]
pub(crate) struct Column<T> {
    title: &'static str,
    wide: bool,
    tone: Option<fn(&T) -> Tone>,
    right: bool,
    /// See [`Measured::rank`].
    rank: u8,
    clip: Option<usize>,
    cell: Cell<T>,
    /// What stands for the cell where the table is not wide.
    short: Option<fn(&T) -> String>,
}

#[derive(Debug)]
enum Cell<T> {
    Text(fn(&T, &Clock) -> String),
    When(fn(&T) -> Option<Time>),
}

impl<T> Column<T> {
    /// A column of every table.
    pub(crate) fn new(title: &'static str, cell: fn(&T, &Clock) -> String) -> Self {
        Self::of(title, Cell::Text(cell))
    }

    /// An instant: short on a terminal, whole with `-o wide` and in a pipe.
    pub(crate) fn when(title: &'static str, cell: fn(&T) -> Option<Time>) -> Self {
        Self::of(title, Cell::When(cell))
    }

    fn of(title: &'static str, cell: Cell<T>) -> Self {
        Self {
            title,
            wide: false,
            tone: None,
            right: false,
            rank: 0,
            clip: None,
            cell,
            short: None,
        }
    }

    /// Only with `-o wide`.
    pub(crate) fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// Less text, unless with `-o wide`.
    pub(crate) fn short(mut self, cell: fn(&T) -> String) -> Self {
        self.short = Some(cell);
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

    /// On a terminal that is too narrow for all columns it goes, the highest rank first.
    pub(crate) fn rank(mut self, rank: u8) -> Self {
        self.rank = rank;
        self
    }

    /// Its texts are clipped with `…` on a terminal that is too narrow for them.
    pub(crate) fn clip(self) -> Self {
        self.clip_to(CLIP_MIN)
    }

    /// As [`Self::clip`], down to a width of its own.
    pub(crate) fn clip_to(mut self, least: usize) -> Self {
        self.clip = Some(least);
        self
    }

    fn text(&self, item: &T, look: &Look<'_>) -> String {
        if let Some(short) = self.short.filter(|_| !look.wide) {
            return harmless(&short(item));
        }
        match self.cell {
            Cell::Text(cell) => harmless(&cell(item, look.clock)),
            Cell::When(cell) => cell(item).map_or_else(
                || "-".to_owned(),
                |at| match look.columns {
                    Some(_) => look.clock.brief(at.0),
                    None => look.clock.minute(at.0),
                },
            ),
        }
    }
}

/// How a table is printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) wide: bool,
    pub(super) header: bool,
    pub(super) colour: bool,
    /// The columns of the terminal; `None`: everything is printed whole, however wide it is.
    pub(super) columns: Option<usize>,
    pub(super) clock: &'a Clock,
}

pub(super) fn render<T>(items: &[T], columns: Vec<Column<T>>, look: Look<'_>) -> String {
    let columns: Vec<Column<T>> =
        columns.into_iter().filter(|column| look.wide || !column.wide).collect();
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| columns.iter().map(|column| column.text(item, &look)).collect())
        .collect();
    let widths = widths(&columns, &rows, &look);
    let shown = || columns.iter().enumerate().zip(&widths).filter_map(|(c, w)| Some((c, (*w)?)));
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    if look.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    if look.header {
        table.set_header(shown().map(|((_, column), width)| clipped(column.title, width)));
    }
    for (item, row) in items.iter().zip(&rows) {
        table.add_row(shown().map(|((at, column), width)| {
            let mut cell = comfy_table::Cell::new(clipped(&row[at], width));
            if let Some(colour) = column.tone.and_then(|tone| tone(item).colour()) {
                cell = cell.fg(colour);
            }
            if column.right { cell.set_alignment(CellAlignment::Right) } else { cell }
        }));
    }
    for (index, ((_, column), _)) in shown().enumerate() {
        if let Some(shown) = table.column_mut(index) {
            shown.set_padding((0, GAP as u16));
            if column.right {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    // A table without any line is an empty text, not an empty line.
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    if items.is_empty() && !look.header { String::new() } else { lines.concat() }
}

/// How wide each column is printed; `None` for one that is left out.
fn widths<T>(columns: &[Column<T>], rows: &[Vec<String>], look: &Look<'_>) -> Vec<Option<usize>> {
    let measured = columns.iter().enumerate().map(|(at, column)| {
        let texts = || rows.iter().map(|row| row[at].as_str());
        Measured {
            width: texts().chain([column.title]).map(UnicodeWidthStr::width).max().unwrap_or(0),
            clip: column.clip.map(|least| least.max(column.title.width())),
            rank: column.rank,
            is_empty: !rows.is_empty() && texts().all(|text| matches!(text, "" | "-")),
        }
    });
    let measured: Vec<Measured> = measured.collect();
    fit(&measured, look.columns.unwrap_or(usize::MAX))
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

/// Comma-separated values with the fields of the JSON, one value in each cell.
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

/// Quoted where it must be, and no formula for a spreadsheet: a text that begins as one gets an apostrophe before it.
fn csv_cell(value: &Value) -> String {
    let mut text = plain(value);
    if !value.is_number() && text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        text.insert(0, '\'');
    }
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// A value as text: `titan01:0 titan01:1` for GPUs, `key=value` for the fields of other things; never JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => {
            let flat = |item: &Value| !item.is_object() || gpu_name(item).is_some();
            let between = if items.iter().all(flat) { " " } else { "; " };
            // Each keeps its place among the others.
            let one = |item: &Value| if item.is_null() { "?".to_owned() } else { plain(item) };
            items.iter().map(one).collect::<Vec<_>>().join(between)
        }
        Value::Object(fields) => gpu_name(value).unwrap_or_else(|| {
            let known = fields.iter().filter(|(_, value)| !value.is_null());
            known
                .map(|(key, value)| format!("{key}={}", plain(value)))
                .collect::<Vec<_>>()
                .join(" ")
        }),
    }
}

/// A GPU that something refers to, by its name.
fn gpu_name(value: &Value) -> Option<String> {
    value.get("uuid")?;
    Some(format!("{}:{}", value.get("node")?.as_str()?, value.get("index")?.as_u64()?))
}
