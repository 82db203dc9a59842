//! Commands about who is a controller.

use super::{Act, Rule, admin, controller, denied};
use crate::actor::{Actor, AuthMethod};
use crate::command::ControllerCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for ControllerCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            ControllerCommand::Remove { .. } => admin(actor),
            ControllerCommand::Admit(wish) => match (actor.method, &wish.token) {
                (AuthMethod::JoinToken, Some(_)) => Ok("join_token"),
                (AuthMethod::Internal, None) => controller(actor),
                (
                    AuthMethod::JoinToken
                    | AuthMethod::Internal
                    | AuthMethod::LocalSocket
                    | AuthMethod::Certificate
                    | AuthMethod::Session,
                    _,
                ) => Err(denied("a machine with a token for controllers")),
            },
        }
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            ControllerCommand::Admit(wish) => fsm.admit_controller(turn, wish),
            ControllerCommand::Remove { id } => fsm.remove_controller(turn, *id),
        }
    }
}
