//! After a restore: controllers of before that are started again hear that the fleet goes on without them.
//!
//! Agents look for the addresses that the restored controllers told them, and might never come to an old one.
//! So the leader calls where the old controllers were; whoever is of an earlier incarnation stops
//! (`superseded.rs`).

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;

use crate::api::Context;

/// Between two calls. Until one comes through, an old controller may promise what no node hears of.
const PERIOD: Duration = Duration::from_secs(5);

pub(super) async fn run(context: Context) {
    loop {
        let (old, incarnation) = context.raft.read(|fsm| {
            let restored = fsm.restored().map(|restored| restored.controllers.clone());
            let members = fsm.roster().members().values();
            let mine: BTreeSet<&String> = members.map(|member| &member.address).collect();
            let mut old = restored.unwrap_or_default();
            // Before it is on the roster itself it would call itself.
            old.retain(|address| !mine.is_empty() && !mine.contains(address));
            (old, fsm.incarnation())
        });
        join_all(old.iter().map(async |address| {
            if context.peers.tell_incarnation(address, incarnation).await {
                tracing::warn!(
                    address,
                    "a controller of before the restore was there; it was told"
                );
            }
        }))
        .await;
        tokio::time::sleep(PERIOD).await;
    }
}
