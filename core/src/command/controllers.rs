//! Commands about the controllers themselves.

use serde::{Deserialize, Serialize};

use crate::id::TokenId;

/// A controller that joins; the first one shows no token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmitController {
    /// Never given before.
    pub id: u64,
    pub address: String,
    pub token: Option<TokenId>,
    /// SHA-256 of its public key, hexadecimal: a retry is recognised by it.
    pub key_sha256: String,
}

/// About who is a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerCommand {
    Admit(AdmitController),
    Remove { id: u64 },
}

impl ControllerCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            ControllerCommand::Admit(_) => "admit_controller",
            ControllerCommand::Remove { .. } => "remove_controller",
        }
    }
}
