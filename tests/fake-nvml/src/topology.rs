//! Calls about where GPUs sit: PCIe, NUMA, NVLink.
#![expect(unsafe_code, reason = "the C ABI")]

use std::ffi::{c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, put};
use crate::device::pci_info;
use crate::facts::{self, Wiring};
use crate::state::{self, View};

/// Device id of an NVSwitch.
const NVSWITCH_PCI_ID: u32 = 0x1af1_10de;
/// Where the switches of a fake machine sit; no GPU has this bus.
const NVSWITCH_BUS: u32 = 0xc4;

/// NVLinks between the cards of a DGX-1 V100, as `nvidia-smi topo -m` prints them.
const CUBE_MESH: [[u32; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// What is at the other end of a link.
enum Remote {
    Gpu(usize),
    Switch(u32),
}

/// The other end of link `link`, `None` where it leads nowhere or is down.
fn remote(view: &View, link: c_uint) -> Result<Option<Remote>, Code> {
    let facts = view.facts;
    if facts.nvlinks == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if link >= facts.nvlinks {
        return Err(Code::INVALID_ARGUMENT);
    }
    if view.gpu().faults.nvlinks_down.contains(&link) {
        return Ok(None);
    }
    match facts.wiring {
        Wiring::None => Err(Code::NOT_SUPPORTED),
        Wiring::Switch => Ok(Some(Remote::Switch(link / 2))),
        Wiring::CubeMesh => {
            let row = CUBE_MESH.get(view.index()).copied().unwrap_or_default();
            let ends = (0usize..).zip(row);
            let each = ends.flat_map(|(peer, links)| (0..links).map(move |_| peer));
            let peer = usize::try_from(link).ok().and_then(|link| each.into_iter().nth(link));
            Ok(peer.filter(|peer| wired(view, *peer)).map(Remote::Gpu))
        }
    }
}

/// Whether the GPU of this index is there and has NVLinks of the same kind.
fn wired(view: &View, index: usize) -> bool {
    let machine = view.machine();
    let slot = machine.enumerated.get(index).map(|(slot, _)| *slot);
    let peer = slot.and_then(|slot| machine.present(slot));
    peer.is_some_and(|(_, gpu)| facts::of(gpu.profile).wiring == Wiring::CubeMesh)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: sys::nvmlDevice_t,
    link: c_uint,
    out: *mut sys::nvmlEnableState_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let active = remote(&state::gpu(device)?, link)?.is_some();
        // SAFETY: NVML's contract.
        unsafe { put(out, active.into()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: sys::nvmlDevice_t,
    link: c_uint,
    out: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        remote(&view, link)?;
        // SAFETY: NVML's contract.
        unsafe { put(out, view.facts.nvlink_version) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkCapability(
    device: sys::nvmlDevice_t,
    link: c_uint,
    capability: sys::nvmlNvLinkCapability_t,
    out: *mut c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        remote(&state::gpu(device)?, link)?;
        let has = capability != sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SLI_BRIDGE;
        // SAFETY: NVML's contract.
        unsafe { put(out, has.into()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: sys::nvmlDevice_t,
    link: c_uint,
    _counter: sys::nvmlNvLinkErrorCounter_t,
    out: *mut c_ulonglong,
) -> sys::nvmlReturn_t {
    answer(|| {
        remote(&state::gpu(device)?, link)?;
        // SAFETY: NVML's contract.
        unsafe { put(out, 0) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: sys::nvmlDevice_t,
    link: c_uint,
    out: *mut sys::nvmlIntNvLinkDeviceType_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let kind = match remote(&state::gpu(device)?, link)?.ok_or(Code::NOT_SUPPORTED)? {
            Remote::Gpu(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            Remote::Switch(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, kind) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: sys::nvmlDevice_t,
    link: c_uint,
    out: *mut sys::nvmlPciInfo_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        let info = match remote(&view, link)?.ok_or(Code::NOT_SUPPORTED)? {
            Remote::Gpu(index) => {
                let machine = view.machine();
                let (slot, _) = *machine.enumerated.get(index).ok_or(Code::UNKNOWN)?;
                let (_, peer) = machine.present(slot).ok_or(Code::UNKNOWN)?;
                let id = facts::of(peer.profile).pci_device_id;
                pci_info(&peer.pci_bus_id, peer.pci_address(), id)?
            }
            Remote::Switch(number) => {
                let bus = NVSWITCH_BUS + number;
                let bus_id = format!("00000000:{bus:02X}:00.0");
                pci_info(&bus_id, Some((0, bus, 0)), NVSWITCH_PCI_ID)?
            }
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    device1: sys::nvmlDevice_t,
    device2: sys::nvmlDevice_t,
    out: *mut sys::nvmlGpuTopologyLevel_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let (one, two) = (state::gpu(device1)?, state::gpu(device2)?);
        let level = if one.slot == two.slot {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL
        } else if one.gpu().numa_node != two.gpu().numa_node {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM
        } else if one.gpu().pcie_switch.is_some() && one.gpu().pcie_switch == two.gpu().pcie_switch
        {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE
        } else {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, level) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    device1: sys::nvmlDevice_t,
    device2: sys::nvmlDevice_t,
    _index: sys::nvmlGpuP2PCapsIndex_t,
    out: *mut sys::nvmlGpuP2PStatus_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let (one, two) = (state::gpu(device1)?, state::gpu(device2)?);
        let status = if one.gpu().numa_node == two.gpu().numa_node {
            sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK
        } else {
            sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, status) }
    })
}

/// The NUMA node whose memory is near, as a bit mask.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: sys::nvmlDevice_t,
    length: c_uint,
    set: *mut c_ulong,
    _scope: sys::nvmlAffinityScope_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let node = state::gpu(device)?.gpu().numa_node.ok_or(Code::NOT_SUPPORTED)?;
        let word = node / c_ulong::BITS;
        if set.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if word >= length {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for at in 0..length {
            let bits = if at == word { 1 << (node % c_ulong::BITS) } else { 0 };
            let at = usize::try_from(at).map_err(|_| Code::INVALID_ARGUMENT)?;
            // SAFETY: NVML's contract: `set` has `length` words.
            unsafe { put(set.add(at), bits) }?;
        }
        Ok(())
    })
}
