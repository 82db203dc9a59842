//! Stays: somebody had GPUs of one node for a while.
//!
//! The event that ends a stay holds all of it, so that a report needs no other record to count it, and no prune of older
//! records makes it wrong. `fsm/stays.rs` makes them of leases; `usage.rs` adds them up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::ReservationId;
use crate::lease::{Account, LeaseHolder};
use crate::name::{NodeName, UserName};
use crate::time::{Timestamp, Window};

/// An attempt or a reservation had these GPUs from then until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stay {
    pub holder: LeaseHolder,
    pub owner: UserName,
    pub account: Account,
    /// The reservation that an attempt was in: its GPUs are counted there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ReservationId>,
    pub node: NodeName,
    /// How many GPUs of each model.
    pub models: BTreeMap<String, u32>,
    pub from: Timestamp,
    pub until: Timestamp,
    /// The part of the stay whose work a fault of the node or an eviction destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Window>,
}

impl Stay {
    /// The job or the reservation, by its id.
    pub fn of(&self) -> &str {
        match &self.holder {
            LeaseHolder::Allocation(attempt) => attempt.job().as_str(),
            LeaseHolder::Reservation(id) => id.as_str(),
        }
    }
}
