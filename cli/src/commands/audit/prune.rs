//! `audit prune`: deletes the oldest records from the controllers, if the admin has them in a file.
//!
//! The file is checked as `audit verify` checks it. The controllers compare the hash of the last record with that of
//! their own one, and that hash covers all records before it: so no signature is needed to know that the file is of
//! this fleet.

use std::io::BufRead;
use std::path::Path;

use fleet_core::Timestamp;
use fleet_proto::v1::{PruneAuditRequest, PruneAuditResponse};

use super::{Reading, name_of, open};
use crate::args::AuditPruneArgs;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};
use crate::sizes::Bytes;
use crate::times::Clock;

pub(super) async fn run(context: &Context, args: &AuditPruneArgs) -> Result<Exit, Failure> {
    if args.file == Path::new("-") {
        let problem = "a file that you keep is needed, not standard input";
        return Err(Failure::usage("FILE", problem));
    }
    let before = Timestamp(context.past("--before", Some(&args.before))?);
    let name = name_of(&args.file);
    let Some(oldest) = oldest(open(&args.file)?, &args.file, before)? else {
        let before = context.clock.second(before.0);
        say(&format!("{name} begins with no record from before {before}: nothing to prune"));
        return Ok(Exit::Done);
    };
    let client = context.client()?;
    let request = |dry_run| -> Result<PruneAuditRequest, Failure> {
        Ok(PruneAuditRequest {
            meta: if dry_run { client.meta_of_its_own()? } else { client.request_meta()? },
            through_seq: oldest.records.through,
            hash: oldest.hash.clone(),
            dry_run,
            first_seq: oldest.records.first,
        })
    };
    if !args.dry_run {
        let records = oldest.records.said(&context.clock);
        args.consent.ask(&format!(
            "{name} will be the only copy of audit {records}. Delete them from the controllers?"
        ))?;
    }
    let call = request(args.dry_run)?;
    let answer = client.call(call, async |api, r| api.prune_audit(r).await).await?;
    let told = match context.json {
        true => format!("{:#}\n", json(&answer, args.dry_run)),
        false => told(&answer, &oldest, &name, args.dry_run, &context.clock),
    };
    print(&told)?;
    Ok(Exit::Done)
}

/// The records at the beginning of a file that are older than some time.
#[derive(Debug, PartialEq, Eq)]
struct Oldest {
    records: Records,
    /// Hash of the last of them.
    hash: String,
}

/// Reads the whole file, so that a damaged one prunes nothing. The first record that is young ends what is old: after
/// an admin set the fleet's clock back, an older time can stand behind it.
fn oldest(input: impl BufRead, path: &Path, before: Timestamp) -> Result<Option<Oldest>, Failure> {
    let mut reading = Reading::new(input, path);
    let (mut found, mut is_old) = (None::<Oldest>, true);
    while reading.record()?.is_some() {
        let Some(record) = reading.verifier.newest().filter(|_| is_old) else { continue };
        let (seq, at) = (record.body.seq, record.body.at);
        is_old = at < before;
        if !is_old {
            continue;
        }
        let bytes = record.line.len() as u64 + 1;
        let (first, from, until, before) = found.map_or((seq, at, at, 0), |oldest| {
            let Records { first, from, until, bytes, .. } = oldest.records;
            (first, from, until.max(at), bytes)
        });
        let records = Records { first, through: seq, from, until, bytes: before + bytes };
        found = Some(Oldest { records, hash: record.hash.clone() });
    }
    if reading.finish(None)?.filtered {
        let problem = "a filter left records out of it: export the whole audit log";
        return Err(Failure::usage("FILE", problem));
    }
    Ok(found)
}

/// Some records of the log.
#[derive(Debug, PartialEq, Eq)]
struct Records {
    first: u64,
    through: u64,
    from: Timestamp,
    until: Timestamp,
    bytes: u64,
}

impl Records {
    /// `records 1 to 4711 (4711 records, 2026-01-02 10:00:00 to 2026-10-20 11:00:00, 8.2 MiB)`.
    fn said(&self, clock: &Clock) -> String {
        let count = match self.through.saturating_sub(self.first) + 1 {
            1 => "1 record".to_owned(),
            count => format!("{count} records"),
        };
        let (from, until) = (clock.second(self.from.0), clock.second(self.until.0));
        let Records { first, through, bytes, .. } = self;
        format!("records {first} to {through} ({count}, {from} to {until}, {})", Bytes(*bytes))
    }
}

fn told(
    answer: &PruneAuditResponse,
    oldest: &Oldest,
    name: &str,
    dry_run: bool,
    clock: &Clock,
) -> String {
    if answer.records == 0 {
        let when = answer.pruned.as_ref().map_or(String::new(), |pruned| {
            format!(", the last time on {} by {}", clock.second(pruned.at_unix_ms), pruned.by)
        });
        let Records { first, through, .. } = oldest.records;
        return format!("records {first} to {through} were pruned before{when}: nothing changed\n");
    }
    let records = Records {
        first: answer.first_seq,
        through: answer.through_seq,
        from: Timestamp(answer.from_unix_ms),
        until: Timestamp(answer.until_unix_ms),
        bytes: answer.bytes,
    };
    let records = records.said(clock);
    match dry_run {
        true => format!("nothing was changed; this would delete {records} from the controllers\n"),
        false => format!("deleted {records} from the controllers; keep {name}\n"),
    }
}

fn json(answer: &PruneAuditResponse, dry_run: bool) -> serde_json::Value {
    let some = |value: u64| (answer.records > 0).then_some(value);
    serde_json::json!({
        "schema": "fleet.audit_prune/v1",
        "dry_run": dry_run,
        "records": answer.records,
        "first_seq": some(answer.first_seq),
        "through_seq": some(answer.through_seq),
        "from_unix_ms": some(answer.from_unix_ms),
        "until_unix_ms": some(answer.until_unix_ms),
        "bytes": some(answer.bytes),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::{log, log_at};
    use super::*;

    fn found(text: &str, before: u64) -> Result<Option<Oldest>, Failure> {
        oldest(text.as_bytes(), Path::new("log.jsonl"), Timestamp(before))
    }

    #[test]
    fn the_records_before_a_time_are_found_with_the_hash_of_the_last_one() {
        let text = log(5, u64::MAX);
        let lines: Vec<&str> = text.lines().collect();
        let oldest = found(&text, 4).unwrap().unwrap();
        assert_eq!((oldest.records.first, oldest.records.through), (1, 3));
        assert!(lines[2].contains(&format!("\"hash\":\"{}\"", oldest.hash)));
        let bytes = lines[..3].iter().map(|line| line.len() as u64 + 1).sum::<u64>();
        let Records { from, until, bytes: counted, .. } = oldest.records;
        assert_eq!((from, until, counted), (Timestamp(1), Timestamp(3), bytes));
        assert_eq!(found(&text, 100).unwrap().unwrap().records.through, 5);
        assert_eq!(found(&text, 1).unwrap(), None);
    }

    /// An admin set the fleet's clock back after record 3: what is older by its time stands behind a young one.
    #[test]
    fn a_young_record_ends_what_is_old() {
        let text = log_at(&[1, 2, 103, 4, 5]);
        assert_eq!(found(&text, 100).unwrap().unwrap().records.through, 2);
        assert_eq!(found(&text, 104).unwrap().unwrap().records.through, 5);
    }

    #[test]
    fn a_changed_or_cut_file_prunes_nothing() {
        let text = log(5, u64::MAX);
        for bad in [
            text.replacen("job-a", "job-b", 1),
            text.lines().take(4).collect::<Vec<_>>().join("\n"),
            // What is damaged is behind what would be pruned.
            text.replace("\"seq\":5", "\"seq\":6"),
        ] {
            let failure = found(&bad, 3).unwrap_err();
            assert!(failure.message.contains("is not a whole audit log"), "{}", failure.message);
        }
    }

    #[test]
    fn what_left_or_would_leave_is_said_with_its_numbers_times_and_bytes() {
        let clock = Clock::of_this_machine();
        let oldest = found(&log(5, u64::MAX), 4).unwrap().unwrap();
        let answer = PruneAuditResponse {
            records: 2,
            first_seq: 2,
            through_seq: 3,
            from_unix_ms: 2,
            until_unix_ms: 3,
            bytes: 2048,
            pruned: None,
        };
        let would = told(&answer, &oldest, "log.jsonl", true, &clock);
        assert!(
            would.starts_with("nothing was changed; this would delete records 2 to 3 (2 records, ")
        );
        assert!(would.ends_with(", 2 KiB) from the controllers\n"), "{would}");
        let did = told(&answer, &oldest, "log.jsonl", false, &clock);
        assert!(did.starts_with("deleted records 2 to 3 (2 records, "), "{did}");
        assert!(did.ends_with("from the controllers; keep log.jsonl\n"), "{did}");
        let before = PruneAuditResponse { records: 0, ..answer.clone() };
        let said = told(&before, &oldest, "log.jsonl", false, &clock);
        assert_eq!(said, "records 1 to 3 were pruned before: nothing changed\n");
        assert_eq!(json(&answer, true)["through_seq"], 3);
        assert!(json(&before, false)["through_seq"].is_null());
    }
}
