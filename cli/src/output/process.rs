//! Processes on GPUs, for `top`: who is on them, claim or not.
//!
//! Of the same measurement as the GPUs' own use, so it may be some seconds old.

use std::collections::BTreeMap;

use fleet_proto::json::gpu::Gpu;
use fleet_proto::json::values::{GpuRef, Time, gpu_names};

use super::Column;
use super::values::or_dash;
use crate::sizes::Bytes;

/// A process and all GPUs that it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnGpus {
    pub(crate) pid: u32,
    gpus: Vec<GpuRef>,
    user: Option<String>,
    name: Option<String>,
    memory_used_bytes: u64,
    foreign_since: Option<Time>,
}

/// One line for each process; those that no lease explains come first.
pub(crate) fn on_gpus(gpus: &[Gpu]) -> Vec<OnGpus> {
    let mut found: BTreeMap<(&str, u32), OnGpus> = BTreeMap::new();
    for gpu in gpus {
        for process in gpu.processes() {
            let line = found.entry((&gpu.node, process.pid)).or_insert_with(|| OnGpus {
                pid: process.pid,
                gpus: Vec::new(),
                user: process.user.clone(),
                name: process.name.clone(),
                memory_used_bytes: 0,
                foreign_since: None,
            });
            line.gpus.push(GpuRef::from(gpu));
            line.memory_used_bytes += process.memory_used_bytes;
            let earliest = [line.foreign_since, process.foreign_since].into_iter().flatten();
            line.foreign_since = earliest.min_by_key(|at| at.0);
        }
    }
    let mut lines: Vec<OnGpus> = found.into_values().collect();
    lines.sort_by_key(|line| line.foreign_since.is_none());
    lines
}

impl OnGpus {
    pub(crate) fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GPUS", |p: &Self, _| gpu_names(&p.gpus)),
            Column::new("PID", |p: &Self, _| p.pid.to_string()).right(),
            Column::new("USER", |p: &Self, _| or_dash(p.user.as_ref())),
            Column::new("MEMORY", |p: &Self, _| Bytes(p.memory_used_bytes).to_string()).right(),
            Column::new("PROGRAM", |p: &Self, _| or_dash(p.name.as_ref())),
            Column::new("WITHOUT A LEASE FOR", |p: &Self, clock| {
                or_dash(p.foreign_since.map(|since| clock.ago(since.0)))
            }),
        ]
    }
}
