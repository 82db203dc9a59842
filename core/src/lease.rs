//! Leases: the right to use given GPUs now, fenced by an epoch that the node checks.
//!
//! A lease ends only by a fact about the GPU (proven empty and released, a new boot, an operator's
//! word), never by the passing of time.

use serde::{Deserialize, Serialize};

pub use crate::id::Epoch;
use crate::id::{AllocationId, LeaseId, ReservationId};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::time::Timestamp;

/// On whose behalf a lease is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseHolder {
    Reservation(ReservationId),
    Allocation(AllocationId),
}

/// A lease that has not been released yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: LeaseId,
    pub epoch: Epoch,
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    pub owner: UserName,
    pub holder: LeaseHolder,
    /// The reservation's lease that this allocation's lease lives under.
    pub parent: Option<LeaseId>,
    pub granted_at: Timestamp,
    /// Set once the agent has the order to end it.
    pub ending_since: Option<Timestamp>,
}
