//! What each kind of card is and can do: one row per profile.
//!
//! Names, memory sizes, PCI ids and limits are those that nvidia-smi prints for such cards; which calls a
//! card answers follows the "Device Support" notes of nvml.h.

use fleet_fake_nvml_control::Profile;
use nvml_wrapper_sys::bindings as sys;

const MIB: u64 = 1 << 20;
/// Memory that the driver keeps for itself, as `nvmlMemory_v2_t` reports it.
pub(crate) const RESERVED_BYTES: u64 = 300 * MIB;

/// How a card's NVLinks are wired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wiring {
    None,
    /// The hybrid cube mesh of a DGX-1, first eight cards.
    CubeMesh,
    /// Every link goes to a switch.
    Switch,
}

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) brand: sys::nvmlBrandType_t,
    pub(crate) architecture: sys::nvmlDeviceArchitecture_t,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) memory_bytes: u64,
    pub(crate) pci_device_id: u32,
    pub(crate) pcie_generation: u32,
    pub(crate) slowdown_c: u32,
    pub(crate) shutdown_c: u32,
    /// "GPU max operating temperature"; GeForce cards do not tell.
    pub(crate) operating_max_c: Option<u32>,
    pub(crate) power_limit_mw: u32,
    pub(crate) power_idle_mw: u32,
    pub(crate) sm_clock_mhz: u32,
    pub(crate) memory_clock_mhz: u32,
    pub(crate) cores: u32,
    pub(crate) has_serial: bool,
    pub(crate) has_ecc: bool,
    pub(crate) retires_pages: bool,
    pub(crate) remaps_rows: bool,
    pub(crate) has_energy: bool,
    pub(crate) has_mps_list: bool,
    pub(crate) mig_devices: Option<u32>,
    pub(crate) wiring: Wiring,
    pub(crate) nvlinks: u32,
    pub(crate) nvlink_version: u32,
}

/// PCIe lanes of every card here.
pub(crate) const PCIE_WIDTH: u32 = 16;

const TITAN_X: Facts = Facts {
    name: "NVIDIA GeForce GTX TITAN X",
    brand: sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE,
    architecture: sys::NVML_DEVICE_ARCH_MAXWELL,
    compute_capability: (5, 2),
    memory_bytes: 12_288 * MIB,
    pci_device_id: 0x17c2_10de,
    pcie_generation: 3,
    slowdown_c: 92,
    shutdown_c: 97,
    operating_max_c: None,
    power_limit_mw: 250_000,
    power_idle_mw: 15_000,
    sm_clock_mhz: 1_391,
    memory_clock_mhz: 3_505,
    cores: 3_072,
    has_serial: false,
    has_ecc: false,
    retires_pages: false,
    remaps_rows: false,
    has_energy: false,
    has_mps_list: false,
    mig_devices: None,
    wiring: Wiring::None,
    nvlinks: 0,
    nvlink_version: 0,
};

const TITAN_X_PASCAL: Facts = Facts {
    name: "NVIDIA TITAN X (Pascal)",
    brand: sys::nvmlBrandType_enum_NVML_BRAND_TITAN,
    architecture: sys::NVML_DEVICE_ARCH_PASCAL,
    compute_capability: (6, 1),
    pci_device_id: 0x1b00_10de,
    slowdown_c: 96,
    shutdown_c: 99,
    sm_clock_mhz: 1_911,
    memory_clock_mhz: 5_005,
    cores: 3_584,
    ..TITAN_X
};

const V100_PCIE: Facts = Facts {
    name: "Tesla V100-PCIE-16GB",
    brand: sys::nvmlBrandType_enum_NVML_BRAND_TESLA,
    architecture: sys::NVML_DEVICE_ARCH_VOLTA,
    compute_capability: (7, 0),
    memory_bytes: 16_384 * MIB,
    pci_device_id: 0x1db4_10de,
    slowdown_c: 87,
    shutdown_c: 90,
    operating_max_c: Some(83),
    power_idle_mw: 25_000,
    sm_clock_mhz: 1_380,
    memory_clock_mhz: 877,
    cores: 5_120,
    has_serial: true,
    has_ecc: true,
    retires_pages: true,
    has_energy: true,
    has_mps_list: true,
    ..TITAN_X
};

const V100_SXM2: Facts = Facts {
    name: "Tesla V100-SXM2-32GB",
    memory_bytes: 32_768 * MIB,
    pci_device_id: 0x1db5_10de,
    power_limit_mw: 300_000,
    power_idle_mw: 42_000,
    sm_clock_mhz: 1_530,
    wiring: Wiring::CubeMesh,
    nvlinks: 6,
    nvlink_version: 2,
    ..V100_PCIE
};

const A100: Facts = Facts {
    name: "NVIDIA A100-SXM4-40GB",
    brand: sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA,
    architecture: sys::NVML_DEVICE_ARCH_AMPERE,
    compute_capability: (8, 0),
    memory_bytes: 40_960 * MIB,
    pci_device_id: 0x20b0_10de,
    pcie_generation: 4,
    slowdown_c: 92,
    shutdown_c: 95,
    operating_max_c: Some(85),
    power_limit_mw: 400_000,
    power_idle_mw: 55_000,
    sm_clock_mhz: 1_410,
    memory_clock_mhz: 1_215,
    cores: 6_912,
    retires_pages: false,
    remaps_rows: true,
    mig_devices: Some(7),
    wiring: Wiring::Switch,
    nvlinks: 12,
    nvlink_version: 3,
    ..V100_PCIE
};

pub(crate) fn of(profile: Profile) -> &'static Facts {
    match profile {
        Profile::TitanX => &TITAN_X,
        Profile::TitanXPascal => &TITAN_X_PASCAL,
        Profile::V100Pcie => &V100_PCIE,
        Profile::V100Sxm2 => &V100_SXM2,
        Profile::A100 => &A100,
    }
}
