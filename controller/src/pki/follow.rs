//! Keeps what listeners obey in step with the replicated state: which certificates are revoked.
//!
//! One task for each controller, leader or not, spawned by `server.rs` before it listens. It only follows; who
//! is revoked is decided by the state machine.

use std::collections::BTreeSet;

use fleet_proto::transport::Revocations;

use crate::raft::RaftHandle;

/// Takes over what is known now, so that nobody slips in; the future does so until the state machine is gone.
pub fn revocations(raft: RaftHandle, list: Revocations) -> impl Future<Output = ()> + Send {
    let mut applied = raft.applied();
    applied.borrow_and_update();
    let mut followed = take_over(&raft, &list, None);
    async move {
        while applied.changed().await.is_ok() {
            applied.borrow_and_update();
            followed = take_over(&raft, &list, followed);
        }
    }
}

/// Replaces the list if another one is wanted than `followed`; says which one it is now.
fn take_over(raft: &RaftHandle, list: &Revocations, followed: Option<u64>) -> Option<u64> {
    let version = raft.read(|fsm| fsm.access().version);
    if followed != Some(version) {
        let revoked: BTreeSet<String> =
            raft.read(|fsm| fsm.access().revoked.keys().cloned().collect());
        tracing::info!(certificates = revoked.len(), "revoked certificates are refused");
        list.replace(revoked);
    }
    Some(version)
}
