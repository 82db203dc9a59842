//! Commands about classes of jobs.

use super::{Act, Rule, admin};
use crate::actor::Actor;
use crate::command::ClassCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for ClassCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        admin(actor)
    }

    /// The order of the queue, and whose place may be taken.
    fn may_change_the_plan(&self) -> bool {
        true
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            ClassCommand::Create { name, first } => fsm.create_class(turn, name, first),
            ClassCommand::Set { name, change } => fsm.set_class(turn, name, change),
            ClassCommand::Remove { name } => fsm.remove_class(turn, name),
        }
    }
}
