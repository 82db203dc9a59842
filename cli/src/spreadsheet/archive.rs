//! Workbooks are zip files. What kind this one is, and whether it unpacks to a size that can be read.
//!
//! Used before a reader gets the file, so that a small file which unpacks to gigabytes is refused by name.

use std::io::{self, Cursor, Read as _};

use zip::ZipArchive;

/// Most bytes that all parts of a workbook may unpack to: 100,000 rows take half of it.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Most parts of a workbook.
const PARTS_MAX: usize = 4_096;

/// The part of an Excel workbook that holds its texts.
const TEXTS: &str = "sharedstrings.xml";
/// A text takes `<si/>` at least, and less than that is no text.
const TEXT_BYTES_MIN: usize = 4;

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
        let has_texts = part.name().is_ok_and(|name| name.to_ascii_lowercase().ends_with(TEXTS));
        // The sizes in the file may lie: only what comes out counts.
        let (mut texts, mut rest) = (Vec::new(), part.take(left + 1));
        let read = match has_texts {
            true => rest.read_to_end(&mut texts).map(|read| read as u64),
            false => io::copy(&mut rest, &mut io::sink()),
        };
        let read = read.map_err(|error| format!("a damaged workbook: {error}"))?;
        if read > left {
            let limit = UNPACKED_BYTES_MAX >> 20;
            return Err(format!("a workbook that unpacks to more than {limit} MiB"));
        }
        if let Some(count) = counts(&texts).find(|count| *count > texts.len() / TEXT_BYTES_MIN) {
            let holds = texts.len();
            return Err(format!(
                "a damaged .xlsx file: it says that it has {count} texts, in a part of {holds} bytes"
            ));
        }
        left -= read;
    }
    Ok(kind)
}

/// How many texts the part says that it has. calamine 0.38 makes room for as many before it reads one, and a failed
/// allocation ends the program.
fn counts(part: &[u8]) -> impl Iterator<Item = usize> {
    const NAME: &[u8] = b"uniqueCount";
    let named = part.windows(NAME.len()).enumerate().filter(|(_, word)| *word == NAME);
    named.filter_map(|(at, _)| {
        let rest = part.get(at + NAME.len()..)?;
        let mut rest = rest.iter().copied().skip_while(u8::is_ascii_whitespace);
        rest.next().filter(|byte| *byte == b'=')?;
        let mut rest = rest.skip_while(u8::is_ascii_whitespace);
        rest.next().filter(|byte| matches!(byte, b'"' | b'\''))?;
        let digits = rest.take_while(u8::is_ascii_digit);
        // One that is too large for any machine is as good as the largest.
        Some(digits.fold(0_usize, |number, digit| {
            number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
        }))
    })
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
