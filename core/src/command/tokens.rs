//! Commands about join tokens: the right of a machine to join.

use serde::{Deserialize, Serialize};

use crate::id::TokenId;
use crate::name::NodeName;
use crate::time::Millis;

/// A right to join, for the named nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateJoinToken {
    pub id: TokenId,
    pub secret_sha256: String,
    pub names: Vec<NodeName>,
    pub ttl: Millis,
}

/// A right to join, for one more controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateControllerToken {
    pub id: TokenId,
    pub secret_sha256: String,
    pub ttl: Millis,
}

/// About the right to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenCommand {
    ForNodes(CreateJoinToken),
    ForController(CreateControllerToken),
    /// Nobody joins with it any more. Machines that have joined stay.
    Withdraw {
        token: TokenId,
    },
}

impl TokenCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            TokenCommand::ForNodes(_) => "create_join_token",
            TokenCommand::ForController(_) => "create_controller_token",
            TokenCommand::Withdraw { .. } => "withdraw_token",
        }
    }
}
