//! Commands about how windows end.

use super::{Act, Rule, admin, owner_or_admin};
use crate::actor::Actor;
use crate::command::EndingCommand;
use crate::ending::ReservationRules;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for EndingCommand {
    fn who_may(&self, fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            EndingCommand::SetRules { .. } => admin(actor),
            EndingCommand::SetAtEnd { id, .. } => {
                owner_or_admin(actor, fsm.reservation(id).map(|r| &r.owner))
            }
        }
    }

    fn may_change_the_plan(&self) -> bool {
        false
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            EndingCommand::SetRules { at_end, no_show, grace, idle } => {
                let before = fsm.rules;
                let rules = ReservationRules {
                    at_end: at_end.unwrap_or(before.at_end),
                    no_show: no_show.unwrap_or(before.no_show),
                    grace: grace.unwrap_or(before.grace),
                    idle: idle.of(before.idle),
                };
                fsm.set_rules(turn, rules)
            }
            EndingCommand::SetAtEnd { id, at_end } => fsm.set_at_end(turn, id, *at_end),
        }
    }
}
