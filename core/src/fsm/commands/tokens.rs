//! Commands about the right to join.

use super::{Act, Rule, admin};
use crate::actor::Actor;
use crate::command::TokenCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for TokenCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        admin(actor)
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            TokenCommand::ForNodes(wish) => fsm.create_join_token(turn, wish),
            TokenCommand::ForController(wish) => fsm.create_controller_token(turn, wish),
            TokenCommand::Withdraw { token } => fsm.withdraw_token(turn, token),
        }
    }
}
