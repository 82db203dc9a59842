//! Proving that the GPUs of a lease are empty.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::gpu::Presence;
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::name::{GpuUuid, UserName};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Floors, by_descriptor, foreign_processes};
use crate::allocations::{Node, Registry, end_group};
use crate::gpu::GpuSnapshot;

/// First and longest pause before the GPUs are looked at again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is to be proven.
#[derive(Debug)]
pub struct Proof {
    pub node: Arc<Node>,
    pub floors: Floors,
    pub registry: Registry,
    pub lease: LeaseId,
    pub gpus: Vec<GpuUuid>,
    /// They stay reserved for this user: their own programs, and the memory of those, are theirs.
    pub reserved_by: Option<UserName>,
    /// Attempts that ran under it and have ended.
    pub attempts: Vec<AllocationId>,
}

/// Returns when every GPU of the lease is empty. Says why not in the log, once per reason, unless it is gone
/// at the next look: processes that were killed take a moment to go.
pub async fn prove(proof: Proof) {
    let proof = Arc::new(proof);
    let (mut pause, mut before, mut said) = (AGAIN.0, None, None);
    while !proof.gpus.is_empty() {
        let why = match proof.node.gpus.sample_now().await {
            Ok(snapshot) => {
                let proof = Arc::clone(&proof);
                let uids = proof.tolerated().await;
                spawn_blocking(move || proof.obstacle(&snapshot, &uids))
                    .await
                    .unwrap_or_else(|error| Some(error.to_string()))
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(why) = why else { return };
        if before.as_ref() == Some(&why) && said.as_ref() != Some(&why) {
            tracing::warn!(lease = %proof.lease, why, "GPUs are not proven empty");
            said = Some(why.clone());
        }
        before = Some(why);
        sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}

impl Proof {
    /// Whose programs are no obstacle.
    async fn tolerated(&self) -> Vec<u32> {
        let Some(name) = &self.reserved_by else { return Vec::new() };
        let found = self.node.users.resolve(name.as_str(), None).await;
        found.map(|user| vec![user.uid]).unwrap_or_default()
    }

    /// Why the GPUs are not proven empty. Ends what is left of the lease's own attempts.
    fn obstacle(&self, snapshot: &GpuSnapshot, uids: &[u32]) -> Option<String> {
        for id in &self.attempts {
            let dir: PathBuf = self.registry.dir(id).path().to_owned();
            match end_group(&dir) {
                Ok(true) => {}
                Ok(false) => return Some(format!("processes of {id} survive SIGKILL")),
                Err(error) => return Some(format!("{id}: {error}")),
            }
        }
        self.gpus.iter().find_map(|uuid| self.obstacle_on(snapshot, uuid, uids))
    }

    fn obstacle_on(&self, snapshot: &GpuSnapshot, uuid: &GpuUuid, uids: &[u32]) -> Option<String> {
        let gpu = &self.node.config.gpu;
        let Some(state) = snapshot.gpu(uuid) else {
            return Some(format!("{uuid} is not in this node"));
        };
        if state.presence != Presence::Present {
            let why = state.reason.clone().unwrap_or_default();
            return Some(format!("{uuid} does not answer: {why}"));
        }
        if state.telemetry.processes.value().is_none() {
            return Some(format!("the driver does not say who uses {uuid}"));
        }
        let foreign = foreign_processes(snapshot, uuid, &[], uids, &gpu.baseline_processes);
        if let Some(one) = foreign.first() {
            return Some(format!("{uuid} is in use by {one}"));
        }
        let open = by_descriptor(state.info.minor, &gpu.device_dir, &gpu.baseline_processes);
        if let Some(one) = open.iter().find(|one| !uids.contains(&one.uid)) {
            return Some(format!("{uuid} is open in {one}"));
        }
        if !uids.is_empty() {
            return None;
        }
        let floor = self.floors.of(&state.info);
        match state.telemetry.memory_used_bytes.value() {
            Some(used) if *used <= floor => None,
            Some(used) => Some(format!("{uuid} has {used} bytes in use, {floor} when idle")),
            None => Some(format!("the driver does not say how much memory of {uuid} is in use")),
        }
    }
}
