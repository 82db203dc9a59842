//! Leases: the right to use given GPUs now, fenced by an epoch that the node checks.
//!
//! A lease ends only by a fact about the GPU (proven empty and released, a new boot, an operator's
//! word), never by the passing of time.

use serde::{Deserialize, Serialize};

pub use crate::id::Epoch;
use crate::id::{AllocationId, LeaseId, ReservationId};
use crate::name::{ClassName, GpuUuid, NodeName, ProjectName, UserName};
use crate::time::{Timestamp, Window};

/// On whose behalf a lease is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseHolder {
    Reservation(ReservationId),
    Allocation(AllocationId),
}

/// For which project and class GPUs are held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub project: ProjectName,
    /// `None`: of a reservation, which has no class. A job within one counts for the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassName>,
}

/// What a node says of an end, and when the controllers heard it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndHeard {
    pub at: Timestamp,
    pub heard: Timestamp,
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
    /// Its time counts from here: a window that its node opened alone may be older than its lease.
    pub held_from: Timestamp,
    /// For which project and class its time counts.
    pub account: Account,
    /// When its node says that the attempt or the window ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndHeard>,
    /// The part of the attempt whose work a fault of the node or an eviction destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Window>,
}
