//! What this node is: machine, cores, memory, GPUs, and whether somebody uses a GPU without a lease.
//!
//! One task. Its facts go out with the first message of each connection and again when they change; what
//! is only measured goes with the heartbeats. It never enters the driver.
//!
//! - [`facts`]: what the node is. [`measure`]: what is measured.
//! - [`strays`]: who uses a GPU without a lease. It ends their processes where `enforce.foreign` is `stop`.

mod facts;
mod measure;
mod strays;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::desired::DesiredLease;
use fleet_core::ending::ForeignUse;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::node::NodeFacts;
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Pulse;
use fleet_node::measured::Program;
use fleet_proto::v1;
use tokio::sync::watch;
use tokio::time::timeout;

pub use self::facts::machine_facts;
use self::measure::Processes;

use crate::attempts::Registry;
use crate::denied::DeniedUsers;
use crate::gpu::{DriverState, GpuSnapshot};
use crate::gpu_use::{self, GpuUses};
use crate::handles::Gpus;
use crate::holders::{Evictor, Names, UsageParts, Usages};
use crate::idle::IdleNow;
use crate::leases::Floors;
use crate::outbox::Outbox;
use crate::processes::Process;
use fleet_user::Users;

/// How long the first inventory may take before the node says it has none yet.
const FIRST_INVENTORY_MAX: Duration = Duration::from_secs(20);
/// Measured use is reported at least this often, once it is due.
const USE_EVERY: Duration = Duration::from_secs(60);

/// What others hold of the inventory.
#[derive(Debug, Clone)]
pub struct View {
    pub facts: watch::Receiver<NodeFacts>,
    pub measured: watch::Receiver<Vec<v1::MeasuredGpu>>,
}

/// What the task is made of.
#[derive(Debug)]
pub struct InventoryParts {
    pub node: NodeName,
    pub gpus: Gpus,
    pub users: Users,
    /// Users who were seen on a GPU that is not theirs, for the terminals.
    pub denied: DeniedUsers,
    /// What becomes of those who use a GPU without a lease.
    pub foreign: ForeignUse,
    pub floors: Floors,
    pub usages: Usages,
    /// How busy held GPUs are.
    pub gpu_uses: GpuUses,
    /// Which reservations are idle, for the terminals.
    pub idle: IdleNow,
    pub registry: Registry,
    pub outbox: Outbox,
    /// The leases of the last document; `None` before the first.
    pub leases: watch::Receiver<Option<Vec<DesiredLease>>>,
    /// What does not change while the agent runs: [`machine_facts`].
    pub base: NodeFacts,
}

/// The task; see the module's doc.
#[derive(Debug)]
pub struct Inventory {
    parts: InventoryParts,
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

impl Inventory {
    /// Waits for the first look at the GPUs, then runs as a task.
    pub async fn start(parts: InventoryParts, mut pulse: Pulse) -> View {
        let mut snapshots = parts.gpus.driver.snapshots();
        let looked = |seen: &Arc<GpuSnapshot>| {
            let measured = seen.sample > 0 || seen.gpus.is_empty();
            // One that is not loaded, perhaps since it is being upgraded, is not waited for.
            let absent = matches!(seen.driver_state, DriverState::Absent { .. });
            absent || (seen.driver_state != DriverState::Starting && measured)
        };
        // Later GPUs are facts that changed.
        drop(timeout(FIRST_INVENTORY_MAX, snapshots.wait_for(looked)).await);
        let (facts, facts_seen) = watch::channel(parts.base.clone());
        let (measured, measured_seen) = watch::channel(Vec::new());
        let (dirty, names) = (BTreeMap::new(), Names::default());
        let foreign = BTreeMap::new();
        let mut inventory =
            Self { parts, dirty, foreign, evictor: Evictor::default(), names, facts, measured };
        inventory.look(&snapshots.borrow_and_update().clone()).await;
        let mut gate = inventory.parts.gpus.gate.state();
        // Where the driver is gone there is nothing new to look at, but hours that are over are to be reported.
        let mut minute = tokio::time::interval(USE_EVERY);
        minute.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = pulse.asked() => continue,
                    _ = minute.tick() => {
                        let snapshot = snapshots.borrow().clone();
                        let processes = inventory.processes(&snapshot).await;
                        inventory.look_at_use(&snapshot, &processes).await;
                        continue;
                    }
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
        if let Err(error) = self.parts.floors.learn(snapshot) {
            tracing::warn!(%error, "what was learned of the GPUs is not stored");
        }
        let dirt = self.dirt(snapshot).await;
        self.say(self.facts_of(snapshot, &dirt));
        let leases = self.parts.leases.borrow().clone().unwrap_or_default();
        let parts = UsageParts {
            holders: &self.parts.gpus.holders,
            observers: &self.parts.gpus.observers,
            users: &self.parts.users,
            registry: &self.parts.registry,
            outbox: &self.parts.outbox,
        };
        self.parts.usages.look(parts, snapshot, &leases).await;
        let processes = self.processes(snapshot).await;
        self.look_at_use(snapshot, &processes).await;
        let measured = self.measure(snapshot, &processes).await;
        self.measured.send_replace(measured);
    }

    async fn look_at_use(&self, snapshot: &GpuSnapshot, processes: &Processes) {
        let program = |found: &Process| Program { uid: found.uid, name: found.name.clone() };
        let programs = processes.iter().map(|(pid, found)| (*pid, program(found))).collect();
        let leases = self.parts.leases.borrow().clone();
        let orders = self.parts.gpus.holders.orders();
        let parts = gpu_use::Parts {
            snapshot,
            leases: leases.as_deref(),
            registry: &self.parts.registry,
            outbox: &self.parts.outbox,
            orders: &orders,
            idle: &self.parts.idle,
            programs: &programs,
        };
        self.parts.gpu_uses.look(parts).await;
    }

    fn say(&self, facts: NodeFacts) {
        if facts != *self.facts.borrow() {
            self.parts.outbox.facts(facts.clone());
            self.facts.send_replace(facts);
        }
    }
}
