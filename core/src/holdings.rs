//! What a node holds, as its agent tells it once after the controllers were restored from a backup.
//!
//! The backup knows nothing of what happened after it. The agents do: each is asked what it runs, what
//! ended there since, and which reservations it received. `fsm::adoption` takes it in.

use serde::{Deserialize, Serialize};

use crate::allocation::EndReport;
use crate::desired::StartOrder;
use crate::id::{AllocationId, LeaseId, ReservationId};
use crate::lease::Epoch;
use crate::name::{GpuUuid, UserName};
use crate::time::Timestamp;

/// One attempt the agent has a record of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundAttempt {
    pub allocation: AllocationId,
    /// The grant it was started by.
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    pub order: StartOrder,
    pub accepted_at: Timestamp,
    /// How it ended, if it has.
    pub end: Option<EndReport>,
}

/// A reservation that the agent received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReservation {
    pub id: ReservationId,
    pub owner: UserName,
    pub gpus: Vec<GpuUuid>,
}
