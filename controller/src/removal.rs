//! Noticing that this controller was removed from its fleet: then it stops, instead of asking for
//! votes for ever.
//!
//! `server.rs` waits for [`noticed`]. Only another controller can say so: the own log may not hold the
//! removal, and must not be believed while the others still need this one's vote to carry it out.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::Context;
use crate::peers::Silent;

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(2);
/// While a leader was heard this lately, nobody is asked.
const LEADER_SILENT: Duration = Duration::from_secs(4);

/// Returns when another controller says that this one was removed.
pub async fn noticed(context: Context) {
    loop {
        tokio::time::sleep(PERIOD).await;
        if context.raft.leader_silence().is_some_and(|silent| silent < LEADER_SILENT) {
            continue;
        }
        let me = context.raft.node();
        let members = context.raft.members();
        let mut others: BTreeMap<u64, String> = context.raft.read(|fsm| {
            let known = fsm.roster().members().values();
            known.map(|member| (member.id, member.address.clone())).collect()
        });
        others.extend(members.voters);
        others.remove(&me);
        for (id, address) in others {
            if context.peers.figures(id, &address).await == Err(Silent::RemovedMe) {
                return;
            }
        }
    }
}
