//! What is only measured: how busy each GPU is, and whose processes are on it. It goes with the heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use fleet_proto::v1;
use tokio::task::spawn_blocking;

use super::Inventory;
use crate::gpu::{DriverState, GpuSnapshot, GpuState, Observed};
use crate::processes::Process;

/// By pid, those that are still there.
pub(super) type Processes = BTreeMap<u32, Process>;

impl Inventory {
    /// The processes that have a GPU open.
    pub(super) async fn processes(&self, snapshot: &GpuSnapshot) -> Processes {
        if snapshot.driver_state != DriverState::Running {
            return Processes::new();
        }
        let on = |state: &GpuState| state.telemetry.processes.value().cloned().unwrap_or_default();
        let pids: BTreeSet<u32> =
            snapshot.gpus.iter().flat_map(on).map(|process| process.pid).collect();
        if pids.is_empty() {
            return Processes::new();
        }
        let observer = self.parts.gpus.observers.now();
        let found = spawn_blocking(move || {
            pids.into_iter().filter_map(|pid| Some((pid, observer.process(pid)?))).collect()
        });
        found.await.unwrap_or_default()
    }

    pub(super) async fn measure(
        &mut self,
        snapshot: &GpuSnapshot,
        found: &Processes,
    ) -> Vec<v1::MeasuredGpu> {
        // What was measured before says nothing of a GPU that nobody asks any more: its process may have ended since.
        if snapshot.driver_state != DriverState::Running {
            return Vec::new();
        }
        let mut all = Vec::with_capacity(snapshot.gpus.len());
        // While the exempt users are not known, nobody counts as exempt.
        let spared = self.parts.gpus.observers.spared().unwrap_or_default();
        for state in &snapshot.gpus {
            let t = &state.telemetry;
            let mut processes = Vec::new();
            for one in t.processes.value().map_or(&[][..], Vec::as_slice) {
                let pid = one.pid;
                let found = found.get(&pid);
                let exempt = found.is_some_and(|found| spared.passes_gate(found));
                let (user, name) = match found {
                    Some(found) => (self.names.of(found.uid).await, found.name.clone()),
                    None => (String::new(), String::new()),
                };
                let memory_used_bytes = one.memory_bytes.unwrap_or(0);
                let since = self.foreign.get(&(state.info.uuid.clone(), pid));
                let foreign_since_unix_ms = since.map_or(0, |since| since.0);
                processes.push(v1::MeasuredProcess {
                    pid,
                    user,
                    name,
                    memory_used_bytes,
                    foreign_since_unix_ms,
                    exempt,
                });
            }
            let value = |observed: &Observed<u32>| observed.value().copied();
            all.push(v1::MeasuredGpu {
                uuid: state.info.uuid.to_string(),
                utilization_percent: value(&t.utilization_percent),
                memory_used_bytes: t.memory_used_bytes.value().copied(),
                temperature_celsius: value(&t.temperature_c),
                processes,
            });
        }
        all
    }
}
