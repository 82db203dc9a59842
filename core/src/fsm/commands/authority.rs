//! Commands about the exchange of the certificate authority.

use super::{Act, Rule, admin, controller};
use crate::actor::Actor;
use crate::command::AuthorityCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for AuthorityCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            AuthorityCommand::StartRotation { .. }
            | AuthorityCommand::SkipInRotation { .. }
            | AuthorityCommand::AbortRotation => admin(actor),
            AuthorityCommand::BeginMoving { .. }
            | AuthorityCommand::NoteMoved { .. }
            | AuthorityCommand::FinishRotation { .. } => controller(actor),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            AuthorityCommand::StartRotation { from, to } => fsm.start_rotation(turn, from, to),
            AuthorityCommand::BeginMoving { controllers } => fsm.begin_moving(turn, controllers),
            AuthorityCommand::NoteMoved { nodes } => fsm.note_moved(turn, nodes),
            AuthorityCommand::SkipInRotation { nodes, users } => {
                fsm.skip_in_rotation(turn, nodes, *users)
            }
            AuthorityCommand::FinishRotation { controllers } => {
                fsm.finish_rotation(turn, controllers)
            }
            AuthorityCommand::AbortRotation => fsm.abort_rotation(turn),
        }
    }
}
