//! Tests of consensus and its stores. Shared: a controller in a temporary folder, and commands.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::command::{AuditCommand, ClusterCommand, ENVELOPE_VERSION, RefusedRequests};
use fleet_core::id::ClusterId;
use fleet_core::{Actor, Command, Envelope, Timestamp};

use super::logged::Logged;
use super::start::start_with;
use super::{FatalHook, PlaintextConnector, RaftConfig, RaftHandle, StartError, Versions};

mod cluster;
mod crash;
mod damage;
mod failing_disk;
mod golden;
mod hostile;
mod install;
mod pruned;
mod sim_disk;
mod single;
mod stores;
mod suite;
mod upgrade;

pub(super) const CLUSTER: &str = "fleet-test";
/// Generous: the machines that run tests are slow and shared.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A fatal hook that fails the test loudly.
pub(super) fn must_not_stop() -> FatalHook {
    FatalHook::with(|fatal| panic!("the process would have ended: {fatal}"))
}

pub(super) fn config(dir: &Path, create: bool) -> RaftConfig {
    RaftConfig {
        cluster: CLUSTER.to_owned(),
        node: 1,
        dir: dir.to_owned(),
        create,
        members: BTreeMap::from([(1, "127.0.0.1:1".to_owned())]),
        connector: Arc::new(PlaintextConnector),
        versions: Versions::BUILT,
        fatal: must_not_stop(),
    }
}

/// A single voter with the usual sizes.
pub(super) async fn single(dir: &Path, create: bool) -> Result<RaftHandle, StartError> {
    let_go(dir).await;
    super::start(config(dir, create)).await
}

/// Waits until nobody holds the store: a snapshot that was being written when a handle was shut down
/// keeps it until it is done.
async fn let_go(dir: &Path) {
    let held = || matches!(crate::disk::RealDisk::open(dir), Err(super::DiskError::InUse { .. }));
    let free = async {
        while held() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, free).await.expect("the store is released");
}

/// A single voter that makes snapshots and new segments early.
pub(super) async fn single_small(dir: &Path, create: bool) -> Result<RaftHandle, StartError> {
    let_go(dir).await;
    start_with(config(dir, create), 20, 5, 4_096).await
}

/// As it stands in the log.
pub(super) fn logged(envelope: Envelope) -> Logged {
    Logged::new(envelope).unwrap()
}

pub(super) fn envelope(at: u64, command: Command) -> Envelope {
    Envelope {
        v: ENVELOPE_VERSION,
        actor: Actor::controller(),
        proposed_at: Timestamp(at),
        request: None,
        command,
    }
}

/// A command that always changes something, so that it leaves an audit record: a new incarnation.
pub(super) fn command(n: u64) -> Envelope {
    let cluster = ClusterId::parse(CLUSTER).unwrap();
    envelope(1_000 + n, Command::Cluster(ClusterCommand::Init { cluster, incarnation: n }))
}

/// A command that leaves a record with `n` in it, whatever came before.
pub(in crate::raft) fn note(n: u64) -> Envelope {
    let refused = RefusedRequests {
        principal: format!("user:u{n}"),
        action: "submit_job".to_owned(),
        code: "denied".to_owned(),
        count: n,
    };
    envelope(1_000 + n, Command::Audit(AuditCommand::RecordRefusals { refusals: vec![refused] }))
}
