//! The shim's clocks: wall time for records, time since boot for deadlines.

pub(super) use fleet_kernel::clock::{since_boot, unix_ms};

/// The wall clock as people on this machine read it: `09:22:46 CET`.
pub(super) fn here() -> String {
    jiff::ZonedDateTime::now().strftime("%H:%M:%S %Z").to_string()
}
