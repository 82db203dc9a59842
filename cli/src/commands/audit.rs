//! `audit export|verify|prune`.
//!
//! Verifying needs no controller: the rules are [`fleet_core::audit::verify`], the file is read line
//! by line.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use fleet_core::audit::export::Signature;
use fleet_core::audit::prune::Pruned;
use fleet_core::audit::verify::{LINE_BYTES_MAX, SignatureCheck, Summary, Verifier};
use fleet_proto::transport::credentials::certificates;
use fleet_proto::transport::signature::verify_audit_signature;
use fleet_proto::v1::{ExportAuditRequest, PrunedAudit};

mod compare;
mod prune;

use super::Context;
use crate::args::{AuditFormat, AuditPruneArgs, ExportArgs, VerifyArgs};
use crate::config::Config;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::partial::{Partial, cannot};
use crate::output::text::{print, say};

/// Less the umask, as of any file.
const MODE: u32 = 0o666;

pub(super) async fn export(context: &Context, args: &ExportArgs) -> Result<Exit, Failure> {
    let request = ExportAuditRequest {
        format: match args.format {
            AuditFormat::Jsonl => "jsonl".to_owned(),
            AuditFormat::Csv => "csv".to_owned(),
        },
        from_seq: args.from_seq.unwrap_or(0),
        to_seq: args.to_seq.unwrap_or(0),
        from_unix_ms: context.past("--from", args.from.as_ref())?,
        to_unix_ms: context.past("--until", args.until.as_ref())?,
    };
    let client = context.client()?.stale(args.stale.stale);
    let mut stream = client.call(request, async |api, r| api.export_audit(r).await).await?;
    if let Some(age) = client.take_age() {
        say(&age);
    }
    let mut out = match &args.file {
        Some(path) => Out::file(path)?,
        None => Out::Stream(Box::new(io::stdout().lock())),
    };
    while let Some(chunk) = stream.message().await.map_err(|status| client.failure(&status))? {
        if let Some(pruned) = &chunk.pruned {
            say(&pruned_before(context, pruned));
        }
        match &mut out {
            Out::Stream(out) => out.write_all(&chunk.data)?,
            Out::File(out) => out.write(&chunk.data)?,
        }
    }
    match out {
        Out::Stream(mut out) => out.flush()?,
        Out::File(out) => drop(out.finish()?),
    }
    if let Some(path) = &args.file {
        say(&format!("written to {}; check it with: fleet audit verify {0}", path.display()));
    }
    Ok(Exit::Done)
}

pub(super) async fn prune(context: &Context, args: &AuditPruneArgs) -> Result<Exit, Failure> {
    prune::run(context, args).await
}

/// Of an export that would begin with records that are not in the controllers any more.
fn pruned_before(context: &Context, pruned: &PrunedAudit) -> String {
    let PrunedAudit { through_seq: through, by, .. } = pruned;
    let at = context.clock.second(pruned.at_unix_ms);
    let first = through + 1;
    format!("records 1 to {through} were pruned on {at} by {by}: this begins with record {first}")
}

/// Where an export goes.
enum Out {
    Stream(Box<dyn Write>),
    File(Partial),
}

impl Out {
    /// A file gets its name when the export is whole; a pipe or a device is what it is.
    fn file(path: &Path) -> Result<Self, Failure> {
        match path.canonicalize() {
            Ok(there) if !there.is_file() => {
                let opened = OpenOptions::new().write(true).open(path);
                let file = opened.map_err(|error| cannot("open", path, &error))?;
                Ok(Self::Stream(Box::new(file)))
            }
            // What a link leads to is exchanged, not the link.
            Ok(there) => Partial::begin(&there, "--file", MODE).map(Self::File),
            Err(_) => Partial::begin(path, "--file", MODE).map(Self::File),
        }
    }
}

pub(super) fn verify(context: &Context, args: &VerifyArgs) -> Result<Exit, Failure> {
    let authority = authority(context, args)?;
    if let Some(other) = &args.other {
        return compare::run(context, [&args.file, other], authority.as_deref());
    }
    let summary = check(open(&args.file)?, &args.file, authority.as_deref())?;
    print(&verdict(context, &summary, authority.is_some()))?;
    Ok(Exit::Done)
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|error| cannot("open", path, &error))?;
    Ok(Box::new(BufReader::new(file)))
}

/// The CA certificates to check the signature by, DER: those of the named file, or of the settings'.
fn authority(context: &Context, args: &VerifyArgs) -> Result<Option<Vec<Vec<u8>>>, Failure> {
    let path = match (&args.ca, Config::find(context.named_config().map(PathBuf::as_path))) {
        (Some(named), _) => named.clone(),
        (None, Ok(Config { ca: Some(ca), .. })) => ca,
        // An auditor need not have settings.
        (None, Ok(_) | Err(_)) => return Ok(None),
    };
    let text = std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    let none = || Failure::usage("--ca", format!("{} holds no certificate", path.display()));
    certificates_in(&text).map(Some).ok_or_else(none)
}

/// The certificates of a PEM text, at least one: there are two while one authority is exchanged for another.
fn certificates_in(pem: &str) -> Option<Vec<Vec<u8>>> {
    let found = certificates(pem.as_bytes(), "authority").ok()?;
    Some(found.iter().map(|der| der.to_vec()).collect())
}

/// Whether a trailer was signed by an audit signer of one of these authorities.
fn is_signed(authorities: &[Vec<u8>], message: &[u8], signature: &Signature) -> bool {
    let parts = (BASE64.decode(&signature.key), BASE64.decode(&signature.value));
    let (Ok(signer), Ok(value)) = parts else { return false };
    let signed = |by: &Vec<u8>| verify_audit_signature(by, &signer, message, &value).is_ok();
    authorities.iter().any(signed)
}

/// Feeds all lines to the verifier; the first bad one is the failure.
fn check(
    input: impl BufRead,
    path: &Path,
    authority: Option<&[Vec<u8>]>,
) -> Result<Summary, Failure> {
    let mut reading = Reading::new(input, path);
    while reading.line()? {}
    reading.finish(authority)
}

/// An export that is being checked, line by line.
struct Reading<'a, I> {
    input: I,
    path: &'a Path,
    verifier: Verifier,
    line: Vec<u8>,
    number: u64,
}

impl<'a, I: BufRead> Reading<'a, I> {
    fn new(input: I, path: &'a Path) -> Self {
        Self { input, path, verifier: Verifier::new(), line: Vec::new(), number: 0 }
    }

    /// Takes the next line; false: there is none.
    fn line(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        self.number += 1;
        // One byte more than the longest legal line, so that a longer one is noticed, not held.
        let limit = LINE_BYTES_MAX as u64 + 2;
        let read = (&mut self.input).take(limit).read_until(b'\n', &mut self.line);
        if read.map_err(|error| cannot("read", self.path, &error))? == 0 {
            return Ok(false);
        }
        if self.line.ends_with(b"\n") {
            self.line.pop();
            if self.line.ends_with(b"\r") {
                self.line.pop();
            }
        }
        let number = self.number;
        let text = std::str::from_utf8(&self.line)
            .map_err(|_| bad(self.path, &format!("line {number} is not UTF-8: it was changed")))?;
        let taken = self.verifier.line(text);
        taken.map_err(|error| bad(self.path, &error.to_string()))?;
        Ok(true)
    }

    /// Number and hash of the next record; `None`: there is none.
    fn record(&mut self) -> Result<Option<(u64, String)>, Failure> {
        let (before, _) = self.verifier.progress();
        while self.line()? {
            match self.verifier.progress() {
                (count, Some((seq, hash))) if count > before => {
                    return Ok(Some((seq, hash.to_owned())));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn finish(self, authority: Option<&[Vec<u8>]>) -> Result<Summary, Failure> {
        let signed = |message: &[u8], signature: &Signature| {
            authority.is_some_and(|authority| is_signed(authority, message, signature))
        };
        let wanted: Option<SignatureCheck<'_>> = authority.is_some().then_some(&signed);
        self.verifier.finish(wanted).map_err(|error| bad(self.path, &error.to_string()))
    }
}

fn bad(path: &Path, problem: &str) -> Failure {
    let file = name_of(path);
    Failure::new(Exit::Failed, format!("{file} is not a whole audit log: {problem}"))
}

fn name_of(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn verdict(context: &Context, summary: &Summary, signature_checked: bool) -> String {
    let records = match summary.count {
        0 => "no records".to_owned(),
        1 => format!("1 record, number {}", summary.first_seq),
        count => format!("{count} records, {} to {}", summary.first_seq, summary.last_seq),
    };
    if context.json {
        let value = serde_json::json!({
            "schema": "fleet.audit_verdict/v1",
            "whole": true,
            "cluster": summary.cluster,
            "records": summary.count,
            "first_seq": summary.first_seq,
            "last_seq": summary.last_seq,
            "last_hash": summary.last_hash,
            "from_genesis": summary.from_genesis,
            "pruned": summary.pruned.as_ref().map(pruned_json),
            "filtered": summary.filtered,
            "signed": summary.signed_by.is_some(),
            "signature_checked": signature_checked,
        });
        return format!("{value:#}\n");
    }
    let mut text = format!("OK: {records} of {}, every hash matches\n", summary.cluster);
    if summary.filtered {
        text.push_str("records were left out by a filter: only those here could be checked\n");
    } else if let Some(pruned) = &summary.pruned {
        text.push_str(&format!("{}\n", pruned_said(context, pruned)));
    } else if !summary.from_genesis && summary.count > 0 {
        text.push_str("it does not begin with the first record: what was before is not checked\n");
    }
    text.push_str(&format!("last hash: {}\n", summary.last_hash));
    if signature_checked {
        text.push_str("signed by this fleet\n");
    } else if summary.signed_by.is_some() {
        text.push_str("it is signed; --ca FILE checks the signature\n");
    }
    text
}

/// What the anchor of an export says, so that the beginning is not missing but accounted for.
fn pruned_said(context: &Context, pruned: &Pruned) -> String {
    let Pruned { through, hash, at, by, .. } = pruned;
    let at = context.clock.second(at.0);
    format!("records 1 to {through} were pruned on {at} by {by}; the last one had hash {hash}")
}

fn pruned_json(pruned: &Pruned) -> serde_json::Value {
    serde_json::json!({
        "through_seq": pruned.through,
        "hash": pruned.hash,
        "until_unix_ms": pruned.until.0,
        "at_unix_ms": pruned.at.0,
        "by": pruned.by,
    })
}

#[cfg(test)]
mod tests;
