//! The clocks of this machine, in the words of the agent. Only the shells read clocks; they pass the time to the core.

use fleet_core::time::Timestamp;

pub(crate) use fleet_kernel::clock::{boot_ms, since_boot};

/// The wall clock.
#[must_use]
pub(crate) fn now() -> Timestamp {
    Timestamp(fleet_kernel::clock::unix_ms())
}
