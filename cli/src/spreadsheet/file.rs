//! From the bytes of a file to the rows of one sheet. What the file is, its first bytes say, never its name.

use super::archive::{self, Kind};
use super::table::{Cells, Table};
use super::{excel, open_document, text};

/// `sheet`: the one of several; `is_known`: whether a cell is the name of a column that an import knows.
pub(super) fn read(
    bytes: &[u8],
    sheet: Option<&str>,
    is_known: impl Fn(&str) -> bool,
) -> Result<Table, String> {
    if !bytes.starts_with(b"PK\x03\x04") {
        if let Some(what) = other_kind(bytes) {
            return Err(what.to_owned());
        }
        if let Some(sheet) = sheet {
            return Err(format!("text, which has no sheets; leave --sheet {sheet:?} out"));
        }
        return text::read(bytes, is_known);
    }
    let (name, cells, others) = match archive::check(bytes)? {
        Kind::Excel => {
            let mut book = excel::Workbook::open(bytes)?;
            choose(book.sheets(), sheet, |name| book.cells(name))?
        }
        Kind::OpenDocument => {
            let mut sheets = open_document::sheets(bytes)?;
            let names = sheets.iter().map(|(name, _)| name.clone()).collect();
            choose(names, sheet, |name| {
                let found = sheets.iter_mut().find(|(known, _)| known == name);
                Ok(found.map(|(_, cells)| std::mem::take(cells)).unwrap_or_default())
            })?
        }
    };
    let notes = if others { vec![format!("read sheet {name:?}")] } else { Vec::new() };
    Ok(Table { rows: cells.into_rows(), notes, problems: Vec::new(), separated: false })
}

/// Files that people take for a spreadsheet, or that claim to be one.
fn other_kind(bytes: &[u8]) -> Option<&'static str> {
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let begins =
        |text: &[u8]| start.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text));
    if bytes.trim_ascii().is_empty() {
        Some("empty")
    } else if bytes.starts_with(b"\xd0\xcf\x11\xe0") {
        Some(
            "an old Excel file (.xls), or one with a password; save it as .xlsx without a password",
        )
    } else if begins(b"<?xml") || begins(b"<html") || begins(b"<!doctype") || begins(b"<table") {
        Some("a web page or XML; open it in the spreadsheet and save it as .xlsx")
    } else if begins(b"%PDF") {
        Some("a PDF; save the sheet itself as .xlsx, .ods or CSV")
    } else if bytes.starts_with(b"\x1f\x8b") {
        Some("a compressed file; unpack it first (gunzip)")
    } else if begins(b"{\\rtf") {
        Some("a text document; save the sheet itself as .xlsx, .ods or CSV")
    } else {
        None
    }
}

/// The sheet that is named, or the only one with something in it; and whether there are others.
fn choose(
    names: Vec<String>,
    wanted: Option<&str>,
    mut cells: impl FnMut(&str) -> Result<Cells, String>,
) -> Result<(String, Cells, bool), String> {
    let list = |names: &[String]| {
        names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    };
    if let Some(wanted) = wanted {
        let exact = names.iter().find(|name| *name == wanted);
        let folded = |name: &&String| name.trim().to_lowercase() == wanted.trim().to_lowercase();
        let found = exact.or_else(|| names.iter().find(folded));
        let Some(found) = found else {
            return Err(format!("a workbook without a sheet {wanted:?}; it has {}", list(&names)));
        };
        return Ok((found.clone(), cells(found)?, false));
    }
    let mut full = Vec::new();
    for name in &names {
        let found = cells(name)?;
        if !found.is_empty() {
            full.push((name.clone(), found));
        }
    }
    if full.len() > 1 {
        let names: Vec<String> = full.into_iter().map(|(name, _)| name).collect();
        let (count, list) = (names.len(), list(&names));
        return Err(format!("a workbook with {count} sheets ({list}); name one with --sheet"));
    }
    let (name, cells) = full.pop().ok_or_else(|| "an empty workbook".to_owned())?;
    Ok((name, cells, names.len() > 1))
}
