//! Checks an exported audit log, offline and without any key but the signer's.
//!
//! Feed the lines in order to a [`Verifier`]; the first bad line is named with what is wrong with
//! it. Notices: a changed byte, a line removed, added, swapped or repeated, a missing tail (by the
//! trailer), columns of a CSV row that do not say what the record says.

use super::export::{
    CSV_HEADER, CSV_MORE, CSV_TRAILER, Signature, Trailer, csv_rows, looks_like_trailer,
    open_trailer,
};
use super::prune::Pruned;
use super::{AUDIT_VERSION, AuditBody, AuditRecord, GENESIS, hash_of_unsealed, unseal};

/// Longest line that is read; longer ones are refused before they are held in memory.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// What is wrong, and in which line (from 1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct VerifyError {
    pub line: u64,
    pub why: Fault,
}

/// The ways in which an export can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("this is not an audit record")]
    NotARecord,
    #[error("record {seq} was changed: its hash does not match its contents")]
    Changed { seq: u64 },
    #[error("record {seq} has version {found}; this build knows versions up to {AUDIT_VERSION}")]
    TooNew { seq: u64, found: u32 },
    #[error("record {found} follows record {after}: {missing} removed or moved", missing = gap(*.after, *.found))]
    Gap { after: u64, found: u64 },
    #[error("record {found} follows record {after}: lines were swapped, moved or repeated")]
    Order { after: u64, found: u64 },
    #[error("record {seq} does not continue the chain: the line before it was changed or replaced")]
    Chain { seq: u64 },
    #[error(
        "record {found} does not continue record {through}, with which the prune ended: the lines between them and the anchor were replaced"
    )]
    Anchor { through: u64, found: u64 },
    #[error("the columns do not say what record {seq} says")]
    Columns { seq: u64 },
    #[error("the trailer was changed")]
    TrailerChanged,
    #[error("the trailer says {expected}, but here are {found}: lines are missing")]
    Count { expected: String, found: String },
    #[error("there is no trailer: the end is missing")]
    NoTrailer,
    #[error("something follows the trailer")]
    AfterTrailer,
    #[error("the trailer's signature is not valid")]
    Signature,
    #[error("the trailer is not signed")]
    NotSigned,
    #[error("the line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the file does not begin like an audit export")]
    Header,
}

fn gap(after: u64, found: u64) -> String {
    match found.saturating_sub(after + 1) {
        1 => "one line was".to_owned(),
        n => format!("{n} lines were"),
    }
}

/// What a good export contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub cluster: String,
    pub count: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub last_hash: String,
    /// Hash of the record before the first.
    pub prev: String,
    /// It begins with the first record.
    pub from_genesis: bool,
    /// The records before the first left the controllers, and this is what is on record of that.
    pub pruned: Option<Pruned>,
    /// Records were left out by a filter: only single records and their order could be checked.
    pub filtered: bool,
    pub signed_by: Option<Signature>,
}

/// Checks the signature over the given bytes.
pub type SignatureCheck<'a> = &'a dyn Fn(&[u8], &Signature) -> bool;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Unknown,
    JsonLines,
    Csv,
}

/// Takes lines in order.
#[derive(Debug)]
pub struct Verifier {
    form: Form,
    line: u64,
    count: u64,
    first: Option<(u64, String)>,
    /// The newest record.
    last: Option<AuditRecord>,
    /// What the anchor of the first record says, once it came.
    anchor: Option<Pruned>,
    /// A break in the chain, to be forgiven if the trailer says that records were filtered out.
    broken: Option<VerifyError>,
    trailer: Option<(Trailer, Vec<u8>, Option<Signature>)>,
    /// Rows of a CSV whose record line continues in the next row.
    open: Option<OpenRecord>,
}

#[derive(Debug)]
struct OpenRecord {
    rows: String,
    record: String,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Verifier {
    pub fn new() -> Self {
        Verifier {
            form: Form::Unknown,
            line: 0,
            count: 0,
            first: None,
            last: None,
            anchor: None,
            broken: None,
            trailer: None,
            open: None,
        }
    }

    fn fault(&self, why: Fault) -> VerifyError {
        VerifyError { line: self.line, why }
    }

    /// The next line, without its line end.
    pub fn line(&mut self, line: &str) -> Result<(), VerifyError> {
        self.line += 1;
        if line.len() > LINE_BYTES_MAX {
            return Err(self.fault(Fault::TooLong));
        }
        if self.trailer.is_some() {
            return Err(self.fault(Fault::AfterTrailer));
        }
        match self.form {
            Form::Unknown if line == CSV_HEADER => {
                self.form = Form::Csv;
                Ok(())
            }
            Form::Unknown if line.starts_with('{') => {
                self.form = Form::JsonLines;
                self.json_line(line)
            }
            Form::Unknown => Err(self.fault(Fault::Header)),
            Form::JsonLines => self.json_line(line),
            Form::Csv => self.csv_line(line),
        }
    }

    fn json_line(&mut self, line: &str) -> Result<(), VerifyError> {
        if looks_like_trailer(line) {
            return self.take_trailer(line);
        }
        self.record(line)
    }

    fn csv_line(&mut self, row: &str) -> Result<(), VerifyError> {
        let fields = csv_fields(row).ok_or_else(|| self.fault(Fault::NotARecord))?;
        let (rows, record) = match (
            fields.iter().map(String::as_str).collect::<Vec<_>>().as_slice(),
            self.open.take(),
        ) {
            ([CSV_MORE, more], Some(open)) => {
                (format!("{}\n{row}", open.rows), format!("{}{more}", open.record))
            }
            // The rest of the record before it is missing.
            (_, Some(_)) | ([CSV_MORE, _] | [], None) => {
                return Err(self.fault(Fault::NotARecord));
            }
            ([CSV_TRAILER, trailer], None) => return self.take_trailer(trailer),
            ([.., record], None) => (row.to_owned(), (*record).to_owned()),
        };
        if rows.len() > LINE_BYTES_MAX {
            return Err(self.fault(Fault::TooLong));
        }
        if record.starts_with('{') && unseal(&record).is_none() {
            self.open = Some(OpenRecord { rows, record });
            return Ok(());
        }
        self.record(&record)?;
        match &self.last {
            Some(record) if csv_rows(record) != rows => {
                Err(self.fault(Fault::Columns { seq: record.body.seq }))
            }
            _ => Ok(()),
        }
    }

    fn take_trailer(&mut self, line: &str) -> Result<(), VerifyError> {
        self.trailer = Some(open_trailer(line).ok_or_else(|| self.fault(Fault::TrailerChanged))?);
        Ok(())
    }

    fn record(&mut self, line: &str) -> Result<(), VerifyError> {
        let not_a_record = || self.fault(Fault::NotARecord);
        let (unsealed, hash) = unseal(line).ok_or_else(not_a_record)?;
        // The number is only for the message until the hash is checked.
        let body = serde_json::from_str::<AuditBody>(&unsealed);
        if hash_of_unsealed(&unsealed) != hash {
            let after = self.last.as_ref().map_or(0, |last| last.body.seq);
            let seq = body.map_or(after + 1, |body| body.seq);
            return Err(self.fault(Fault::Changed { seq }));
        }
        let body = body.map_err(|_| self.newer_or_no_record(&unsealed))?;
        if body.v > AUDIT_VERSION {
            return Err(self.fault(Fault::TooNew { seq: body.seq, found: body.v }));
        }
        if let Some(last) = &self.last {
            let (after, found) = (last.body.seq, body.seq);
            if found <= after {
                return Err(self.out_of_order(after, found));
            }
            if found > after + 1 {
                let fault = self.fault(Fault::Gap { after, found });
                self.broken.get_or_insert(fault);
            } else if body.prev != last.hash {
                return Err(self.fault(Fault::Chain { seq: found }));
            }
        } else {
            if body.seq == 1 && body.prev != GENESIS {
                return Err(self.fault(Fault::Chain { seq: 1 }));
            }
            self.first = Some((body.seq, body.prev.clone()));
        }
        if let Some(pruned) = Pruned::of(&body) {
            self.take_anchor(pruned)?;
        }
        self.count += 1;
        self.last = Some(AuditRecord { body, line: line.to_owned(), hash: hash.to_owned() });
        Ok(())
    }

    /// An anchor counts if it is that of the first record here; then it must name what that record continues.
    fn take_anchor(&mut self, pruned: Pruned) -> Result<(), VerifyError> {
        let Some((first, prev)) = &self.first else { return Ok(()) };
        if pruned.first_kept() != *first {
            return Ok(());
        }
        if pruned.hash != *prev {
            return Err(self.fault(Fault::Anchor { through: pruned.through, found: *first }));
        }
        self.anchor = Some(pruned);
        Ok(())
    }

    /// A line that comes late: if an earlier line jumped over it, that one was the first bad line.
    fn out_of_order(&self, after: u64, found: u64) -> VerifyError {
        match &self.broken {
            Some(VerifyError { line, why: Fault::Gap { after: from, found: to } })
                if (*from + 1..*to).contains(&found) =>
            {
                VerifyError { line: *line, why: Fault::Order { after: *from, found: *to } }
            }
            Some(_) | None => self.fault(Fault::Order { after, found }),
        }
    }

    /// A sealed line that this build cannot read is newer than it, or no record at all.
    fn newer_or_no_record(&self, unsealed: &str) -> VerifyError {
        #[derive(serde::Deserialize)]
        struct Version {
            v: u32,
            seq: u64,
        }
        match serde_json::from_str::<Version>(unsealed) {
            Ok(Version { v, seq }) if v > AUDIT_VERSION => {
                self.fault(Fault::TooNew { seq, found: v })
            }
            Ok(_) | Err(_) => self.fault(Fault::NotARecord),
        }
    }

    /// How many records were taken, and number and hash of the newest.
    pub fn progress(&self) -> (u64, Option<(u64, &str)>) {
        (self.count, self.newest().map(|last| (last.body.seq, last.hash.as_str())))
    }

    /// The newest record that was taken.
    pub fn newest(&self) -> Option<&AuditRecord> {
        self.last.as_ref()
    }

    /// Number of the first record, and the hash that it continues.
    pub fn first(&self) -> Option<(u64, &str)> {
        self.first.as_ref().map(|(seq, prev)| (*seq, prev.as_str()))
    }

    /// After the last line. With a `check`, a missing or bad signature is a fault.
    pub fn finish(mut self, check: Option<SignatureCheck<'_>>) -> Result<Summary, VerifyError> {
        let Some((trailer, signed, signature)) = self.trailer.take() else {
            self.line += 1;
            return Err(match self.broken.take() {
                Some(broken) => broken,
                None => self.fault(Fault::NoTrailer),
            });
        };
        if !trailer.filtered
            && let Some(broken) = self.broken.take()
        {
            return Err(broken);
        }
        let (first_seq, prev) = self.first.clone().unwrap_or((0, GENESIS.to_owned()));
        let (last_seq, last_hash) = match self.last.take() {
            Some(last) => (last.body.seq, last.hash),
            None => (0, GENESIS.to_owned()),
        };
        let said = (trailer.count, trailer.first_seq, trailer.last_seq);
        let found = (self.count, first_seq, last_seq);
        if said != found || trailer.prev != prev || trailer.last_hash != last_hash {
            let text = |(n, a, z)| format!("{n} records, {a} to {z}");
            return Err(self.fault(Fault::Count { expected: text(said), found: text(found) }));
        }
        if let Some(check) = check {
            match &signature {
                None => return Err(self.fault(Fault::NotSigned)),
                Some(signature) if !check(&signed, signature) => {
                    return Err(self.fault(Fault::Signature));
                }
                Some(_) => {}
            }
        }
        if let Some(pruned) = trailer.pruned {
            match self.first.is_some() {
                true => self.take_anchor(pruned)?,
                false => self.anchor = Some(pruned),
            }
        }
        Ok(Summary {
            cluster: trailer.cluster,
            count: self.count,
            first_seq,
            last_seq,
            last_hash,
            prev,
            from_genesis: first_seq == 1,
            pruned: self.anchor,
            filtered: trailer.filtered,
            signed_by: signature,
        })
    }
}

/// Checks a whole text. Where the text comes from a file, feed a [`Verifier`] line by line instead.
pub fn verify_text(text: &str, check: Option<SignatureCheck<'_>>) -> Result<Summary, VerifyError> {
    let mut verifier = Verifier::new();
    for line in text.lines() {
        verifier.line(line)?;
    }
    verifier.finish(check)
}

/// Splits one row. Records never contain line ends, so a row is a line.
fn csv_fields(row: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = row;
    loop {
        let field;
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut text = String::new();
            let mut chars = quoted.char_indices();
            let end = loop {
                match chars.next()? {
                    (at, '"') if quoted[at + 1..].starts_with('"') => {
                        text.push('"');
                        chars.next();
                    }
                    (at, '"') => break at + 1,
                    (_, c) => text.push(c),
                }
            };
            field = text;
            rest = &quoted[end..];
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            field = rest[..end].to_owned();
            rest = &rest[end..];
        }
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None if rest.is_empty() => return Some(fields),
            None => return None,
        }
    }
}

#[cfg(test)]
mod tests;
