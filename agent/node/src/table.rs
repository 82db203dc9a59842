//! What this node knows of its attempts: plain data, kept by the reconcile task, read by the plan.

use std::collections::BTreeMap;

use fleet_core::desired::StartOrder;
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::lease::Epoch;
use fleet_core::name::GpuUuid;
use fleet_core::time::Millis;

/// Where an attempt is, as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptPhase {
    /// Its start is under way.
    Starting,
    Running,
    /// No process of it is left.
    Ended,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    /// What it was started by; `None` for one that was never started here.
    pub order: Option<Box<StartOrder>>,
    pub phase: AttemptPhase,
    /// The shortest grace in any order to stop it.
    pub stop_grace: Option<Millis>,
    /// The last deferral order answered.
    pub deferral: Option<u32>,
    /// The last request of a person passed on.
    pub asked: Option<u32>,
    /// Number of its newest checkpoint.
    pub checkpoint_seq: u64,
}

impl Row {
    pub fn starting(epoch: Epoch, lease: Option<LeaseId>, order: StartOrder) -> Self {
        Self {
            epoch,
            lease,
            order: Some(Box::new(order)),
            phase: AttemptPhase::Starting,
            stop_grace: None,
            deferral: None,
            asked: None,
            checkpoint_seq: 0,
        }
    }

    /// One that never ran here: known only so that its end can be said.
    pub fn never_started(epoch: Epoch, lease: Option<LeaseId>) -> Self {
        Self {
            epoch,
            lease,
            order: None,
            phase: AttemptPhase::Ended,
            stop_grace: None,
            deferral: None,
            asked: None,
            checkpoint_seq: 0,
        }
    }

    pub fn is_live(&self) -> bool {
        self.phase != AttemptPhase::Ended
    }

    pub fn gpus(&self) -> &[GpuUuid] {
        self.order.as_ref().map_or(&[], |order| &order.gpus)
    }
}

/// How far the release of a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    Proving,
    /// Proven empty and said so.
    Released,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Table {
    pub rows: BTreeMap<AllocationId, Row>,
    /// Leases that are being ended, under which epoch.
    pub releases: BTreeMap<LeaseId, (Epoch, Release)>,
    /// Orders that were refused for good, so that each is refused aloud only once.
    pub refused: BTreeMap<AllocationId, Epoch>,
}

impl Table {
    /// The live attempt that has this GPU, other than `id`.
    pub fn occupant(&self, gpu: &GpuUuid, id: &AllocationId) -> Option<&AllocationId> {
        self.rows
            .iter()
            .find(|(other, row)| *other != id && row.is_live() && row.gpus().contains(gpu))
            .map(|(other, _)| other)
    }

    /// Whether a live attempt runs under this lease, or on its GPUs.
    pub fn in_use(&self, lease: &LeaseId, gpus: &[GpuUuid]) -> bool {
        self.rows.values().filter(|row| row.is_live()).any(|row| {
            row.lease.as_ref() == Some(lease) || row.gpus().iter().any(|gpu| gpus.contains(gpu))
        })
    }
}
