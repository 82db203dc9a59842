//! The shim's clocks: wall time for records, CLOCK_BOOTTIME (which keeps running in suspend) for deadlines.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since boot, suspend included.
pub(super) fn since_boot() -> Duration {
    read(ClockId::CLOCK_BOOTTIME)
}

/// Unix time in milliseconds, for people and records only.
pub(super) fn unix_ms() -> u64 {
    u64::try_from(read(ClockId::CLOCK_REALTIME).as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock as people on this machine read it: `09:22:46 CET`.
pub(super) fn here() -> String {
    jiff::ZonedDateTime::now().strftime("%H:%M:%S %Z").to_string()
}

fn read(clock: ClockId) -> Duration {
    // Both clocks exist on every kernel that has cgroups.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}
