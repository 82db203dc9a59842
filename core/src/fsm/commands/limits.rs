//! Commands about how much people may reserve.

use super::{Act, Rule, admin};
use crate::actor::Actor;
use crate::command::LimitsCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for LimitsCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        admin(actor)
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            LimitsCommand::Set { group, limits } => fsm.set_limits(turn, group, *limits),
            LimitsCommand::Remove { group } => fsm.remove_limits(turn, group),
            LimitsCommand::SetApprovers { change } => fsm.set_approvers(turn, change),
        }
    }
}
