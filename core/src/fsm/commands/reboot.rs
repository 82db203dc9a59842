//! Commands about reboots.

use super::{Act, Rule, admin};
use crate::actor::Actor;
use crate::command::RebootCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for RebootCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        admin(actor)
    }

    fn may_change_the_plan(&self) -> bool {
        true
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            RebootCommand::Ask { node, reason } => fsm.ask_reboot(turn, node, reason),
            RebootCommand::Cancel { node } => fsm.cancel_reboot(turn, node),
        }
    }
}
