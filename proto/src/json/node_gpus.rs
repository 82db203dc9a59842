//! Defines the JSON of the GPUs of one node, folded: how many are free, and who has the others.

use std::collections::BTreeMap;

use fleet_core::view::GpuState;
use serde::Serialize;

use super::Document;
use super::gpu::Gpu;
use super::values::{Stated, Time};

/// The GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeGpus {
    /// The name of the node.
    pub node: String,
    /// How many GPUs it has.
    pub gpus: usize,
    /// How many of them are free.
    pub gpus_free: usize,
    /// The models of its GPUs, each once.
    pub models: Vec<String>,
    /// How busy each was when it was measured last, in percent, in the order of their numbers; null: not measured.
    pub utilization_percent: Vec<Option<u32>>,
    /// Those that are not free, by who has them and until when.
    pub in_use: Vec<InUse>,
}

/// GPUs of one node that are the same to somebody who looks for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InUse {
    /// Their numbers on the node.
    pub gpus: Vec<u32>,
    /// What they do.
    pub state: Stated<GpuState>,
    /// The user who has them; null: nobody has.
    pub held_by: Option<String>,
    /// The job on them, else the reservation; null: neither.
    pub held_for: Option<String>,
    /// Until when; null: not known.
    pub held_until: Option<Time>,
    /// Why nobody can have them; null: somebody has, or that needs no reason.
    pub reason: Option<String>,
}

impl Document for NodeGpus {
    const SCHEMA: &'static str = "fleet.node_gpus/v1";
    const LIST_SCHEMA: &'static str = "fleet.nodes_gpus/v1";
    const FIELDS: &'static [&'static str] =
        &["node", "gpus", "gpus_free", "models", "utilization_percent", "in_use"];
}

/// Folds a list of GPUs: one item for each node, in the order of their names.
pub fn by_node(gpus: &[Gpu]) -> Vec<NodeGpus> {
    let mut nodes: BTreeMap<&str, NodeGpus> = BTreeMap::new();
    let mut gpus: Vec<&Gpu> = gpus.iter().collect();
    gpus.sort_by_key(|gpu| gpu.index);
    for gpu in gpus {
        let node = nodes.entry(&gpu.node).or_insert_with(|| NodeGpus {
            node: gpu.node.clone(),
            gpus: 0,
            gpus_free: 0,
            models: Vec::new(),
            utilization_percent: Vec::new(),
            in_use: Vec::new(),
        });
        node.add(gpu);
    }
    nodes.into_values().collect()
}

impl NodeGpus {
    fn add(&mut self, gpu: &Gpu) {
        self.gpus += 1;
        let model = gpu.model.iter().filter(|model| !self.models.contains(model)).cloned();
        self.models.extend(model.collect::<Vec<_>>());
        let measured = gpu.in_use.as_ref().and_then(|measured| measured.utilization_percent);
        self.utilization_percent.push(measured);
        if gpu.state.is(GpuState::Free) {
            self.gpus_free += 1;
            return;
        }
        let one = InUse {
            gpus: vec![gpu.index],
            state: gpu.state.clone(),
            held_by: gpu.held_by.clone(),
            held_for: gpu.holder().cloned(),
            held_until: gpu.held_until,
            reason: gpu.reason.clone().filter(|_| gpu.held_by.is_none()),
        };
        let alike = |other: &&mut InUse| {
            InUse { gpus: Vec::new(), ..(**other).clone() }
                == InUse { gpus: Vec::new(), ..one.clone() }
        };
        match self.in_use.iter_mut().find(alike) {
            Some(known) => known.gpus.push(gpu.index),
            None => self.in_use.push(one),
        }
    }
}
