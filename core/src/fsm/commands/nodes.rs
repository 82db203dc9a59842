//! Commands about nodes.

use super::{Act, Rule, admin, controller, denied, that_node};
use crate::actor::{Actor, AuthMethod};
use crate::command::{NodeCommand, Report};
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for NodeCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            NodeCommand::Join { .. } => match actor.method {
                AuthMethod::JoinToken => Ok("join_token"),
                AuthMethod::LocalSocket
                | AuthMethod::Certificate
                | AuthMethod::Session
                | AuthMethod::Internal => Err(denied("a machine with a join token")),
            },
            NodeCommand::Register { node, .. } | NodeCommand::Report { node, .. } => {
                that_node(actor, node)
            }
            NodeCommand::SetLiveness { .. } | NodeCommand::Suspend { .. } => controller(actor),
            NodeCommand::Cordon { .. }
            | NodeCommand::Uncordon { .. }
            | NodeCommand::Drain { .. }
            | NodeCommand::Enforce { .. }
            | NodeCommand::RemoveImages { .. } => admin(actor),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        match self {
            NodeCommand::Report { reports, .. } => reports.iter().any(may_change_the_plan),
            NodeCommand::Register { .. }
            | NodeCommand::SetLiveness { .. }
            | NodeCommand::Suspend { .. }
            | NodeCommand::Cordon { .. }
            | NodeCommand::Uncordon { .. }
            | NodeCommand::Drain { .. } => true,
            NodeCommand::Join { .. }
            | NodeCommand::Enforce { .. }
            | NodeCommand::RemoveImages { .. } => false,
        }
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            NodeCommand::Join { id, node, machine } => {
                fsm.redeem_join_token(turn, id, node, machine)
            }
            NodeCommand::Register { node, facts } => fsm.register_node(turn, node, facts),
            NodeCommand::Report { node, reports } => fsm.report_node(turn, node, reports),
            NodeCommand::SetLiveness { node, liveness, silent_for } => {
                fsm.set_liveness(turn, node, *liveness, *silent_for)
            }
            NodeCommand::Suspend { node, reason } => fsm.suspend_node(turn, node, reason),
            NodeCommand::Cordon { node, reason } => fsm.cordon_node(turn, node, reason),
            NodeCommand::Uncordon { node } => fsm.uncordon_node(turn, node),
            NodeCommand::Drain { node, reason, deadline } => {
                fsm.drain_node(turn, node, reason, *deadline)
            }
            NodeCommand::Enforce { node, mode } => fsm.enforce_node(turn, node, *mode),
            NodeCommand::RemoveImages { node, image } => {
                fsm.order_images_removal(turn, node, image.as_deref())
            }
        }
    }
}

fn may_change_the_plan(report: &Report) -> bool {
    match report {
        Report::Ended { .. }
        | Report::Released { .. }
        | Report::Conditions { .. }
        | Report::Found(_)
        | Report::Holdings { .. }
        | Report::Facts { .. }
        | Report::Window(_)
        // A release may wait for this word.
        | Report::Idle { .. }
        | Report::StoppedAlone { .. } => true,
        Report::Enforcement(_)
        | Report::Reboot { .. }
        | Report::Use { .. }
        | Report::GpuUse(_)
        | Report::Holders { .. }
        | Report::Started { .. }
        | Report::DeferralTaken { .. }
        | Report::Checkpoint { .. }
        | Report::CheckpointChanged { .. }
        | Report::CheckpointNoted { .. }
        | Report::FilesRemoved { .. }
        | Report::Resumed { .. } => false,
        // A place that is held for it may not be one.
        Report::Probed { problem, .. } => problem.is_some(),
    }
}
