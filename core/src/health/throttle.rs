//! NVML's reasons for lowered clocks: a bit mask, named.

pub const GPU_IDLE: u64 = 0x1;
pub const APPLICATIONS_CLOCKS_SETTING: u64 = 0x2;
pub const SW_POWER_CAP: u64 = 0x4;
pub const HW_SLOWDOWN: u64 = 0x8;
pub const SYNC_BOOST: u64 = 0x10;
pub const SW_THERMAL_SLOWDOWN: u64 = 0x20;
pub const HW_THERMAL_SLOWDOWN: u64 = 0x40;
pub const HW_POWER_BRAKE_SLOWDOWN: u64 = 0x80;
pub const DISPLAY_CLOCK_SETTING: u64 = 0x100;

/// Those that mean heat or power trouble. The power cap does not: it is how cards run under load.
pub const TROUBLE: u64 =
    HW_SLOWDOWN | SW_THERMAL_SLOWDOWN | HW_THERMAL_SLOWDOWN | HW_POWER_BRAKE_SLOWDOWN;

const NAMES: [(u64, &str); 9] = [
    (GPU_IDLE, "idle"),
    (APPLICATIONS_CLOCKS_SETTING, "application clocks"),
    (SW_POWER_CAP, "power cap"),
    (HW_SLOWDOWN, "hardware slowdown"),
    (SYNC_BOOST, "sync boost"),
    (SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
    (HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (DISPLAY_CLOCK_SETTING, "display clocks"),
];

/// The reasons of a mask, for people: `hardware slowdown, power brake`.
pub fn describe(mask: u64) -> String {
    let set = NAMES.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join(", ")
}
