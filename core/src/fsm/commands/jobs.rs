//! Commands about jobs.

use super::{Act, Rule, admin, any_user, controller, owner_or_admin};
use crate::actor::Actor;
use crate::command::JobCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for JobCommand {
    fn who_may(&self, fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            JobCommand::Submit(_) => any_user(actor),
            JobCommand::Cancel { id }
            | JobCommand::Restart { id, .. }
            | JobCommand::Hold { id }
            | JobCommand::ReleaseHold { id }
            | JobCommand::SetTimeLimit { id, .. }
            | JobCommand::SetClass { id, .. }
            | JobCommand::Remove { id }
            | JobCommand::AskCheckpoint { id } => {
                owner_or_admin(actor, fsm.job(id).map(|job| &job.owner))
            }
            JobCommand::Place { .. } | JobCommand::KeepPlaces { .. } | JobCommand::Preempt(_) => {
                controller(actor)
            }
            JobCommand::SetDefaults(_) => admin(actor),
        }
    }

    fn check(&self, fsm: &Fsm, actor: &Actor) -> Result<(), Rejection> {
        match self {
            JobCommand::Submit(wish) => fsm.check_job(actor, wish),
            JobCommand::Cancel { id } => fsm.cancellable(id).map(|_| ()),
            JobCommand::Hold { id } => fsm.holdable(id).map(|_| ()),
            JobCommand::ReleaseHold { id } => fsm.check_release(actor, id),
            JobCommand::Restart { .. }
            | JobCommand::SetTimeLimit { .. }
            | JobCommand::SetClass { .. }
            | JobCommand::Remove { .. }
            | JobCommand::AskCheckpoint { .. }
            | JobCommand::Place { .. }
            | JobCommand::KeepPlaces { .. }
            | JobCommand::Preempt(_)
            | JobCommand::SetDefaults(_) => Ok(()),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        match self {
            JobCommand::Submit(_)
            | JobCommand::Cancel { .. }
            | JobCommand::Restart { .. }
            | JobCommand::Hold { .. }
            | JobCommand::ReleaseHold { .. }
            | JobCommand::SetTimeLimit { .. }
            | JobCommand::SetClass { .. }
            | JobCommand::Place { .. }
            | JobCommand::KeepPlaces { .. }
            | JobCommand::Preempt(_) => true,
            JobCommand::Remove { .. }
            | JobCommand::AskCheckpoint { .. }
            | JobCommand::SetDefaults(_) => false,
        }
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            JobCommand::Submit(wish) => fsm.submit_job(turn, wish),
            JobCommand::Cancel { id } => fsm.cancel_job(turn, id),
            JobCommand::Restart { id, from, time_limit } => {
                fsm.restart_job(turn, id, *from, *time_limit)
            }
            JobCommand::Hold { id } => fsm.hold_job(turn, id),
            JobCommand::ReleaseHold { id } => fsm.release_job(turn, id),
            JobCommand::SetTimeLimit { id, time_limit } => {
                fsm.set_time_limit(turn, id, *time_limit)
            }
            JobCommand::Remove { id } => fsm.remove_job(turn, id),
            JobCommand::AskCheckpoint { id } => fsm.ask_checkpoint(turn, id),
            JobCommand::Place { placements } => Ok(fsm.place_jobs(turn, placements)),
            JobCommand::SetClass { id, class } => fsm.set_job_class(turn, id, class),
            JobCommand::Preempt(order) => fsm.preempt(turn, order),
            JobCommand::KeepPlaces { kept, look_at } => {
                fsm.kept_places.clone_from(kept);
                fsm.look_at = *look_at;
                Ok(Reply::Done)
            }
            JobCommand::SetDefaults(change) => fsm.set_job_defaults(turn, *change),
        }
    }
}
