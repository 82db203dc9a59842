//! Commands about notices by mail.

use super::{Act, Rule, controller, owner_or_admin};
use crate::actor::Actor;
use crate::command::NoticeCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for NoticeCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            NoticeCommand::Set { user, .. } => owner_or_admin(actor, Some(user)),
            NoticeCommand::Told(_) => controller(actor),
        }
    }

    fn check(&self, fsm: &Fsm, actor: &Actor) -> Result<(), Rejection> {
        match self {
            NoticeCommand::Set { user, change } => fsm.check_notices(actor, user, change),
            NoticeCommand::Told(_) => Ok(()),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            NoticeCommand::Set { user, change } => fsm.set_notices(turn, user, change),
            NoticeCommand::Told(told) => fsm.note_told(told),
        }
    }
}
