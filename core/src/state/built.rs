//! What a node is made of, as far as placing needs it: its kinds of GPUs, which of them take work, and how near they are.
//!
//! Derived from the node and its GPUs alone. Reservations, leases and attempts change nothing here, so most commands keep
//! what an earlier command worked out. The index and the standing of a node share it.

use super::Fsm;
use super::index::Shape;
use super::topology::Topology;
use super::wish::{GpuSet, Wish, gpus_of, plain_model, unfit};
use crate::node::Node;

/// GPUs of one node that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    /// As it is compared, see `plain_model`.
    pub(crate) model: String,
    pub(crate) memory_bytes: u64,
    pub(crate) gpus: GpuSet,
}

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) gpus: u32,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) shape: Shape,
    /// GPUs that take new work, held or not.
    pub(crate) healthy: GpuSet,
    pub(crate) topology: Topology,
}

impl Built {
    pub(crate) fn of(fsm: &Fsm, node: &Node) -> Self {
        let mut this = Self { topology: Topology::of(fsm, node), ..Self::default() };
        for (at, gpu) in gpus_of(fsm, node).enumerate() {
            let place: GpuSet = 1 << at;
            this.gpus += 1;
            if unfit(node, gpu).is_none() {
                this.healthy |= place;
            }
            let (model, memory_bytes) = (plain_model(&gpu.model), gpu.memory_bytes);
            let same = |kind: &&mut Kind| kind.model == model && kind.memory_bytes == memory_bytes;
            match this.kinds.iter_mut().find(same) {
                Some(kind) => kind.gpus |= place,
                None => this.kinds.push(Kind { model, memory_bytes, gpus: place }),
            }
        }
        let shape = this.kinds.iter();
        let shape = shape.map(|k| (k.model.clone(), k.memory_bytes, k.gpus.count_ones()));
        this.shape = shape.collect();
        this.shape.sort();
        this
    }

    /// All of its GPUs.
    pub(crate) fn all(&self) -> GpuSet {
        GpuSet::MAX.checked_shr(GpuSet::BITS - self.gpus).unwrap_or(0)
    }

    /// The GPUs of the models and memories that are meant, whatever their state.
    pub(crate) fn of_kinds(&self, wish: &Wish<'_>) -> GpuSet {
        let kinds =
            self.kinds.iter().filter(|kind| wish.means_kind(&kind.model, kind.memory_bytes));
        kinds.fold(0, |set, kind| set | kind.gpus)
    }
}
