//! Places that a plan keeps: others may run there until then, or on what a place leaves of its node.

use super::shares::Room;
use crate::id::JobId;
use crate::state::bits::Bits;
use crate::state::wish::GpuSet;
use crate::time::Timestamp;

/// A place that is kept for a job that had to wait. Others may use it until then, or use what it leaves.
#[derive(Debug, Clone)]
pub(super) struct Shadow {
    pub(super) job: Option<JobId>,
    pub(super) node: usize,
    pub(super) starts_at: Timestamp,
    pub(super) gpus: GpuSet,
    /// What the kept place leaves of the node from then on.
    pub(super) left: Room,
}

impl Shadow {
    /// Whether this place of somebody else is in the way of a job that is on the node until then.
    pub(super) fn is_in_the_way(&self, job: Option<&JobId>, until: Timestamp, node: usize) -> bool {
        // The node first: it is asked of every node, and a name takes longer to compare.
        let is_own = || job.is_some() && self.job.as_ref() == job;
        self.node == node && until > self.starts_at && !is_own()
    }
}

/// Places, in the order in which they were kept.
#[derive(Debug, Default)]
pub(super) struct Shadows {
    all: Vec<Shadow>,
    /// The nodes with one: a plan asks of every node, and places are kept on few.
    nodes: Bits,
}

impl Shadows {
    pub(super) fn add(&mut self, shadow: Shadow) {
        self.nodes.set(shadow.node, true);
        self.all.push(shadow);
    }

    pub(super) fn any_on(&self, node: usize) -> bool {
        self.nodes.contains(node)
    }

    pub(super) fn get(&self, number: usize) -> Option<&Shadow> {
        self.all.get(number)
    }

    pub(super) fn last(&self) -> Option<&Shadow> {
        self.all.last()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Shadow> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shadow> {
        self.all.iter_mut()
    }
}
