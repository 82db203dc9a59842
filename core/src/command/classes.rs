//! Commands about classes of jobs.

use serde::{Deserialize, Serialize};

use crate::class::ClassChange;
use crate::name::ClassName;

/// What an admin can say of classes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassCommand {
    Create {
        name: ClassName,
        first: Box<ClassChange>,
    },
    Set {
        name: ClassName,
        change: Box<ClassChange>,
    },
    /// One that no open job is of; not one that is always there.
    Remove {
        name: ClassName,
    },
}

impl ClassCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            ClassCommand::Create { .. } => "create_class",
            ClassCommand::Set { .. } => "set_class",
            ClassCommand::Remove { .. } => "remove_class",
        }
    }
}
