//! Proving that the GPUs of a lease are empty.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::gpu::Presence;
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::window::Enforcement;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Floors;
use crate::allocations::end_group;
use crate::attempts::Registry;
use crate::gate;
use crate::gpu::{self, GpuSnapshot};
use crate::holders::{self, Evictor, Found, Observers, named};
use crate::outbox::Outbox;
use crate::processes::Process;
use fleet_node::Over;
use fleet_user::{UserError, Users};

/// First and longest pause before the GPUs are checked again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is to be proven.
#[derive(Debug)]
pub struct Proof {
    pub driver: gpu::Handle,
    pub gate: gate::Handle,
    pub holders: holders::Handle,
    pub observers: Observers,
    pub users: Users,
    pub floors: Floors,
    pub registry: Registry,
    pub outbox: Outbox,
    pub lease: LeaseId,
    pub gpus: Vec<GpuUuid>,
    /// They stay reserved for these users: their own programs, and the memory of those, are theirs.
    pub reserved_for: BTreeSet<UserName>,
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

/// Who may stay on one GPU.
#[derive(Debug, Default)]
struct Staying {
    uids: Vec<u32>,
    /// Set if the name service does not say all of their numbers: the numbers of users who certainly may not stay.
    unsure: Option<Vec<u32>>,
    /// What memory is in use is theirs, also where none of their programs is seen.
    memory: bool,
}

/// Whether processes that only look at a GPU keep it from being empty. They do if they cannot open it again and are
/// asked to go. After a job nobody asks them.
fn lookers_have_to_go(in_force: Option<Enforcement>, over: Option<&Over>) -> bool {
    in_force == Some(Enforcement::On) && over.is_some()
}

impl Staying {
    /// If the number of a user who may stay is not known, each process may be theirs. Processes of users who certainly
    /// may not stay are the exception.
    fn may_be_of(&self, process: &Process) -> bool {
        let Some(others) = &self.unsure else { return false };
        !(others.contains(&process.uid) && others.contains(&process.real_uid))
    }
}

/// The names of those, and whether the memory is theirs: the GPU stays with who had it.
fn may_stay<'a>(
    reserved_for: &'a BTreeSet<UserName>,
    over: Option<&'a Over>,
    gpu: &GpuUuid,
) -> (BTreeSet<&'a UserName>, bool) {
    let heirs = over.and_then(|over| over.heirs.get(gpu));
    let keeps = over.zip(heirs).is_some_and(|(over, heirs)| heirs.contains(&over.owner));
    let names = reserved_for.iter().chain(heirs.into_iter().flatten()).collect();
    (names, !reserved_for.is_empty() || keeps)
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
        let look = match proof.driver.sample_now().await {
            Ok(snapshot) => {
                let proof = Arc::clone(&proof);
                let staying = proof.tolerated().await;
                let looking = spawn_blocking(move || proof.look(&snapshot, &staying));
                looking.await.unwrap_or_else(|error| Look::without(error.to_string()))
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
    /// Whose programs are no obstacle, by GPU.
    async fn tolerated(&self) -> BTreeMap<GpuUuid, Staying> {
        let over = self.holders.over(&self.lease);
        let mut all = BTreeMap::new();
        for gpu in &self.gpus {
            let (names, memory) = may_stay(&self.reserved_for, over.as_ref(), gpu);
            let (uids, unsure) = self.uids(names).await;
            let mut staying = Staying { uids, unsure: None, memory };
            if unsure {
                let before = over.as_ref().map(|over| over.users.iter()).unwrap_or_default();
                let (mut others, _) = self.uids(before.collect()).await;
                others.retain(|uid| !staying.uids.contains(uid));
                staying.unsure = Some(others);
            }
            all.insert(gpu.clone(), staying);
        }
        all
    }

    /// Their numbers, and whether somebody's is not known.
    async fn uids(&self, names: BTreeSet<&UserName>) -> (Vec<u32>, bool) {
        let (mut uids, mut unsure) = (Vec::new(), false);
        for name in names {
            match self.users.resolve(name.as_str(), None).await {
                Ok(user) => uids.push(user.uid),
                // Nobody of such a name is among the people of this node.
                Err(UserError::SystemUser { .. } | UserError::BadName { .. }) => {}
                // Also where it is not known at all: so answer some directories while they are ill.
                Err(_) => unsure = true,
            }
        }
        (uids, unsure)
    }

    /// Who is left after a window: named, or asked to end and ended. When the next one's grace is over.
    async fn evict(&self, evictor: &mut Evictor, holders: &[Found]) -> Option<Instant> {
        // The lease of a job: what is left of that is ended by its control group.
        let over = self.holders.over(&self.lease)?;
        let spared = self.observers.spared()?;
        let doom = self.holders.orders().doom(over.ends);
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

    fn look(&self, snapshot: &GpuSnapshot, staying: &BTreeMap<GpuUuid, Staying>) -> Look {
        if let Some(why) = self.left_of_attempts() {
            return Look::without(why);
        }
        let mut look = Look::default();
        for uuid in &self.gpus {
            let nobody = Staying::default();
            let staying = staying.get(uuid).unwrap_or(&nobody);
            let why = self.obstacle_on(snapshot, uuid, staying, &mut look.holders);
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
        staying: &Staying,
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
        let observer = self.observers.now();
        let may_stay = |one: &Process| staying.uids.contains(&one.uid);
        let listed = observer.foreign(snapshot, uuid, &[], &[]).into_iter();
        let (stays, foreign): (Vec<_>, Vec<_>) =
            listed.partition(|one| one.found.as_ref().is_some_and(may_stay));
        let open = observer.by_descriptors(&[state.info.minor]).into_iter().map(|(_, one)| one);
        let (stays_open, open): (Vec<_>, Vec<_>) = open.partition(may_stay);
        let enforced = self.gate.state().borrow().enforced.as_ref().map(|now| now.mode);
        let lookers = lookers_have_to_go(enforced, self.holders.over(&self.lease).as_ref());
        let open: Vec<Process> =
            open.into_iter().filter(|one| observer.is_in_the_way(one, lookers)).collect();
        // Jobs are ended in their own way.
        let attempts = self.registry.on_gpu(uuid);
        let listed = foreign.iter().filter_map(|one| one.found.as_ref());
        let to_go = open.iter().filter(|one| observer.stays(one));
        let people = listed.chain(to_go).filter(|one| !attempts.iter().any(|id| one.is_of(id)));
        let found = |one: &Process| Found { gpu: uuid.clone(), process: one.clone() };
        holders.extend(people.filter(|one| !staying.may_be_of(one)).map(found));
        if let Some(one) = foreign.first() {
            return Some(format!("{uuid} is in use by {one}"));
        }
        if let Some(one) = open.first() {
            return Some(format!("{uuid} is open in {one}"));
        }
        if staying.memory || !stays.is_empty() || !stays_open.is_empty() {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::id::ReservationId;

    use super::*;
    use crate::processes::Observer;

    #[test]
    fn who_has_the_next_window_on_one_gpu_may_stay_there_and_nowhere_else() {
        let user = |name: &str| UserName::parse(name).unwrap();
        let gpu = |n: u32| GpuUuid::parse(&format!("GPU-0{n}")).unwrap();
        let (ada, bob, eve) = (user("ada"), user("bob"), user("eve"));
        let over = Over {
            reservation: ReservationId::parse("res-a").unwrap(),
            owner: ada.clone(),
            users: [ada.clone()].into(),
            ends: true,
            heirs: [(gpu(0), [ada.clone(), eve.clone()].into()), (gpu(1), [bob.clone()].into())]
                .into(),
        };
        let nobody = BTreeSet::new();
        let stays = |n| may_stay(&nobody, Some(&over), &gpu(n));
        assert_eq!(stays(0), (BTreeSet::from([&ada, &eve]), true));
        assert_eq!(stays(1), (BTreeSet::from([&bob]), false), "what ada left there is not bob's");
        assert_eq!(stays(2), (BTreeSet::new(), false));
        let both = BTreeSet::from([ada.clone(), bob.clone()]);
        assert_eq!(may_stay(&both, None, &gpu(2)), (both.iter().collect(), true));
        let on = Some(Enforcement::On);
        assert!(lookers_have_to_go(on, Some(&over)));
        assert!(!lookers_have_to_go(on, None), "a job's: nobody would ask them to go");
        for in_force in [None, Some(Enforcement::Off), Some(Enforcement::Warn)] {
            assert!(!lookers_have_to_go(in_force, Some(&over)), "they may come back");
        }
    }

    #[test]
    fn a_name_that_is_not_known_keeps_nobody_else_on_the_gpu() {
        let one = |uid, real_uid| {
            let mut process = Observer::default().process(std::process::id()).unwrap();
            (process.uid, process.real_uid) = (uid, real_uid);
            process
        };
        let (ada, eve) = (one(1_001, 1_001), one(1_002, 1_002));
        assert!(!Staying::default().may_be_of(&eve), "all are known");
        let unsure = Staying { unsure: Some(vec![1_001]), ..Staying::default() };
        assert!(!unsure.may_be_of(&ada), "whose window is over, and who has no next one");
        assert!(unsure.may_be_of(&eve), "she may be the one that the name service does not know");
        assert!(unsure.may_be_of(&one(1_001, 1_002)), "who started it may be");
    }
}
