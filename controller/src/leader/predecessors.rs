//! After a restore, tells controllers from before it that are started again: the fleet continues without them.
//!
//! Agents look for the addresses that the restored controllers told them, and might never come to an old one.
//! So the leader calls where the old controllers were; a controller of an earlier incarnation stops
//! (`superseded.rs`).

use std::collections::BTreeSet;
use std::time::Duration;

use fleet_core::Fsm;
use futures::future::join_all;

use crate::peers::Peers;
use crate::raft::RaftHandle;

/// Between two calls. Until one comes through, an old controller may promise what no node hears of.
const PERIOD: Duration = Duration::from_secs(5);

pub(super) async fn run(raft: RaftHandle, peers: Peers) {
    let mut named = BTreeSet::new();
    loop {
        let (old, incarnation) = raft.read(|fsm| (old_addresses(fsm), fsm.incarnation()));
        let answers = old.into_iter().map(async |address| {
            let theirs = peers.tell_incarnation(&address, incarnation).await?;
            (theirs < incarnation).then_some(address)
        });
        for address in join_all(answers).await.into_iter().flatten() {
            // One of an earlier build does not end by it, and answers each time.
            if named.insert(address.clone()) {
                tracing::warn!(
                    address,
                    "a controller of before the restore runs there, and hears that it is to end"
                );
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Where controllers of before were, but for those that are members again.
fn old_addresses(fsm: &Fsm) -> Vec<String> {
    // A backup that somebody tries out has no nodes, and must end nobody.
    let is_tried_out = fsm.uncounted().count() == fsm.nodes().len();
    let members: BTreeSet<&String> =
        fsm.roster().members().values().map(|member| &member.address).collect();
    // Before this controller is on the roster it would call itself.
    if is_tried_out || members.is_empty() {
        return Vec::new();
    }
    let restored = fsm.restored().map(|restored| restored.controllers.clone());
    let mut old = restored.unwrap_or_default();
    old.retain(|address| !members.contains(address));
    old
}
