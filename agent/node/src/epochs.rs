//! Under which epochs this node has seen GPUs and allocations granted, and whether an order is out of date by that.
//!
//! A lower epoch is refused; an equal one with the equal lease is the same order, sent again. The agent's fence
//! (`agent/src/fence/epochs.rs`) keeps the lines on the disk, and asks before each start.

use std::collections::BTreeMap;

use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::lease::Epoch;
use fleet_core::name::GpuUuid;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Allocations whose own epoch is remembered; older ones are covered by the floor.
pub const ALLOCATIONS_MAX: usize = 5_000;

/// A start that wants to happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    pub gpus: Vec<GpuUuid>,
}

/// Why a start must not happen.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("{what} was granted under epoch {}.{} already, this order is from {}.{}", seen.incarnation, seen.index, claimed.incarnation, claimed.index)]
    Lower { what: String, seen: Epoch, claimed: Epoch },
    #[error("{gpu} is under lease {lease} of the same epoch")]
    OtherLease { gpu: GpuUuid, lease: String },
    #[error("epochs cannot be made durable: {0}")]
    Disk(String),
}

impl ClaimError {
    /// Whether the order is out of date, in contrast to a node that cannot carry it out.
    pub fn is_stale(&self) -> bool {
        !matches!(self, ClaimError::Disk(_))
    }
}

/// One fact on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochLine {
    Claim {
        v: u32,
        claim: Claim,
    },
    /// Allocations below it are not remembered one by one any more.
    Floor {
        v: u32,
        epoch: Epoch,
    },
    /// The newest grant of a GPU whose allocation is not remembered any more.
    Gpu {
        v: u32,
        gpu: GpuUuid,
        epoch: Epoch,
        lease: Option<LeaseId>,
    },
}

impl EpochLine {
    /// Whether a later version of fleet wrote it, and which.
    pub fn newer(&self) -> Option<u32> {
        let (EpochLine::Claim { v, .. } | EpochLine::Floor { v, .. } | EpochLine::Gpu { v, .. }) =
            self;
        (*v > VERSION).then_some(*v)
    }
}

/// The newest claim of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Granted {
    epoch: Epoch,
    lease: Option<LeaseId>,
}

/// What is remembered of all claims, by what they were for.
#[derive(Debug, Default)]
pub struct SeenEpochs {
    gpus: BTreeMap<GpuUuid, Granted>,
    allocations: BTreeMap<AllocationId, Epoch>,
    floor: Epoch,
}

impl SeenEpochs {
    /// `Ok(true)`: new; `Ok(false)`: the same order again.
    fn check(&self, claim: &Claim) -> Result<bool, ClaimError> {
        let lower = |what: String, seen| ClaimError::Lower { what, seen, claimed: claim.epoch };
        for gpu in &claim.gpus {
            let Some(grant) = self.gpus.get(gpu) else { continue };
            if claim.epoch < grant.epoch {
                return Err(lower(gpu.to_string(), grant.epoch));
            }
            if claim.epoch == grant.epoch && claim.lease != grant.lease {
                let lease = grant.lease.as_ref().map_or("none", LeaseId::as_str).to_owned();
                return Err(ClaimError::OtherLease { gpu: gpu.clone(), lease });
            }
        }
        match self.allocations.get(&claim.allocation) {
            Some(seen) if claim.epoch < *seen => Err(lower(claim.allocation.to_string(), *seen)),
            Some(seen) if claim.epoch == *seen => {
                Ok(claim.gpus.iter().any(|gpu| !self.gpus.contains_key(gpu)))
            }
            Some(_) => Ok(true),
            None if claim.epoch < self.floor => {
                Err(lower(claim.allocation.to_string(), self.floor))
            }
            None => Ok(true),
        }
    }

    /// Checks claims that wait at the same time. A good one that is new comes with the line that has to be on the disk, and
    /// be taken, before anything starts under it; one that is the same order again has none.
    pub fn judge(&self, claims: &[Claim]) -> Vec<Result<Option<EpochLine>, ClaimError>> {
        let mut judged: Vec<Result<Option<EpochLine>, ClaimError>> = Vec::new();
        for claim in claims {
            // Two of one batch may want the same GPU: the later one must see the earlier one.
            let earlier = judged.iter().filter_map(|one| one.as_ref().ok()?.as_ref());
            let rival = earlier.filter_map(|line| conflict(line, claim)).next();
            let new = rival.map_or_else(|| self.check(claim), Err);
            let line = || EpochLine::Claim { v: VERSION, claim: claim.clone() };
            judged.push(new.map(|new| new.then(line)));
        }
        judged
    }

    /// Remembers a line that is on the disk.
    pub fn take(&mut self, line: EpochLine) {
        match line {
            EpochLine::Floor { epoch, .. } => self.floor = self.floor.max(epoch),
            EpochLine::Gpu { gpu, epoch, lease, .. } => {
                self.gpus.insert(gpu, Granted { epoch, lease });
            }
            EpochLine::Claim { claim, .. } => {
                let Claim { allocation, epoch, lease, gpus } = claim;
                for gpu in gpus {
                    self.gpus.insert(gpu, Granted { epoch, lease: lease.clone() });
                }
                self.allocations.insert(allocation, epoch);
            }
        }
    }

    /// Forgets the oldest allocations, raising the floor to what was forgotten.
    pub fn shorten(&mut self) {
        let excess = self.allocations.len().saturating_sub(ALLOCATIONS_MAX);
        let mut by_age: Vec<(Epoch, AllocationId)> =
            self.allocations.iter().map(|(id, epoch)| (*epoch, id.clone())).collect();
        by_age.sort();
        for (epoch, id) in by_age.into_iter().take(excess) {
            self.floor = self.floor.max(epoch);
            self.allocations.remove(&id);
        }
    }

    /// All of it as lines, as few as possible.
    pub fn lines(&self) -> Vec<EpochLine> {
        let mut lines = vec![EpochLine::Floor { v: VERSION, epoch: self.floor }];
        let claim = |claim| EpochLine::Claim { v: VERSION, claim };
        lines.extend(self.allocations.iter().map(|(allocation, epoch)| {
            let allocation = allocation.clone();
            claim(Claim { allocation, epoch: *epoch, lease: None, gpus: Vec::new() })
        }));
        lines.extend(self.gpus.iter().map(|(gpu, grant)| {
            let (gpu, epoch, lease) = (gpu.clone(), grant.epoch, grant.lease.clone());
            EpochLine::Gpu { v: VERSION, gpu, epoch, lease }
        }));
        lines
    }
}

fn conflict(line: &EpochLine, claim: &Claim) -> Option<ClaimError> {
    let EpochLine::Claim { claim: earlier, .. } = line else { return None };
    let gpu = claim.gpus.iter().find(|gpu| earlier.gpus.contains(gpu))?;
    if earlier.lease == claim.lease && earlier.epoch == claim.epoch {
        return None;
    }
    let lease = earlier.lease.as_ref().map_or("none", LeaseId::as_str).to_owned();
    Some(ClaimError::OtherLease { gpu: gpu.clone(), lease })
}

#[cfg(test)]
mod tests;
