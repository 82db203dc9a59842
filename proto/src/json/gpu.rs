//! Defines the JSON of a GPU: what it is, who holds it, how healthy it is and who uses it.

use fleet_core::health::{ConditionStatus, Health};
use fleet_core::view::GpuState;
use serde::Serialize;

use super::Document;
use super::values::{Condition, GpuRef, Stated, Time, size, stated, text, time};
use crate::v1 as pb;

/// A GPU of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// The UUID that NVIDIA's driver gives it.
    pub uuid: String,
    /// Its node.
    pub node: String,
    /// Its number on its node, from 0; it does not change.
    pub index: u32,
    /// What `nvidia-smi` on its node calls it.
    pub driver_index: Option<u32>,
    /// Its model as fleet calls it, `v100`; null: not known.
    pub model: Option<String>,
    /// The name of the product, `Tesla V100-PCIE-16GB`; null: not known.
    pub product: Option<String>,
    /// Its memory in bytes; null: not known.
    pub memory_bytes: Option<u64>,
    /// `free`, `reserved`, `running`, `releasing`, `dirty`, `lost`, `unknown`, `unhealthy`, `closed`.
    pub state: Stated<GpuState>,
    /// The user who holds it; null: nobody.
    pub held_by: Option<String>,
    /// The reservation it is held for; null: there is none.
    pub reservation: Option<String>,
    /// The job it is held for; null: there is none.
    pub job: Option<String>,
    /// Until when it is held; null: it is not, or without an end.
    pub held_until: Option<Time>,
    /// `ok`, `notice`, `degraded`, `fatal`, `unknown`; null: nothing was said.
    pub health: Option<Stated<Health>>,
    /// What is known of its health, fact by fact.
    pub conditions: Vec<Condition>,
    /// Why it is in its state; null: that needs no reason.
    pub reason: Option<String>,
    /// What was measured last; null: nothing was.
    #[serde(rename = "use")]
    pub in_use: Option<Use>,
    /// What its node says it does about people without a reservation: `off`, `warn`, `on`; null: it said nothing.
    pub enforced: Option<String>,
}

/// What was measured last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Use {
    /// How busy it is, from 0 to 100; null: not known.
    pub utilization_percent: Option<u32>,
    /// How much of its memory is used, in bytes; null: not known.
    pub memory_used_bytes: Option<u64>,
    /// Its temperature in degrees Celsius; null: not known.
    pub temperature_celsius: Option<u32>,
    /// The processes that were seen on it.
    pub processes: Vec<Process>,
    /// When this was measured; null: not known.
    pub measured_at: Option<Time>,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number on its node.
    pub pid: u32,
    /// The user it runs as; null: not known.
    pub user: Option<String>,
    /// The name of its program; null: not known.
    pub name: Option<String>,
    /// How much of the GPU's memory it uses, in bytes.
    pub memory_used_bytes: u64,
    /// Since when no lease explains it; null: one does.
    pub foreign_since: Option<Time>,
    /// The user who runs it needs no lease.
    pub exempt: bool,
}

impl From<pb::Gpu> for Gpu {
    fn from(gpu: pb::Gpu) -> Self {
        Self {
            model: text(&gpu.model),
            product: text(&gpu.product),
            memory_bytes: size(gpu.memory_bytes),
            held_by: text(&gpu.held_by),
            reservation: text(&gpu.reservation),
            job: text(&gpu.job),
            held_until: time(gpu.held_until_unix_ms),
            health: stated(gpu.health),
            conditions: gpu.conditions.into_iter().map(Condition::from).collect(),
            reason: text(&gpu.reason),
            in_use: gpu.r#use.map(Use::from),
            enforced: text(&gpu.enforced),
            uuid: gpu.uuid,
            node: gpu.node,
            index: gpu.index,
            driver_index: gpu.driver_index,
            state: gpu.state.into(),
        }
    }
}

impl From<pb::GpuUse> for Use {
    fn from(measured: pb::GpuUse) -> Self {
        let process = |process: pb::GpuProcess| Process {
            pid: process.pid,
            user: text(&process.user),
            name: text(&process.name),
            memory_used_bytes: process.memory_used_bytes,
            foreign_since: time(process.foreign_since_unix_ms),
            exempt: process.exempt,
        };
        Self {
            utilization_percent: measured.utilization_percent,
            memory_used_bytes: measured.memory_used_bytes,
            temperature_celsius: measured.temperature_celsius,
            processes: measured.processes.into_iter().map(process).collect(),
            measured_at: time(measured.measured_at_unix_ms),
        }
    }
}

impl From<&Gpu> for GpuRef {
    fn from(gpu: &Gpu) -> Self {
        let (uuid, model) = (gpu.uuid.clone(), gpu.model.clone());
        Self { uuid, node: Some(gpu.node.clone()), index: Some(gpu.index), model }
    }
}

impl Gpu {
    /// `titan01:3`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.node, self.index)
    }

    /// Where `nvidia-smi` on its node calls it something else.
    pub fn counted_otherwise(&self) -> Option<String> {
        let index = self
            .driver_index
            .filter(|index| *index != self.index && !self.state.is(GpuState::Lost))?;
        Some(format!("{}: `nvidia-smi` on {} calls it {index}", self.name(), self.node))
    }

    /// The job within, else the reservation.
    pub fn holder(&self) -> Option<&String> {
        self.job.as_ref().or(self.reservation.as_ref())
    }

    /// What is wrong with it, the worst first.
    pub fn wrong(&self) -> Vec<&Condition> {
        let holds = |condition: &&Condition| !condition.status.is(ConditionStatus::False);
        let mut wrong: Vec<&Condition> = self.conditions.iter().filter(holds).collect();
        let severity = |condition: &Condition| condition.severity.as_ref().and_then(Stated::known);
        // Stable: those that are as bad stay in their order.
        wrong.sort_by_key(|condition| std::cmp::Reverse(severity(condition)));
        wrong
    }

    /// Why it takes no work, as sentences; nothing where its state says all.
    pub fn why(&self) -> Option<String> {
        if self.reason.is_some() || !self.state.is(GpuState::Unhealthy) {
            return self.reason.clone();
        }
        let wrong = self.wrong().into_iter();
        let said: Vec<String> =
            wrong.filter_map(|c| c.message.clone().or_else(|| c.reason.clone())).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// All processes that were seen on it.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.in_use.iter().flat_map(|measured| &measured.processes)
    }

    /// Those that no lease explains.
    pub fn foreign(&self) -> impl Iterator<Item = &Process> {
        self.processes().filter(|process| process.foreign_since.is_some())
    }
}

impl Document for Gpu {
    const SCHEMA: &'static str = "fleet.gpu/v1";
    const LIST_SCHEMA: &'static str = "fleet.gpus/v1";
    const FIELDS: &'static [&'static str] = &[
        "uuid",
        "node",
        "index",
        "driver_index",
        "model",
        "product",
        "memory_bytes",
        "state",
        "held_by",
        "reservation",
        "job",
        "held_until",
        "health",
        "conditions",
        "reason",
        "use",
        "enforced",
    ];
}
