//! An export verifies; any change to it is noticed and the line is named.

use super::*;
use crate::actor::Actor;
use crate::audit::export::{Exporter, Format};
use crate::audit::{prune, seal};
use crate::event::Event;
use crate::time::Timestamp;

fn chain(length: u64) -> Vec<AuditRecord> {
    let mut prev = GENESIS.to_owned();
    (1..=length)
        .map(|seq| {
            let record = seal(AuditBody {
                v: AUDIT_VERSION,
                seq,
                log_index: 10 + seq,
                at: Timestamp(1_795_252_500_000 + seq),
                actor: Actor::controller(),
                action: "set_cluster_version".to_owned(),
                request: Some(format!("req \"{seq}\"")),
                allowed_by: Some("controller".to_owned()),
                refused: None,
                objects: vec![format!("job-{seq}"), "titan01".to_owned()],
                events: vec![Event::ClusterVersionSet { version: 1 }],
                prev: prev.clone(),
            });
            prev.clone_from(&record.hash);
            record
        })
        .collect()
}

fn export(records: &[AuditRecord], format: Format, filtered: bool) -> Vec<String> {
    let mut exporter = Exporter::new(format, "fleet-a", Timestamp(9), filtered);
    let mut lines: Vec<String> = exporter.header().map(str::to_owned).into_iter().collect();
    for record in records {
        let line = exporter.record(record);
        lines.push(line);
    }
    lines.push(exporter.trailer(None));
    lines
}

fn verify(lines: &[String]) -> Result<Summary, VerifyError> {
    verify_text(&(lines.join("\n") + "\n"), None)
}

const FORMATS: [Format; 2] = [Format::JsonLines, Format::Csv];

#[test]
fn an_export_verifies_whole_from_the_middle_and_empty() {
    let records = chain(5);
    for format in FORMATS {
        let whole = verify(&export(&records, format, false)).expect("untouched");
        assert_eq!((whole.count, whole.first_seq, whole.last_seq), (5, 1, 5));
        assert!(whole.from_genesis && !whole.filtered);
        let part = verify(&export(&records[2..], format, false)).expect("untouched");
        assert_eq!((part.count, part.first_seq, part.from_genesis), (3, 3, false));
        assert_eq!(verify(&export(&[], format, false)).expect("empty").count, 0);
    }
}

#[test]
fn every_changed_byte_is_noticed_in_its_line() {
    for format in FORMATS {
        let lines = export(&chain(3), format, false);
        for (i, line) in lines.iter().enumerate() {
            for at in 0..line.len() {
                for mask in [0x01, 0x02, 0x20] {
                    let mut bytes = line.clone().into_bytes();
                    bytes[at] ^= mask;
                    let Ok(changed) = String::from_utf8(bytes) else { continue };
                    let mut all = lines.clone();
                    all[i] = changed.clone();
                    let fault = verify(&all).expect_err(&format!("{changed:?}"));
                    // A line end in place of a byte makes two lines of one; a changed first or last
                    // line can also be noticed by what follows it.
                    let expected = i as u64 + 1;
                    assert!(
                        fault.line == expected || fault.line == expected + 1,
                        "changed line {expected} byte {at}, but {fault}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_removed_a_swapped_a_repeated_and_a_missing_last_line_are_named() {
    for format in FORMATS {
        let lines = export(&chain(5), format, false);
        // The first line that carries a record.
        let base = lines.len() - 6;
        let fault = |change: &dyn Fn(&mut Vec<String>)| {
            let mut changed = lines.clone();
            change(&mut changed);
            verify(&changed).expect_err("changed")
        };
        let removed = fault(&|l| drop(l.remove(base + 2)));
        assert_eq!(removed.why, Fault::Gap { after: 2, found: 4 });
        assert_eq!(removed.line, base as u64 + 3);
        let swapped = fault(&|l| l.swap(base + 1, base + 2));
        assert_eq!(swapped.why, Fault::Order { after: 1, found: 3 });
        assert_eq!(swapped.line, base as u64 + 2);
        let repeated = fault(&|l| l.insert(base + 1, l[base].clone()));
        assert_eq!(repeated.why, Fault::Order { after: 1, found: 1 });
        let tail = fault(&|l| drop(l.remove(base + 4)));
        assert!(matches!(tail.why, Fault::Count { .. }), "{tail}");
        let head = fault(&|l| drop(l.remove(base)));
        assert!(matches!(head.why, Fault::Count { .. }), "{head}");
        let end = fault(&|l| l.truncate(base + 3));
        assert_eq!(end.why, Fault::NoTrailer);
        let more = fault(&|l| l.push(l[base].clone()));
        assert_eq!(more.why, Fault::AfterTrailer);
    }
}

#[test]
fn a_replaced_record_with_a_right_hash_of_its_own_breaks_the_chain() {
    let mut records = chain(4);
    let mut body = records[1].body.clone();
    body.action = "cancel_job".to_owned();
    records[1] = seal(body);
    let fault = verify(&export(&records, Format::JsonLines, false)).expect_err("replaced");
    assert_eq!(fault, VerifyError { line: 3, why: Fault::Chain { seq: 3 } });
}

#[test]
fn a_filtered_export_may_have_gaps_but_only_if_it_says_so() {
    let records = chain(5);
    let some = [records[0].clone(), records[3].clone()];
    assert!(verify(&export(&some, Format::Csv, true)).expect("filtered").filtered);
    let fault = verify(&export(&some, Format::Csv, false)).expect_err("not declared");
    assert_eq!(fault.why, Fault::Gap { after: 1, found: 4 });
}

#[test]
fn a_signature_is_demanded_when_a_key_is_given() {
    use crate::audit::export::Signature;
    let make = |bytes: &[u8]| Signature {
        algorithm: "test".to_owned(),
        key: "k1".to_owned(),
        value: hash_of_unsealed(&String::from_utf8_lossy(bytes)),
    };
    let check = |bytes: &[u8], s: &Signature| *s == make(bytes);
    let mut exporter = Exporter::new(Format::JsonLines, "fleet-a", Timestamp(9), false);
    let line = exporter.record(&chain(1)[0]);
    let (signed, plain) = (exporter.trailer(Some(&make)), exporter.trailer(None));
    let summary = verify_text(&format!("{line}\n{signed}\n"), Some(&check)).expect("signed");
    assert_eq!(summary.signed_by.map(|s| s.key), Some("k1".to_owned()));
    let bare = verify_text(&format!("{line}\n{plain}\n"), Some(&check)).expect_err("unsigned");
    assert_eq!(bare.why, Fault::NotSigned);
    let forged = signed.replace("k1", "k2");
    let forged = verify_text(&format!("{line}\n{forged}\n"), Some(&check)).expect_err("forged");
    assert_eq!(forged.why, Fault::Signature);
}

#[test]
fn a_foreign_or_newer_file_is_told_apart() {
    let fault = |text: &str| verify_text(text, None).expect_err("not an export").why;
    assert_eq!(fault("hello\n"), Fault::Header);
    assert_eq!(fault("{\"a\":1}\n"), Fault::NotARecord);
    assert_eq!(fault(""), Fault::NoTrailer);
    let mut body = chain(1)[0].body.clone();
    body.v = 2;
    let newer = seal(body).line;
    assert_eq!(fault(&format!("{newer}\n")), Fault::TooNew { seq: 1, found: 2 });
}

#[test]
fn a_record_that_fits_no_cell_of_a_sheet_verifies_over_its_rows() {
    let mut records = chain(3);
    let mut body = records[1].body.clone();
    body.objects = (0..20_000).map(|number| format!("res-{number:06}")).collect();
    records[1] = seal(body);
    let mut last = records[2].body.clone();
    last.prev.clone_from(&records[1].hash);
    records[2] = seal(last);
    let lines = |lines: Vec<String>| -> Vec<String> {
        lines.iter().flat_map(|rows| rows.split('\n')).map(str::to_owned).collect()
    };
    let rows = lines(export(&records, Format::Csv, false));
    assert!(rows.len() > 10, "{}", rows.len());
    for row in &rows {
        for cell in csv_fields(row).expect("a row") {
            assert!(cell.encode_utf16().count() <= 32_767, "{}", cell.len());
        }
    }
    assert!(rows[2].contains(" more; -o jsonl has all)"), "the objects end with a mark");
    assert_eq!(verify(&rows).expect("untouched").count, 3);
    assert_eq!(verify(&export(&records, Format::JsonLines, false)).expect("untouched").count, 3);
    // A part that is missing, moved or changed is noticed.
    for at in 2..rows.len() - 2 {
        let mut less = rows.clone();
        less.remove(at);
        assert!(verify(&less).is_err(), "without row {at}");
        let mut swapped = rows.clone();
        swapped.swap(at, at + 1);
        assert!(verify(&swapped).is_err(), "row {at} moved");
    }
}

/// Records 1 to 6, where the last one is the anchor of a prune through record 3.
fn pruned_chain() -> Vec<AuditRecord> {
    let mut records = chain(5);
    let (third, last) = (records[2].clone(), records[4].clone());
    let event = Event::AuditPruned {
        through: 3,
        hash: third.hash,
        until: third.body.at,
        records: 3,
        by: "root".to_owned(),
    };
    let body = AuditBody { seq: 6, prev: last.hash, events: vec![event], ..last.body };
    records.push(seal(body));
    records
}

#[test]
fn an_export_that_begins_behind_a_prune_is_checked_against_the_anchor() {
    let records = pruned_chain();
    let pruned = prune::Pruned::of(&records[5].body);
    for format in FORMATS {
        let kept = verify(&export(&records[3..], format, false)).expect("whole");
        assert_eq!((kept.first_seq, kept.from_genesis), (4, false));
        assert_eq!(kept.pruned, pruned);
        // Any other beginning is what it always was.
        for from in [0, 2, 4, 5] {
            let part = verify(&export(&records[from..], format, false)).expect("whole");
            assert_eq!(part.pruned, None, "from record {}", from + 1);
        }
    }
}

#[test]
fn without_the_anchor_among_the_records_the_trailer_names_it() {
    let records = pruned_chain();
    let pruned = prune::Pruned::of(&records[5].body);
    let written = |records: &[AuditRecord], pruned| {
        let mut exporter =
            Exporter::new(Format::JsonLines, "fleet-a", Timestamp(9), false).after(pruned);
        let mut lines: Vec<String> = records.iter().map(|r| exporter.record(r)).collect();
        lines.push(exporter.trailer(None));
        lines
    };
    for kept in [&records[3..5], &[]] {
        let summary = verify(&written(kept, pruned.clone())).expect("whole");
        assert_eq!(summary.pruned, pruned);
    }
    let lines = written(&records[3..], pruned.clone());
    assert!(!lines.last().unwrap().contains("\"pruned\""), "a record says it");
    assert_eq!(verify(&lines).expect("whole").pruned, pruned);
    assert_eq!(verify(&written(&records[3..5], None)).expect("whole").pruned, None);
    // A trailer that names another hash than the first record does.
    let other = pruned.map(|pruned| prune::Pruned { hash: GENESIS.to_owned(), ..pruned });
    let fault = verify(&written(&records[3..5], other)).expect_err("contradicts");
    assert_eq!(fault.why, Fault::Anchor { through: 3, found: 4 });
}

#[test]
fn kept_records_that_do_not_continue_the_pruned_ones_are_noticed() {
    let mut records = pruned_chain().split_off(3);
    // Somebody makes records 4 to 6 again, on another beginning; each hash is right.
    let mut prev = "0b".repeat(32);
    for record in &mut records {
        *record = seal(AuditBody { prev, ..record.body.clone() });
        prev = record.hash.clone();
    }
    for format in FORMATS {
        let fault = verify(&export(&records, format, false)).expect_err("another beginning");
        assert_eq!(fault.why, Fault::Anchor { through: 3, found: 4 });
    }
}
