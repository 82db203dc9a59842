//! The control file of the fake NVML library: which GPUs a machine pretends to have, and what is
//! wrong with them now.
//!
//! The library (`fleet-fake-nvml`) finds the file through `FLEET_FAKE_NVML` and re-reads it
//! whenever it changes; `fleet dev`, `fleet dev fault` and tests write it with
//! [`ControlFile::update`], which replaces the file atomically under a lock, so a reader never sees
//! half of it. Every field but a GPU's profile, UUID, minor and PCI address has a default, so a
//! person can write the file by hand:
//!
//! ```toml
//! v = 1
//! [[gpus]]
//! profile = "titan-x"
//! uuid = "GPU-0a"
//! minor = 3
//! pci_bus_id = "00000000:3B:00.0"
//! [gpus.faults]
//! temperature_c = 88
//! ```
//!
//! Only std, serde and toml here: the library is loaded into
//! other people's processes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod profile;

pub use profile::Profile;

/// The environment variable that holds the control file's path.
pub const CONTROL_ENV: &str = "FLEET_FAKE_NVML";
/// The only version of the file so far.
pub const CONTROL_VERSION: u32 = 1;
/// XID events kept per GPU; a waiter that slept through more misses the oldest.
pub const XID_HISTORY_MAX: usize = 64;
/// More GPUs than any machine has.
pub const GPUS_MAX: usize = 64;
/// Minors from here on are not GPUs: 254 is nvidia-modeset, 255 nvidiactl.
pub const MINORS_MAX: u32 = 254;
/// Largest control file read, in bytes.
pub const CONTROL_BYTES_MAX: u64 = 1024 * 1024;

/// What went wrong with a control file.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is not a control file")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("cannot encode the control file for {path}")]
    Encode { path: PathBuf, source: Box<toml::ser::Error> },
    #[error("{path}: {problem}")]
    Invalid { path: PathBuf, problem: String },
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Version of this format: [`CONTROL_VERSION`].
    pub v: u32,
    /// As `nvidia-smi` prints it.
    #[serde(default = "default_driver_version")]
    pub driver_version: String,
    #[serde(default = "default_nvml_version")]
    pub nvml_version: String,
    /// 12040 is CUDA 12.4.
    #[serde(default = "default_cuda_version")]
    pub cuda_driver_version: i32,
    /// `false`: initialising fails with "driver not loaded".
    #[serde(default = "yes")]
    pub driver_loaded: bool,
    /// List as GPU processes those real processes whose environment names the GPU's UUID in
    /// `NVIDIA_VISIBLE_DEVICES`, each with [`Gpu::memory_per_process_bytes`]. It scans /proc.
    #[serde(default)]
    pub processes_from_environ: bool,
    /// In the order of their PCI addresses, which is NVML's: position and index are the same.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

/// One GPU of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    pub profile: Profile,
    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// `/dev/nvidia<minor>`.
    pub minor: u32,
    /// `00000000:3B:00.0`: domain, bus, device, function, in hexadecimal.
    pub pci_bus_id: String,
    /// The NUMA node; absent: NVML says "not supported".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// GPUs with the same number sit behind one PCIe switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_switch: Option<u32>,
    /// Memory in use when nothing runs.
    #[serde(default)]
    pub idle_memory_bytes: u64,
    /// Memory of each process found by `processes_from_environ` or a process file.
    #[serde(default = "default_process_memory")]
    pub memory_per_process_bytes: u64,
    /// Number of the latest entry of `xids`; see [`Gpu::push_xid`].
    #[serde(default)]
    pub xid_seq: u64,
    /// The latest XID events, oldest first. Each new sequence number fires one event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<Xid>,
    #[serde(default)]
    pub faults: Faults,
}

/// One XID event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    pub seq: u64,
    pub code: u64,
}

/// What is unusual about a GPU now. The default is a healthy, idle GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Off the bus: every call answers GPU_IS_LOST, and one event XID 79 fires.
    pub lost: bool,
    /// Not enumerated by the next initialisation; lost for those already initialised.
    pub missing: bool,
    /// Calls on this GPU never return, and the caller shrugs off every signal but SIGKILL.
    pub hang: bool,
    /// No event tells of what happens to it: only a sample shows it.
    pub silent: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    /// Overrides idle memory plus that of the processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Current PCIe width in lanes, where less than the card's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation: Option<u32>,
    /// NVLinks that are down, by number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvlinks_down: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle: Vec<Throttle>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// Real processes: a file with one pid per line (a `cgroup.procs` will do) or a directory
    /// whose entries are named by pid. Only pids alive in /proc are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub process_files: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Ecc::is_clean")]
    pub ecc: Ecc,
    #[serde(skip_serializing_if = "RetiredPages::is_clean")]
    pub retired_pages: RetiredPages,
    #[serde(skip_serializing_if = "RemappedRows::is_clean")]
    pub remapped_rows: RemappedRows,
}

/// ECC error counts; only for profiles that have ECC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ecc {
    /// Since the driver was loaded.
    pub volatile_corrected: u64,
    pub volatile_uncorrected: u64,
    /// Since the card was made.
    pub aggregate_corrected: u64,
    pub aggregate_uncorrected: u64,
    /// ECC switched off by the administrator: counts answer NOT_SUPPORTED.
    pub disabled: bool,
}

/// Retired memory pages; Pascal to Volta datacenter cards only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetiredPages {
    pub single_bit: u32,
    pub double_bit: u32,
    /// A retirement waits for the next reset.
    pub pending: bool,
}

/// Remapped memory rows; Ampere and later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemappedRows {
    pub corrected: u32,
    pub uncorrected: u32,
    pub pending: bool,
    pub failed: bool,
}

/// A process on a GPU that NVML lists, real or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    pub memory_bytes: u64,
    #[serde(default)]
    pub kind: ProcessKind,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    #[default]
    Compute,
    Graphics,
    /// A client of the MPS server; Volta and later.
    Mps,
}

/// A reason for lowered clocks, as NVML names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    GpuIdle,
    ApplicationsClocksSetting,
    SwPowerCap,
    HwSlowdown,
    SyncBoost,
    SwThermalSlowdown,
    HwThermalSlowdown,
    HwPowerBrakeSlowdown,
    DisplayClockSetting,
}

impl Throttle {
    /// The bit in NVML's mask.
    pub fn bit(self) -> u64 {
        match self {
            Self::GpuIdle => 0x1,
            Self::ApplicationsClocksSetting => 0x2,
            Self::SwPowerCap => 0x4,
            Self::HwSlowdown => 0x8,
            Self::SyncBoost => 0x10,
            Self::SwThermalSlowdown => 0x20,
            Self::HwThermalSlowdown => 0x40,
            Self::HwPowerBrakeSlowdown => 0x80,
            Self::DisplayClockSetting => 0x100,
        }
    }
}

impl Ecc {
    fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl RetiredPages {
    fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl RemappedRows {
    fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl Control {
    /// A machine with these GPUs, all healthy, laid out like a two-socket server: half of them on
    /// each NUMA node, pairs behind one PCIe switch. `seed` makes the UUIDs of two machines differ
    /// and keeps those of one machine the same from run to run; minors count from `first_minor`.
    pub fn machine(profiles: &[Profile], seed: &str, first_minor: u32) -> Self {
        let half = profiles.len().div_ceil(2).max(1);
        let gpus = (0u32..)
            .zip(profiles)
            .map(|(index, profile)| {
                let position = usize::try_from(index).unwrap_or(usize::MAX);
                Gpu {
                    profile: *profile,
                    uuid: uuid_from(seed, index),
                    minor: first_minor + index,
                    pci_bus_id: format!("00000000:{:02X}:00.0", 0x1a + index * 2),
                    numa_node: Some(u32::from(position >= half)),
                    pcie_switch: Some(index / 2),
                    idle_memory_bytes: 0,
                    memory_per_process_bytes: default_process_memory(),
                    xid_seq: 0,
                    xids: Vec::new(),
                    faults: Faults::default(),
                }
            })
            .collect();
        Self {
            v: CONTROL_VERSION,
            driver_version: default_driver_version(),
            nvml_version: default_nvml_version(),
            cuda_driver_version: default_cuda_version(),
            driver_loaded: true,
            processes_from_environ: false,
            gpus,
        }
    }

    /// Says what is wrong with the values, if anything.
    pub fn check(&self) -> Result<(), String> {
        if self.v != CONTROL_VERSION {
            return Err(format!("v = {} is not known, this reads {CONTROL_VERSION}", self.v));
        }
        if self.gpus.len() > GPUS_MAX {
            return Err(format!("gpus: {} GPUs, at most {GPUS_MAX}", self.gpus.len()));
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            let twin = |other: &Gpu| {
                other.uuid == gpu.uuid
                    || other.minor == gpu.minor
                    || other.pci_bus_id == gpu.pci_bus_id
            };
            if !gpu.uuid.starts_with("GPU-") || gpu.uuid.len() >= 80 || gpu.uuid.contains('\0') {
                return Err(format!("gpus[{index}].uuid: {:?} is not a GPU UUID", gpu.uuid));
            }
            if gpu.pci_address().is_none() {
                return Err(format!(
                    "gpus[{index}].pci_bus_id: {:?} is not like 00000000:3B:00.0",
                    gpu.pci_bus_id
                ));
            }
            if gpu.minor >= MINORS_MAX {
                return Err(format!("gpus[{index}].minor: {} is no GPU's", gpu.minor));
            }
            let before = &self.gpus[..index];
            if before.iter().any(twin) {
                return Err(format!("gpus[{index}]: uuid, minor or pci_bus_id is used twice"));
            }
            // So that the position in the file is NVML's index.
            if before.last().is_some_and(|last| last.pci_address() > gpu.pci_address()) {
                return Err(format!("gpus[{index}]: the GPUs are not in the order of pci_bus_id"));
            }
        }
        Ok(())
    }
}

impl Gpu {
    /// Makes every waiter get one XID event with this code.
    pub fn push_xid(&mut self, code: u64) {
        self.xid_seq += 1;
        self.xids.push(Xid { seq: self.xid_seq, code });
        let excess = self.xids.len().saturating_sub(XID_HISTORY_MAX);
        self.xids.drain(..excess);
    }

    /// Healthy again. The XID history stays: it is how waiters tell new events from old.
    pub fn clear_faults(&mut self) {
        self.faults = Faults::default();
    }

    /// (domain, bus, device) of `pci_bus_id`.
    pub fn pci_address(&self) -> Option<(u32, u32, u32)> {
        let mut parts = self.pci_bus_id.split([':', '.']);
        let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
        let address = (next()?, next()?, next()?);
        let function = next()?;
        let short = self.pci_bus_id.len() < 32 && address.1 < 256 && address.2 < 32 && function < 8;
        (short && next().is_none()).then_some(address)
    }
}

/// A control file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlFile {
    path: PathBuf,
}

impl ControlFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self) -> Result<Control, ControlError> {
        let io =
            |action| move |source| ControlError::Io { action, path: self.path.clone(), source };
        let invalid = |problem| ControlError::Invalid { path: self.path.clone(), problem };
        let size = fs::metadata(&self.path).map_err(io("stat"))?.len();
        if size > CONTROL_BYTES_MAX {
            return Err(invalid(format!("{size} bytes, at most {CONTROL_BYTES_MAX}")));
        }
        let text = fs::read_to_string(&self.path).map_err(io("read"))?;
        let control: Control = toml::from_str(&text).map_err(|source| ControlError::Parse {
            path: self.path.clone(),
            source: Box::new(source),
        })?;
        control.check().map_err(invalid)?;
        Ok(control)
    }

    /// Replaces the file atomically: written beside it, then renamed.
    pub fn write(&self, control: &Control) -> Result<(), ControlError> {
        let _lock = self.lock()?;
        self.replace(control)
    }

    /// Reads, changes and replaces the file under a lock, so that two writers do not lose each
    /// other's faults. Gives back what `change` returns.
    pub fn update<T>(&self, change: impl FnOnce(&mut Control) -> T) -> Result<T, ControlError> {
        let _lock = self.lock()?;
        let mut control = self.read()?;
        let answer = change(&mut control);
        self.replace(&control)?;
        Ok(answer)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    }

    fn lock(&self) -> Result<File, ControlError> {
        let path = self.beside(".lock");
        let file = File::create(&path).map_err(|source| ControlError::Io {
            action: "create",
            path: path.clone(),
            source,
        })?;
        file.lock().map_err(|source| ControlError::Io { action: "lock", path, source })?;
        Ok(file)
    }

    fn replace(&self, control: &Control) -> Result<(), ControlError> {
        control
            .check()
            .map_err(|problem| ControlError::Invalid { path: self.path.clone(), problem })?;
        let text = toml::to_string(control).map_err(|source| ControlError::Encode {
            path: self.path.clone(),
            source: Box::new(source),
        })?;
        let new = self.beside(".new");
        let io = |action| {
            let new = new.clone();
            move |source| ControlError::Io { action, path: new, source }
        };
        let mut file = File::create(&new).map_err(io("create"))?;
        file.write_all(text.as_bytes()).map_err(io("write"))?;
        drop(file);
        fs::rename(&new, &self.path).map_err(io("rename"))
    }
}

fn default_driver_version() -> String {
    "550.163.01".to_owned()
}

fn default_nvml_version() -> String {
    "12.550.163.01".to_owned()
}

fn default_cuda_version() -> i32 {
    12_040
}

fn default_process_memory() -> u64 {
    512 << 20
}

fn yes() -> bool {
    true
}

/// A UUID that follows from its seed (FNV-1a twice: it must be stable, not secret).
fn uuid_from(seed: &str, index: u32) -> String {
    let hash = |salt: u8| {
        let bytes = seed.bytes().chain([0, salt]).chain(index.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    };
    let text = format!("{:016x}{:016x}", hash(1), hash(2));
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..]
    )
}

#[cfg(test)]
mod tests;
