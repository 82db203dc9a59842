//! Noticing that this controller was removed from its fleet: then it stops, instead of asking for
//! votes for ever.
//!
//! `server.rs` waits for [`noticed`]. Only another controller can say so: the own log may not hold the
//! removal, and must not be believed while the others still need this one's vote to carry it out.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::peers::{Peers, Silent};
use crate::raft::RaftHandle;

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(2);
/// While a leader was heard this lately, nobody is asked.
const LEADER_SILENT: Duration = Duration::from_secs(4);

/// How long one that joined may wait for the leader to come before it says what may be wrong.
const STRANGER_MAX: Duration = Duration::from_secs(30);

/// Returns when another controller says that this one was removed. `joined_through` is the address of the one
/// that admitted it: one that was removed before anybody sent it anything knows no other.
pub async fn noticed(raft: RaftHandle, peers: Peers, joined_through: Option<String>) {
    let mut stranger = Some(Instant::now());
    loop {
        tokio::time::sleep(PERIOD).await;
        if raft.leader_silence().is_some_and(|silent| silent < LEADER_SILENT) {
            continue;
        }
        let me = raft.node();
        let members = raft.members();
        let mut others: BTreeMap<u64, String> = raft.read(|fsm| {
            let known = fsm.roster().members().values();
            known.map(|member| (member.id, member.address.clone())).collect()
        });
        others.extend(members.voters);
        others.remove(&me);
        match &joined_through {
            Some(address) if others.is_empty() => {
                if stranger.is_some_and(|since| since.elapsed() > STRANGER_MAX) {
                    stranger = None;
                    tracing::warn!(
                        through = address,
                        "no controller has sent anything since this one (id {me}) joined. If `fleet controller list` does not name it, it was removed: stop it, and join with an empty data_dir. Otherwise the others do not reach its address"
                    );
                }
                // The controller that is at this address now knows who was removed.
                others.insert(0, address.clone());
            }
            Some(_) | None => stranger = None,
        }
        for (id, address) in others {
            if peers.figures(id, &address).await == Err(Silent::RemovedMe) {
                return;
            }
        }
    }
}
