//! Commands about nodes: what admins decide, what the leader sees, what agents report.
//!
//! Removing a node and its certificates is in `access.rs`, rebooting it in `reboot.rs`.

use serde::{Deserialize, Serialize};

use crate::id::TokenId;
use crate::name::NodeName;
use crate::node::{Liveness, MachineIdentity, NodeFacts};
use crate::time::{Millis, Timestamp};
use crate::window::Enforcement;

use super::Report;

/// About one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeCommand {
    /// A machine joins as this node, with a join token.
    Join {
        id: TokenId,
        node: NodeName,
        machine: MachineIdentity,
    },
    /// The agent begins a session.
    Register {
        node: NodeName,
        facts: Box<NodeFacts>,
    },
    Report {
        node: NodeName,
        reports: Vec<Report>,
    },
    /// `silent_for` is how long the leader has heard nothing, on its monotonic clock.
    SetLiveness {
        node: NodeName,
        liveness: Liveness,
        silent_for: Millis,
    },
    Suspend {
        node: NodeName,
        reason: String,
    },
    Cordon {
        node: NodeName,
        reason: String,
    },
    /// Also ends a drain and lifts a suspension.
    Uncordon {
        node: NodeName,
    },
    Drain {
        node: NodeName,
        reason: String,
        deadline: Option<Timestamp>,
    },
    /// How the node holds people to their reservations.
    Enforce {
        node: NodeName,
        mode: Enforcement,
    },
    /// On record before the node hears of it: one image of the node, or all that nothing needs.
    RemoveImages {
        node: NodeName,
        image: Option<String>,
    },
}

impl NodeCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            NodeCommand::Join { .. } => "redeem_join_token",
            NodeCommand::Register { .. } => "register_node",
            NodeCommand::Report { .. } => "report_node",
            NodeCommand::SetLiveness { .. } => "set_liveness",
            NodeCommand::Suspend { .. } => "suspend_node",
            NodeCommand::Cordon { .. } => "cordon_node",
            NodeCommand::Uncordon { .. } => "uncordon_node",
            NodeCommand::Drain { .. } => "drain_node",
            NodeCommand::Enforce { .. } => "enforce_node",
            NodeCommand::RemoveImages { .. } => "order_images_removal",
        }
    }
}
