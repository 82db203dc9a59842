//! Calls about how a GPU is doing: temperature, load, clocks, power, PCIe.
#![expect(unsafe_code, reason = "the C ABI")]

use std::ffi::{c_uint, c_ulonglong};

use fleet_fake_nvml_control::Throttle;
use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, getters, put};
use crate::facts::PCIE_WIDTH;
use crate::processes;
use crate::state::{self, View};

const IDLE_TEMPERATURE_C: u32 = 34;
const BUSY_TEMPERATURE_C: u32 = 71;
const BUSY_PERCENT: u32 = 97;
const IDLE_CLOCK_MHZ: u32 = 135;

getters! {
    nvmlDeviceGetUtilizationRates: sys::nvmlUtilization_t = |view| {
        let gpu = utilization(&view);
        Ok(sys::nvmlUtilization_t { gpu, memory: gpu / 2 })
    };
    nvmlDeviceGetPowerUsage: c_uint = |view| {
        let (idle, limit) = (view.facts.power_idle_mw, view.facts.power_limit_mw);
        Ok(idle + (limit - idle) / 100 * utilization(&view))
    };
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |view| Ok(view.facts.power_limit_mw);
    nvmlDeviceGetTotalEnergyConsumption: c_ulonglong = |view| {
        if view.facts.has_energy { Ok(1_000_000) } else { Err(Code::NOT_SUPPORTED) }
    };
    nvmlDeviceGetPerformanceState: sys::nvmlPstates_t =
        |view| Ok(if utilization(&view) > 0 { 0 } else { 8 });
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = |view| {
        let idle = if utilization(&view) == 0 { Throttle::GpuIdle.bit() } else { 0 };
        let set = view.gpu().faults.throttle.iter().map(|reason| reason.bit());
        Ok(set.fold(idle, |mask, bit| mask | bit))
    };
    nvmlDeviceGetSupportedClocksThrottleReasons: c_ulonglong = |_view| Ok(0x1ff);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint =
        |view| Ok(view.gpu().faults.pcie_width.unwrap_or(PCIE_WIDTH));
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |_view| Ok(PCIE_WIDTH);
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |view| {
        // Real cards lower the generation when idle.
        let now = if utilization(&view) > 0 { view.facts.pcie_generation } else { 1 };
        Ok(view.gpu().faults.pcie_generation.unwrap_or(now))
    };
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |view| Ok(view.facts.pcie_generation);
    nvmlDeviceGetPcieReplayCounter: c_uint = |_view| Ok(0);
}

fn utilization(view: &View) -> u32 {
    let usual = if processes::of(view).is_empty() { 0 } else { BUSY_PERCENT };
    view.gpu().faults.utilization_percent.unwrap_or(usual).min(100)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: sys::nvmlDevice_t,
    sensor: sys::nvmlTemperatureSensors_t,
    out: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        if sensor != sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return Err(Code::INVALID_ARGUMENT);
        }
        let busy = utilization(&view) > 0;
        let usual = if busy { BUSY_TEMPERATURE_C } else { IDLE_TEMPERATURE_C };
        // SAFETY: NVML's contract.
        unsafe { put(out, view.gpu().faults.temperature_c.unwrap_or(usual)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: sys::nvmlDevice_t,
    threshold: sys::nvmlTemperatureThresholds_t,
    out: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let facts = state::gpu(device)?.facts;
        let degrees = match threshold {
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => {
                Some(facts.shutdown_c)
            }
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => {
                Some(facts.slowdown_c)
            }
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX => {
                facts.operating_max_c
            }
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX => None,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, degrees.ok_or(Code::NOT_SUPPORTED)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: sys::nvmlDevice_t,
    kind: sys::nvmlClockType_t,
    out: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        let full = clock(&view, kind)?;
        let mhz = if utilization(&view) > 0 { full } else { full.min(IDLE_CLOCK_MHZ) };
        // SAFETY: NVML's contract.
        unsafe { put(out, mhz) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: sys::nvmlDevice_t,
    kind: sys::nvmlClockType_t,
    out: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        // SAFETY: NVML's contract.
        unsafe { put(out, clock(&view, kind)?) }
    })
}

fn clock(view: &View, kind: sys::nvmlClockType_t) -> Result<u32, Code> {
    match kind {
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(view.facts.memory_clock_mhz),
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS
        | sys::nvmlClockType_enum_NVML_CLOCK_SM
        | sys::nvmlClockType_enum_NVML_CLOCK_VIDEO => Ok(view.facts.sm_clock_mhz),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}
