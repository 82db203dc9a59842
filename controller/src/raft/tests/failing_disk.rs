//! The log over a disk that fails: the log calls the fatal hook, and does not touch the disk again.

use std::sync::{Arc, Mutex};

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;

use super::sim_disk::SimDisk;
use super::*;
use crate::fatal::Fatal;
use crate::raft::codec::{StoredLogId, StoredVote};
use crate::raft::journal::Identity;
use crate::raft::log_store::LogStore;
use crate::raft::types::{Entry, TypeConfig};

fn store(disk: &SimDisk, fatal: FatalHook) -> LogStore {
    let identity = Identity { cluster: CLUSTER.to_owned(), node: 1 };
    LogStore::open(Arc::new(disk.clone()), identity, true, 1 << 20, fatal).unwrap()
}

fn entry(index: u64) -> Entry {
    let log_id = StoredLogId { term: 1, node: 1, index }.into();
    Entry { log_id, payload: openraft::EntryPayload::Normal(logged(command(index))) }
}

async fn append(store: &mut LogStore, index: u64) -> std::io::Result<()> {
    let (done, flushed) = TypeConfig::oneshot();
    store.append([entry(index)], IOFlushed::signal(done)).await?;
    tokio::time::timeout(PATIENCE, flushed).await.unwrap().unwrap()
}

#[tokio::test]
async fn after_a_failed_write_or_sync_the_process_ends_and_nothing_is_tried_again() {
    // Each append makes three operations: write, sync, watermark.
    for operation in 0..9 {
        let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
        let hook = Arc::clone(&told);
        let disk = SimDisk::default();
        let mut log = store(&disk, FatalHook::with(move |f| hook.lock().unwrap().push(f.clone())));
        disk.fail_after(operation);
        let mut acknowledged = 0;
        for index in 0..3 {
            acknowledged += u64::from(append(&mut log, index).await.is_ok());
        }
        assert_eq!(acknowledged, operation as u64 / 3, "failing after {operation} operations");
        let told = told.lock().unwrap().clone();
        assert!(matches!(told[..], [Fatal::Store { .. }]), "{told:?}");
        assert_eq!(told[0].exit_code(), crate::raft::EXIT_STORE_FAILED);

        let touched = disk.operations();
        let vote = StoredVote { term: 9, node: 1, committed: false }.into();
        log.save_vote(&vote).await.unwrap_err();
        log.truncate_after(None).await.unwrap_err();
        log.close().await.unwrap_err();
        assert_eq!(disk.operations(), touched, "a failed disk must not be used again");
    }
}

#[tokio::test]
async fn calls_that_wait_together_share_one_sync() {
    let disk = SimDisk::default();
    let mut log = store(&disk, must_not_stop());
    let before = disk.operations();
    let mut flushed = Vec::new();
    for index in 0..500 {
        let (done, receiver) = TypeConfig::oneshot();
        log.append([entry(index)], IOFlushed::signal(done)).await.unwrap();
        flushed.push(receiver);
    }
    for receiver in flushed {
        tokio::time::timeout(PATIENCE, receiver).await.unwrap().unwrap().unwrap();
    }
    let operations = disk.operations() - before;
    assert!(operations < 3 * 500, "{operations} operations for 500 appends: no group was formed");
}
