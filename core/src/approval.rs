//! Approval: a reservation above a limit waits until an approver says yes.
//!
//! The types of this subject. Such a reservation is on the waiting list, holds nothing, and is not served until then
//! (`fsm/approval.rs`; docs/adr/0069-above-a-limit-somebody-approves.md).

use serde::{Deserialize, Serialize};

use crate::id::ReservationId;
use crate::name::UserName;
use crate::people::People;
use crate::reservation::GpuRequest;
use crate::time::{Millis, Timestamp};

/// What the owner of a reservation above a limit asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// What it is needed for, as its owner said.
    pub reason: String,
    /// What it was refused for without approval.
    pub above: String,
    /// Who approved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_by: Option<String>,
}

/// What happened about approvals. That one was denied, or lapsed, is the end of its wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalEvent {
    Asked {
        reservation: ReservationId,
        owner: UserName,
        gpus: GpuRequest,
        length: Millis,
        latest_start: Timestamp,
        reason: String,
        above: String,
    },
    Given {
        reservation: ReservationId,
        by: String,
    },
    /// Who may approve, beside admins.
    ApproversSet {
        now: People,
        before: People,
        by: String,
    },
}

impl ApprovalEvent {
    /// The reservation that the event is about.
    pub fn reservation(&self) -> Option<&ReservationId> {
        match self {
            ApprovalEvent::Asked { reservation, .. } | ApprovalEvent::Given { reservation, .. } => {
                Some(reservation)
            }
            ApprovalEvent::ApproversSet { .. } => None,
        }
    }
}
