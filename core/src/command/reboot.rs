//! Commands about reboots that wait until their node is empty.

use serde::{Deserialize, Serialize};

use crate::name::NodeName;

/// What an admin can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootCommand {
    /// As soon as nothing runs there and nobody holds anything; the node is drained for it. The reason may be empty.
    Ask { node: NodeName, reason: String },
    /// Cancels the reboot. The node is as it was before.
    Cancel { node: NodeName },
}

impl RebootCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            RebootCommand::Ask { .. } => "reboot_node",
            RebootCommand::Cancel { .. } => "cancel_reboot",
        }
    }
}
