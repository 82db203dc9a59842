//! Takes the exchange of the certificate authority from step to step, once all that a step waits for are ready.
//!
//! Called by `members_loop` in each round. While no exchange is under way, it does nothing and keeps nothing in
//! memory. The state machine checks each step again.

use std::collections::BTreeSet;

use fleet_core::Fsm;
use fleet_core::authority::{NODES_PER_COMMAND_MAX, Stage};
use fleet_core::command::{AuthorityCommand, Command};
use fleet_core::name::NodeName;

use super::Proposer;
use crate::figures::Figures;
use crate::raft::RaftHandle;
use crate::sessions::Sessions;

/// One look at where it stands, and the step that is due.
pub(super) async fn step(proposer: &Proposer, figures: &Figures, sessions: &Sessions) {
    let raft = &proposer.raft;
    let under_way = raft.read(|fsm| {
        let rotation = fsm.authorities().rotation.as_ref()?;
        Some((rotation.stage, rotation.to.pin.clone()))
    });
    match under_way {
        None => {}
        Some((Stage::Spreading, pin)) => {
            let (controllers, missing) = figures.with_key(&pin).await;
            if missing.is_empty() && covers_roster(raft, &controllers) {
                tracing::info!(pin, "every controller has the new authority's key: it signs now");
                command(proposer, AuthorityCommand::BeginMoving { controllers }).await;
            }
        }
        Some((Stage::Moving, pin)) => {
            let nodes = newly_moved(raft, sessions, &pin);
            if !nodes.is_empty() {
                command(proposer, AuthorityCommand::NoteMoved { nodes }).await;
            }
            if !raft.read(|fsm| fsm.waiting_in_rotation().is_over()) {
                return;
            }
            let (controllers, missing) = figures.moved_to(&pin).await;
            if missing.is_empty() && covers_roster(raft, &controllers) {
                tracing::info!(pin, "nobody needs the old authority: it is trusted no more");
                command(proposer, AuthorityCommand::FinishRotation { controllers }).await;
            }
        }
    }
}

async fn command(proposer: &Proposer, command: AuthorityCommand) {
    // If the command is refused, the next round checks the state again.
    proposer.propose(Command::Authority(command)).await;
}

/// There is a moment in which a new cluster has nobody on its roster.
fn covers_roster(raft: &RaftHandle, controllers: &BTreeSet<u64>) -> bool {
    raft.read(|fsm| {
        let members = fsm.roster().members();
        !members.is_empty() && members.keys().all(|id| controllers.contains(id))
    })
}

/// Nodes that are linked with a certificate of the new authority, and were not noted yet.
fn newly_moved(raft: &RaftHandle, sessions: &Sessions, pin: &str) -> BTreeSet<NodeName> {
    let linked = sessions.certificates();
    let moved = |fsm: &Fsm| {
        let rotation = fsm.authorities().rotation.as_ref()?;
        let issued = &fsm.access().issued;
        let is_new = |(node, serial): &(NodeName, String)| {
            !rotation.nodes.contains(node)
                && issued.get(serial).is_some_and(|issued| issued.authority == pin)
        };
        let found = linked.into_iter().filter(is_new).map(|(node, _)| node);
        Some(found.take(NODES_PER_COMMAND_MAX).collect())
    };
    raft.read(moved).unwrap_or_default()
}
