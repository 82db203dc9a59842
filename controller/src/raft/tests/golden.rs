//! Files written by earlier versions stay readable, and this version writes the same format.
//!
//! `controller/testdata/v1/` holds a small log, its watermark and a snapshot. A change that makes
//! this test fail either breaks the stores in the field or needs a new format version with a reader
//! for the old one. New golden files are written when `FLEET_WRITE_GOLDEN` is set; existing ones are
//! not to be written again once a version was released.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::sim_disk::{SimDisk, Unsynced};
use super::*;
use crate::disk::Disk;
use crate::raft::codec::{self, StoredLogId, StoredVote};
use crate::raft::journal::{Group, Identity, Journal};
use crate::raft::snapshot::SnapshotFile;
use crate::raft::types::{Entry, SnapshotMeta, StoredMembership};

const BODY: &[u8] = b"{\"v\":1,\"stands\":\"for the state\"}";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/v1")
}

pub(super) fn identity() -> Identity {
    Identity { cluster: CLUSTER.to_owned(), node: 1 }
}

fn id(index: u64) -> StoredLogId {
    StoredLogId { term: 3, node: 1, index }
}

fn membership() -> openraft::Membership<u64, openraft::BasicNode> {
    let nodes = BTreeMap::from([
        (1, openraft::BasicNode::new("10.0.0.1:7001")),
        (2, openraft::BasicNode::new("10.0.0.2:7001")),
    ]);
    openraft::Membership::new(vec![[1].into()], nodes).unwrap()
}

pub(super) fn entries() -> Vec<Entry> {
    let payloads = [
        openraft::EntryPayload::Membership(membership()),
        openraft::EntryPayload::Blank,
        openraft::EntryPayload::Normal(logged(command(7))),
        openraft::EntryPayload::Normal(logged(note(8))),
    ];
    let entry = |(index, payload)| Entry { log_id: id(index).into(), payload };
    (0..).zip(payloads).map(entry).collect()
}

/// One of every kind of record, in two segments, and a snapshot.
fn write() -> BTreeMap<String, Vec<u8>> {
    let disk = SimDisk::default();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (mut journal, _) = Journal::open(Arc::clone(&shared), identity(), true, 300).unwrap();
    let mut group = Group::default();
    group.push_vote(StoredVote { term: 3, node: 1, committed: true }).unwrap();
    for entry in &entries()[..2] {
        group.push_entry(entry.log_id.into(), &codec::encode_entry(entry).unwrap());
    }
    journal.append(&group).unwrap();
    let mut group = Group::default();
    group.push_truncate(Some(id(0))).unwrap();
    for entry in &entries()[1..] {
        group.push_entry(entry.log_id.into(), &codec::encode_entry(entry).unwrap());
    }
    group.push_purge(id(0), id(3)).unwrap();
    journal.append(&group).unwrap();
    journal.set_committed(Some(id(2))).unwrap();
    let (snapshots, _) = SnapshotFile::open(shared, &identity()).unwrap();
    let meta = SnapshotMeta {
        last_log_id: Some(id(1).into()),
        last_membership: StoredMembership::new(Some(id(0).into()), membership()),
    };
    snapshots.write(&meta, BODY).unwrap();
    disk.cut(Unsynced::Kept)
}

pub(super) fn read_folder() -> BTreeMap<String, Vec<u8>> {
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    };
    std::fs::read_dir(folder()).unwrap().map(file).collect()
}

#[test]
fn files_of_version_1_are_read_and_written_unchanged() {
    if std::env::var_os("FLEET_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        for (name, bytes) in write() {
            std::fs::write(folder().join(name), bytes).unwrap();
        }
    }
    let golden = read_folder();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::with_files(&golden));
    let (_, state) = Journal::open(Arc::clone(&disk), identity(), false, 300).unwrap();
    assert_eq!(state.vote, Some(StoredVote { term: 3, node: 1, committed: true }));
    assert_eq!((state.purged, state.last), (Some(id(0)), Some(id(3))));
    assert_eq!(state.committed, Some(id(2)));
    let read: Vec<Entry> = state
        .entries
        .values()
        .map(|(_, place)| codec::decode_entry(&place.read().unwrap()).unwrap())
        .collect();
    assert_eq!(read, entries()[1..]);
    let (_, snapshot) = SnapshotFile::open(disk, &identity()).unwrap();
    let (description, body) = snapshot.unwrap();
    assert_eq!((description.last, &body[..]), (Some(id(1)), BODY));
    let meta = description.to_meta().unwrap();
    assert_eq!(meta.last_membership.membership(), &membership());

    // What holds no command must come out the same to the byte; commands may have gained fields.
    let written = write();
    assert_eq!(written.keys().collect::<Vec<_>>(), golden.keys().collect::<Vec<_>>());
    for name in ["log-0000000000000001.seg", "snapshot"] {
        assert_eq!(
            String::from_utf8_lossy(&written[name]),
            String::from_utf8_lossy(&golden[name]),
            "{name} is written differently now"
        );
    }
}

#[test]
fn a_newer_format_and_an_unknown_command_are_refused_with_the_reason() {
    let mut golden = read_folder();
    let (name, bytes) = golden.iter_mut().find(|(name, _)| name.starts_with("log-")).unwrap();
    // A later version with a right checksum.
    bytes[3] = 2;
    let checksum = crc32fast::hash(&bytes[..36]).to_le_bytes();
    bytes[36..40].copy_from_slice(&checksum);
    let name = name.clone();
    let disk = SimDisk::with_files(&golden);
    let refused = Journal::open(Arc::new(disk), identity(), false, 300).map(|_| ()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(&name) && text.contains("version 2"), "{text}");

    let line = codec::encode_entry(&entries()[2]).unwrap();
    let newer = String::from_utf8(line).unwrap().replace("\"init\"", "\"fly_to_the_moon\"");
    let refused = codec::decode_entry(newer.as_bytes()).unwrap_err();
    assert!(refused.contains("fly_to_the_moon"), "{refused}");
}
