//! Sheets of `.xlsx` workbooks.
//!
//! The only user of calamine. Its cells come one after the other, so that the limits of [`Cells`] hold before
//! anything large is built. Dates are typed in a workbook and become ISO text: nobody has to guess their order.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use calamine::{Data, DataRef, ExcelDateTime, Reader as _, SheetType, SheetVisible, Xlsx};
use jiff::Span;
use jiff::civil::Date;

use super::table::{Cells, Used};

type Book<'a> = Xlsx<Cursor<&'a [u8]>>;

/// An opened workbook.
pub(super) struct Workbook<'a> {
    book: Book<'a>,
    /// By the sheets that were read.
    used: Used,
}

impl<'a> Workbook<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let damaged = |error| format!("a damaged .xlsx file: {error}");
        let book = guarded(|| Xlsx::new(Cursor::new(bytes)).map_err(damaged))?;
        Ok(Self { book, used: Used::default() })
    }

    /// The sheets that a person sees, in their order.
    pub(super) fn sheets(&self) -> Vec<String> {
        let seen = self.book.sheets_metadata().iter().filter(|sheet| {
            sheet.typ == SheetType::WorkSheet && sheet.visible == SheetVisible::Visible
        });
        seen.map(|sheet| sheet.name.clone()).collect()
    }

    pub(super) fn cells(&mut self, sheet: &str) -> Result<Cells, String> {
        guarded(|| self.read(sheet))
    }

    fn read(&mut self, sheet: &str) -> Result<Cells, String> {
        let since_1904 = self.book.has_1904_epoch();
        let damaged = |error| format!("sheet {sheet:?} is damaged: {error}");
        let mut cells = Cells::beside(self.used);
        let mut reader = self.book.worksheet_cells_reader(sheet).map_err(damaged)?;
        while let Some((cell, style)) = reader.next_cell_with_style_id().map_err(damaged)? {
            let format = reader.styles().get(style).and_then(|style| style.number_format.as_ref());
            let with_clock = format.is_some_and(|format| shows_a_clock(&format.format_code));
            let (row, column) = cell.get_position();
            cells.put(row, column, &text(cell.get_value(), with_clock, since_1904))?;
        }
        drop(reader);
        let merged = self.book.merge_cells_by_sheet_name(sheet).map_err(damaged)?;
        for area in merged {
            cells.merge(area.start, area.end)?;
        }
        self.used = cells.used();
        Ok(cells)
    }
}

/// calamine 0.38 works out the place of a cell without a look at how large it gets: where overflow is checked, a damaged
/// reference such as `A99999999999` is a panic. That is a damaged file too, and no end of the program.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let read = catch_unwind(AssertUnwindSafe(read));
    read.unwrap_or_else(|_| Err("a damaged .xlsx file: it cannot be read".to_owned()))
}

/// Whether a number format such as `dd.mm.yyyy hh:mm` shows a time of day.
fn shows_a_clock(format: &str) -> bool {
    let mut quoted = false;
    format.chars().any(|c| {
        quoted ^= c == '"';
        !quoted && matches!(c, 'h' | 'H' | 's' | 'S')
    })
}

fn text(value: &DataRef<'_>, with_clock: bool, since_1904: bool) -> String {
    match value {
        DataRef::DateTime(at) => typed(at, with_clock, since_1904),
        DataRef::Float(number) => shown_number(*number),
        DataRef::DateTimeIso(text) => text.trim_end_matches('Z').replace('T', " "),
        other => Data::from(other.clone()).to_string(),
    }
}

/// `1` for 1.0, as the spreadsheet shows it.
fn shown_number(number: f64) -> String {
    // Rust writes the shortest text that reads back as the number, and none with an exponent.
    format!("{number}")
}

/// A number of days as `2026-11-28 09:00`; without the time where the sheet shows none; a time alone as `09:00`.
fn typed(at: &ExcelDateTime, with_clock: bool, since_1904: bool) -> String {
    let number = || shown_number(at.as_f64());
    let seconds = (at.as_f64() * 86_400.0).round();
    if !(0.0..=3_000_000.0 * 86_400.0).contains(&seconds) {
        return number();
    }
    // In range, as checked above, and whole.
    #[expect(clippy::cast_possible_truncation, reason = "checked above")]
    let seconds = seconds as i64;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}", second / 3_600, second % 3_600 / 60);
    let clock = if second % 60 == 0 { clock } else { format!("{clock}:{:02}", second % 60) };
    if days == 0 || at.is_duration() {
        let hours = seconds / 3_600;
        return format!("{hours:02}{}", clock.get(2..).unwrap_or_default());
    }
    match day_of(days, since_1904) {
        Some(day) if second == 0 && !with_clock => day.to_string(),
        Some(day) => format!("{day} {clock}"),
        None => number(),
    }
}

/// The day that a spreadsheet counts as number `days`.
pub(super) fn day_of(days: i64, since_1904: bool) -> Option<Date> {
    let first = if since_1904 { Date::constant(1904, 1, 1) } else { Date::constant(1899, 12, 30) };
    first.checked_add(Span::new().try_days(days).ok()?).ok()
}
