//! Sheets as text: cells parted by commas, semicolons or tabs, in the encodings that spreadsheets write.
//!
//! A line with a broken quote is an error with its number and is skipped, so that all other errors of the
//! file are listed with it.

use encoding_rs::{UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

use super::table::{CELLS_MAX, COLUMNS_MAX, Problem, ROWS_MAX, Row, Table};

const SEPARATORS: [char; 4] = [',', ';', '\t', '|'];
/// Rows from which the separator is guessed.
const ROWS_LOOKED_AT: usize = 30;

/// `is_known`: whether a cell is the name of a column that an import knows.
pub(super) fn read(bytes: &[u8], is_known: impl Fn(&str) -> bool) -> Result<Table, String> {
    let mut notes = Vec::new();
    let text = decode(bytes, &mut notes)?;
    let (said, skipped) = said_separator(&text);
    let body = text.get(skipped..).unwrap_or_default();
    let first_line = if skipped > 0 { 2 } else { 1 };
    let separator = said.unwrap_or_else(|| separator(body, is_known));
    let (rows, problems) = rows(body, separator, first_line)?;
    Ok(Table { rows, notes, problems, separated: true })
}

fn decode(bytes: &[u8], notes: &mut Vec<String>) -> Result<String, String> {
    let unmarked = |encoding, first: usize| {
        // Text of a western sheet in UTF-16: every other byte is zero.
        let zeros = bytes.iter().skip(first).step_by(2).take(64);
        let count = zeros.clone().count();
        (count > 0 && zeros.filter(|byte| **byte == 0).count() * 2 > count).then_some(encoding)
    };
    let encoding = match bytes {
        [0xff, 0xfe, ..] => UTF_16LE,
        [0xfe, 0xff, ..] => UTF_16BE,
        _ => match unmarked(UTF_16LE, 1).or_else(|| unmarked(UTF_16BE, 0)) {
            Some(encoding) => encoding,
            None if std::str::from_utf8(bytes).is_ok() => UTF_8,
            None => {
                let note = "not UTF-8: read as Windows-1252, as Excel writes it; check the umlauts";
                notes.push(note.to_owned());
                WINDOWS_1252
            }
        },
    };
    let (text, wrong) = encoding.decode_with_bom_removal(bytes);
    let binary = |c: char| c.is_control() && !matches!(c, '\t' | '\r' | '\n' | '\x0b' | '\x0c');
    // A character of control in an old encoding is a byte that it does not use.
    if wrong || text.chars().take(4_096).any(|c| binary(c) && !('\u{80}'..'\u{a0}').contains(&c)) {
        return Err("no spreadsheet and no text; save it as .xlsx, .ods or CSV".to_owned());
    }
    Ok(text.into_owned())
}

/// Excel's first line `sep=;`, and how many bytes it takes.
fn said_separator(text: &str) -> (Option<char>, usize) {
    let line = text.split_inclusive(['\n', '\r']).next().unwrap_or_default();
    let bare = line.trim_end_matches(['\r', '\n']).trim_matches('"');
    let said = bare.strip_prefix("sep=").or_else(|| bare.strip_prefix("SEP="));
    let Some(separator) = said.and_then(|said| said.chars().next()) else { return (None, 0) };
    let mut end = line.len();
    if line.ends_with('\r') && text.get(end..).is_some_and(|rest| rest.starts_with('\n')) {
        end += 1;
    }
    (Some(separator), end)
}

/// The one with which a row names most columns; else the one that is oftenest in the first rows.
fn separator(text: &str, is_known: impl Fn(&str) -> bool) -> char {
    let score = |separator: &char| {
        let mut parser = Parser { text, at: 0, line: 1, separator: *separator };
        let rows = std::iter::from_fn(|| parser.row()).filter_map(Result::ok).take(ROWS_LOOKED_AT);
        let rows: Vec<Row> = rows.collect();
        let known = |row: &Row| row.cells.iter().filter(|cell| is_known(cell)).count();
        let known = rows.iter().map(known).max().unwrap_or(0);
        (known, rows.iter().map(|row| row.cells.len()).sum::<usize>())
    };
    // The last of equals is taken; commas are to be it.
    SEPARATORS.into_iter().rev().max_by_key(score).unwrap_or(',')
}

fn rows(text: &str, separator: char, line: u64) -> Result<(Vec<Row>, Vec<Problem>), String> {
    let mut parser = Parser { text, at: 0, line, separator };
    let (mut rows, mut problems, mut cells) = (Vec::new(), Vec::new(), 0);
    while let Some(row) = parser.row() {
        match row {
            Ok(row) if row.is_empty() => {}
            Ok(row) => {
                cells += row.cells.len();
                rows.push(row);
            }
            Err(problem) => problems.push(problem),
        }
        if rows.len() + problems.len() > ROWS_MAX as usize {
            return Err(format!("text of more than {ROWS_MAX} lines"));
        }
        if cells > CELLS_MAX {
            return Err(format!("text of more than {CELLS_MAX} cells"));
        }
    }
    Ok((rows, problems))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Of `at`, counted from 1 at the start of the file.
    line: u64,
    separator: char,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next row; an error is a broken one, after which the next line follows.
    fn row(&mut self) -> Option<Result<Row, Problem>> {
        if self.at >= self.text.len() {
            return None;
        }
        let (number, start) = (self.line, self.at);
        // Empty ones at the end of a row are none, and what is too much is only counted.
        let (mut cells, mut count, mut full) = (Vec::new(), 0_usize, 0_usize);
        loop {
            match self.cell() {
                Ok(cell) => {
                    count += 1;
                    if !cell.is_empty() {
                        full = count;
                    }
                    if cells.len() < COLUMNS_MAX as usize {
                        cells.push(cell);
                    }
                }
                Err(why) => {
                    (self.at, self.line) = (start, number);
                    let line = self.rest().find(['\n', '\r']);
                    self.at = line.map_or(self.text.len(), |length| start + length);
                    self.end_of_line();
                    return Some(Err(Problem::new(number, why)));
                }
            }
            if self.rest().starts_with(self.separator) {
                self.at += self.separator.len_utf8();
            } else {
                self.end_of_line();
                if full > COLUMNS_MAX as usize {
                    let what = format!("{full} cells, at most {COLUMNS_MAX}");
                    return Some(Err(Problem::new(number, what)));
                }
                return Some(Ok(Row { number, cells }));
            }
        }
    }

    fn end_of_line(&mut self) {
        let rest = self.rest();
        let length = if rest.starts_with("\r\n") { 2 } else { rest.len().min(1) };
        self.at += length;
        self.line += 1;
    }

    /// A cell without the blanks around it, up to the separator or the end of the line.
    fn cell(&mut self) -> Result<String, &'static str> {
        let separator = self.separator;
        let blank = |c: char| c != separator && c != '\n' && c != '\r' && c.is_whitespace();
        let rest = self.rest();
        let trimmed = rest.trim_start_matches(blank);
        if trimmed.starts_with('"') {
            self.at += rest.len() - trimmed.len() + 1;
            return self.quoted();
        }
        let length = rest.find([separator, '\n', '\r']).unwrap_or(rest.len());
        let cell = rest.get(..length).unwrap_or_default().trim().to_owned();
        self.at += length;
        Ok(cell)
    }

    /// After the opening quote.
    fn quoted(&mut self) -> Result<String, &'static str> {
        let (separator, mut cell) = (self.separator, String::new());
        loop {
            let rest = self.rest();
            let Some(length) = rest.find('"') else { return Err("a quote (\") is never closed") };
            let part = rest.get(..length).unwrap_or_default().to_owned();
            self.line += breaks(&part);
            cell.push_str(&part);
            self.at += length + 1;
            if !self.rest().starts_with('"') {
                break;
            }
            cell.push('"');
            self.at += 1;
        }
        let rest = self.rest();
        let blank = |c: char| c != separator && c != '\n' && c != '\r' && c.is_whitespace();
        let after = rest.trim_start_matches(blank);
        if !(after.is_empty() || after.starts_with([separator, '\n', '\r'])) {
            return Err("text follows a closing quote (\"); double each quote within a cell");
        }
        self.at += rest.len() - after.len();
        Ok(cell.trim().to_owned())
    }
}

/// Ends of lines, of which CR LF is one.
fn breaks(text: &str) -> u64 {
    let ends = text.bytes().filter(|b| matches!(b, b'\n' | b'\r')).count();
    (ends - text.matches("\r\n").count()) as u64
}
