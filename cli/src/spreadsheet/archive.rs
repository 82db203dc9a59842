//! Workbooks are zip files. What kind this one is, and whether it unpacks to a size that can be read.
//!
//! Used before a reader gets the file, so that a small file which unpacks to gigabytes is refused by name.

use std::io::{self, Cursor, Read as _};

use zip::ZipArchive;

/// Most bytes that all parts of a workbook may unpack to: 100,000 rows take half of it.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Most parts of a workbook.
const PARTS_MAX: usize = 4_096;

/// A workbook that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Excel,
    OpenDocument,
}

/// The kind of workbook, once all of it is known to fit.
pub(super) fn check(bytes: &[u8]) -> Result<Kind, String> {
    let broken = |error: zip::result::ZipError| format!("a damaged workbook: {error}");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    if archive.len() > PARTS_MAX {
        return Err(format!("a workbook of {} parts, at most {PARTS_MAX}", archive.len()));
    }
    let kind = kind(&mut archive)?;
    let mut left = UNPACKED_BYTES_MAX;
    for at in 0..archive.len() {
        let part = archive.by_index(at).map_err(broken)?;
        // The sizes in the file may lie: only what comes out counts.
        let read = io::copy(&mut part.take(left + 1), &mut io::sink());
        let read = read.map_err(|error| format!("a damaged workbook: {error}"))?;
        if read > left {
            let limit = UNPACKED_BYTES_MAX >> 20;
            return Err(format!("a workbook that unpacks to more than {limit} MiB"));
        }
        left -= read;
    }
    Ok(kind)
}

fn kind(archive: &mut ZipArchive<Cursor<&[u8]>>) -> Result<Kind, String> {
    let names: Vec<String> =
        archive.file_names().filter_map(Result::ok).map(|name| name.into_owned()).collect();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("xl/workbook.xml") || has("xl\\workbook.xml") {
        return Ok(Kind::Excel);
    }
    if has("xl/workbook.bin") {
        return Err("a binary workbook (.xlsb); save it as .xlsx".to_owned());
    }
    if names.iter().any(|name| name.starts_with("Index/") && name.ends_with(".iwa")) {
        return Err("a document of Apple Numbers; export it as .xlsx".to_owned());
    }
    if has("content.xml") {
        let mut mime = String::new();
        if let Ok(part) = archive.by_name("mimetype") {
            let read = part.take(128).read_to_string(&mut mime);
            read.map_err(|error| format!("a damaged workbook: {error}"))?;
        }
        if mime.is_empty() || mime.contains("opendocument.spreadsheet") {
            return Ok(Kind::OpenDocument);
        }
        return Err("an OpenDocument file, but no spreadsheet; give the .ods file".to_owned());
    }
    Err("a zip file, but no workbook; give the .xlsx, .ods or .csv file itself".to_owned())
}
