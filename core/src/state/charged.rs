//! What an attempt counts for in its owner's share, as far as only commands change it.
//!
//! Kept with each node's [`Standing`](super::standing::Standing): all that runs in a large fleet is read for each plan, and
//! the job and the lease of each attempt would have to be searched every time.

use super::Fsm;
use crate::allocation::Allocation;
use crate::fair_share::{Rate, UseOf};
use crate::id::JobId;
use crate::name::{ProjectName, UserName};
use crate::time::Timestamp;

/// An attempt outside of reservations, which holds a part of the fleet for somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) job: JobId,
    pub(crate) project: ProjectName,
    pub(crate) owner: UserName,
    rate: Rate,
    started_at: Option<Timestamp>,
    /// By when it is over; `None` while that depends on when it begins.
    ends_by: Option<Timestamp>,
}

impl Charged {
    /// Nothing for one whose reservation is charged instead.
    pub(crate) fn of(fsm: &Fsm, a: &Allocation) -> Option<Self> {
        let job = fsm.job(&a.job).filter(|_| !is_within_a_reservation(fsm, a))?;
        Some(Self {
            job: job.id.clone(),
            project: job.spec.project.clone(),
            owner: job.owner.clone(),
            rate: Rate::of(a.gpus.len(), a.cpu_millis),
            started_at: a.started_at,
            ends_by: ends_by(a),
        })
    }

    /// What it uses until its end.
    pub(crate) fn use_of(&self, fsm: &Fsm) -> UseOf {
        let now = fsm.now();
        let not_begun = || now + fsm.job(&self.job).map(|job| job.time_left()).unwrap_or_default();
        let to = self.ends_by.unwrap_or_else(not_begun);
        UseOf { rate: self.rate, from: self.started_at.unwrap_or(now), to }
    }
}

/// By when an attempt outside of reservations is over, once that is known.
pub(crate) fn ends_by(a: &Allocation) -> Option<Timestamp> {
    a.stop.as_ref().map(|stop| stop.at + stop.grace).or(a.time_limit_at)
}

/// Its reservation is charged, and it is not.
pub(crate) fn is_within_a_reservation(fsm: &Fsm, allocation: &Allocation) -> bool {
    match allocation.lease.as_ref() {
        Some(id) => fsm.lease(id).is_some_and(|lease| lease.parent.is_some()),
        // Without GPUs it is where it said that it wants to be.
        None => fsm.job(&allocation.job).is_some_and(|job| job.spec.reservation.is_some()),
    }
}
