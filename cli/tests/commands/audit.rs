//! `fleet audit prune` and what other commands say of pruned records, as typed.

use std::path::PathBuf;

use fleet_core::audit::export::{Exporter, Format};
use fleet_core::audit::{AUDIT_VERSION, AuditBody, GENESIS, seal};
use fleet_core::{Actor, AuditRecord, Event, Rejection, Timestamp};
use fleet_proto::v1 as pb;
use tonic::Code;

use super::fake::{Fake, Script, refusal};
use super::{code, stderr, stdout};

/// 2026-09-21 14:13:20 UTC; each record is a minute later.
const BEGIN: u64 = 1_790_000_000_000;

/// Four records, and the anchor of a prune of the first two.
fn records() -> Vec<AuditRecord> {
    let mut records: Vec<AuditRecord> = Vec::new();
    for seq in 1..=5 {
        let event = match seq {
            5 => Event::AuditPruned {
                through: 2,
                hash: records[1].hash.clone(),
                until: records[1].body.at,
                records: 2,
                by: "root".to_owned(),
            },
            _ => Event::ClusterVersionSet { version: 1 },
        };
        records.push(seal(AuditBody {
            v: AUDIT_VERSION,
            seq,
            log_index: seq,
            at: Timestamp(BEGIN + 60_000 * (seq - 1)),
            actor: Actor::controller(),
            action: "advance_time".to_owned(),
            request: None,
            allowed_by: Some("controller".to_owned()),
            refused: None,
            objects: Vec::new(),
            events: vec![event],
            prev: records.last().map_or(GENESIS.to_owned(), |last| last.hash.clone()),
        }));
    }
    records
}

fn written(fake: &Fake, name: &str, records: &[AuditRecord]) -> PathBuf {
    let mut exporter = Exporter::new(Format::JsonLines, "fleet-lab", Timestamp(9), false);
    let mut text: String = records.iter().map(|r| exporter.record(r) + "\n").collect();
    text.push_str(&(exporter.trailer(None) + "\n"));
    let file = fake.config().with_file_name(name);
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn prune_asks_for_the_last_old_record_of_a_whole_file_with_its_hash() {
    let fake = Fake::start(Script::default());
    let records = records();
    written(&fake, "log.jsonl", &records);
    let prune = ["audit", "prune", "--before", "2026-09-21 14:15:00", "log.jsonl"];
    let prunes = || fake.asked(|script| std::mem::take(&mut script.prunes));

    let shown = fake.run(&[&prune[..], &["--dry-run"]].concat());
    assert_eq!(code(&shown), 0, "{}", stderr(&shown));
    assert_eq!(
        stdout(&shown),
        "nothing was changed; this would delete records 1 to 2 (2 records, 2026-09-21 14:13:20 UTC to \
         2026-09-21 14:14:20 UTC, 3 KiB) from the controllers\n"
    );
    let [asked] = &prunes()[..] else { panic!() };
    assert!(asked.dry_run);
    assert_eq!((asked.first_seq, asked.through_seq), (1, 2));
    assert_eq!(asked.hash, records[1].hash);

    let unasked = fake.run(&prune);
    assert_eq!(code(&unasked), 2);
    let question = "log.jsonl will be the only copy of audit records 1 to 2 (2 records, ";
    assert!(stderr(&unasked).contains(question), "{}", stderr(&unasked));
    assert!(stderr(&unasked).contains("no terminal to ask on"), "{}", stderr(&unasked));
    assert!(prunes().is_empty(), "nothing is deleted without a yes");

    let pruned = fake.run(&[&prune[..], &["--yes"]].concat());
    assert_eq!(code(&pruned), 0, "{}", stderr(&pruned));
    assert!(stdout(&pruned).starts_with("deleted records 1 to 2 "), "{}", stdout(&pruned));
    let [asked] = &prunes()[..] else { panic!() };
    assert!(!asked.dry_run && asked.through_seq == 2);

    let early = fake.run(&["audit", "prune", "--before", "2026-09-21 14:00", "log.jsonl", "--yes"]);
    assert_eq!(code(&early), 0);
    assert!(stderr(&early).contains("nothing to prune"), "{}", stderr(&early));
    assert!(prunes().is_empty());
}

#[test]
fn prune_refuses_a_bad_file_and_says_why_the_controllers_refuse() {
    let fake = Fake::start(Script::default());
    let file = written(&fake, "log.jsonl", &records());
    let prune = ["audit", "prune", "--before", "now", "--yes", "log.jsonl"];
    let why = "record 2 has hash 0a in the file, and 0b in the controllers".to_owned();
    let refused = refusal(Code::FailedPrecondition, &Rejection::AuditNotPruned { why });
    fake.asked(|script| script.prune_fails = Some(refused));
    let output = fake.run(&prune);
    assert_eq!(code(&output), 5);
    let said = "error: no audit record was pruned: record 2 has hash 0a";
    assert!(stderr(&output).starts_with(said), "{}", stderr(&output));

    fake.asked(|script| script.prunes.clear());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("advance_time", "advance_timf", 1)).unwrap();
    let output = fake.run(&prune);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("log.jsonl is not a whole audit log: line 1"));
    let output = fake.run(&["audit", "prune", "--before", "now", "--yes", "-"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(fake.asked(|script| script.prunes.is_empty()));
}

#[test]
fn verify_accepts_an_export_that_begins_behind_a_prune_and_says_so() {
    let fake = Fake::start(Script::default());
    let records = records();
    let hash = &records[1].hash;
    written(&fake, "old.jsonl", &records[..4]);
    written(&fake, "left.jsonl", &records[..2]);
    written(&fake, "new.jsonl", &records[2..]);
    written(&fake, "part.jsonl", &records[2..4]);
    let verified = |words: &[&str]| {
        let output = fake.run(&[&["audit", "verify"], words].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    let pruned = format!(
        "records 1 to 2 were pruned on 2026-09-21 14:17:20 UTC by root; the last one had hash {hash}\n"
    );
    let said = verified(&["new.jsonl"]);
    assert!(said.starts_with("OK: 3 records, 3 to 5 of fleet-lab"), "{said}");
    assert!(said.contains(&pruned), "{said}");
    let said = verified(&["part.jsonl"]);
    assert!(said.contains("does not begin with the first record"), "{said}");
    let json: serde_json::Value =
        serde_json::from_str(&verified(&["new.jsonl", "--json"])).unwrap();
    assert_eq!((&json["pruned"]["through_seq"], &json["from_genesis"]), (&2.into(), &false.into()));

    let said = verified(&["old.jsonl", "new.jsonl"]);
    assert_eq!(
        said,
        format!(
            "both are whole. new.jsonl follows old.jsonl: records 3 to 4 are in both and the same; \
             new.jsonl has more behind them, old.jsonl before them\n{pruned}"
        )
    );
    let said = verified(&["new.jsonl", "left.jsonl"]);
    let follows = "both are whole. new.jsonl continues left.jsonl, from record 3 on\n";
    assert_eq!(said, format!("{follows}{pruned}"));
}

#[test]
fn export_and_why_say_what_was_pruned() {
    let at = BEGIN + 240_000;
    let script = Script {
        pruned: Some(pb::PrunedAudit {
            through_seq: 2,
            at_unix_ms: at,
            by: "root".to_owned(),
            ..pb::PrunedAudit::default()
        }),
        explained: pb::Explanation {
            id: "titan01".to_owned(),
            pruned_until_unix_ms: BEGIN,
            ..pb::Explanation::default()
        },
        ..Script::default()
    };
    let fake = Fake::start(script);
    let output = fake.run(&["audit", "export", "--file", "log.jsonl"]);
    let said =
        "records 1 to 2 were pruned on 2026-09-21 14:17:20 UTC by root: this begins with record 3";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    let output = fake.run(&["why", "titan01"]);
    let said = "(audit records up to 2026-09-21 14:13:20 UTC were pruned; what happened before";
    assert!(stdout(&output).contains(said), "{}", stdout(&output));
}
