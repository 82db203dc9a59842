#![allow(clippy::unwrap_used)]

use fleet_core::audit::export::{Exporter, Format};
use fleet_core::audit::{AUDIT_VERSION, AuditBody, GENESIS, seal};
use fleet_core::{Actor, Event, Timestamp};

use super::*;

/// Three records, as an export.
fn export(format: Format) -> String {
    exported(format, &[1, 2, 3])
}

/// Records up to `last`; those from `fork` on are of another log.
pub(super) fn log(last: u64, fork: u64) -> String {
    let at = |seq| if seq >= fork { seq + 100 } else { seq };
    log_at(&(1..=last).map(at).collect::<Vec<_>>())
}

/// A record for each of these times.
pub(super) fn log_at(times: &[u64]) -> String {
    exported(Format::JsonLines, times)
}

fn exported(format: Format, times: &[u64]) -> String {
    let mut exporter = Exporter::new(format, "fleet-lab", Timestamp(9), false);
    let mut lines: Vec<String> = exporter.header().map(str::to_owned).into_iter().collect();
    let mut prev = GENESIS.to_owned();
    for (seq, at) in (1..).zip(times) {
        let record = seal(AuditBody {
            v: AUDIT_VERSION,
            seq,
            log_index: seq + 6,
            at: Timestamp(*at),
            actor: Actor::controller(),
            action: "advance_time".to_owned(),
            request: None,
            allowed_by: Some("controller".to_owned()),
            refused: None,
            objects: vec!["job-a".to_owned()],
            events: vec![Event::ClusterVersionSet { version: 1 }],
            prev,
        });
        lines.push(exporter.record(&record));
        prev = record.hash;
    }
    lines.push(exporter.trailer(None));
    lines.join("\n") + "\n"
}

fn checked(bytes: &[u8]) -> Result<Summary, Failure> {
    check(bytes, Path::new("log.jsonl"), None)
}

#[test]
fn an_untouched_export_is_whole() {
    for format in [Format::JsonLines, Format::Csv] {
        let text = export(format);
        assert_eq!(checked(text.as_bytes()).unwrap().count, 3);
        // A copy that went through a machine with other line ends is still the same log.
        assert_eq!(checked(text.replace('\n', "\r\n").as_bytes()).unwrap().count, 3);
    }
}

#[test]
fn every_single_changed_byte_is_noticed_and_its_line_named() {
    let text = export(Format::JsonLines);
    for at in 0..text.len() - 1 {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        let failure = checked(&bytes).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed, "byte {at}");
        let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        let named = |line: usize| failure.message.contains(&format!("line {line}"));
        // A line end that became something else spoils the line before or after it.
        assert!(named(line) || named(line + 1), "byte {at}: {}", failure.message);
    }
}

#[test]
fn swapped_dropped_and_endless_lines_are_noticed() {
    let text = export(Format::JsonLines);
    let lines: Vec<&str> = text.lines().collect();
    let fails = |lines: &[&str], said: &str| {
        let failure = checked((lines.join("\n") + "\n").as_bytes()).unwrap_err();
        assert!(failure.message.contains(said), "{said}: {}", failure.message);
    };
    fails(&[lines[0], lines[2], lines[1], lines[3]], "line 2");
    fails(&[lines[0], lines[2], lines[3]], "line 2");
    fails(&[lines[1], lines[2], lines[3]], "line");
    fails(&lines[..3], "no trailer");
    fails(&[&"x".repeat(LINE_BYTES_MAX + 10)], "longer than");
    fails(&["\u{fffd}"], "line 1");
    assert!(checked(b"\xff\xfe\n").unwrap_err().message.contains("not UTF-8"));
    assert!(checked(b"").is_err());
}

#[test]
fn without_a_signature_an_authority_does_not_vouch() {
    let text = export(Format::JsonLines);
    let failure = check(text.as_bytes(), Path::new("-"), Some(&[b"ca".to_vec()])).unwrap_err();
    assert!(failure.message.starts_with("standard input is not a whole audit log"), "{failure:?}");
}

#[test]
fn a_certificate_is_found_in_pem_and_nothing_else() {
    let pem = "x\n-----BEGIN CERTIFICATE-----\nAQID\nBA==\n-----END CERTIFICATE-----\n";
    let one = vec![1, 2, 3, 4];
    assert_eq!(certificates_in(pem), Some(vec![one.clone()]));
    assert_eq!(certificates_in(&format!("{pem}{pem}")), Some(vec![one.clone(), one]));
    for bad in ["", "AQID", "-----BEGIN CERTIFICATE-----\nAQID"] {
        assert_eq!(certificates_in(bad), None);
    }
}
