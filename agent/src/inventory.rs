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
use fleet_core::name::GpuUuid;
use fleet_core::node::NodeFacts;
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Pulse;
use fleet_proto::v1;
use tokio::sync::watch;
use tokio::time::timeout;

pub use self::facts::machine_facts;

use crate::attempts::Registry;
use crate::gpu::{DriverState, GpuSnapshot};
use crate::holders::{Evictor, Names, UsageParts, Usages};
use crate::leases::Floors;
use crate::node::NodeContext;
use crate::outbox::Outbox;

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
}
