//! Commands about notices by mail.

use serde::{Deserialize, Serialize};

use crate::name::UserName;
use crate::notice::{NoticeChange, Told};

/// What people want, and what the leader sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeCommand {
    /// For oneself; admins for everybody.
    Set { user: UserName, change: NoticeChange },
    /// The leader sent or dropped the notices of these audit records.
    Told(Told),
}

impl NoticeCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            NoticeCommand::Set { .. } => "set_notices",
            NoticeCommand::Told(_) => "notices_told",
        }
    }
}
