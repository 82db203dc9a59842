//! Reads the clocks of this machine. Only the shells read clocks; they pass the time to the core.

use std::time::Duration;

use fleet_core::time::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// The wall clock.
#[must_use]
pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// Time since boot, sleep included: never steps, and means the same in agent and shim.
#[must_use]
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Whole milliseconds since boot.
#[must_use]
pub(crate) fn boot_ms() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}
