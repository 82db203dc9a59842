//! What the library knows: the control file's latest content, who initialised it, which GPU a
//! handle means. Every call comes through [`gpu`] or [`system`]; there a fault "hang" never returns.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_fake_nvml_control::{CONTROL_ENV, Control, ControlFile, Gpu};
use nvml_wrapper_sys::bindings as sys;

use crate::abi::Code;
use crate::facts::{self, Facts};
use crate::watch;

/// Handles are `HANDLE_BASE + slot`; they are never dereferenced.
const HANDLE_BASE: usize = 0x1000;

/// Tells one version of the control file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
    size: u64,
}

struct State {
    /// nvmlInit calls minus nvmlShutdown calls.
    users: u32,
    stamp: Option<Stamp>,
    control: Option<Arc<Control>>,
    /// UUID of each handle ever given out: handles outlive changes of the file.
    slots: Vec<String>,
    /// Slots in NVML's order, fixed at initialisation.
    enumerated: Vec<usize>,
}

static STATE: Mutex<State> = Mutex::new(State {
    users: 0,
    stamp: None,
    control: None,
    slots: Vec::new(),
    enumerated: Vec::new(),
});

/// The machine as the control file has it, and the GPUs that were enumerated.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) control: Arc<Control>,
    /// (slot, UUID) in NVML's order.
    pub(crate) enumerated: Vec<(usize, String)>,
}

/// One GPU that answers.
#[derive(Debug, Clone)]
pub(crate) struct View {
    machine: Machine,
    position: usize,
    pub(crate) slot: usize,
    pub(crate) facts: &'static Facts,
}

impl Machine {
    /// The GPU behind a slot as the file has it now; `None` when it is gone from the machine.
    pub(crate) fn present(&self, slot: usize) -> Option<(usize, &Gpu)> {
        let (_, uuid) = self.enumerated.iter().find(|(known, _)| *known == slot)?;
        let mut gpus = self.control.gpus.iter().enumerate();
        gpus.find(|(_, gpu)| gpu.uuid == *uuid && !gpu.faults.missing)
    }
}

impl View {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.machine.control.gpus[self.position]
    }

    pub(crate) fn control(&self) -> &Control {
        &self.machine.control
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// NVML's index.
    pub(crate) fn index(&self) -> usize {
        let slots = self.machine.enumerated.iter();
        slots.map(|(slot, _)| *slot).take_while(|slot| *slot != self.slot).count()
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The control file's path.
pub(crate) fn control_path() -> Option<PathBuf> {
    std::env::var_os(CONTROL_ENV).map(PathBuf::from)
}

impl State {
    /// Reads the file if it changed. A file that cannot be read leaves what was known.
    fn refresh(&mut self) {
        let Some(path) = control_path() else { return };
        let Ok(meta) = std::fs::metadata(&path) else { return };
        let stamp = Stamp {
            inode: meta.ino(),
            seconds: meta.mtime(),
            nanoseconds: meta.mtime_nsec(),
            size: meta.size(),
        };
        if self.stamp == Some(stamp) {
            return;
        }
        if let Ok(control) = ControlFile::new(path).read() {
            self.control = Some(Arc::new(control));
        }
        self.stamp = Some(stamp);
    }

    fn machine(&self) -> Result<Machine, Code> {
        let control = self.control.clone().ok_or(Code::DRIVER_NOT_LOADED)?;
        let named = self.enumerated.iter().map(|slot| (*slot, self.slots[*slot].clone()));
        Ok(Machine { control, enumerated: named.collect() })
    }

    fn slot_of(&mut self, uuid: &str) -> usize {
        if let Some(slot) = self.slots.iter().position(|known| known == uuid) {
            return slot;
        }
        self.slots.push(uuid.to_owned());
        self.slots.len() - 1
    }

    /// NVML orders GPUs by PCI address and fixes the order at the first initialisation.
    fn enumerate(&mut self, control: &Control) {
        let mut present: Vec<&Gpu> =
            control.gpus.iter().filter(|gpu| !gpu.faults.missing).collect();
        present.sort_by_key(|gpu| gpu.pci_address());
        self.enumerated = present.into_iter().map(|gpu| self.slot_of(&gpu.uuid)).collect();
    }
}

pub(crate) fn init() -> Result<(), Code> {
    let mut state = lock();
    state.refresh();
    let control = state.control.clone().ok_or(Code::DRIVER_NOT_LOADED)?;
    if !control.driver_loaded {
        return Err(Code::DRIVER_NOT_LOADED);
    }
    if state.users == 0 {
        state.enumerate(&control);
    }
    state.users += 1;
    Ok(())
}

pub(crate) fn shutdown() -> Result<(), Code> {
    let mut state = lock();
    state.users = state.users.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
    Ok(())
}

/// The machine, for calls that are about no GPU.
pub(crate) fn system() -> Result<Machine, Code> {
    let mut state = lock();
    if state.users == 0 {
        return Err(Code::UNINITIALIZED);
    }
    state.refresh();
    state.machine()
}

/// The GPU a handle means, if it answers: never returns for one that hangs.
pub(crate) fn gpu(device: sys::nvmlDevice_t) -> Result<View, Code> {
    let machine = system()?;
    let slot = slot(device).ok_or(Code::INVALID_ARGUMENT)?;
    view(machine, slot)
}

/// As [`gpu`], for a slot of the enumeration.
pub(crate) fn view(machine: Machine, slot: usize) -> Result<View, Code> {
    if !machine.enumerated.iter().any(|(known, _)| *known == slot) {
        return Err(Code::INVALID_ARGUMENT);
    }
    let (position, gpu) = machine.present(slot).ok_or(Code::GPU_IS_LOST)?;
    if gpu.faults.hang {
        watch::hang();
    }
    if gpu.faults.lost {
        return Err(Code::GPU_IS_LOST);
    }
    let facts = facts::of(gpu.profile);
    Ok(View { machine, position, slot, facts })
}

/// The handle of a slot.
pub(crate) fn handle(slot: usize) -> sys::nvmlDevice_t {
    std::ptr::without_provenance_mut(HANDLE_BASE + slot)
}

pub(crate) fn slot(device: sys::nvmlDevice_t) -> Option<usize> {
    device.addr().checked_sub(HANDLE_BASE)
}
