//! Commands about single GPUs, all of them an admin's.

use serde::{Deserialize, Serialize};

use crate::name::GpuUuid;

/// About one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuCommand {
    /// An operator vouches that nothing runs on the GPU any more.
    DeclareFree { gpu: GpuUuid, reason: String },
    /// What the GPU still carries of a fault that is over does not count any more.
    Clear { gpu: GpuUuid, reason: String },
    /// A lost card does not come back; with `replace`, as soon as another one is in its slot.
    Forget { gpu: GpuUuid, reason: String, replace: bool },
}

impl GpuCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            GpuCommand::DeclareFree { .. } => "declare_gpu_free",
            GpuCommand::Clear { .. } => "clear_gpu",
            GpuCommand::Forget { .. } => "forget_gpu",
        }
    }
}
