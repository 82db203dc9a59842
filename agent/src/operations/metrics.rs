//! The agent's metrics: the table, and where the values come from.
//!
//! `docs/metrics.md` explains them to people, and a test holds the two together. GPUs carry the labels
//! of NVIDIA's dcgm-exporter (`gpu`, `UUID`, `device`, `modelName`, `Hostname`), so that both can be
//! joined. What is not known has no value; it is never shown as zero.

use std::fmt;

use fleet_core::gpu::Presence;
use fleet_core::health::{Health, Severity, Subject};
use fleet_core::lease::LeaseHolder;
use fleet_core::name::GpuUuid;
use fleet_daemon::metrics::{Metric, Page, Source, Unit};

use super::Sights;
use crate::clock;
use crate::gpu::{DriverState, GpuSnapshot, GpuState, Observed};
use fleet_image::Figures;

const NONE: Unit = Unit::None;

const INFO: Metric =
    Metric::gauge("fleet_agent_info", NONE, "Always 1; its labels say which agent it is.")
        .with(&["version", "cluster", "node", "driver"]);
const READY: Metric =
    Metric::gauge("fleet_agent_ready", NONE, "1 when /readyz says ready, else 0.");
const LINKED: Metric =
    Metric::gauge("fleet_agent_linked", NONE, "1 while a controller answers, else 0.");
const LINK_AGE: Metric = Metric::gauge(
    "fleet_agent_link_age_seconds",
    Unit::Seconds,
    "Since the newest heartbeat that a controller answered was sent.",
);
const ATTEMPTS: Metric =
    Metric::gauge("fleet_agent_attempts", NONE, "Attempts of jobs on this node, by phase.")
        .with(&["phase"]);
const WAITING: Metric = Metric::gauge(
    "fleet_agent_reports_waiting",
    NONE,
    "Reports that no controller has acknowledged yet.",
);
const DRIVER: Metric = Metric::gauge(
    "fleet_agent_driver_state",
    NONE,
    "1 for the state the GPU driver is in, else 0.",
)
.with(&["state"]);
const STUCK: Metric = Metric::gauge(
    "fleet_agent_stuck_probes",
    NONE,
    "Processes of the agent that hang in the GPU driver.",
);
const IMAGES: Metric =
    Metric::gauge("fleet_agent_images", NONE, "Images in the node's image store.");
const IMAGE_BYTES: Metric = Metric::gauge(
    "fleet_agent_image_store_bytes",
    Unit::Bytes,
    "Of all layers in the node's image store, unpacked.",
);
const IMAGE_LIMIT: Metric = Metric::gauge(
    "fleet_agent_image_store_limit_bytes",
    Unit::Bytes,
    "What they may have; images that were not used for longest make room.",
);
const IMAGES_REMOVED: Metric =
    Metric::counter("fleet_agent_images_removed_total", NONE, "Images removed from the store.");
const CERTIFICATE: Metric = Metric::gauge(
    "fleet_certificate_expiry_timestamp_seconds",
    Unit::Seconds,
    "When the program's certificate expires, since 1970.",
);
const CONDITIONS: Metric = Metric::gauge(
    "fleet_condition",
    NONE,
    "1 for each condition that holds on this node; without a UUID it is the node's own.",
)
.with(&["UUID", "kind", "severity"]);

const GPU_INFO: Metric = Metric::gauge("fleet_gpu_info", NONE, "Always 1; where the GPU is.")
    .with(&["gpu", "UUID", "device", "modelName", "Hostname", "pci_bus_id"]);
const PRESENT: Metric =
    gpu("fleet_gpu_present", NONE, "1 while the GPU answers, 0 when it is lost.");
const UTILIZATION: Metric =
    gpu("fleet_gpu_utilization_ratio", Unit::Ratio, "Part of the time a kernel ran.");
const MEMORY_USED: Metric =
    gpu("fleet_gpu_memory_used_bytes", Unit::Bytes, "Memory in use on the GPU.");
const MEMORY_TOTAL: Metric = gpu("fleet_gpu_memory_total_bytes", Unit::Bytes, "Memory of the GPU.");
const TEMPERATURE: Metric =
    gpu("fleet_gpu_temperature_celsius", Unit::Celsius, "Of the GPU's core.");
const POWER: Metric = gpu("fleet_gpu_power_watts", Unit::Watts, "Drawn by the board.");
const PROCESSES: Metric = gpu("fleet_gpu_processes", NONE, "Processes that have the GPU open.");
const PCIE_WIDTH: Metric = gpu("fleet_gpu_pcie_width", NONE, "PCIe lanes in use.");
const SAMPLE_AGE: Metric = gpu(
    "fleet_gpu_sample_age_seconds",
    Unit::Seconds,
    "Since the values of this GPU were measured.",
);
const DIRTY: Metric =
    gpu("fleet_gpu_dirty", NONE, "1 while somebody uses the GPU without a lease.");
const ECC: Metric = Metric::counter(
    "fleet_gpu_ecc_errors_total",
    NONE,
    "ECC errors since the card was made, as the card counts them.",
)
.with(&["gpu", "UUID", "device", "modelName", "Hostname", "kind"]);
const RETIRED: Metric =
    Metric::gauge("fleet_gpu_retired_pages", NONE, "Memory pages out of use, by cause.").with(&[
        "gpu",
        "UUID",
        "device",
        "modelName",
        "Hostname",
        "cause",
    ]);
const REMAPPED: Metric =
    Metric::gauge("fleet_gpu_remapped_rows", NONE, "Memory rows replaced by spare ones, by cause.")
        .with(&["gpu", "UUID", "device", "modelName", "Hostname", "cause"]);
const HEALTH: Metric =
    Metric::gauge("fleet_gpu_health", NONE, "1 for the state the GPU's health is in, else 0.")
        .with(&["gpu", "UUID", "device", "modelName", "Hostname", "state"]);
const HELD_BY: Metric = Metric::gauge(
    "fleet_gpu_held_by",
    NONE,
    "1 for each lease on the GPU: whose it is, and for which reservation or allocation.",
)
.with(&["gpu", "UUID", "device", "modelName", "Hostname", "user", "holder", "id"]);

/// A gauge of a GPU.
const fn gpu(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric::gauge(name, unit, help).with(&["gpu", "UUID", "device", "modelName", "Hostname"])
}

/// The table.
pub(super) const METRICS: [Metric; 30] = [
    INFO,
    READY,
    LINKED,
    LINK_AGE,
    ATTEMPTS,
    WAITING,
    DRIVER,
    STUCK,
    IMAGES,
    IMAGE_BYTES,
    IMAGE_LIMIT,
    IMAGES_REMOVED,
    CERTIFICATE,
    CONDITIONS,
    GPU_INFO,
    PRESENT,
    UTILIZATION,
    MEMORY_USED,
    MEMORY_TOTAL,
    TEMPERATURE,
    POWER,
    PROCESSES,
    PCIE_WIDTH,
    SAMPLE_AGE,
    DIRTY,
    ECC,
    RETIRED,
    REMAPPED,
    HEALTH,
    HELD_BY,
];

/// Shown always, so that a graph has no gap where nothing is.
const DRIVER_STATES: [&str; 6] =
    ["starting", "running", "absent", "failed", "not_answering", "released"];

/// The source.
#[derive(Debug)]
pub(super) struct AgentSource(Sights);

impl AgentSource {
    pub(super) fn new(sights: Sights) -> Self {
        Self(sights)
    }
}

fn yes(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn driver_word(state: &DriverState) -> &'static str {
    match state {
        DriverState::Starting => "starting",
        DriverState::Running => "running",
        DriverState::Absent { .. } => "absent",
        DriverState::Failed { .. } => "failed",
        DriverState::NotAnswering { .. } => "not_answering",
        DriverState::Released => "released",
    }
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Notice => "notice",
        Severity::Degraded => "degraded",
        Severity::Fatal => "fatal",
    }
}

fn number<T: Copy + Into<u64>>(observed: &Observed<T>) -> Option<f64> {
    observed.value().map(|value| (*value).into() as f64)
}

impl Source for AgentSource {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        self.agent(page)?;
        let snapshot = self.0.gpus.latest();
        self.measured(page, &snapshot)?;
        self.faults(page, &snapshot)?;
        self.holders(page, &snapshot)?;
        super::job_metrics::write(&self.0, page)
    }
}

impl AgentSource {
    fn agent(&self, page: &mut Page<'_>) -> fmt::Result {
        let sights = &self.0;
        let snapshot = sights.gpus.latest();
        let driver = snapshot.driver.as_ref().and_then(|d| d.driver_version.value().cloned());
        let labels = [
            env!("CARGO_PKG_VERSION").to_owned(),
            sights.cluster.clone(),
            sights.node.to_string(),
            driver.unwrap_or_default(),
        ];
        page.many(&INFO, [(labels, 1.0)])?;
        page.one(&READY, yes(sights.not_ready().is_empty()))?;
        page.one(&LINKED, yes(sights.is_linked()))?;
        page.maybe(&LINK_AGE, sights.link_age().map(|age| age.as_secs_f64()))?;
        let attempts = sights.attempts().map(|(phase, n)| ([phase.to_owned()], n as f64));
        page.many(&ATTEMPTS, attempts)?;
        page.one(&WAITING, sights.outbox.waiting() as f64)?;
        let state = driver_word(&snapshot.driver_state);
        page.many(&DRIVER, DRIVER_STATES.map(|word| ([word.to_owned()], yes(word == state))))?;
        page.one(&STUCK, snapshot.stuck_probes as f64)?;
        let images = sights.images.figures();
        let number = |of: fn(&Figures) -> u64| images.as_ref().map(|figures| of(figures) as f64);
        page.maybe(&IMAGES, number(|figures| figures.images))?;
        page.maybe(&IMAGE_BYTES, number(|figures| figures.bytes))?;
        page.maybe(&IMAGE_LIMIT, number(|figures| figures.bytes_max))?;
        page.maybe(&IMAGES_REMOVED, number(|figures| figures.removed))?;
        page.one(&CERTIFICATE, sights.credentials.current().leaf().not_after as f64)?;
        let conditions = sights.conditions.borrow().clone();
        let holds = conditions.iter().filter(|condition| condition.is_active()).map(|condition| {
            let uuid = match &condition.subject {
                Subject::Node => String::new(),
                Subject::Gpu(uuid) => uuid.to_string(),
            };
            let severity = severity_word(condition.severity).to_owned();
            ([uuid, condition.kind.clone(), severity], 1.0)
        });
        page.many(&CONDITIONS, holds)
    }

    /// The labels of a GPU, as dcgm-exporter has them.
    fn labels(&self, state: &GpuState) -> [String; 5] {
        let info = &state.info;
        [
            self.0.gpus.numbers().of(info).to_string(),
            info.uuid.to_string(),
            format!("nvidia{}", info.minor),
            info.product.clone(),
            self.0.node.to_string(),
        ]
    }

    /// The same and one more.
    fn labels_and(&self, state: &GpuState, last: &str) -> [String; 6] {
        let [gpu, uuid, device, model, host] = self.labels(state);
        [gpu, uuid, device, model, host, last.to_owned()]
    }

    /// One value of each GPU that has it.
    fn each(
        &self,
        page: &mut Page<'_>,
        snapshot: &GpuSnapshot,
        metric: &Metric,
        value: impl Fn(&GpuState) -> Option<f64>,
    ) -> fmt::Result {
        let known = snapshot.gpus.iter();
        let known = known.filter_map(|state| Some((self.labels(state), value(state)?)));
        page.many(metric, known.collect::<Vec<_>>())
    }

    fn measured(&self, page: &mut Page<'_>, snapshot: &GpuSnapshot) -> fmt::Result {
        let now = clock::now();
        let info = snapshot.gpus.iter();
        let info = info.map(|state| (self.labels_and(state, &state.info.pci_bus_id), 1.0));
        page.many(&GPU_INFO, info.collect::<Vec<_>>())?;
        self.each(page, snapshot, &PRESENT, |gpu| match gpu.presence {
            Presence::Present => Some(1.0),
            Presence::Lost => Some(0.0),
            Presence::Unknown => None,
        })?;
        self.each(page, snapshot, &UTILIZATION, |gpu| {
            number(&gpu.telemetry.utilization_percent).map(|percent| percent / 100.0)
        })?;
        self.each(page, snapshot, &MEMORY_USED, |gpu| number(&gpu.telemetry.memory_used_bytes))?;
        self.each(page, snapshot, &MEMORY_TOTAL, |gpu| Some(gpu.info.memory_bytes as f64))?;
        self.each(page, snapshot, &TEMPERATURE, |gpu| number(&gpu.telemetry.temperature_c))?;
        self.each(page, snapshot, &POWER, |gpu| {
            number(&gpu.telemetry.power_milliwatts).map(|milliwatts| milliwatts / 1_000.0)
        })?;
        self.each(page, snapshot, &PROCESSES, |gpu| {
            gpu.telemetry.processes.value().map(|all| all.len() as f64)
        })?;
        self.each(page, snapshot, &PCIE_WIDTH, |gpu| number(&gpu.telemetry.pcie_width))?;
        self.each(page, snapshot, &SAMPLE_AGE, |gpu| {
            gpu.sampled_at.map(|at| now.since(at).0 as f64 / 1_000.0)
        })?;
        let dirty = |uuid: &GpuUuid| {
            let facts = self.0.facts.borrow();
            let known = facts.gpus.iter().find(|gpu| gpu.uuid == *uuid);
            known.map(|gpu| yes(gpu.dirty.is_some()))
        };
        self.each(page, snapshot, &DIRTY, |gpu| dirty(&gpu.info.uuid))
    }

    fn faults(&self, page: &mut Page<'_>, snapshot: &GpuSnapshot) -> fmt::Result {
        let mut ecc = Vec::new();
        let mut retired = Vec::new();
        let mut remapped = Vec::new();
        for gpu in &snapshot.gpus {
            if let Some(counts) = gpu.telemetry.ecc.value() {
                let kinds = [
                    ("corrected", counts.aggregate_corrected),
                    ("uncorrected", counts.aggregate_uncorrected),
                ];
                ecc.extend(kinds.map(|(kind, n)| (self.labels_and(gpu, kind), n as f64)));
            }
            if let Some(pages) = gpu.telemetry.retired_pages.value() {
                let causes = [("single_bit", pages.single_bit), ("double_bit", pages.double_bit)];
                retired.extend(causes.map(|(why, n)| (self.labels_and(gpu, why), f64::from(n))));
            }
            if let Some(rows) = gpu.telemetry.remapped_rows.value() {
                let causes = [("corrected", rows.corrected), ("uncorrected", rows.uncorrected)];
                remapped.extend(causes.map(|(why, n)| (self.labels_and(gpu, why), f64::from(n))));
            }
        }
        page.many(&ECC, ecc)?;
        page.many(&RETIRED, retired)?;
        page.many(&REMAPPED, remapped)?;
        let conditions = self.0.conditions.borrow().clone();
        let mut health = Vec::new();
        for gpu in &snapshot.gpus {
            let concern = |subject: &Subject| match subject {
                Subject::Node => true,
                Subject::Gpu(uuid) => *uuid == gpu.info.uuid,
            };
            let own = conditions.iter().filter(|condition| concern(&condition.subject));
            let state = Health::of(own, gpu.presence);
            let all = Health::ALL.iter();
            health.extend(all.map(|one| (self.labels_and(gpu, one.word()), yes(*one == state))));
        }
        page.many(&HEALTH, health)
    }

    fn holders(&self, page: &mut Page<'_>, snapshot: &GpuSnapshot) -> fmt::Result {
        let leases = self.0.leases.borrow().clone().unwrap_or_default();
        let mut held = Vec::new();
        for gpu in &snapshot.gpus {
            for lease in leases.iter().filter(|lease| lease.gpus.contains(&gpu.info.uuid)) {
                let (holder, id) = match &lease.holder {
                    LeaseHolder::Reservation(id) => ("reservation", id.to_string()),
                    LeaseHolder::Allocation(id) => ("allocation", id.to_string()),
                };
                let [index, uuid, device, model, host] = self.labels(gpu);
                let user = lease.owner.to_string();
                held.push(([index, uuid, device, model, host, user, holder.to_owned(), id], 1.0));
            }
        }
        page.many(&HELD_BY, held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_well_formed() {
        let problems: Vec<_> = super::super::metrics().iter().filter_map(Metric::problem).collect();
        assert_eq!(problems, Vec::<String>::new());
    }
}
