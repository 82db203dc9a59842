//! The few NVML calls that nvml-wrapper lacks or gets wrong.
#![expect(unsafe_code, reason = "NVML calls that nvml-wrapper does not wrap")]

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use crate::gpu::report::RemappedRows;

#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) used: u64,
}

/// Memory by the second version of the call; drivers before 510 have only the first, which counts
/// what the driver reserves as used.
pub(super) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok(Memory { total: info.total, used: info.used }),
        Err(NvmlError::FailedToLoadSymbol(_)) => first_memory(device),
        Err(error) => Err(error),
    }
}

fn first_memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: a living device and a struct of the type this version of the call fills.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(Memory { total: info.total, used: info.used })
}

/// Row remapping, which is not wrapped.
pub(super) fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref());
    let Ok(call) = call else {
        // The call came with Ampere; a driver without it knows no card that remaps.
        return Err(NvmlError::NotSupported);
    };
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: a living device and four integers.
    nvml_try(unsafe {
        call(
            device.handle(),
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed,
        )
    })?;
    Ok(RemappedRows { corrected, uncorrected, pending: pending != 0, failed: failed != 0 })
}

/// Whether the other end of an NVLink is a switch. nvml-wrapper 0.13 has the call but drops its answer.
pub(super) fn leads_to_switch(device: &Device<'_>, link: u32) -> Result<bool, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: a living device and an enum the size of the one the call fills.
    nvml_try(unsafe { call(device.handle(), link, &raw mut kind) })?;
    Ok(kind == sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH)
}

/// The handle as a number: the same for the same GPU, also when it answers no call any more.
pub(super) fn handle_of(device: &Device<'_>) -> usize {
    // SAFETY: only the handle's value is read; it is never used for a call.
    unsafe { device.handle() }.addr()
}
