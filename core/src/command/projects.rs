//! Commands about projects and the shares that they are due.

use serde::{Deserialize, Serialize};

use crate::name::ProjectName;
use crate::project::ProjectChange;
use crate::time::Millis;

/// What an admin can say of projects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectCommand {
    /// A new one, with its first members.
    Create { name: ProjectName, first: ProjectChange },
    /// Changes one that is there.
    Set { name: ProjectName, change: ProjectChange },
    /// One that nothing open counts for.
    Remove { name: ProjectName },
    /// How fast use fades, for all.
    SetHalfLife { half_life: Millis },
}

impl ProjectCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            ProjectCommand::Create { .. } => "create_project",
            ProjectCommand::Set { .. } => "set_project",
            ProjectCommand::Remove { .. } => "remove_project",
            ProjectCommand::SetHalfLife { .. } => "set_half_life",
        }
    }
}
