//! Commands about the audit log itself.

use serde::{Deserialize, Serialize};

use crate::audit::prune::Prune;

/// Refused requests, in batches, so that a flood cannot fill the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequests {
    pub principal: String,
    pub action: String,
    pub code: String,
    pub count: u64,
}

/// About the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditCommand {
    RecordRefusals {
        refusals: Vec<RefusedRequests>,
    },
    /// The oldest audit records leave the controllers.
    Prune(Prune),
}

impl AuditCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            AuditCommand::RecordRefusals { .. } => "record_refusals",
            AuditCommand::Prune(_) => "prune_audit",
        }
    }
}
