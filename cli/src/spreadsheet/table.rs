//! The cells of a sheet as text, whatever kind of file they came from.
//!
//! Filled by the readers of each kind of file, read by the rest of `spreadsheet`. Everything that could fill
//! the memory has a limit here; no reader keeps cells anywhere else.

use std::collections::BTreeMap;

/// Most rows of a sheet: ten times as many as an import of a large lab has.
pub(super) const ROWS_MAX: u32 = 100_000;
/// Most columns of a sheet: a timetable of 1,000 GPUs.
pub(super) const COLUMNS_MAX: u32 = 1_024;
/// Most cells with something in them, in all sheets of a workbook together.
pub(super) const CELLS_MAX: usize = 1_000_000;
/// Most text in all cells together.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A row of the sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// As the spreadsheet program or the text editor shows it, counted from 1.
    pub(super) number: u64,
    pub(super) cells: Vec<String>,
}

impl Row {
    pub(super) fn cell(&self, column: usize) -> &str {
        self.cells.get(column).map(String::as_str).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.iter().all(String::is_empty)
    }
}

/// What is wrong, and in which line of the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// 0 is the file as a whole.
    pub(crate) line: u64,
    pub(crate) what: String,
}

impl Problem {
    pub(crate) fn new(line: u64, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }

    pub(crate) fn of_file(what: impl Into<String>) -> Self {
        Self::new(0, what)
    }
}

/// A sheet, and what its reader has to say about it.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// One sentence each, for the one who imports.
    pub(super) notes: Vec<String>,
    /// Lines that could not be read at all.
    pub(super) problems: Vec<Problem>,
    /// The cells come from text that a separator parts: one cell too many is a mistake there.
    pub(super) separated: bool,
}

/// The cells of a workbook's sheet while they are read: by row and column, counted from 0.
#[derive(Debug, Default)]
pub(super) struct Cells {
    by_place: BTreeMap<(u32, u32), String>,
    text_bytes: usize,
    /// In the sheets read before this one.
    others: Used,
}

/// How much of the limits for a workbook is used up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    cells: usize,
    text_bytes: usize,
}

impl Cells {
    /// A sheet of a workbook of which others are read already.
    pub(super) fn beside(others: Used) -> Self {
        Self { others, ..Self::default() }
    }

    /// With the sheets before this one.
    pub(super) fn used(&self) -> Used {
        Used {
            cells: self.others.cells + self.by_place.len(),
            text_bytes: self.others.text_bytes + self.text_bytes,
        }
    }

    /// # Errors
    ///
    /// One of the limits, with its name.
    pub(super) fn put(&mut self, row: u32, column: u32, text: &str) -> Result<(), String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(());
        }
        if row >= ROWS_MAX {
            return Err(format!("a sheet with text in row {}, at most {ROWS_MAX}", row + 1));
        }
        if column >= COLUMNS_MAX {
            let at = column + 1;
            return Err(format!("a sheet with text in column {at}, at most {COLUMNS_MAX}"));
        }
        self.text_bytes += text.len();
        if self.used().text_bytes > TEXT_BYTES_MAX {
            return Err(format!("a workbook with more than {} MiB of text", TEXT_BYTES_MAX >> 20));
        }
        self.by_place.insert((row, column), text.to_owned());
        if self.used().cells > CELLS_MAX {
            return Err(format!("a workbook with more than {CELLS_MAX} cells"));
        }
        Ok(())
    }

    /// Gives all cells of a merged area what the first one says. Empty rows below the last text stay so.
    pub(super) fn merge(&mut self, first: (u32, u32), last: (u32, u32)) -> Result<(), String> {
        let Some(text) = self.by_place.get(&first).cloned() else { return Ok(()) };
        let rows = self.by_place.last_key_value().map_or(0, |((row, _), _)| *row);
        for row in first.0..=last.0.min(rows.max(first.0)) {
            for column in first.1..=last.1.min(COLUMNS_MAX - 1) {
                self.put(row, column, &text)?;
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// The rows that have something in them.
    pub(super) fn into_rows(self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for ((row, column), text) in self.by_place {
            let number = u64::from(row) + 1;
            if rows.last().is_none_or(|last| last.number != number) {
                rows.push(Row { number, cells: Vec::new() });
            }
            if let Some(last) = rows.last_mut() {
                last.cells.resize(column as usize, String::new());
                last.cells.push(text);
            }
        }
        rows
    }
}
