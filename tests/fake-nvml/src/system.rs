//! Calls about the machine: initialisation, versions, counting and finding GPUs.
#![expect(unsafe_code, reason = "the C ABI")]

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, put, put_text, text};
use crate::state::{self, Machine};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> sys::nvmlReturn_t {
    answer(state::init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> sys::nvmlReturn_t {
    answer(state::init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> sys::nvmlReturn_t {
    answer(state::shutdown)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: sys::nvmlReturn_t) -> *const c_char {
    let text = match result {
        sys::nvmlReturn_enum_NVML_SUCCESS => c"Success",
        sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let machine = state::system()?;
        // SAFETY: NVML's contract: `version` has `length` bytes.
        unsafe { put_text(version, length, &machine.control.driver_version) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(
    version: *mut c_char,
    length: c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let machine = state::system()?;
        // SAFETY: NVML's contract: `version` has `length` bytes.
        unsafe { put_text(version, length, &machine.control.nvml_version) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> sys::nvmlReturn_t {
    answer(|| {
        let machine = state::system()?;
        // SAFETY: NVML's contract.
        unsafe { put(version, machine.control.cuda_driver_version) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> sys::nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlSystemGetCudaDriverVersion_v2(version) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    name: *mut c_char,
    length: c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        state::system()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Code::NOT_FOUND)?;
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let shown = String::from_utf8_lossy(first);
        // NVML cuts the name to the buffer.
        let room = usize::try_from(length).unwrap_or(0).saturating_sub(1);
        let cut = (0..=room.min(shown.len())).rev().find(|at| shown.is_char_boundary(*at));
        // SAFETY: NVML's contract: `name` has `length` bytes.
        unsafe { put_text(name, length, &shown[..cut.unwrap_or(0)]) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> sys::nvmlReturn_t {
    answer(|| {
        let machine = state::system()?;
        let length = c_uint::try_from(machine.enumerated.len()).map_err(|_| Code::UNKNOWN)?;
        // SAFETY: NVML's contract.
        unsafe { put(count, length) }
    })
}

/// Gives out the handle of the first enumerated GPU that `is_it`; that GPU must answer.
///
/// # Safety
/// `device` is NULL or writable.
unsafe fn find(
    device: *mut sys::nvmlDevice_t,
    is_it: impl Fn(&Machine, usize, &str) -> bool,
) -> Result<(), Code> {
    let machine = state::system()?;
    let found = machine.enumerated.iter().find(|(slot, uuid)| is_it(&machine, *slot, uuid));
    let slot = found.map(|(slot, _)| *slot).ok_or(Code::NOT_FOUND)?;
    let view = state::view(machine, slot)?;
    // SAFETY: this function's contract.
    unsafe { put(device, state::handle(view.slot)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut sys::nvmlDevice_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let machine = state::system()?;
        let position = usize::try_from(index).map_err(|_| Code::INVALID_ARGUMENT)?;
        let (slot, _) = *machine.enumerated.get(position).ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: NVML's contract.
        unsafe { find(device, |_, known, _| known == slot) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut sys::nvmlDevice_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        // SAFETY: NVML's contract.
        let wanted = unsafe { text(uuid) }?;
        // SAFETY: NVML's contract.
        unsafe { find(device, |_, _, uuid| uuid == wanted) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    pci_bus_id: *const c_char,
    device: *mut sys::nvmlDevice_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        // SAFETY: NVML's contract.
        let wanted = unsafe { text(pci_bus_id) }?;
        let is_it = |machine: &Machine, slot: usize, _: &str| {
            let present = machine.present(slot);
            present.is_some_and(|(_, gpu)| gpu.pci_bus_id.eq_ignore_ascii_case(&wanted))
        };
        // SAFETY: NVML's contract.
        unsafe { find(device, is_it) }
    })
}
