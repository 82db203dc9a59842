//! Hostile bytes for what controllers keep on disk and send each other: refused or read, never a panic.

use std::collections::BTreeMap;

use fleet_hostile_bytes::throw_at;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};

use super::golden::{entries, identity, read_folder};
use super::sim_disk::SimDisk;
use super::*;
use crate::disk::Disk;
use crate::raft::codec;
use crate::raft::journal::Journal;
use crate::raft::member_report::MemberReport;
use crate::raft::snapshot::SnapshotFile;
use crate::raft::types::{SnapshotMeta, TypeConfig, Vote};

/// The golden store, one of its files damaged: how many entries can still be read of it, and whether its snapshot can.
fn opened(files: &BTreeMap<String, Vec<u8>>, name: &str, bytes: &[u8]) -> (usize, bool) {
    let mut files = files.clone();
    files.insert(name.to_owned(), bytes.to_vec());
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::with_files(&files));
    let snapshot = SnapshotFile::open(Arc::clone(&disk), &identity());
    let snapshot = snapshot.is_ok_and(|(_, read)| read.is_some());
    let Ok((_, state)) = Journal::open(disk, identity(), false, 300) else { return (0, snapshot) };
    let places = state.entries.values();
    let read = places
        .filter(|(_, place)| place.read().is_ok_and(|line| codec::decode_entry(&line).is_ok()))
        .count();
    (read, snapshot)
}

#[test]
fn files_of_the_store() {
    let files = read_folder();
    for name in ["log-0000000000000001.seg", "log-0000000000000002.seg", "snapshot", "watermark"] {
        let good = files.get(name).unwrap();
        let (whole, snapshot) = opened(&files, name, good);
        assert!(whole > 0 && snapshot, "{name}: {whole} entries, a snapshot: {snapshot}");
        throw_at(&[good], |bytes| {
            let (read, snapshot) = opened(&files, name, bytes);
            assert!(read <= whole, "{name}: entries came from nowhere");
            read == whole && snapshot
        });
    }
}

#[test]
fn entries_of_the_log() {
    let good: Vec<Vec<u8>> =
        entries().iter().map(|entry| codec::encode_entry(entry).unwrap()).collect();
    throw_at(&good, |bytes| codec::decode_entry(bytes).is_ok());
}

#[test]
fn messages_of_other_controllers() {
    let request = AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(3, 1),
        prev_log_id: None,
        leader_commit: None,
        entries: entries(),
    };
    let vote = VoteRequest::<TypeConfig>::new(Vote::new(3, 1), None);
    let good = [serde_json::to_vec(&request).unwrap(), serde_json::to_vec(&vote).unwrap()];
    throw_at(&good, |bytes| {
        drop(serde_json::from_slice::<AppendEntriesResponse<TypeConfig>>(bytes));
        drop(serde_json::from_slice::<VoteResponse<TypeConfig>>(bytes));
        drop(serde_json::from_slice::<SnapshotMeta>(bytes));
        drop(serde_json::from_slice::<MemberReport>(bytes));
        serde_json::from_slice::<AppendEntriesRequest<TypeConfig>>(bytes).is_ok()
            | serde_json::from_slice::<VoteRequest<TypeConfig>>(bytes).is_ok()
    });
}
