//! Commands about projects and the shares that they are due.

use super::{Act, Rule, admin};
use crate::actor::Actor;
use crate::command::ProjectCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for ProjectCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        admin(actor)
    }

    /// The order of the queue, and with it the job whose place is kept.
    fn may_change_the_plan(&self) -> bool {
        true
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            ProjectCommand::Create { name, first } => fsm.create_project(turn, name, first),
            ProjectCommand::Set { name, change } => fsm.set_project(turn, name, change),
            ProjectCommand::Remove { name } => fsm.remove_project(turn, name),
            ProjectCommand::SetHalfLife { half_life } => fsm.set_half_life(turn, *half_life),
        }
    }
}
