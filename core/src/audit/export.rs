//! Lines of an exported audit log, as JSON lines or CSV, and the trailer that shows a missing tail.
//!
//! Pure text: the controller (or the CLI, from pages it fetched) asks for a header, one line per
//! record and a trailer, and writes them. [`super::verify`] reads the result back, offline.
//!
//! * JSON lines: the stored lines as they are, then the trailer line.
//! * CSV (RFC 4180): a header row, a row per record with the whole line in its last column, then a
//!   row whose first column is `#trailer` and whose second is the trailer line. No cell is longer than a
//!   spreadsheet takes: the objects of a record are clipped with a mark, and a long record line continues in
//!   rows behind its own, whose first column is `#more`. JSON lines have every record in one line.
//!
//! The trailer counts the records and names the first, the last and both ends of the chain. Without
//! a signature it shows an accident; against somebody who can write a new trailer it takes one.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::prune::Pruned;
use super::{AuditRecord, GENESIS};
use crate::time::Timestamp;

/// Version of the trailer that this build writes.
pub const TRAILER_VERSION: u32 = 1;
/// Written before the trailer's bytes that are hashed.
const TRAILER_DOMAIN: &[u8] = b"fleet-audit-trailer-v1\n";
/// First column of the CSV row that carries the trailer.
pub const CSV_TRAILER: &str = "#trailer";
/// First column of a CSV row that carries more of the record line of the row before it.
pub const CSV_MORE: &str = "#more";
/// Most UTF-16 units in a cell: spreadsheets take 32,767, and cut the rest off without a word.
pub const CELL_UNITS_MAX: usize = 32_000;
/// Columns of the CSV form. The last one holds the whole record; the others repeat parts of it.
pub const CSV_HEADER: &str =
    "seq,log_index,at,actor,auth,action,allowed_by,refused,objects,request,record";

/// How an export is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    JsonLines,
    Csv,
}

/// A signature over a trailer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// For example `ed25519` or `ecdsa-p256-sha256`.
    pub algorithm: String,
    /// Which key: a certificate's serial or a key's fingerprint.
    pub key: String,
    /// The signature, base64.
    pub value: String,
}

/// Signs the bytes of a trailer.
pub type Signer<'a> = &'a dyn Fn(&[u8]) -> Signature;

/// What the trailer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trailer {
    pub v: u32,
    pub cluster: String,
    pub exported_at: Timestamp,
    /// Records in this export.
    pub count: u64,
    /// Number of the first record; 0 if there is none.
    pub first_seq: u64,
    pub last_seq: u64,
    /// `prev` of the first record.
    pub prev: String,
    /// Hash of the last record.
    pub last_hash: String,
    /// Whether records between the first and the last were left out by a filter.
    pub filtered: bool,
    /// The records that left the controllers, where the export would begin with one of them and does not hold the
    /// anchor itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned: Option<Pruned>,
}

/// Counts what is exported and makes the lines.
#[derive(Debug, Clone)]
pub struct Exporter {
    format: Format,
    trailer: Trailer,
    anchored: bool,
}

impl Exporter {
    /// `filtered`: not every record of the range will be given.
    pub fn new(format: Format, cluster: &str, exported_at: Timestamp, filtered: bool) -> Self {
        let trailer = Trailer {
            v: TRAILER_VERSION,
            cluster: cluster.to_owned(),
            exported_at,
            count: 0,
            first_seq: 0,
            last_seq: 0,
            prev: GENESIS.to_owned(),
            last_hash: GENESIS.to_owned(),
            filtered,
            pruned: None,
        };
        Exporter { format, trailer, anchored: false }
    }

    /// For an export that would begin with a record that left the controllers: the trailer says so where no record does.
    pub fn after(self, pruned: Option<Pruned>) -> Self {
        Exporter { trailer: Trailer { pruned, ..self.trailer }, ..self }
    }

    /// The line before the first record, if the format has one. Without its line end, like all.
    pub fn header(&self) -> Option<&'static str> {
        match self.format {
            Format::JsonLines => None,
            Format::Csv => Some(CSV_HEADER),
        }
    }

    /// Whether records are missing between the last one and `next`: they were pruned since the export began.
    pub fn misses(&self, next: Option<&AuditRecord>) -> bool {
        let Trailer { count, last_seq, .. } = self.trailer;
        count > 0 && next.is_some_and(|next| next.body.seq != last_seq + 1)
    }

    /// The line of the next record, oldest first.
    pub fn record(&mut self, record: &AuditRecord) -> String {
        let trailer = &mut self.trailer;
        if trailer.count == 0 {
            trailer.first_seq = record.body.seq;
            trailer.prev.clone_from(&record.body.prev);
        }
        let anchor = Pruned::of(&record.body).map(|pruned| pruned.through);
        self.anchored |= anchor.is_some_and(|through| through + 1 == trailer.first_seq);
        trailer.count += 1;
        trailer.last_seq = record.body.seq;
        trailer.last_hash.clone_from(&record.hash);
        match self.format {
            Format::JsonLines => record.line.clone(),
            Format::Csv => csv_rows(record),
        }
    }

    /// The last line.
    pub fn trailer(&self, signer: Option<Signer<'_>>) -> String {
        let pruned = self.trailer.pruned.clone().filter(|_| !self.anchored);
        let line = seal_trailer(&Trailer { pruned, ..self.trailer.clone() }, signer);
        match self.format {
            Format::JsonLines => line,
            Format::Csv => format!("{CSV_TRAILER},{}", csv_field(&line)),
        }
    }
}

/// `{"trailer":{…},"hash":"…"}`, and with a signer `,"signature":{…}` over the part before it.
fn seal_trailer(trailer: &Trailer, signer: Option<Signer<'_>>) -> String {
    // Plain data with text keys cannot fail to serialise.
    let body = serde_json::to_string(trailer).unwrap_or_default();
    let signed = signed_part(&body);
    match signer {
        None => format!("{signed}}}"),
        Some(sign) => {
            let signature = serde_json::to_string(&sign(signed.as_bytes())).unwrap_or_default();
            format!("{signed},\"signature\":{signature}}}")
        }
    }
}

/// What a signature covers, from the trailer's JSON.
fn signed_part(body: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(TRAILER_DOMAIN);
    hasher.update(body.as_bytes());
    format!("{{\"trailer\":{body},\"hash\":\"{}\"", hex::encode(hasher.finalize()))
}

#[derive(Deserialize)]
struct SealedTrailer {
    trailer: Trailer,
    signature: Option<Signature>,
}

/// Takes a trailer line apart: what it says, the bytes a signature covers, the signature. `None` if
/// a single byte of it is not as it was written.
pub fn open_trailer(line: &str) -> Option<(Trailer, Vec<u8>, Option<Signature>)> {
    let sealed: SealedTrailer = serde_json::from_str(line).ok()?;
    // Written again it must give the same bytes: then no byte was changed, spaces included.
    let body = serde_json::to_string(&sealed.trailer).ok()?;
    let signed = signed_part(&body);
    let signature = match &sealed.signature {
        None => String::new(),
        Some(signature) => format!(",\"signature\":{}", serde_json::to_string(signature).ok()?),
    };
    (format!("{signed}{signature}}}") == line)
        .then(|| (sealed.trailer, signed.into_bytes(), sealed.signature))
}

/// Whether a line could be a trailer.
pub fn looks_like_trailer(line: &str) -> bool {
    line.starts_with("{\"trailer\":")
}

/// One record as a row, and as many rows behind it as its line takes.
pub fn csv_rows(record: &AuditRecord) -> String {
    let mut parts = cells_of(&record.line).into_iter();
    let mut rows = csv_row(record, parts.next().unwrap_or_default());
    for part in parts {
        rows.push_str(&format!("\n{CSV_MORE},{}", csv_field(part)));
    }
    rows
}

/// A text in parts that fit a cell. None but the first begins as a formula does, so that each is written as it is.
fn cells_of(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let fits = fitting(rest, CELL_UNITS_MAX);
        if fits == rest.len() {
            parts.push(rest);
            return parts;
        }
        let plain = rest[..fits].char_indices().rev().map(|(at, _)| at);
        let plain = plain.take_while(|at| *at > 0).find(|at| !begins_formula(&rest[*at..]));
        let (part, more) = rest.split_at(plain.unwrap_or(fits));
        parts.push(part);
        rest = more;
    }
}

/// How many bytes of a text fit in this many UTF-16 units.
fn fitting(text: &str, units: usize) -> usize {
    let mut left = units;
    let over = text.char_indices().find(|(_, c)| {
        let fits = c.len_utf16() <= left;
        left = left.saturating_sub(c.len_utf16());
        !fits
    });
    over.map_or(text.len(), |(at, _)| at)
}

/// Names in one cell; where they do not fit, how many more there are.
fn objects_cell(objects: &[String]) -> String {
    let whole = objects.join(" ");
    if fitting(&whole, CELL_UNITS_MAX) == whole.len() {
        return whole;
    }
    let mut cell = String::new();
    // Room for the mark.
    let room = CELL_UNITS_MAX - 100;
    for (shown, object) in objects.iter().enumerate() {
        let with = cell.len() + 1 + object.len();
        if with > room {
            let more = objects.len() - shown;
            cell.push_str(&format!(" (cut here: {more} more; -o jsonl has all)"));
            break;
        }
        if shown > 0 {
            cell.push(' ');
        }
        cell.push_str(object);
    }
    cell
}

fn csv_row(record: &AuditRecord, line: &str) -> String {
    let body = &record.body;
    let auth = serde_json::to_value(body.actor.method)
        .ok()
        .and_then(|method| method.as_str().map(str::to_owned))
        .unwrap_or_default();
    let fields = [
        body.seq.to_string(),
        body.log_index.to_string(),
        rfc3339(body.at),
        body.actor.principal(),
        auth,
        body.action.clone(),
        body.allowed_by.clone().unwrap_or_default(),
        body.refused.clone().unwrap_or_default(),
        objects_cell(&body.objects),
        body.request.clone().unwrap_or_default(),
        line.to_owned(),
    ];
    let fields: Vec<String> = fields.iter().map(|field| csv_field(field)).collect();
    fields.join(",")
}

fn begins_formula(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r'])
}

/// Quotes a field where CSV or a spreadsheet needs it. A field that a spreadsheet would run as a
/// formula is made text by a leading apostrophe.
pub fn csv_field(text: &str) -> String {
    let text = if begins_formula(text) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// An instant as RFC 3339 in UTC with milliseconds, for readers of the CSV.
fn rfc3339(at: Timestamp) -> String {
    // Howard Hinnant's civil-from-days; exact for every day there is.
    let (days, ms_of_day) = (at.0 / 86_400_000, at.0 % 86_400_000);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (secs, ms) = (ms_of_day / 1_000, ms_of_day % 1_000);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_people_read_them() {
        assert_eq!(rfc3339(Timestamp(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(Timestamp(951_782_399_999)), "2000-02-28T23:59:59.999Z");
        assert_eq!(rfc3339(Timestamp(951_782_400_000)), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(Timestamp(1_795_252_500_000)), "2026-11-21T09:15:00.000Z");
        assert_eq!(rfc3339(Timestamp::MAX_ACCEPTED), "9999-01-01T00:00:00.000Z");
    }

    #[test]
    fn fields_cannot_break_the_row_nor_run_as_formulas() {
        assert_eq!(csv_field("a,b"), "\"a,b\"");
        assert_eq!(csv_field("say \"hi\""), "\"say \"\"hi\"\"\"");
        assert_eq!(csv_field("=cmd()"), "'=cmd()");
        assert_eq!(csv_field("job-1"), "job-1");
    }

    #[test]
    fn a_text_is_cut_into_cells_that_are_no_formulas() {
        let text =
            format!("{}{}=-1{}", "a".repeat(CELL_UNITS_MAX - 1), "==", "\u{1f600}".repeat(40_000));
        let cells = cells_of(&text);
        assert_eq!(cells.concat(), text);
        assert!(cells.len() >= 4, "{}", cells.len());
        for cell in &cells {
            assert!(cell.encode_utf16().count() <= CELL_UNITS_MAX);
            assert_eq!(csv_field(cell), *cell, "no apostrophe");
        }
        assert_eq!(cells_of(""), [""]);
        // Nothing else to cut at: it is cut all the same, and ends.
        assert_eq!(cells_of(&"=".repeat(2 * CELL_UNITS_MAX)).len(), 2);
    }

    #[test]
    fn no_byte_of_a_trailer_can_be_changed() {
        let exporter = Exporter::new(Format::JsonLines, "fleet-a", Timestamp(7), false);
        let sign = |bytes: &[u8]| Signature {
            algorithm: "test".to_owned(),
            key: "k".to_owned(),
            value: hex::encode(Sha256::digest(bytes)),
        };
        for line in [exporter.trailer(None), exporter.trailer(Some(&sign))] {
            let (trailer, signed, signature) = open_trailer(&line).expect("as it was written");
            assert_eq!(trailer.cluster, "fleet-a");
            for at in 0..line.len() {
                let mut changed = line.clone().into_bytes();
                changed[at] ^= 1;
                let opened = String::from_utf8(changed).ok().and_then(|l| open_trailer(&l));
                // Only bytes inside the signature can change unseen here; the verifier checks them.
                if let Some((_, bytes, found)) = opened {
                    assert_eq!(bytes, signed);
                    assert_ne!(found, signature, "byte {at}");
                }
            }
        }
    }
}
