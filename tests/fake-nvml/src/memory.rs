//! Calls about a GPU's memory: how much, ECC, retired pages, remapped rows.
#![expect(unsafe_code, reason = "the C ABI")]

use std::ffi::{c_uint, c_ulonglong};

use fleet_fake_nvml_control::Ecc;
use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, get, getters, put};
use crate::facts::RESERVED_BYTES;
use crate::processes;
use crate::state::{self, View};

/// When every retirement is said to have happened: 2024-01-01, in seconds.
const RETIRED_AT: u64 = 1_704_067_200;
const PAGE_BYTES: u64 = 64 * 1024;

getters! {
    nvmlDeviceGetMemoryInfo: sys::nvmlMemory_t = |view| {
        let (total, used) = (view.facts.memory_bytes, used(&view));
        // The first version counts what the driver reserves as used.
        let used = (used + RESERVED_BYTES).min(total);
        Ok(sys::nvmlMemory_t { total, free: total - used, used })
    };
    nvmlDeviceGetRetiredPagesPendingStatus: sys::nvmlEnableState_t = |view| {
        if !view.facts.retires_pages { return Err(Code::NOT_SUPPORTED); }
        Ok(enabled(view.gpu().faults.retired_pages.pending))
    };
}

fn enabled(on: bool) -> sys::nvmlEnableState_t {
    if on {
        sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED
    } else {
        sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED
    }
}

fn used(view: &View) -> u64 {
    let listed: u64 = processes::of(view).iter().map(|process| process.memory_bytes).sum();
    let gpu = view.gpu();
    let usual = gpu.idle_memory_bytes.saturating_add(listed);
    let most = view.facts.memory_bytes - RESERVED_BYTES;
    gpu.faults.memory_used_bytes.unwrap_or(usual).min(most)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: sys::nvmlDevice_t,
    out: *mut sys::nvmlMemory_v2_t,
) -> sys::nvmlReturn_t {
    // NVML_STRUCT_VERSION(Memory, 2). The struct is 40 bytes.
    const VERSION: c_uint = (size_of::<sys::nvmlMemory_v2_t>() | 2 << 24) as c_uint;
    answer(|| {
        let view = state::gpu(device)?;
        // SAFETY: NVML's contract: the caller set `version` of the struct it hands in.
        if unsafe { get(out) }?.version != VERSION {
            return Err(Code::VERSION_MISMATCH);
        }
        let (total, used) = (view.facts.memory_bytes, used(&view));
        let info = sys::nvmlMemory_v2_t {
            version: VERSION,
            total,
            reserved: RESERVED_BYTES,
            free: total - RESERVED_BYTES - used,
            used,
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: sys::nvmlDevice_t,
    current: *mut sys::nvmlEnableState_t,
    pending: *mut sys::nvmlEnableState_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        if !view.facts.has_ecc {
            return Err(Code::NOT_SUPPORTED);
        }
        let mode = enabled(!view.gpu().faults.ecc.disabled);
        // SAFETY: NVML's contract.
        unsafe { put(current, mode) }?;
        // SAFETY: NVML's contract.
        unsafe { put(pending, mode) }
    })
}

/// The GPU's error counts, if it has them.
pub(crate) fn ecc(view: &View) -> Result<Ecc, Code> {
    let ecc = view.gpu().faults.ecc;
    if view.facts.has_ecc && !ecc.disabled { Ok(ecc) } else { Err(Code::NOT_SUPPORTED) }
}

fn errors(
    view: &View,
    kind: sys::nvmlMemoryErrorType_t,
    counter: sys::nvmlEccCounterType_t,
) -> Result<u64, Code> {
    let ecc = ecc(view)?;
    let corrected = match kind {
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => true,
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => false,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    match (counter, corrected) {
        (sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC, true) => Ok(ecc.volatile_corrected),
        (sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC, false) => Ok(ecc.volatile_uncorrected),
        (sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC, true) => Ok(ecc.aggregate_corrected),
        (sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC, false) => Ok(ecc.aggregate_uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: sys::nvmlDevice_t,
    kind: sys::nvmlMemoryErrorType_t,
    counter: sys::nvmlEccCounterType_t,
    out: *mut c_ulonglong,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        // SAFETY: NVML's contract.
        unsafe { put(out, errors(&view, kind, counter)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: sys::nvmlDevice_t,
    kind: sys::nvmlMemoryErrorType_t,
    counter: sys::nvmlEccCounterType_t,
    location: sys::nvmlMemoryLocation_t,
    out: *mut c_ulonglong,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        let total = errors(&view, kind, counter)?;
        // Every error of a fake card is in its device memory.
        let count = match location {
            sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DEVICE_MEMORY => total,
            sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L1_CACHE
            | sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L2_CACHE
            | sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_REGISTER_FILE => 0,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, count) }
    })
}

/// Addresses of the pages retired for `cause`.
fn retired(view: &View, cause: sys::nvmlPageRetirementCause_t) -> Result<Vec<u64>, Code> {
    use sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR as DOUBLE;
    use sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS as SINGLE;
    if !view.facts.retires_pages {
        return Err(Code::NOT_SUPPORTED);
    }
    let pages = view.gpu().faults.retired_pages;
    let (count, base) = match cause {
        SINGLE => (pages.single_bit, 0),
        DOUBLE => (pages.double_bit, 1 << 32),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    Ok((0..u64::from(count)).map(|page| base + page * PAGE_BYTES).collect())
}

/// # Safety
/// `count` is NULL or points to a `c_uint`; `addresses` and `timestamps` are NULL or have room for
/// `*count` values.
unsafe fn put_retired(
    pages: &[u64],
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
    timestamps: *mut c_ulonglong,
) -> Result<(), Code> {
    // SAFETY: this function's contract.
    unsafe { crate::abi::put_list(count, addresses, pages) }?;
    for at in 0..if timestamps.is_null() { 0 } else { pages.len() } {
        // SAFETY: not NULL, and the list just fitted into the same count.
        unsafe { timestamps.add(at).write(RETIRED_AT) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRetiredPages(
    device: sys::nvmlDevice_t,
    cause: sys::nvmlPageRetirementCause_t,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
) -> sys::nvmlReturn_t {
    answer(|| {
        let pages = retired(&state::gpu(device)?, cause)?;
        // SAFETY: NVML's contract.
        unsafe { put_retired(&pages, count, addresses, std::ptr::null_mut()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: sys::nvmlDevice_t,
    cause: sys::nvmlPageRetirementCause_t,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
    timestamps: *mut c_ulonglong,
) -> sys::nvmlReturn_t {
    answer(|| {
        let pages = retired(&state::gpu(device)?, cause)?;
        // SAFETY: NVML's contract.
        unsafe { put_retired(&pages, count, addresses, timestamps) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: sys::nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        if !view.facts.remaps_rows {
            return Err(Code::NOT_SUPPORTED);
        }
        let rows = view.gpu().faults.remapped_rows;
        // SAFETY: NVML's contract, for each of the four.
        unsafe {
            put(corrected, rows.corrected)?;
            put(uncorrected, rows.uncorrected)?;
            put(pending, rows.pending.into())?;
            put(failed, rows.failed.into())
        }
    })
}
