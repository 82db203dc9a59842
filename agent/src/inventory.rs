//! What this node is: machine, cores, memory, GPUs, and whether somebody uses a GPU without a lease.
//!
//! One task. Its facts go out with the first message of each connection and again when they change; what
//! is only measured goes with the heartbeats. Where `enforce.foreign` is `stop` it ends processes on a GPU
//! without a lease (`crate::holders`), but never those of the GPU's attempts. It never enters the driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::desired::DesiredLease;
use fleet_core::ending::ForeignUse;
use fleet_core::gpu::{Gpu, GpuLink, short_model};
use fleet_core::id::AllocationId;
use fleet_core::lease::LeaseHolder;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::node::{MachineIdentity, NodeFacts};
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Pulse;
use fleet_proto::v1;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::attempts::Registry;
use crate::clock;
use crate::denied::Outcome;
use crate::enroll::Machine;
use crate::gpu::{DriverState, GpuSnapshot, GpuState, Observed};
use crate::holders::{self, Doom, Evictor, Found, Names, UsageParts, Usages};
use crate::leases::Floors;
use crate::node::NodeContext;
use crate::outbox::Outbox;
use crate::processes::Foreign;

/// Looks in a row at which a GPU must be dirty: a job that just ended is not dirt.
const DIRTY_LOOKS: u32 = 2;
/// Memory kept for the system: this part of all, within these bounds.
const RESERVE_DIVISOR: u64 = 20;
const RESERVE_BYTES: (u64, u64) = (256 << 20, 8 << 30);
/// How long the first inventory may take before the node says it has none yet.
const FIRST_INVENTORY_MAX: Duration = Duration::from_secs(20);

/// What others hold of the inventory.
#[derive(Debug, Clone)]
pub struct View {
    pub facts: watch::Receiver<NodeFacts>,
    pub measured: watch::Receiver<Vec<v1::MeasuredGpu>>,
}

/// The task; see the module's doc.
#[derive(Debug)]
pub struct Inventory {
    node: Arc<NodeContext>,
    floors: Floors,
    usages: Usages,
    registry: Registry,
    outbox: Outbox,
    /// The leases of the last document; `None` before the first.
    leases: watch::Receiver<Option<Vec<DesiredLease>>>,
    base: NodeFacts,
    /// Looks in a row at which each GPU was found dirty.
    dirty: BTreeMap<GpuUuid, u32>,
    /// Since when which process is on a GPU without a lease.
    foreign: BTreeMap<(GpuUuid, u32), Timestamp>,
    /// Ends them, where the configuration says so.
    evictor: Evictor,
    names: Names,
    facts: watch::Sender<NodeFacts>,
    measured: watch::Sender<Vec<v1::MeasuredGpu>>,
}

/// What does not change while the agent runs.
pub fn machine_facts(node: &NodeContext, machine: &Machine, instance: String) -> NodeFacts {
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    // Unknown memory is none to give: the configuration can say more.
    let total = system.map_or(0, |system| system.total_memory());
    let reserve = (total / RESERVE_DIVISOR).clamp(RESERVE_BYTES.0, RESERVE_BYTES.1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = u64::try_from(cores).unwrap_or(1);
    NodeFacts {
        machine: MachineIdentity {
            machine_id: machine.clone().or_configured(node.config.machine_id.clone()).machine_id,
            dmi_uuid: machine.dmi_uuid.clone(),
        },
        boot_id: machine.boot_id.clone(),
        agent_instance: instance,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: System::kernel_version().unwrap_or_default(),
        os: System::long_os_version().unwrap_or_default(),
        driver: None,
        cpu_millis: node.config.cpu_millis.unwrap_or(cores * 1_000),
        memory_bytes: node.config.memory_bytes.unwrap_or(total.saturating_sub(reserve)),
        gpus: Vec::new(),
        links: Vec::new(),
        gpu_problem: None,
        enforced: None,
        driver_released: false,
    }
}

/// What is said of a node whose driver is let go of, and what to do.
fn released_words(node: &NodeName, stuck: usize) -> String {
    match stuck {
        0 => format!(
            "the driver is let go of: it can be upgraded; `fleet node uncordon {node}` takes it up again"
        ),
        stuck => format!(
            "the driver is let go of, but {stuck} stuck nvml-probe process(es) hold it open until {node} boots anew"
        ),
    }
}

impl Inventory {
    /// Waits for the first look at the GPUs, then runs as a task.
    pub async fn start(
        node: Arc<NodeContext>,
        (floors, usages): (Floors, Usages),
        registry: Registry,
        outbox: Outbox,
        leases: watch::Receiver<Option<Vec<DesiredLease>>>,
        base: NodeFacts,
        mut pulse: Pulse,
    ) -> View {
        let mut snapshots = node.gpus.snapshots();
        let looked = |seen: &Arc<GpuSnapshot>| {
            let measured = seen.sample > 0 || seen.gpus.is_empty();
            // One that is not loaded, perhaps since it is being upgraded, is not waited for.
            let absent = matches!(seen.driver_state, DriverState::Absent { .. });
            absent || (seen.driver_state != DriverState::Starting && measured)
        };
        // Later GPUs are facts that changed.
        drop(timeout(FIRST_INVENTORY_MAX, snapshots.wait_for(looked)).await);
        let (facts, facts_seen) = watch::channel(base.clone());
        let (measured, measured_seen) = watch::channel(Vec::new());
        let (dirty, names) = (BTreeMap::new(), Names::default());
        let foreign = BTreeMap::new();
        let mut inventory = Self {
            node,
            floors,
            usages,
            registry,
            outbox,
            leases,
            base,
            dirty,
            foreign,
            evictor: Evictor::default(),
            names,
            facts,
            measured,
        };
        inventory.look(&snapshots.borrow_and_update().clone()).await;
        let mut gate = inventory.node.gate.state();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = pulse.asked() => continue,
                    changed = snapshots.changed() => if changed.is_err() { return },
                    Ok(()) = gate.changed() => {
                        let enforced = gate.borrow_and_update().enforced.clone();
                        // Cloned first: what is borrowed cannot be replaced.
                        let facts = inventory.facts.borrow().clone();
                        inventory.say(NodeFacts { enforced, ..facts });
                        continue;
                    }
                }
                let snapshot = snapshots.borrow_and_update().clone();
                inventory.look(&snapshot).await;
            }
        });
        View { facts: facts_seen, measured: measured_seen }
    }

    async fn look(&mut self, snapshot: &Arc<GpuSnapshot>) {
        if let Err(error) = self.floors.learn(snapshot) {
            tracing::warn!(%error, "what was learned of the GPUs is not stored");
        }
        let dirt = self.dirt(snapshot).await;
        self.say(self.facts_of(snapshot, &dirt));
        let leases = self.leases.borrow().clone().unwrap_or_default();
        let parts = UsageParts {
            holders: &self.node.holders,
            observers: &self.node.observers,
            users: &self.node.users,
            registry: &self.registry,
            outbox: &self.outbox,
        };
        self.usages.look(parts, snapshot, &leases).await;
        let measured = self.measure(snapshot).await;
        self.measured.send_replace(measured);
    }

    fn say(&self, facts: NodeFacts) {
        if facts != *self.facts.borrow() {
            self.outbox.facts(facts.clone());
            self.facts.send_replace(facts);
        }
    }

    fn facts_of(&self, snapshot: &GpuSnapshot, dirt: &BTreeMap<GpuUuid, String>) -> NodeFacts {
        let driver_released = snapshot.driver_state == DriverState::Released;
        // Another one may be loaded meanwhile.
        let driver = snapshot.driver.as_ref().filter(|_| !driver_released);
        let driver = driver.and_then(|d| d.driver_version.value().cloned());
        let gpu = |state: &GpuState| {
            let info = &state.info;
            Gpu {
                uuid: info.uuid.clone(),
                node: self.node.name.clone(),
                index: self.node.gpus.numbers().of(info),
                driver_index: Some(info.index),
                minor: info.minor,
                model: short_model(&info.product),
                product: info.product.clone(),
                architecture: info.architecture,
                memory_bytes: info.memory_bytes,
                pci_bus_id: info.pci_bus_id.clone(),
                numa_node: info.numa_node.value().copied(),
                presence: state.presence,
                dirty: dirt.get(&info.uuid).cloned(),
                here_since: None,
                lost_since: None,
                replaced_by_next: false,
            }
        };
        let link = |l: &crate::gpu::Link| {
            let (a, b) = (l.a.clone(), l.b.clone());
            GpuLink { a, b, level: l.level, nvlinks: l.nvlinks }
        };
        let problem = match &snapshot.driver_state {
            DriverState::Running => None,
            DriverState::Starting => Some("the first inventory is not complete".to_owned()),
            DriverState::Released => Some(released_words(&self.node.name, snapshot.stuck_probes)),
            DriverState::Absent { reason }
            | DriverState::Failed { reason }
            | DriverState::NotAnswering { reason } => Some(reason.clone()),
        };
        NodeFacts {
            driver,
            gpus: snapshot.gpus.iter().map(gpu).collect(),
            links: snapshot.links.iter().map(link).collect(),
            gpu_problem: problem,
            enforced: self.node.gate.state().borrow().enforced.clone(),
            driver_released,
            ..self.base.clone()
        }
    }

    /// Which GPUs are used by somebody without a lease, and by whom.
    async fn dirt(&mut self, snapshot: &Arc<GpuSnapshot>) -> BTreeMap<GpuUuid, String> {
        let Some(leases) = self.leases.borrow().clone() else { return BTreeMap::new() };
        let mut found = BTreeMap::new();
        let mut strays = Vec::new();
        for state in &snapshot.gpus {
            let uuid = &state.info.uuid;
            let on_it: Vec<&DesiredLease> =
                leases.iter().filter(|lease| lease.gpus.contains(uuid)).collect();
            let attempts = self.registry.on_gpu(uuid);
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
        let enforced = self.node.gate.state().borrow().enforced.clone();
        let by_sight = enforced.is_some_and(|enforced| enforced.fallback.is_some());
        let Some(spared) = self.node.observers.spared().filter(|_| by_sight) else { return };
        let seen = Outcome::Seen { ended: self.doom_of_strays().is_some() };
        for Found { gpu, process } in strays.iter().filter(|stray| !spared.covers(&stray.process)) {
            if let Some(state) = snapshot.gpu(gpu) {
                self.node.terminals.denied().add(process.real_uid, state.info.minor, seen);
            }
        }
    }

    /// How those who use a GPU without a lease are ended: by the node's configuration, where it is told `on`.
    fn doom_of_strays(&self) -> Option<Doom> {
        let doom = self.node.holders.orders().doom(true);
        let stops = self.node.config.enforce.foreign == ForeignUse::Stop;
        (stops && doom != Doom::Left).then_some(doom)
    }

    /// Ends those who use a GPU that nobody leased to them, where the node is told so.
    async fn end_strays(&mut self, strays: &[Found]) {
        let Some(doom) = self.doom_of_strays() else {
            self.evictor = Evictor::default();
            return;
        };
        let Some(spared) = self.node.observers.spared() else { return };
        for (step, holders) in self.evictor.turn(strays, doom, &spared, Instant::now()) {
            let holders = holders::named(holders).await;
            for holder in &holders {
                tracing::warn!(gpu = %holder.gpu, %holder, ?step, "on a GPU without a lease");
            }
            self.outbox.holders(None, step, holders);
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
                match self.node.users.resolve(user.as_str(), None).await {
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
        let floor = self.floors.of(&state.info);
        (!explained && used > floor)
            .then(|| format!("{} MiB in use by nobody that shows", used >> 20))
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
                if let Ok(user) = self.node.users.resolve(user.as_str(), None).await {
                    uids.push(user.uid);
                }
            }
        }
        let (snapshot, node) = (Arc::clone(snapshot), Arc::clone(&self.node));
        let (uuid, attempts) = (state.info.uuid.clone(), attempts.to_vec());
        let look = move || node.observers.now().foreign(&snapshot, &uuid, &attempts, &uids);
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

    async fn measure(&mut self, snapshot: &GpuSnapshot) -> Vec<v1::MeasuredGpu> {
        let mut all = Vec::with_capacity(snapshot.gpus.len());
        let observer = self.node.observers.now();
        // Of whom that is not known, nobody is exempt.
        let spared = self.node.observers.spared().unwrap_or_default();
        for state in &snapshot.gpus {
            let t = &state.telemetry;
            let mut processes = Vec::new();
            for one in t.processes.value().map_or(&[][..], Vec::as_slice) {
                let pid = one.pid;
                let look = observer.clone();
                let found = spawn_blocking(move || look.process(pid)).await.ok().flatten();
                let exempt = found.as_ref().is_some_and(|found| spared.passes_gate(found));
                let (user, name) = match found {
                    Some(found) => (self.names.of(found.uid).await, found.name),
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
