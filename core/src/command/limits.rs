//! Commands about how much people may reserve.

use serde::{Deserialize, Serialize};

use crate::limits::ReservationLimits;
use crate::name::GroupName;
use crate::people::PeopleChange;

/// What an admin can say of limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitsCommand {
    /// In place of those that the group had.
    Set { group: GroupName, limits: ReservationLimits },
    /// The group has none any more.
    Remove { group: GroupName },
    /// Who may approve what is above a limit.
    SetApprovers { change: PeopleChange },
}

impl LimitsCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            LimitsCommand::Set { .. } => "set_reservation_limits",
            LimitsCommand::Remove { .. } => "remove_reservation_limits",
            LimitsCommand::SetApprovers { .. } => "set_approvers",
        }
    }
}
