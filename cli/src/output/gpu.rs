//! GPUs.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Condition, GpuRef, Time, condition_line, or_dash, size, text, time};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) node: String,
    pub(crate) index: u32,
    /// What `nvidia-smi` on its node calls it.
    pub(crate) driver_index: Option<u32>,
    pub(crate) model: Option<String>,
    pub(crate) product: Option<String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) state: String,
    pub(crate) held_by: Option<String>,
    pub(crate) reservation: Option<String>,
    pub(crate) job: Option<String>,
    pub(crate) held_until: Option<Time>,
    pub(crate) health: Option<String>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) reason: Option<String>,
    #[serde(rename = "use")]
    pub(crate) in_use: Option<Use>,
    pub(crate) enforced: Option<String>,
}

/// What was measured last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Use {
    pub(crate) utilization_percent: Option<u32>,
    pub(crate) memory_used_bytes: Option<u64>,
    pub(crate) temperature_celsius: Option<u32>,
    pub(crate) processes: Vec<Process>,
    pub(crate) measured_at: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) user: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) memory_used_bytes: u64,
    /// Since when no lease explains it.
    pub(crate) foreign_since: Option<Time>,
    /// Whoever runs it needs no lease.
    pub(crate) exempt: bool,
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
            health: text(&gpu.health),
            conditions: gpu.conditions.into_iter().map(Condition::from).collect(),
            reason: text(&gpu.reason),
            in_use: gpu.r#use.map(Use::from),
            enforced: text(&gpu.enforced),
            uuid: gpu.uuid,
            node: gpu.node,
            index: gpu.index,
            driver_index: gpu.driver_index,
            state: gpu.state,
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
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.node, self.index)
    }

    /// Where `nvidia-smi` on its node calls it something else.
    pub(crate) fn counted_otherwise(&self) -> Option<String> {
        let index =
            self.driver_index.filter(|index| *index != self.index && self.state != "lost")?;
        Some(format!("{}: `nvidia-smi` on {} calls it {index}", self.name(), self.node))
    }

    /// The job within, else the reservation.
    fn holder(&self) -> Option<&String> {
        self.job.as_ref().or(self.reservation.as_ref())
    }

    fn used(&self) -> String {
        let Some(measured) = &self.in_use else { return "-".to_owned() };
        let percent = measured.utilization_percent.map(|percent| format!("{percent}%"));
        let memory = measured.memory_used_bytes.map(|bytes| Bytes(bytes).to_string());
        let parts: Vec<String> = [percent, memory].into_iter().flatten().collect();
        if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
    }

    /// All processes that were seen on it.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.in_use.iter().flat_map(|measured| &measured.processes)
    }

    /// Those that no lease explains.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = &Process> {
        self.processes().filter(|process| process.foreign_since.is_some())
    }

    /// Who is on it, and for how long without a lease.
    fn used_by(&self, clock: &Clock) -> String {
        self.processes().map(|process| process.line(clock)).collect::<Vec<_>>().join(", ")
    }

    /// Why it is in its state, else what is wrong with it.
    fn reason_shown(&self) -> String {
        let wrong = self.conditions.iter().filter(|condition| condition.status != "false");
        let wrong = wrong.filter_map(|c| c.reason.clone().or_else(|| c.message.clone()));
        self.reason.clone().unwrap_or_else(|| wrong.collect::<Vec<_>>().join("; "))
    }

    fn temperature(&self) -> Option<String> {
        let celsius = self.in_use.as_ref().and_then(|measured| measured.temperature_celsius);
        celsius.map(|celsius| format!("{celsius}°C"))
    }
}

impl Process {
    /// `ada python3 (4242)`, and since when without a lease.
    pub(crate) fn line(&self, clock: &Clock) -> String {
        let user = self.user.as_deref().unwrap_or("?");
        let name = self.name.as_deref().unwrap_or("?");
        let since =
            self.foreign_since.map(|at| format!(" without a lease for {}", clock.ago(at.0)));
        format!("{user} {name} ({}){}", self.pid, since.unwrap_or_default())
    }
}

impl Row for Gpu {
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

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GPU", |g: &Self, _| g.name()),
            Column::new("MODEL", |g: &Self, _| or_dash(g.model.as_ref())),
            Column::new("MEMORY", |g: &Self, _| or_dash(g.memory_bytes.map(Bytes))).right(),
            Column::new("STATE", |g: &Self, _| g.state.clone()).state(),
            Column::new("HELD BY", |g: &Self, _| or_dash(g.held_by.as_ref())),
            Column::new("FOR", |g: &Self, _| or_dash(g.holder())),
            Column::new("UNTIL", |g: &Self, clock| {
                or_dash(g.held_until.map(|until| clock.minute(until.0)))
            }),
            Column::new("USE", |g: &Self, _| g.used()).right(),
            Column::new("TEMP", |g: &Self, _| or_dash(g.temperature())).right().wide(),
            Column::new("ENFORCED", |g: &Self, _| or_dash(g.enforced.as_ref())).wide(),
            Column::new("USED BY", |g: &Self, clock| {
                or_dash(Some(g.used_by(clock)).filter(|text| !text.is_empty()))
            })
            .wide(),
            Column::new("HEALTH", |g: &Self, _| or_dash(g.health.as_ref())).state(),
            Column::new("DRIVER", |g: &Self, _| or_dash(g.driver_index)).right().wide(),
            Column::new("UUID", |g: &Self, _| g.uuid.clone()).wide(),
            Column::new("REASON", |g: &Self, _| g.reason_shown()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("GPU", self.name()),
            ("UUID", self.uuid.clone()),
            ("Model", or_dash(self.product.as_ref().or(self.model.as_ref()))),
            ("Memory", or_dash(self.memory_bytes.map(Bytes))),
            ("State", self.state.clone()),
        ];
        let optional = [
            ("Driver's index", self.driver_index.map(|index| index.to_string())),
            ("Reason", self.reason.clone()),
            ("Held by", self.held_by.clone()),
            ("Reservation", self.reservation.clone()),
            ("Job", self.job.clone()),
            ("Until", self.held_until.map(|until| clock.minute(until.0))),
            ("Health", self.health.clone()),
            ("Use", self.in_use.as_ref().map(|_| self.used())),
            ("Temperature", self.temperature()),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines.extend(self.processes().map(|process| ("Process", process.line(clock))));
        lines.extend(self.conditions.iter().map(|c| ("Condition", condition_line(c))));
        lines
    }
}
