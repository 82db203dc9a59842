//! Commands about the audit log itself.

use super::{Act, Rule, admin, controller};
use crate::actor::Actor;
use crate::command::AuditCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for AuditCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            AuditCommand::RecordRefusals { .. } => controller(actor),
            AuditCommand::Prune(_) => admin(actor),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            AuditCommand::RecordRefusals { refusals } => fsm.record_refusals(turn, refusals),
            AuditCommand::Prune(prune) => fsm.prune_audit(turn, prune),
        }
    }
}
