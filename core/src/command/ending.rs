//! Commands about how windows end.

use serde::{Deserialize, Serialize};

use crate::ending::EndPolicy;
use crate::id::ReservationId;
use crate::idle::IdleChange;
use crate::stored::is_default;
use crate::time::Millis;

/// Commands about how windows end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndingCommand {
    /// What is not said stays.
    SetRules {
        at_end: Option<EndPolicy>,
        no_show: Option<Millis>,
        grace: Option<Millis>,
        #[serde(default, skip_serializing_if = "is_default")]
        idle: IdleChange,
    },
    /// Of one reservation.
    SetAtEnd { id: ReservationId, at_end: EndPolicy },
}

impl EndingCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            EndingCommand::SetRules { .. } => "set_reservation_rules",
            EndingCommand::SetAtEnd { .. } => "set_reservation_at_end",
        }
    }
}
