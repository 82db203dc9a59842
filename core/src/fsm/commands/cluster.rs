//! Commands about the cluster as a whole.

use super::{Act, Rule, admin, controller};
use crate::actor::Actor;
use crate::command::ClusterCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for ClusterCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            ClusterCommand::ResetClock { .. } | ClusterCommand::ThawEvictions => admin(actor),
            ClusterCommand::Init { .. }
            | ClusterCommand::SetVersion { .. }
            | ClusterCommand::AdvanceTime
            | ClusterCommand::CheckState { .. } => controller(actor),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        match self {
            ClusterCommand::AdvanceTime
            | ClusterCommand::ResetClock { .. }
            | ClusterCommand::ThawEvictions => true,
            ClusterCommand::Init { .. }
            | ClusterCommand::SetVersion { .. }
            | ClusterCommand::CheckState { .. } => false,
        }
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            ClusterCommand::Init { cluster, incarnation } => {
                fsm.init_cluster(turn, cluster, *incarnation)
            }
            ClusterCommand::SetVersion { version } => fsm.set_cluster_version(turn, *version),
            ClusterCommand::AdvanceTime => fsm.advance_time(turn),
            ClusterCommand::ResetClock { to } => fsm.reset_clock(turn, *to),
            ClusterCommand::ThawEvictions => fsm.thaw_evictions(turn),
            // Compared by the shell, which knows what this replica had; the state does not change.
            ClusterCommand::CheckState { .. } => Ok(Reply::Done),
        }
    }
}
