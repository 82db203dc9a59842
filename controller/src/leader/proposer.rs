//! Proposes commands of the leader itself.

use fleet_core::command::Command;
use fleet_core::{Actor, Fsm};

use super::RETRY_PAUSE;
use crate::clock::LeaderClock;
use crate::raft::{ProposeError, RaftHandle};

/// Proposes as the controller, by the leader's clock. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Proposer {
    pub(super) raft: RaftHandle,
    pub(super) clock: LeaderClock,
}

impl Proposer {
    /// Proposes it. A failure is logged; the loops look at the state again anyway.
    pub(super) async fn propose(&self, command: Command) -> bool {
        let action = command.name();
        let envelope =
            self.clock.envelope(self.raft.read(Fsm::now), Actor::controller(), None, command);
        match self.raft.propose(envelope).await {
            Ok(applied) => {
                if let Err(rejection) = applied.reply {
                    tracing::warn!(action, %rejection, "the state refused the leader's own command");
                    tokio::time::sleep(RETRY_PAUSE).await;
                    return false;
                }
                true
            }
            Err(error) => {
                match error {
                    // Just before these loops end.
                    ProposeError::NotLeader { .. } => {
                        tracing::info!(action, %error, "not proposed")
                    }
                    _ => tracing::warn!(action, %error, "proposal failed"),
                }
                tokio::time::sleep(RETRY_PAUSE).await;
                false
            }
        }
    }
}
