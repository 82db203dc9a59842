//! Calls about what a GPU is: names, numbers, PCI address, modes.
#![expect(unsafe_code, reason = "the C ABI")]

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, getters, put, put_text};
use crate::state::{self, View};

/// Exports functions of the shape `f(device, text, length)`: the body gives the text.
macro_rules! texts {
    ($($name:ident = |$gpu:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            device: sys::nvmlDevice_t,
            out: *mut c_char,
            length: c_uint,
        ) -> sys::nvmlReturn_t {
            answer(|| {
                let $gpu = state::gpu(device)?;
                let value: Result<String, Code> = $body;
                // SAFETY: NVML's contract: `out` has `length` bytes.
                unsafe { put_text(out, length, &value?) }
            })
        }
    )*};
}

texts! {
    nvmlDeviceGetName = |view| Ok(view.facts.name.to_owned());
    nvmlDeviceGetUUID = |view| Ok(view.gpu().uuid.clone());
    nvmlDeviceGetSerial = |view| serial(&view);
    nvmlDeviceGetVbiosVersion = |view| {
        Ok(format!("{:02X}.00.1F.00.{:02X}", view.facts.compute_capability.0, view.gpu().minor))
    };
}

getters! {
    nvmlDeviceGetIndex: c_uint =
        |view| c_uint::try_from(view.index()).map_err(|_| Code::UNKNOWN);
    nvmlDeviceGetMinorNumber: c_uint = |view| Ok(view.gpu().minor);
    nvmlDeviceGetArchitecture: sys::nvmlDeviceArchitecture_t = |view| Ok(view.facts.architecture);
    nvmlDeviceGetBrand: sys::nvmlBrandType_t = |view| Ok(view.facts.brand);
    nvmlDeviceGetNumGpuCores: c_uint = |view| Ok(view.facts.cores);
    nvmlDeviceGetPersistenceMode: sys::nvmlEnableState_t =
        |_view| Ok(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED);
    nvmlDeviceGetComputeMode: sys::nvmlComputeMode_t =
        |_view| Ok(sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT);
    nvmlDeviceGetAccountingMode: sys::nvmlEnableState_t =
        |_view| Ok(sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED);
    nvmlDeviceGetMaxMigDeviceCount: c_uint =
        |view| view.facts.mig_devices.ok_or(Code::NOT_SUPPORTED);
    nvmlDeviceGetPciInfo_v3: sys::nvmlPciInfo_t =
        |view| pci_info(&view.gpu().pci_bus_id, view.gpu().pci_address(), view.facts.pci_device_id);
    // Only for machines whose GPUs are NUMA nodes themselves, which none of these are.
    nvmlDeviceGetNumaNodeId: c_uint = |_view| Err(Code::NOT_SUPPORTED);
}

fn serial(view: &View) -> Result<String, Code> {
    if !view.facts.has_serial {
        return Err(Code::NOT_SUPPORTED);
    }
    let (domain, bus, _) = view.gpu().pci_address().ok_or(Code::UNKNOWN)?;
    Ok(format!("03{:05}{bus:05}", domain))
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    // The last stays NUL; PCI addresses are ASCII.
    for (to, from) in out.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    out
}

/// NVML's description of a place on the PCI bus.
pub(crate) fn pci_info(
    bus_id: &str,
    address: Option<(u32, u32, u32)>,
    device_id: u32,
) -> Result<sys::nvmlPciInfo_t, Code> {
    let (domain, bus, device) = address.ok_or(Code::UNKNOWN)?;
    // The legacy form has four digits of domain.
    let legacy = bus_id.get(4..).unwrap_or(bus_id);
    Ok(sys::nvmlPciInfo_t {
        busIdLegacy: chars(legacy),
        domain,
        bus,
        device,
        pciDeviceId: device_id,
        pciSubSystemId: 0x1132_10de,
        busId: chars(bus_id),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: sys::nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        // SAFETY: NVML's contract.
        unsafe { put(major, view.facts.compute_capability.0) }?;
        // SAFETY: NVML's contract.
        unsafe { put(minor, view.facts.compute_capability.1) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: sys::nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        state::gpu(device)?.facts.mig_devices.ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: NVML's contract.
        unsafe { put(current, sys::NVML_DEVICE_MIG_DISABLE) }?;
        // SAFETY: NVML's contract.
        unsafe { put(pending, sys::NVML_DEVICE_MIG_DISABLE) }
    })
}
