//! Commands about single GPUs.

use super::{Act, Rule, admin};
use crate::actor::Actor;
use crate::command::GpuCommand;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for GpuCommand {
    fn who_may(&self, _fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        admin(actor)
    }

    fn may_change_the_plan(&self) -> bool {
        match self {
            GpuCommand::DeclareFree { .. } | GpuCommand::Forget { .. } => true,
            // The plan changes when the node reports that it is done.
            GpuCommand::Clear { .. } => false,
        }
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            GpuCommand::DeclareFree { gpu, reason } => fsm.declare_gpu_free(turn, gpu, reason),
            GpuCommand::Clear { gpu, reason } => fsm.clear_gpu(turn, gpu, reason),
            GpuCommand::Forget { gpu, reason, replace } => {
                fsm.forget_gpu(turn, gpu, reason, *replace)
            }
        }
    }
}
