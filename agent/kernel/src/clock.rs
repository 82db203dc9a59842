//! The clocks of this machine, for the agent, the shim and the image store. Only shells read clocks: what decides is
//! given the time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since boot, sleep included: never steps, and means the same in agent and shim.
#[must_use]
pub fn since_boot() -> Duration {
    read(ClockId::CLOCK_BOOTTIME)
}

/// Whole milliseconds since boot, as [`since_boot`].
#[must_use]
pub fn boot_ms() -> u64 {
    whole_ms(since_boot())
}

/// The wall clock, in milliseconds since 1970 (Unix time). It may step in both directions: for people and records, not
/// for deadlines of this machine.
#[must_use]
pub fn unix_ms() -> u64 {
    whole_ms(read(ClockId::CLOCK_REALTIME))
}

/// Zero where the clock is missing. Both exist on every kernel that has control groups, so this never happens on a node.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
