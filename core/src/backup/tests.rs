//! A backup reads back as it was written, in pieces of any length; changed or cut anywhere it is
//! refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::actor::{Actor, AuthMethod, Who};
use crate::audit;
use crate::audit::prune::{KEEP_MIN, Prune};
use crate::command::{AuditCommand, ClusterCommand, Command, ENVELOPE_VERSION, Envelope};
use crate::id::ClusterId;
use crate::name::UserName;
use crate::state::Fsm;

const GOLDEN: &[u8] = include_bytes!("../../testdata/backup-v1");

/// A state with a few audit records, and their lines.
fn state() -> (Fsm, String) {
    let mut fsm = Fsm::new();
    let mut lines = String::new();
    for n in 1..=3 {
        let envelope = Envelope {
            v: ENVELOPE_VERSION,
            actor: Actor::controller(),
            proposed_at: Timestamp(1_000 + n),
            request: None,
            command: Command::Cluster(ClusterCommand::Init {
                cluster: ClusterId::parse("fleet-test").unwrap(),
                incarnation: n,
            }),
        };
        let record = fsm.apply(n, &envelope).audit.unwrap();
        lines.push_str(&record.line);
        lines.push('\n');
    }
    (fsm, lines)
}

fn manifest(fsm: &Fsm) -> Manifest {
    let (seq, hash) = fsm.audit_head();
    Manifest {
        v: BACKUP_VERSION,
        cluster: "fleet-test".to_owned(),
        incarnation: fsm.incarnation(),
        cluster_version: fsm.cluster_version(),
        made_at: Timestamp(1_800_000_000_000),
        controller: 1,
        fleet: "0.1.0".to_owned(),
        term: 1,
        index: fsm.applied(),
        controllers: BTreeMap::from([(1, "10.0.0.1:7443".to_owned())]),
        state_bytes: fsm.to_snapshot().len() as u64,
        audit_records: seq,
        audit_pruned: fsm.audit_pruned().map_or(0, |pruned| pruned.through),
        audit_head: hash.unwrap_or_default().to_owned(),
        files: vec!["ca.crt".to_owned(), "ca.key".to_owned()],
    }
}

fn written(manifest: &Manifest, fsm: &Fsm, lines: &str) -> Vec<u8> {
    let (mut writer, mut bytes) = Writer::begin(manifest).unwrap();
    bytes.extend(writer.file("ca.crt", b"certificate"));
    bytes.extend(writer.file("ca.key", b"a key\n\nwith line feeds\n"));
    for piece in fsm.to_snapshot().chunks(100) {
        bytes.extend(writer.state(piece));
    }
    bytes.extend(writer.audit(lines));
    bytes.extend(writer.end());
    bytes
}

fn backup() -> Vec<u8> {
    let (fsm, lines) = state();
    written(&manifest(&fsm), &fsm, &lines)
}

fn read(bytes: &[u8], piece: usize) -> Result<Checked, BackupError> {
    let (mut parser, mut check) = (Parser::new(), Check::new());
    for piece in bytes.chunks(piece) {
        for part in parser.feed(piece)? {
            check.part(part)?;
        }
    }
    parser.finish()?;
    check.finish()
}

#[test]
fn it_reads_back_in_pieces_of_any_length() {
    let (fsm, _) = state();
    let bytes = backup();
    for piece in [1, 2, 7, 64, 1_000, bytes.len()] {
        let checked = read(&bytes, piece).unwrap();
        assert_eq!(checked.fsm.to_snapshot(), fsm.to_snapshot());
        assert_eq!(checked.manifest, manifest(&fsm));
        assert_eq!(checked.files["ca.key"], b"a key\n\nwith line feeds\n");
    }
}

#[test]
fn every_cut_and_every_flipped_byte_is_refused() {
    let bytes = backup();
    for at in 0..bytes.len() {
        assert!(read(&bytes[..at], 512).is_err(), "cut at {at}");
        for mask in [0x01, 0x20, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= mask;
            assert!(read(&damaged, 512).is_err(), "byte {at} mask {mask:#x}");
        }
    }
    let mut longer = bytes.clone();
    longer.push(b'\n');
    assert!(read(&longer, 512).is_err());
}

/// A right checksum over parts that do not belong together is not enough.
#[test]
fn parts_that_contradict_each_other_are_refused() {
    let (fsm, lines) = state();
    let good = manifest(&fsm);
    let refused = |manifest: &Manifest, lines: &str| {
        let bytes = written(manifest, &fsm, lines);
        let error = read(&bytes, 512).map(|_| ()).unwrap_err();
        assert!(matches!(error, BackupError::Contradiction(_)), "{error}");
    };
    refused(&Manifest { incarnation: 9, ..good.clone() }, &lines);
    refused(&Manifest { cluster: "fleet-other".to_owned(), ..good.clone() }, &lines);
    refused(&Manifest { audit_records: 2, ..good.clone() }, &lines);
    refused(&Manifest { state_bytes: 1, ..good.clone() }, &lines);
    refused(&Manifest { files: vec!["ca.crt".to_owned()], ..good.clone() }, &lines);
    let all: Vec<&str> = lines.split_inclusive('\n').collect();
    refused(&good, &all[..2].concat());
    refused(&good, &all[1..].concat());
    refused(&good, &[all[0], all[2]].concat());
    refused(&good, "");
    refused(&good, &lines.replace("1001", "1009"));
}

#[test]
fn a_newer_one_a_foreign_one_and_a_long_part_are_refused_with_the_reason() {
    let newer =
        String::from_utf8(backup()).unwrap().replacen("fleet-backup 1", "fleet-backup 2", 1);
    assert_eq!(read(newer.as_bytes(), 512).unwrap_err(), BackupError::TooNew { found: 2 });
    for foreign in ["", "x", "fleet-backup\n", "PK\u{3}\u{4} something else\n"] {
        assert_eq!(read(foreign.as_bytes(), 512).unwrap_err(), BackupError::NotABackup);
    }
    for line in [
        format!("part state {}", PART_BYTES_MAX + 1),
        "part state -1".to_owned(),
        "part file:../../etc/passwd 3".to_owned(),
        "part moon 3".to_owned(),
        "x".repeat(500),
    ] {
        let text = format!("fleet-backup 1\n{line}\n");
        let error = read(text.as_bytes(), 512).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { at: 15, .. }), "{line:.20}: {error}");
    }
}

/// The backup holds what is kept, and the state says what that continues.
#[test]
fn a_backup_of_a_pruned_log_begins_with_the_first_record_that_was_kept() {
    let (mut fsm, lines) = state();
    let first = lines.lines().next().and_then(audit::unseal).map(|(_, hash)| hash.to_owned());
    let prune = Prune { through: 1, hash: first.unwrap(), until: Timestamp(1_001) };
    let envelope = Envelope {
        v: ENVELOPE_VERSION,
        actor: Actor {
            who: Who::User {
                name: UserName::parse("root").unwrap(),
                admin: true,
                groups: [].into(),
            },
            method: AuthMethod::LocalSocket,
            serial: None,
        },
        proposed_at: Timestamp(1_003) + KEEP_MIN,
        request: None,
        command: Command::Audit(AuditCommand::Prune(prune)),
    };
    let anchor = fsm.apply(4, &envelope).audit.unwrap();
    let all = format!("{lines}{}\n", anchor.line);
    let kept = all.split_once('\n').unwrap().1;
    let good = manifest(&fsm);
    let checked = read(&written(&good, &fsm, kept), 512).unwrap();
    assert_eq!((checked.manifest.audit_pruned, checked.manifest.audit_records), (1, 4));
    assert_eq!(checked.manifest.audit_records_here(), 3);

    // The state names another hash than the one that the first record continues.
    let Command::Audit(AuditCommand::Prune(prune)) = &envelope.command else { panic!() };
    let prune = Prune { hash: "0a".repeat(32), ..prune.clone() };
    let mut other = state().0;
    let other_anchor = Envelope { command: Command::Audit(AuditCommand::Prune(prune)), ..envelope };
    let other_anchor = other.apply(4, &other_anchor).audit.unwrap();
    let torn = kept.replacen(&anchor.line, &other_anchor.line, 1);
    let error = read(&written(&manifest(&other), &other, &torn), 512).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("does not continue record 1"), "{error}");

    let behind = kept.split_once('\n').unwrap().1;
    for (manifest, lines) in [
        (&good, all.as_str()),
        (&good, behind),
        (&Manifest { audit_pruned: 0, ..good.clone() }, kept),
    ] {
        let error = read(&written(manifest, &fsm, lines), 512).map(|_| ()).unwrap_err();
        assert!(matches!(error, BackupError::Contradiction(_)), "{error}");
    }
}

/// A backup of version 1 stays readable, and is written the same.
#[test]
fn the_backup_of_version_1_can_be_read() {
    let checked = read(GOLDEN, 512).unwrap();
    assert_eq!(checked.manifest.incarnation, 3);
    assert_eq!(checked.fsm.applied(), 3);
    assert_eq!(checked.files.len(), 2);
    assert_eq!(GOLDEN.split(|b| *b == b'\n').next(), backup().split(|b| *b == b'\n').next());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "writes the golden file when asked")]
fn make_golden_backup_when_asked() {
    let Some(folder) = std::env::var_os("FLEET_MAKE_GOLDEN") else { return };
    std::fs::write(std::path::PathBuf::from(folder).join("backup-v1"), backup()).unwrap();
}
