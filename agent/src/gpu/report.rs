//! What is known about the node's GPUs: inventory and telemetry, as others see it.

use std::sync::Arc;

use fleet_core::gpu::{Architecture, LinkLevel, Presence};
use fleet_core::name::GpuUuid;
use fleet_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::observed::Observed;

/// Versions, as `nvidia-smi` prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    pub driver_version: Observed<String>,
    pub nvml_version: Observed<String>,
    /// `12.4`: the newest CUDA the driver supports.
    pub cuda_version: Observed<String>,
}

/// What a GPU is. Changes only when a driver is loaded again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    pub uuid: GpuUuid,
    /// NVML's index, which follows PCI order.
    pub index: u32,
    /// `/dev/nvidia<minor>`.
    pub minor: u32,
    /// Product name as NVML prints it.
    pub product: String,
    pub architecture: Architecture,
    pub memory_bytes: u64,
    /// `00000000:3B:00.0`.
    pub pci_bus_id: String,
    pub numa_node: Observed<u32>,
    /// `7.0`.
    pub compute_capability: Observed<String>,
    pub ecc_enabled: Observed<bool>,
    pub mig_enabled: Observed<bool>,
    pub serial: Observed<String>,
    pub pcie_width_max: Observed<u32>,
    pub pcie_generation_max: Observed<u32>,
    /// The hardware lowers the clocks from here on.
    pub slowdown_c: Observed<u32>,
    /// The hardware switches itself off.
    pub shutdown_c: Observed<u32>,
}

/// How a GPU is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    pub temperature_c: Observed<u32>,
    pub utilization_percent: Observed<u32>,
    pub memory_used_bytes: Observed<u64>,
    pub power_milliwatts: Observed<u32>,
    pub ecc: Observed<EccCounts>,
    pub retired_pages: Observed<RetiredPages>,
    pub remapped_rows: Observed<RemappedRows>,
    /// NVML's bit mask; `fleet_core::health::throttle` names the bits.
    pub throttle_reasons: Observed<u64>,
    pub pcie_width: Observed<u32>,
    pub pcie_generation: Observed<u32>,
    pub processes: Observed<Vec<GpuProcess>>,
    /// A call was refused because the GPU must be reset first.
    pub reset_required: bool,
}

/// ECC errors since the driver was loaded (volatile) and since the card was made (aggregate).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    pub volatile_corrected: u64,
    pub volatile_uncorrected: u64,
    pub aggregate_corrected: u64,
    pub aggregate_uncorrected: u64,
}

/// Memory pages out of use, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredPages {
    pub single_bit: u32,
    pub double_bit: u32,
    /// A retirement waits for the next reset.
    pub pending: bool,
}

/// Memory rows replaced by spare ones (Ampere and later).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    pub corrected: u32,
    pub uncorrected: u32,
    pub pending: bool,
    pub failed: bool,
}

/// A process that has the GPU open, as the driver says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    pub kind: ProcessKind,
    pub memory_bytes: Option<u64>,
    /// Start time in clock ticks since boot, from /proc; `None` when /proc has no such process: some
    /// drivers list wrong pids, and a stale entry still holds memory.
    pub started_ticks: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    Compute,
    Graphics,
    Mps,
}

/// How two GPUs of the node are connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub a: GpuUuid,
    pub b: GpuUuid,
    pub level: LinkLevel,
    /// Active NVLinks between the two; through a switch, the lesser of what each has to it.
    pub nvlinks: u32,
}

/// Whether the driver can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverState {
    /// The first inventory is not complete yet.
    Starting,
    Running,
    /// No library or no driver: the node has no GPUs to give, which is no fault.
    Absent {
        reason: String,
    },
    /// The library is there but does not work, or the probe keeps dying.
    Failed {
        reason: String,
    },
    /// A call that is about no single GPU does not come back.
    NotAnswering {
        reason: String,
    },
    /// Released on purpose, so that the driver can be unloaded.
    Released,
}

/// One GPU that is or was in the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    pub info: GpuInfo,
    pub presence: Presence,
    /// Why it is not `Present`.
    pub reason: Option<String>,
    pub telemetry: Telemetry,
    /// When `presence` became what it is.
    pub since: Timestamp,
    /// When `telemetry` was measured; `None` while it is not.
    pub sampled_at: Option<Timestamp>,
}

/// Everything known about the node's GPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSnapshot {
    pub driver_state: DriverState,
    pub driver: Option<DriverInfo>,
    /// By index; a GPU once seen stays listed.
    pub gpus: Vec<GpuState>,
    pub links: Vec<Link>,
    /// What cannot be said of a GPU with a UUID: one that never answered, one not permitted.
    pub problems: Vec<String>,
    /// Probe processes that outlive SIGKILL, stuck in the driver.
    pub stuck_probes: usize,
    /// Rises with each complete sample.
    pub sample: u64,
}

pub(crate) type Shared = Arc<GpuSnapshot>;

impl GpuSnapshot {
    pub(crate) fn empty(driver_state: DriverState) -> Self {
        Self {
            driver_state,
            driver: None,
            gpus: Vec::new(),
            links: Vec::new(),
            problems: Vec::new(),
            stuck_probes: 0,
            sample: 0,
        }
    }

    pub fn gpu(&self, uuid: &GpuUuid) -> Option<&GpuState> {
        self.gpus.iter().find(|gpu| gpu.info.uuid == *uuid)
    }

    /// Whether the first look at any of them is still to come. A GPU or a driver that does not answer is not waited for:
    /// it may be what somebody wants to mend.
    pub(crate) fn is_unseen(&self) -> bool {
        let unseen = |gpu: &GpuState| gpu.presence == Presence::Present && gpu.sampled_at.is_none();
        self.driver_state == DriverState::Starting || self.gpus.iter().any(unseen)
    }
}

#[cfg(test)]
impl GpuState {
    /// `GPU-0N`, number N of its node, which answers and of which nothing is measured yet.
    pub(crate) fn of_tests(index: u32) -> Self {
        let info = GpuInfo {
            uuid: GpuUuid::parse(&format!("GPU-0{index}")).expect("a UUID of tests"),
            index,
            minor: index,
            product: "Tesla V100-PCIE-16GB".to_owned(),
            architecture: Architecture::Volta,
            memory_bytes: 1 << 34,
            pci_bus_id: format!("00000000:0{index}:00.0"),
            numa_node: Observed::NotSupported,
            compute_capability: Observed::NotSupported,
            ecc_enabled: Observed::NotSupported,
            mig_enabled: Observed::NotSupported,
            serial: Observed::NotSupported,
            pcie_width_max: Observed::NotSupported,
            pcie_generation_max: Observed::NotSupported,
            slowdown_c: Observed::NotSupported,
            shutdown_c: Observed::NotSupported,
        };
        let (reason, since, sampled_at) = (None, Timestamp(1), None);
        let telemetry = Telemetry::unknown("");
        Self { info, presence: Presence::Present, reason, telemetry, since, sampled_at }
    }
}

impl Telemetry {
    /// Nothing is known, for one reason.
    pub fn unknown(reason: &str) -> Self {
        Self {
            temperature_c: Observed::unknown(reason),
            utilization_percent: Observed::unknown(reason),
            memory_used_bytes: Observed::unknown(reason),
            power_milliwatts: Observed::unknown(reason),
            ecc: Observed::unknown(reason),
            retired_pages: Observed::unknown(reason),
            remapped_rows: Observed::unknown(reason),
            throttle_reasons: Observed::unknown(reason),
            pcie_width: Observed::unknown(reason),
            pcie_generation: Observed::unknown(reason),
            processes: Observed::unknown(reason),
            reset_required: false,
        }
    }
}

impl GpuState {
    /// Whether the driver shows no process on the GPU and at most `idle_floor_bytes` in use. `None`
    /// when the driver does not say: then the GPU is not proven empty.
    pub fn is_empty(&self, idle_floor_bytes: u64) -> Option<bool> {
        if self.presence != Presence::Present {
            return None;
        }
        let processes = self.telemetry.processes.value()?;
        let used = self.telemetry.memory_used_bytes.value()?;
        Some(processes.is_empty() && *used <= idle_floor_bytes)
    }
}
