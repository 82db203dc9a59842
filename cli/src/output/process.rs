//! Processes on GPUs, for `top`: who is on them, claim or not.
//!
//! Of the same measurement as the GPUs' own use, so it may be some seconds old.

use std::collections::BTreeMap;

use super::Column;
use super::gpu::Gpu;
use super::values::{Time, or_dash};
use crate::sizes::Bytes;

/// A process and all GPUs that it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnGpus {
    pub(crate) pid: u32,
    node: String,
    indices: Vec<u32>,
    user: Option<String>,
    name: Option<String>,
    memory_used_bytes: u64,
    foreign_since: Option<Time>,
}

/// One line for each process, whom no lease explains first.
pub(crate) fn on_gpus(gpus: &[Gpu]) -> Vec<OnGpus> {
    let mut found: BTreeMap<(&str, u32), OnGpus> = BTreeMap::new();
    for gpu in gpus {
        for process in gpu.in_use.iter().flat_map(|measured| &measured.processes) {
            let line = found.entry((&gpu.node, process.pid)).or_insert_with(|| OnGpus {
                pid: process.pid,
                node: gpu.node.clone(),
                indices: Vec::new(),
                user: process.user.clone(),
                name: process.name.clone(),
                memory_used_bytes: 0,
                foreign_since: None,
            });
            line.indices.push(gpu.index);
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
            Column::new("GPUS", |p: &Self, _| {
                let indices: Vec<String> = p.indices.iter().map(u32::to_string).collect();
                format!("{}:{}", p.node, indices.join(","))
            }),
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

#[cfg(test)]
mod tests {
    use fleet_proto::v1 as pb;

    use super::*;
    use crate::output::Printer;
    use crate::times::Clock;

    fn gpu(index: u32, processes: &[(u32, u64)]) -> Gpu {
        let process = |(pid, foreign_since_unix_ms): &(u32, u64)| pb::GpuProcess {
            pid: *pid,
            user: format!("user{pid}"),
            name: "python3".to_owned(),
            memory_used_bytes: 1 << 30,
            foreign_since_unix_ms: *foreign_since_unix_ms,
        };
        let processes = processes.iter().map(process).collect();
        let measured = pb::GpuUse { processes, ..pb::GpuUse::default() };
        let node = "titan01".to_owned();
        Gpu::from(pb::Gpu { node, index, r#use: Some(measured), ..pb::Gpu::default() })
    }

    #[test]
    fn each_process_has_a_line_and_those_without_a_lease_come_first() {
        // Ten minutes before the clock's time.
        let since = 1_795_253_467_000 - 600_000;
        let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
        let gpus = [gpu(0, &[(7, 0)]), gpu(1, &[(7, 0)]), gpu(2, &[]), gpu(3, &[(900, since)])];
        let printer = Printer::plain(clock);
        assert_eq!(
            printer.table(&on_gpus(&gpus), OnGpus::columns()),
            "GPUS         PID  USER     MEMORY  PROGRAM  WITHOUT A LEASE FOR\n\
             titan01:3    900  user900   1 GiB  python3  10m\n\
             titan01:0,1    7  user7     2 GiB  python3  -\n"
        );
    }
}
