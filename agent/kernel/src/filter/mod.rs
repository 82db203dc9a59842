//! The device filter of an allocation: which device nodes its processes may open, enforced by the kernel.
//!
//! The shim calls [`attach`] on the allocation's cgroup before any process is in there, and [`verify`]
//! again after the runtime has started. Anything not on the list is denied. This module must never
//! leave a cgroup open because something failed: every failure is an error and nothing is started.
//!
//! With cgroup2 (alone or beside v1) the filter is our own BPF program, attached with ALLOW_MULTI: all
//! programs from the root down must allow, so a runtime can add its own and only narrow ours. On pure
//! v1 it is the devices controller, deny-all first, read back.

mod program;
mod v1;

use std::{
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::bpf::call as bpf;

pub use program::assemble;

/// Where the kernel says which driver has which number.
const PROC_DEVICES: &str = "/proc/devices";

/// Most rules in one filter: a node has at most a few dozen GPUs.
pub const RULES_MAX: usize = 512;

/// Seen in `bpftool prog`.
const PROGRAM_NAME: &str = "fleet_device";

/// Minor number of `/dev/nvidiactl`.
pub const NVIDIACTL_MINOR: u32 = 255;
/// Minor number of `/dev/nvidia-modeset`.
pub const NVIDIA_MODESET_MINOR: u32 = 254;
/// The major number NVIDIA's driver has had for ever; used only when the caller names nodes itself.
pub const NVIDIA_MAJOR_USUAL: u32 = 195;

/// Block or character device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    Char,
    Block,
}

/// What may be done with a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access {
    #[serde(default)]
    pub read: bool,
    #[serde(default)]
    pub write: bool,
    #[serde(default)]
    pub mknod: bool,
}

impl Access {
    /// Open for reading and writing, never create.
    pub const READ_WRITE: Self = Self { read: true, write: true, mknod: false };
    /// Open and create. Only for nodes that give nothing away (`/dev/null` and its like).
    pub const ALL: Self = Self { read: true, write: true, mknod: true };

    /// As the OCI spec and the v1 controller write it.
    #[must_use]
    pub fn letters(self) -> String {
        let mut text = String::with_capacity(3);
        for (on, letter) in [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')] {
            if on {
                text.push(letter);
            }
        }
        text
    }
}

/// One line of the allow list. `minor: None` means every minor of that major; a major is always named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    pub kind: DeviceKind,
    pub major: u32,
    pub minor: Option<u32>,
    pub access: Access,
}

impl DeviceRule {
    #[must_use]
    pub const fn char(major: u32, minor: Option<u32>, access: Access) -> Self {
        Self { kind: DeviceKind::Char, major, minor, access }
    }
}

/// How a filter is held by the kernel, as written into `state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterHandle {
    /// Our BPF program on a cgroup2 directory.
    Bpf { cgroup: PathBuf, program_id: u32 },
    /// The v1 devices controller's list in a cgroup directory.
    DevicesV1 { cgroup: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("device filter has {count} rules, more than {RULES_MAX}")]
    TooManyRules { count: usize },
    #[error("load the device filter program: {log}")]
    Load { log: String, source: io::Error },
    #[error("{action} at {}", path.display())]
    Cgroup { action: &'static str, path: PathBuf, source: io::Error },
    #[error("device filter {program_id} is not on {}: found {found:?}", cgroup.display())]
    Missing { cgroup: PathBuf, program_id: u32, found: Vec<u32> },
    #[error("devices.list of {} is {found:?}, wanted {wanted:?}", cgroup.display())]
    ListDiffers { cgroup: PathBuf, wanted: Vec<String>, found: Vec<String> },
    #[error("read {}", path.display())]
    ProcDevices { path: PathBuf, source: io::Error },
}

/// Attaches the filter to a cgroup2 directory and proves that the kernel has it.
pub fn attach(cgroup: &Path, rules: &[DeviceRule]) -> Result<FilterHandle, FilterError> {
    let code = assemble(rules)?;
    let program = bpf::load(&code, PROGRAM_NAME)
        .map_err(|(source, log)| FilterError::Load { log, source })?;
    let dir = open_cgroup(cgroup)?;
    let on_cgroup =
        |action| move |source| FilterError::Cgroup { action, path: cgroup.to_owned(), source };
    let program_id =
        bpf::program_id(program.as_fd()).map_err(on_cgroup("ask for the program id"))?;
    bpf::attach(dir.as_fd(), program.as_fd(), None)
        .map_err(on_cgroup("attach the device filter"))?;
    let handle = FilterHandle::Bpf { cgroup: cgroup.to_owned(), program_id };
    verify(&handle, rules)?;
    Ok(handle)
}

/// Sets the list of a v1 devices cgroup: deny all, then allow, then read back.
pub fn attach_v1(cgroup: &Path, rules: &[DeviceRule]) -> Result<FilterHandle, FilterError> {
    if rules.len() > RULES_MAX {
        return Err(FilterError::TooManyRules { count: rules.len() });
    }
    v1::set(cgroup, rules)?;
    let handle = FilterHandle::DevicesV1 { cgroup: cgroup.to_owned() };
    verify(&handle, rules)?;
    Ok(handle)
}

/// Checks that the kernel still holds this filter.
pub fn verify(handle: &FilterHandle, rules: &[DeviceRule]) -> Result<(), FilterError> {
    match handle {
        FilterHandle::Bpf { cgroup, program_id } => {
            let found = attached(cgroup)?;
            if found.contains(program_id) {
                return Ok(());
            }
            Err(FilterError::Missing { cgroup: cgroup.clone(), program_id: *program_id, found })
        }
        FilterHandle::DevicesV1 { cgroup } => v1::check(cgroup, rules),
    }
}

/// Ids of the device programs attached to exactly this cgroup2 directory (its ancestors' are not listed).
pub fn attached(cgroup: &Path) -> Result<Vec<u32>, FilterError> {
    let dir = open_cgroup(cgroup)?;
    bpf::query(dir.as_fd()).map_err(|source| FilterError::Cgroup {
        action: "query device programs",
        path: cgroup.to_owned(),
        source,
    })
}

/// Takes our program off the cgroup again. Only for a cgroup that is about to be removed, or a filter
/// that was replaced: what is left is open.
pub fn detach(handle: &FilterHandle) -> Result<(), FilterError> {
    let FilterHandle::Bpf { cgroup, program_id } = handle else { return Ok(()) };
    let dir = open_cgroup(cgroup)?;
    let on_cgroup =
        |action| move |source| FilterError::Cgroup { action, path: cgroup.clone(), source };
    let program = bpf::program_by_id(*program_id).map_err(on_cgroup("open the device filter"))?;
    bpf::detach(dir.as_fd(), program.as_fd()).map_err(on_cgroup("detach the device filter"))
}

fn open_cgroup(cgroup: &Path) -> Result<std::fs::File, FilterError> {
    std::fs::File::open(cgroup).map_err(|source| FilterError::Cgroup {
        action: "open the cgroup",
        path: cgroup.to_owned(),
        source,
    })
}

/// The harmless character devices every program may use. They may be created as well (the runtime makes
/// the container's own `/dev` by mknod, inside this cgroup); the job itself never has CAP_MKNOD.
#[must_use]
pub fn standard_rules() -> Vec<DeviceRule> {
    let named = [
        (1, 3), // null
        (1, 5), // zero
        (1, 7), // full
        (1, 8), // random
        (1, 9), // urandom
        (5, 0), // tty
        (5, 2), // ptmx
    ];
    let mut rules: Vec<_> = named
        .into_iter()
        .map(|(major, minor)| DeviceRule::char(major, Some(minor), Access::ALL))
        .collect();
    // Pseudo-terminals: the majors 136 to 143 (UNIX98 slaves).
    rules.extend((136..=143).map(|major| DeviceRule::char(major, None, Access::READ_WRITE)));
    rules
}

/// Major numbers of NVIDIA's driver, which differ from boot to boot for all but the cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NvidiaMajors {
    /// `/dev/nvidiaN`, `nvidiactl`, `nvidia-modeset`.
    pub cards: Option<u32>,
    /// `/dev/nvidia-uvm`, `nvidia-uvm-tools`.
    pub uvm: Option<u32>,
}

impl NvidiaMajors {
    /// Reads `/proc/devices` (or the given file). Read it at each start: a driver reload changes it.
    pub fn read(proc_devices: &Path) -> Result<Self, FilterError> {
        let text = std::fs::read_to_string(proc_devices)
            .map_err(|source| FilterError::ProcDevices { path: proc_devices.to_owned(), source })?;
        Ok(Self::parse(&text))
    }

    /// Major number of the GPUs' device nodes; the driver may not be loaded yet.
    #[must_use]
    pub fn cards_now() -> u32 {
        let majors = Self::read(Path::new(PROC_DEVICES)).unwrap_or_default();
        majors.cards.unwrap_or(NVIDIA_MAJOR_USUAL)
    }

    fn parse(text: &str) -> Self {
        let mut majors = Self::default();
        for line in text.lines().take_while(|line| !line.starts_with("Block devices")) {
            let mut words = line.split_whitespace();
            let (Some(number), Some(name)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse() else { continue };
            match name {
                "nvidia-frontend" | "nvidia" => majors.cards = Some(number),
                "nvidia-uvm" => majors.uvm = Some(number),
                _ => {}
            }
        }
        majors
    }
}

/// The rules for GPUs by minor number, with the control nodes every CUDA program opens. No GPU, no rule:
/// a job without a lease does not reach the driver at all.
#[must_use]
pub fn gpu_rules(majors: NvidiaMajors, minors: &[u32]) -> Vec<DeviceRule> {
    if minors.is_empty() {
        return Vec::new();
    }
    let cards = majors.cards.unwrap_or(NVIDIA_MAJOR_USUAL);
    let mut rules: Vec<_> = minors
        .iter()
        .chain([NVIDIACTL_MINOR, NVIDIA_MODESET_MINOR].iter())
        .map(|minor| DeviceRule::char(cards, Some(*minor), Access::READ_WRITE))
        .collect();
    if let Some(uvm) = majors.uvm {
        rules.push(DeviceRule::char(uvm, Some(0), Access::READ_WRITE));
        rules.push(DeviceRule::char(uvm, Some(1), Access::READ_WRITE));
    }
    rules
}

#[cfg(test)]
mod tests;
