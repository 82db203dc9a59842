//! Reads one GPU through nvml-wrapper into the agent's words.
//!
//! NOT_SUPPORTED stays apart from errors, and a lost GPU ends the reading at once.

use fleet_core::gpu::Architecture;
use fleet_core::name::GpuUuid;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, RetirementCause, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::{DeviceArchitecture, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::raw;
use crate::gpu::observed::Observed;
use crate::gpu::report::{
    DriverInfo, EccCounts, GpuInfo, GpuProcess, ProcessKind, RetiredPages, Telemetry,
};
use crate::gpu::wire::Message;
use fleet_kernel::proc_stat::started_ticks;

/// Words of the NUMA mask asked for: 256 nodes.
const NUMA_WORDS: usize = 4;
const NUMA_SCOPE_NODE: u32 = 0;

/// One GPU the child may call.
pub(super) struct Card {
    pub(super) info: GpuInfo,
    pub(super) device: Device<'static>,
}

/// Why a reading stopped: the GPU is gone.
struct Lost;

/// A GPU that could not be taken into the inventory.
pub(super) struct Unread {
    pub(super) lost: bool,
    pub(super) reason: String,
}

/// Sorts an answer: a value, "cannot", "do not know", or the whole GPU is lost.
fn observe<T>(answer: Result<T, NvmlError>) -> Result<Observed<T>, Lost> {
    match answer {
        Ok(value) => Ok(Observed::Value(value)),
        Err(NvmlError::NotSupported) => Ok(Observed::NotSupported),
        Err(NvmlError::GpuLost) => Err(Lost),
        Err(error) => Ok(Observed::unknown(error.to_string())),
    }
}

/// As [`observe`], for the inventory, where being lost is an error like others.
fn fact<T>(answer: Result<T, NvmlError>) -> Observed<T> {
    observe(answer).unwrap_or_else(|Lost| Observed::unknown(NvmlError::GpuLost.to_string()))
}

pub(super) fn driver(nvml: &Nvml) -> DriverInfo {
    let cuda = fact(nvml.sys_cuda_driver_version());
    DriverInfo {
        driver_version: fact(nvml.sys_driver_version()),
        nvml_version: fact(nvml.sys_nvml_version()),
        cuda_version: cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
    }
}

impl Card {
    pub(super) fn read(nvml: &'static Nvml, index: u32) -> Result<Self, Unread> {
        let named = |what: &'static str| {
            move |error: NvmlError| Unread {
                lost: matches!(error, NvmlError::GpuLost),
                reason: format!("{what}: {error}"),
            }
        };
        let device = nvml.device_by_index(index).map_err(named("open"))?;
        let uuid = device.uuid().map_err(named("UUID"))?;
        let uuid = GpuUuid::parse(&uuid)
            .map_err(|error| Unread { lost: false, reason: error.to_string() })?;
        let memory_bytes = raw::memory(&device).map_err(named("memory"))?.total;
        let capability = device.cuda_compute_capability();
        let info = GpuInfo {
            uuid,
            index,
            minor: device.minor_number().map_err(named("minor number"))?,
            product: device.name().map_err(named("name"))?,
            architecture: device.architecture().map_or(Architecture::Other, architecture),
            memory_bytes,
            pci_bus_id: device.pci_info().map_err(named("PCI address"))?.bus_id,
            numa_node: numa_node(&device),
            compute_capability: fact(capability).map(|is| format!("{}.{}", is.major, is.minor)),
            ecc_enabled: fact(device.is_ecc_enabled()).map(|mode| mode.currently_enabled),
            mig_enabled: fact(device.mig_mode()).map(|mode| mode.current != 0),
            serial: fact(device.serial()),
            pcie_width_max: fact(device.max_pcie_link_width()),
            pcie_generation_max: fact(device.max_pcie_link_gen()),
            slowdown_c: fact(device.temperature_threshold(TemperatureThreshold::Slowdown)),
            shutdown_c: fact(device.temperature_threshold(TemperatureThreshold::Shutdown)),
        };
        Ok(Self { info, device })
    }

    pub(super) fn sample(&self) -> Message {
        let uuid = self.info.uuid.clone();
        match self.telemetry() {
            Ok(telemetry) => Message::Sample { uuid, telemetry },
            Err(Lost) => Message::SampleLost { uuid, reason: NvmlError::GpuLost.to_string() },
        }
    }

    fn telemetry(&self) -> Result<Telemetry, Lost> {
        let device = &self.device;
        let temperature = device.temperature(TemperatureSensor::Gpu);
        let reset_required = matches!(temperature, Err(NvmlError::ResetRequired));
        Ok(Telemetry {
            temperature_c: observe(temperature)?,
            utilization_percent: observe(device.utilization_rates())?.map(|rates| rates.gpu),
            memory_used_bytes: observe(raw::memory(device))?.map(|memory| memory.used),
            power_milliwatts: observe(device.power_usage())?,
            ecc: self.ecc()?,
            retired_pages: self.retired_pages()?,
            remapped_rows: observe(raw::remapped_rows(device))?,
            throttle_reasons: observe(device.current_throttle_reasons())?.map(|mask| mask.bits()),
            pcie_width: observe(device.current_pcie_link_width())?,
            pcie_generation: observe(device.current_pcie_link_gen())?,
            processes: self.processes()?,
            reset_required,
        })
    }

    fn ecc(&self) -> Result<Observed<EccCounts>, Lost> {
        let count = |kind, counter| self.device.total_ecc_errors(kind, counter);
        let all = || {
            Ok(EccCounts {
                volatile_corrected: count(MemoryError::Corrected, EccCounter::Volatile)?,
                volatile_uncorrected: count(MemoryError::Uncorrected, EccCounter::Volatile)?,
                aggregate_corrected: count(MemoryError::Corrected, EccCounter::Aggregate)?,
                aggregate_uncorrected: count(MemoryError::Uncorrected, EccCounter::Aggregate)?,
            })
        };
        observe(all())
    }

    fn retired_pages(&self) -> Result<Observed<RetiredPages>, Lost> {
        let pages = |cause| {
            let pages = self.device.retired_pages(cause)?;
            Ok::<_, NvmlError>(u32::try_from(pages.len()).unwrap_or(u32::MAX))
        };
        let all = || {
            Ok(RetiredPages {
                single_bit: pages(RetirementCause::MultipleSingleBitEccErrors)?,
                double_bit: pages(RetirementCause::DoubleBitEccError)?,
                pending: self.device.are_pages_pending_retired()?,
            })
        };
        observe(all())
    }

    fn processes(&self) -> Result<Observed<Vec<GpuProcess>>, Lost> {
        let device = &self.device;
        let newest = |new: Result<_, _>, old: &dyn Fn() -> Result<_, _>| match new {
            // Drivers before 510 have only the second version of the call.
            Err(NvmlError::FailedToLoadSymbol(_)) => old(),
            answer => answer,
        };
        let lists = [
            (
                ProcessKind::Compute,
                newest(device.running_compute_processes(), &|| {
                    device.running_compute_processes_v2()
                }),
            ),
            (
                ProcessKind::Graphics,
                newest(device.running_graphics_processes(), &|| {
                    device.running_graphics_processes_v2()
                }),
            ),
            (ProcessKind::Mps, device.mps_running_compute_processes()),
        ];
        let mut all: Vec<GpuProcess> = Vec::new();
        for (kind, list) in lists {
            let list = match (kind, list) {
                // Only Volta and later list MPS clients, and only newer drivers can be asked.
                (ProcessKind::Mps, Err(NvmlError::FailedToLoadSymbol(_))) => continue,
                (_, list) => observe(list)?,
            };
            match list {
                Observed::Value(list) => {
                    let fresh: Vec<GpuProcess> = list
                        .iter()
                        .filter(|process| all.iter().all(|known| known.pid != process.pid))
                        .map(|process| describe(process, kind))
                        .collect();
                    all.extend(fresh);
                }
                Observed::NotSupported if kind != ProcessKind::Compute => {}
                Observed::NotSupported => return Ok(Observed::NotSupported),
                Observed::Unknown { reason } => return Ok(Observed::Unknown { reason }),
            }
        }
        Ok(Observed::Value(all))
    }
}

fn describe(process: &ProcessInfo, kind: ProcessKind) -> GpuProcess {
    let memory_bytes = match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let started_ticks = started_ticks(&process.pid.to_string());
    GpuProcess { pid: process.pid, kind, memory_bytes, started_ticks }
}

/// The NUMA node whose memory is near: from NVML, else from sysfs.
fn numa_node(device: &Device<'_>) -> Observed<u32> {
    let said = fact(device.memory_affinity(NUMA_WORDS, NUMA_SCOPE_NODE));
    let node = said.value().and_then(|words| {
        let (at, word) = (0u32..).zip(words).find(|(_, word)| **word != 0)?;
        Some(at * std::ffi::c_ulong::BITS + word.trailing_zeros())
    });
    match (node.or_else(|| sysfs_numa_node(device)), said) {
        (Some(node), _) => Observed::Value(node),
        (None, Observed::Unknown { reason }) => Observed::Unknown { reason },
        (None, Observed::Value(_) | Observed::NotSupported) => Observed::NotSupported,
    }
}

fn sysfs_numa_node(device: &Device<'_>) -> Option<u32> {
    let bus_id = device.pci_info().ok()?.bus_id.to_ascii_lowercase();
    // NVML prints eight digits of domain, the kernel four.
    let short = bus_id.strip_prefix("0000").unwrap_or(&bus_id);
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{short}/numa_node")).ok()?;
    // -1: the firmware does not say.
    text.trim().parse().ok()
}

fn architecture(architecture: DeviceArchitecture) -> Architecture {
    match architecture {
        DeviceArchitecture::Maxwell => Architecture::Maxwell,
        DeviceArchitecture::Pascal => Architecture::Pascal,
        DeviceArchitecture::Volta => Architecture::Volta,
        DeviceArchitecture::Turing => Architecture::Turing,
        DeviceArchitecture::Ampere => Architecture::Ampere,
        DeviceArchitecture::Hopper => Architecture::Hopper,
        DeviceArchitecture::Kepler
        | DeviceArchitecture::Ada
        | DeviceArchitecture::Blackwell
        | DeviceArchitecture::Unknown => Architecture::Other,
    }
}
