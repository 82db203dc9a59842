//! Proving that the GPUs of a lease are empty.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::gpu::Presence;
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::window::Enforcement;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Floors, Process};
use crate::allocations::{Node, Registry, end_group};
use crate::gpu::GpuSnapshot;
use crate::holders::{Evictor, Found, named};
use crate::link::Outbox;

/// First and longest pause before the GPUs are looked at again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is to be proven.
#[derive(Debug)]
pub struct Proof {
    pub node: Arc<Node>,
    pub floors: Floors,
    pub registry: Registry,
    pub outbox: Outbox,
    pub lease: LeaseId,
    pub gpus: Vec<GpuUuid>,
    /// They stay reserved for this user: their own programs, and the memory of those, are theirs.
    pub reserved_by: Option<UserName>,
    /// Attempts that ran under it and have ended.
    pub attempts: Vec<AllocationId>,
}

/// What a look at the GPUs of the lease shows.
#[derive(Debug, Default)]
struct Look {
    /// Why they are not proven empty.
    why: Option<String>,
    /// The processes of people that are on them.
    holders: Vec<Found>,
}

impl Look {
    fn without(why: String) -> Self {
        Self { why: Some(why), holders: Vec::new() }
    }
}

/// Returns when every GPU of the lease is empty. Says why not in the log, once per reason, unless it is gone
/// at the next look: processes that were killed take a moment to go. Who is left after a window is ended where the
/// reconcile task says so, and named where not.
pub async fn prove(proof: Proof) {
    let proof = Arc::new(proof);
    let (mut pause, mut before, mut said) = (AGAIN.0, None, None);
    let mut evictor = Evictor::default();
    while !proof.gpus.is_empty() {
        let look = match proof.node.gpus.sample_now().await {
            Ok(snapshot) => {
                let proof = Arc::clone(&proof);
                let (uids, all_known) = proof.tolerated().await;
                let looking = spawn_blocking(move || proof.look(&snapshot, &uids));
                let mut look =
                    looking.await.unwrap_or_else(|error| Look::without(error.to_string()));
                if !all_known {
                    // Whoever is there may be one of those who may stay.
                    look.holders.clear();
                }
                look
            }
            Err(error) => Look::without(error.to_string()),
        };
        let Some(why) = look.why else { return };
        if before.as_ref() == Some(&why) && said.as_ref() != Some(&why) {
            tracing::warn!(lease = %proof.lease, why, "GPUs are not proven empty");
            said = Some(why.clone());
        }
        before = Some(why);
        let due = proof.evict(&mut evictor, &look.holders).await;
        // Whose grace is over is not kept waiting for the next look.
        let rest = due.map_or(pause, |due| due.saturating_duration_since(Instant::now()));
        sleep(rest.clamp(AGAIN.0, pause)).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}

impl Proof {
    /// Whose programs are no obstacle, and whether the name service knew all of their numbers.
    async fn tolerated(&self) -> (Vec<u32>, bool) {
        let heir = self.node.holders.over(&self.lease).and_then(|over| over.heir);
        let (mut uids, mut all_known) = (Vec::new(), true);
        for name in self.reserved_by.iter().chain(&heir) {
            let found = self.node.users.resolve(name.as_str(), None).await;
            all_known &= found.is_ok();
            uids.extend(found.map(|user| user.uid));
        }
        (uids, all_known)
    }

    /// Who is left after a window: named, or asked to end and ended. When the next one's grace is over.
    async fn evict(&self, evictor: &mut Evictor, holders: &[Found]) -> Option<Instant> {
        // The lease of a job: what is left of that is ended by its control group.
        let over = self.node.holders.over(&self.lease)?;
        let spared = self.node.spared()?;
        let doom = self.node.holders.orders().doom(over.ends);
        let done = evictor.turn(holders, doom, &spared, Instant::now());
        for (step, holders) in done {
            let holders = named(holders).await;
            for holder in &holders {
                tracing::warn!(reservation = %over.reservation, gpu = %holder.gpu, %holder, ?step, "left after a window");
            }
            self.outbox.holders(Some(over.reservation.clone()), step, holders);
        }
        evictor.due(doom)
    }

    fn look(&self, snapshot: &GpuSnapshot, uids: &[u32]) -> Look {
        if let Some(why) = self.left_of_attempts() {
            return Look::without(why);
        }
        let mut look = Look::default();
        for uuid in &self.gpus {
            let why = self.obstacle_on(snapshot, uuid, uids, &mut look.holders);
            look.why = look.why.or(why);
        }
        look
    }

    /// Ends what is left of the lease's own attempts; says what does not end.
    fn left_of_attempts(&self) -> Option<String> {
        for id in &self.attempts {
            let dir: PathBuf = self.registry.dir(id).path().to_owned();
            match end_group(&dir) {
                Ok(true) => {}
                Ok(false) => return Some(format!("processes of {id} survive SIGKILL")),
                Err(error) => return Some(format!("{id}: {error}")),
            }
        }
        None
    }

    fn obstacle_on(
        &self,
        snapshot: &GpuSnapshot,
        uuid: &GpuUuid,
        uids: &[u32],
        holders: &mut Vec<Found>,
    ) -> Option<String> {
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
        let observer = self.node.observer();
        let foreign = observer.foreign(snapshot, uuid, &[], uids);
        let open = observer.by_descriptors(&[state.info.minor]);
        let kept_out = self.node.holders.orders().mode == Some(Enforcement::On);
        let counts =
            |one: &Process| !uids.contains(&one.uid) && observer.is_in_the_way(one, kept_out);
        let open: Vec<Process> = open.into_iter().map(|(_, one)| one).filter(counts).collect();
        // Jobs are ended in their own way.
        let attempts = self.registry.on_gpu(uuid);
        let listed = foreign.iter().filter_map(|one| one.found.as_ref());
        let stay = open.iter().filter(|one| observer.stays(one));
        let people = listed.chain(stay).filter(|one| !attempts.iter().any(|id| one.is_of(id)));
        let found = |one: &Process| Found { gpu: uuid.clone(), process: one.clone() };
        holders.extend(people.map(found));
        if let Some(one) = foreign.first() {
            return Some(format!("{uuid} is in use by {one}"));
        }
        if let Some(one) = open.first() {
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
