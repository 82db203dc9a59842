//! openraft's own suite for storage implementations, on the real store in a real folder.

use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{StorageError, storage::RaftLogStorage};

use super::*;
use crate::audit::AuditStore;
use crate::disk::{Disk, RealDisk};
use crate::raft::journal::{Identity, SEGMENT_BYTES};
use crate::raft::log_store::LogStore;
use crate::raft::snapshot::SnapshotFile;
use crate::raft::state_machine::{Apply, StateMachine};
use crate::raft::types::TypeConfig;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, tempfile::TempDir> for Builder {
    async fn build(
        &self,
    ) -> Result<(tempfile::TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity { cluster: CLUSTER.to_owned(), node: 1 };
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        let (snapshots, snapshot) = SnapshotFile::open(Arc::clone(&disk), &identity).unwrap();
        // The suite provokes errors on purpose: the hook must not end the test.
        let hook = FatalHook::with(|_| {});
        let mut log = LogStore::open(disk, identity, true, SEGMENT_BYTES, hook.clone()).unwrap();
        log.get_log_state().await.unwrap();
        let version = fleet_core::command::CLUSTER_VERSION_MAX;
        let audit =
            AuditStore::open(&dir.path().join("audit.redb"), CLUSTER, hook.clone()).unwrap();
        let state_machine =
            StateMachine::restore(snapshots, snapshot, audit, version, Apply::default(), hook)
                .unwrap();
        Ok((dir, log, state_machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_the_suite_of_openraft() {
    Suite::test_all(Builder).await.unwrap();
}
