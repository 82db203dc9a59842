//! Sheets of `.ods` workbooks: one XML file, `content.xml`, with all sheets.
//!
//! Read here and not by calamine, whose reader builds repeated cells before anybody can limit them (a file of
//! 1 kB may repeat one cell 10^10 times), and knows no merged cells.

use std::io::{BufRead, BufReader, Cursor, Read as _};

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::table::{COLUMNS_MAX, Cells, ROWS_MAX};

/// Longest text of one cell that is kept, as in a spreadsheet program.
const CELL_BYTES_MAX: usize = 128 << 10;

/// A sheet by its name.
pub(super) type Named = (String, Cells);

/// All sheets, in their order.
pub(super) fn sheets(bytes: &[u8]) -> Result<Vec<Named>, String> {
    let damaged = |error: String| format!("a damaged .ods file: {error}");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| damaged(e.to_string()))?;
    let mut told = String::new();
    if let Ok(part) = archive.by_name("META-INF/manifest.xml") {
        // Only whether it is encrypted: a manifest that cannot be read says nothing about that.
        drop(part.take(1 << 20).read_to_string(&mut told));
    }
    if told.contains("encryption-data") {
        return Err("protected by a password; save it without one".to_owned());
    }
    let part = archive.by_name("content.xml").map_err(|e| damaged(e.to_string()))?;
    let mut walk = Walk {
        xml: Reader::from_reader(BufReader::new(part)),
        sheets: Vec::new(),
        row: 0,
        column: 0,
        merged: Vec::new(),
    };
    walk.all().map_err(|stop| match stop {
        Stop::Damaged(error) => damaged(error),
        Stop::Limit(what) => what,
    })?;
    Ok(walk.sheets)
}

enum Stop {
    Damaged(String),
    Limit(String),
}

impl From<quick_xml::Error> for Stop {
    fn from(error: quick_xml::Error) -> Self {
        Stop::Damaged(error.to_string())
    }
}

/// Where the reader is in the file.
struct Walk<R> {
    xml: Reader<R>,
    sheets: Vec<Named>,
    row: u32,
    column: u32,
    /// Merged areas of the sheet, by their first and last cell.
    merged: Vec<((u32, u32), (u32, u32))>,
}

impl<R: BufRead> Walk<R> {
    fn all(&mut self) -> Result<(), Stop> {
        let (mut buffer, mut repeat) = (Vec::new(), 1);
        loop {
            buffer.clear();
            let event = self.xml.read_event_into(&mut buffer)?.into_owned();
            match &event {
                Event::Start(tag) | Event::Empty(tag) => match tag.name().as_ref() {
                    "table:table" => {
                        let name = attribute(tag, "table:name").unwrap_or_default();
                        let used = self.sheets.last().map(|(_, cells)| cells.used());
                        self.sheets.push((name, Cells::beside(used.unwrap_or_default())));
                        (self.row, self.column) = (0, 0);
                    }
                    "table:table-row" => {
                        repeat = count(tag, "table:number-rows-repeated");
                        self.column = 0;
                        if matches!(event, Event::Empty(_)) {
                            self.row = self.row.saturating_add(repeat);
                        }
                    }
                    "table:table-cell" | "table:covered-table-cell" => {
                        let open = matches!(event, Event::Start(_));
                        self.cell(tag, open, repeat)?;
                    }
                    _ => {}
                },
                Event::End(tag) => match tag.name().as_ref() {
                    "table:table-row" => self.row = self.row.saturating_add(repeat),
                    "table:table" => self.merge()?,
                    _ => {}
                },
                Event::Eof => return Ok(()),
                _ => {}
            }
        }
    }

    /// Reads a cell up to its end, and puts its text into all places that repeat it.
    fn cell(&mut self, tag: &BytesStart<'_>, open: bool, rows: u32) -> Result<(), Stop> {
        let columns = count(tag, "table:number-columns-repeated");
        let shown = if open { self.text(tag.name().as_ref())? } else { String::new() };
        let text = typed(tag).unwrap_or(shown);
        let place = (self.row, self.column);
        self.column = self.column.saturating_add(columns);
        let covered = tag.name().as_ref() != "table:table-cell";
        if covered || text.trim().is_empty() {
            return Ok(());
        }
        // Past these a text is refused by its place, so one more of each is enough for that.
        let last = (rows.min(ROWS_MAX + 1), columns.min(COLUMNS_MAX + 1));
        let sheet = self.sheets.last_mut().map(|(_, cells)| cells);
        let sheet = sheet.ok_or_else(|| Stop::Damaged("a cell outside of a table".to_owned()))?;
        for row in place.0..place.0.saturating_add(last.0) {
            for column in place.1..place.1.saturating_add(last.1) {
                sheet.put(row, column, &text).map_err(Stop::Limit)?;
            }
        }
        let down = count(tag, "table:number-rows-spanned");
        let right = count(tag, "table:number-columns-spanned");
        if down > 1 || right > 1 {
            let end = (place.0.saturating_add(down - 1), place.1.saturating_add(right - 1));
            self.merged.push((place, end));
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<(), Stop> {
        let merged = std::mem::take(&mut self.merged);
        let Some((_, cells)) = self.sheets.last_mut() else { return Ok(()) };
        merged
            .into_iter()
            .try_for_each(|(first, last)| cells.merge(first, last))
            .map_err(Stop::Limit)
    }

    /// The paragraphs of a cell, without the comment that hangs on it.
    fn text(&mut self, until: &str) -> Result<String, Stop> {
        let (mut text, mut buffer, mut comment) = (String::new(), Vec::new(), 0_u32);
        loop {
            buffer.clear();
            match self.xml.read_event_into(&mut buffer)? {
                Event::Start(tag) if tag.name().as_ref() == "office:annotation" => comment += 1,
                Event::End(tag) if tag.name().as_ref() == "office:annotation" => comment -= 1,
                Event::End(tag) if tag.name().as_ref() == until => return Ok(text),
                Event::Eof => return Err(Stop::Damaged("it ends within a cell".to_owned())),
                _ if comment > 0 || text.len() > CELL_BYTES_MAX => {}
                Event::Start(tag) if tag.name().as_ref() == "text:p" && !text.is_empty() => {
                    text.push('\n');
                }
                Event::Start(tag) | Event::Empty(tag) => match tag.name().as_ref() {
                    "text:s" | "text:tab" => text.push(' '),
                    "text:line-break" => text.push('\n'),
                    _ => {}
                },
                Event::Text(part) => text.push_str(&part.xml_content(XmlVersion::default())),
                Event::CData(part) => text.push_str(&part.xml_content(XmlVersion::default())),
                Event::GeneralRef(name) => match name.resolve_char_ref()? {
                    Some(character) => text.push(character),
                    None => text.push_str(entity(&name)),
                },
                _ => {}
            }
        }
    }
}

/// The five that XML itself knows.
fn entity(name: &str) -> &'static str {
    match name {
        "amp" => "&",
        "lt" => "<",
        "gt" => ">",
        "quot" => "\"",
        "apos" => "'",
        _ => "",
    }
}

/// What a cell holds, where that is not the text that it shows.
fn typed(tag: &BytesStart<'_>) -> Option<String> {
    let kind = attribute(tag, "office:value-type")?;
    match kind.as_str() {
        "float" | "percentage" | "currency" => attribute(tag, "office:value"),
        "date" => attribute(tag, "office:date-value").map(|date| date.replace('T', " ")),
        "time" => attribute(tag, "office:time-value").map(|time| clock(&time).unwrap_or(time)),
        _ => None,
    }
}

/// `PT09H30M00S` as `09:30`.
fn clock(length: &str) -> Option<String> {
    let (hours, rest) = length.strip_prefix("PT")?.split_once('H')?;
    let (minutes, rest) = rest.split_once('M')?;
    let seconds = rest.strip_suffix('S')?;
    let zero = seconds.bytes().all(|b| matches!(b, b'0' | b'.' | b','));
    Some(if zero { format!("{hours}:{minutes}") } else { format!("{hours}:{minutes}:{seconds}") })
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = tag.try_get_attribute(name).ok().flatten()?;
    found.normalized_value(XmlVersion::default()).ok().map(|value| value.into_owned())
}

/// How often something is repeated, or how far it reaches: 1 where nothing is said.
fn count(tag: &BytesStart<'_>, name: &str) -> u32 {
    attribute(tag, name).and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}
