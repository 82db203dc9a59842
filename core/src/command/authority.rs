//! Commands about the exchange of the certificate authority.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::authority::Known;
use crate::name::NodeName;

/// What is decided or recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityCommand {
    /// A new authority was made: from now on it is trusted too.
    StartRotation { from: Known, to: Known },
    /// All these controllers hold the new key: from now on it signs.
    BeginMoving { controllers: BTreeSet<u64> },
    /// These nodes were seen with a certificate of the new authority.
    NoteMoved { nodes: BTreeSet<NodeName> },
    /// The rotation continues without these.
    SkipInRotation { nodes: BTreeSet<NodeName>, users: bool },
    /// All these controllers have a certificate of the new authority: the old one is trusted no more.
    FinishRotation { controllers: BTreeSet<u64> },
    /// Back to the authority before: at once while it signs, by a rotation the other way round afterwards.
    AbortRotation,
}

impl AuthorityCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            AuthorityCommand::StartRotation { .. } => "start_rotation",
            AuthorityCommand::BeginMoving { .. } => "begin_moving",
            AuthorityCommand::NoteMoved { .. } => "note_moved",
            AuthorityCommand::SkipInRotation { .. } => "skip_in_rotation",
            AuthorityCommand::FinishRotation { .. } => "finish_rotation",
            AuthorityCommand::AbortRotation => "abort_rotation",
        }
    }
}
