//! Leases: the right to use given GPUs now, fenced by an epoch that the node checks.
//!
//! A lease ends only by a fact about the GPU (proven empty and released, a new boot, an operator's
//! word), never by the passing of time.

use serde::{Deserialize, Serialize};

use crate::id::{AllocationId, LeaseId, ReservationId};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::time::Timestamp;

/// Orders grants: a higher epoch is a later grant. Restoring a backup raises `incarnation`, so that
/// grants made after it are higher than all that were made before.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    pub incarnation: u64,
    /// Index of the log entry that made the grant.
    pub index: u64,
}

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
    /// Set once the agent has been told to end it.
    pub ending_since: Option<Timestamp>,
}
