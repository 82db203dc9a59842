//! Who uses a GPU without a lease: the facts say so, terminals hear of it, and where `enforce.foreign` is `stop` they are
//! ended.
//!
//! It ends processes (by `crate::holders`), but never those of the GPU's attempts, nor anyone while it is not known who the
//! lessees are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fleet_core::desired::DesiredLease;
use fleet_core::ending::ForeignUse;
use fleet_core::id::AllocationId;
use fleet_core::lease::LeaseHolder;
use fleet_core::name::GpuUuid;
use tokio::task::spawn_blocking;

use super::Inventory;
use crate::clock;
use crate::denied::Outcome;
use crate::gpu::{GpuSnapshot, GpuState};
use crate::holders::{self, Doom, Evictor, Found};
use crate::processes::Foreign;

/// Looks in a row at which a GPU must be dirty: a job that just ended is not dirt.
const DIRTY_LOOKS: u32 = 2;

impl Inventory {
    /// The GPUs that somebody without a lease uses, and who that is.
    pub(super) async fn dirt(&mut self, snapshot: &Arc<GpuSnapshot>) -> BTreeMap<GpuUuid, String> {
        let Some(leases) = self.parts.leases.borrow().clone() else { return BTreeMap::new() };
        let mut found = BTreeMap::new();
        let mut strays = Vec::new();
        for state in &snapshot.gpus {
            let uuid = &state.info.uuid;
            let on_it: Vec<&DesiredLease> =
                leases.iter().filter(|lease| lease.gpus.contains(uuid)).collect();
            let attempts = self.parts.registry.on_gpu(uuid);
            let why = self.dirt_on(snapshot, state, &on_it, attempts, &mut strays).await;
            let looks = self.dirty.entry(uuid.clone()).or_default();
            *looks = if why.is_some() { looks.saturating_add(1) } else { 0 };
            if let Some(why) = why.filter(|_| *looks >= DIRTY_LOOKS) {
                found.insert(uuid.clone(), why);
            }
        }
        self.end_strays(&strays).await;
        strays.retain(|stray| found.contains_key(&stray.gpu));
        self.tell_strays(snapshot, &strays);
        found
    }

    /// Tells those who use a GPU that nobody leased to them, where the kernel does not say who opens one.
    fn tell_strays(&self, snapshot: &GpuSnapshot, strays: &[Found]) {
        let enforced = self.parts.gpus.gate.state().borrow().enforced.clone();
        let by_sight = enforced.is_some_and(|enforced| enforced.fallback.is_some());
        let Some(spared) = self.parts.gpus.observers.spared().filter(|_| by_sight) else { return };
        let seen = Outcome::Seen { ended: self.doom_of_strays().is_some() };
        for Found { gpu, process } in strays.iter().filter(|stray| !spared.covers(&stray.process)) {
            if let Some(state) = snapshot.gpu(gpu) {
                self.parts.denied.add(process.real_uid, state.info.minor, seen);
            }
        }
    }

    /// How those who use a GPU without a lease are ended; `None` unless the configuration says so and the gate is `on`.
    fn doom_of_strays(&self) -> Option<Doom> {
        let doom = self.parts.gpus.holders.orders().doom(true);
        let stops = self.parts.foreign == ForeignUse::Stop;
        (stops && doom != Doom::Left).then_some(doom)
    }

    /// Ends those who use a GPU that nobody leased to them, if the node's configuration says so.
    async fn end_strays(&mut self, strays: &[Found]) {
        let Some(doom) = self.doom_of_strays() else {
            self.evictor = Evictor::default();
            return;
        };
        let Some(spared) = self.parts.gpus.observers.spared() else { return };
        for (step, holders) in self.evictor.turn(strays, doom, &spared, Instant::now()) {
            let holders = holders::named(holders).await;
            for holder in &holders {
                tracing::warn!(gpu = %holder.gpu, %holder, ?step, "on a GPU without a lease");
            }
            self.parts.outbox.holders(None, step, holders);
        }
    }

    /// Those of them that are ended: not who has any lease on the GPU, nor those who are left after a window, which is
    /// the business of its lease; nobody while it is not known who the lessees are.
    async fn strays(
        &self,
        gpu: &GpuUuid,
        foreign: &[Foreign],
        leases: &[&DesiredLease],
    ) -> Vec<Found> {
        let mut lessees = Vec::new();
        for lease in leases {
            if lease.ending && matches!(lease.holder, LeaseHolder::Reservation(_)) {
                return Vec::new();
            }
            for user in lease.users() {
                match self.parts.users.resolve(user.as_str(), None).await {
                    Ok(user) => lessees.push(user.uid),
                    Err(_) => return Vec::new(),
                }
            }
        }
        let processes = foreign.iter().filter_map(|one| one.found.clone());
        let strays =
            processes.filter(|one| !lessees.contains(&one.uid) && !lessees.contains(&one.real_uid));
        strays.map(|process| Found { gpu: gpu.clone(), process }).collect()
    }

    async fn dirt_on(
        &mut self,
        snapshot: &Arc<GpuSnapshot>,
        state: &GpuState,
        leases: &[&DesiredLease],
        attempts: Vec<AllocationId>,
        strays: &mut Vec<Found>,
    ) -> Option<String> {
        let processes = state.telemetry.processes.value()?;
        let uuid = &state.info.uuid;
        let mut foreign = self.foreign_on(snapshot, state, leases, &attempts).await;
        let seen_before = self.note_foreign(uuid, &foreign);
        // The driver's list is a moment older than /proc: who has just ended is in the one and not the other.
        foreign.retain(|one| one.found.is_some() || seen_before.contains(&one.pid));
        strays.extend(self.strays(uuid, &foreign, leases).await);
        if !foreign.is_empty() {
            let named: Vec<String> = foreign.iter().map(ToString::to_string).collect();
            return Some(format!("used without a lease by {}", named.join(", ")));
        }
        let used = state.telemetry.memory_used_bytes.value().copied()?;
        let explained = !leases.is_empty() || !attempts.is_empty() || !processes.is_empty();
        let floor = self.parts.floors.of(&state.info);
        (!explained && used > floor)
            .then(|| format!("{} MiB in use, but no process found", used >> 20))
    }

    /// The processes on a GPU that no lease explains.
    async fn foreign_on(
        &self,
        snapshot: &Arc<GpuSnapshot>,
        state: &GpuState,
        leases: &[&DesiredLease],
        attempts: &[AllocationId],
    ) -> Vec<Foreign> {
        if state.telemetry.processes.value().is_none_or(Vec::is_empty) {
            return Vec::new();
        }
        let mut uids = Vec::new();
        for lease in leases.iter().filter(|lease| !lease.ending) {
            // Who reserved a GPU may use it without a job.
            let LeaseHolder::Reservation(_) = lease.holder else { continue };
            for user in lease.users() {
                if let Ok(user) = self.parts.users.resolve(user.as_str(), None).await {
                    uids.push(user.uid);
                }
            }
        }
        let (snapshot, observers) = (Arc::clone(snapshot), self.parts.gpus.observers.clone());
        let (uuid, attempts) = (state.info.uuid.clone(), attempts.to_vec());
        let look = move || observers.now().foreign(&snapshot, &uuid, &attempts, &uids);
        spawn_blocking(look).await.unwrap_or_default()
    }

    /// Keeps since when each process is on a GPU without a lease, as far as this agent saw it. Gives those that
    /// were there at the last look already.
    fn note_foreign(&mut self, gpu: &GpuUuid, found: &[Foreign]) -> Vec<u32> {
        self.foreign.retain(|(on, pid), _| on != gpu || found.iter().any(|one| one.pid == *pid));
        let seen = self.foreign.keys().filter(|(on, _)| on == gpu).map(|(_, pid)| *pid).collect();
        for one in found {
            self.foreign.entry((gpu.clone(), one.pid)).or_insert_with(clock::now);
        }
        seen
    }
}
