//! Every threshold of the health policy, by name, with where it comes from.
//!
//! Sources: DCGM (DcgmGPUHardwareLimits.h, DcgmHealthWatch.cpp), NVSentinel (pattern rules), gcm
//! (facebookresearch). Where none is named the figure is ours.

use crate::time::Millis;

/// Samples looked back at, and how many of them must be bad before a condition is raised.
pub const WINDOW_SAMPLES: usize = 5;
pub const WINDOW_BAD_SAMPLES: usize = 3;
/// Samples in a row that must be better before a condition that is not sticky is lifted or lowered.
pub const RECOVERY_SAMPLES: usize = 10;

/// Below the card's own slowdown temperature by this much: Notice. At it: Degraded.
pub const TEMPERATURE_NOTICE_MARGIN_C: u32 = 4;
/// For cards that do not tell their slowdown temperature.
pub const SLOWDOWN_ASSUMED_C: u32 = 90;

/// Retired pages, both causes: more than this is a Notice (gcm) …
pub const RETIRED_PAGES_NOTICE: u32 = 10;
/// … and this many Degraded (DCGM: the table in the card has room for 64).
pub const RETIRED_PAGES_DEGRADED: u32 = 63;
/// Pages retired for double-bit errors: more than this is Degraded (DCGM).
pub const RETIRED_DOUBLE_BIT_DEGRADED: u32 = 15;
/// Rows remapped for uncorrectable errors: this many are Degraded (DCGM).
pub const REMAPPED_ROWS_DEGRADED: u32 = 512;

/// Corrected ECC errors within [`ECC_WINDOW`]: worth a Notice, and Degraded.
pub const ECC_CORRECTED_NOTICE: u64 = 100;
pub const ECC_CORRECTED_DEGRADED: u64 = 1_000;
pub const ECC_WINDOW: Millis = Millis::hours(1);

/// XIDs of one code on one GPU within [`XID_WINDOW`] that make a Notice Degraded: where programs cause
/// it (NVSentinel: five in 24 hours) and where the device is the likelier cause.
pub const XID_REPEATS_PROGRAM: usize = 5;
pub const XID_REPEATS_DEVICE: usize = 2;
pub const XID_WINDOW: Millis = Millis::hours(24);
/// XIDs of one code closer together than this are one burst (NVSentinel).
pub const XID_BURST: Millis = Millis::minutes(3);
/// Bursts remembered per code: the window holds no more than this many worth telling apart.
pub const XID_BURSTS_MAX: usize = 100;
/// Different XID codes remembered per GPU; further ones share one condition.
pub const XID_CODES_MAX: usize = 32;

/// A GPU whose driver has not answered for this long must be left: no longer only Unknown.
pub const NOT_ANSWERING_DEGRADED: Millis = Millis::minutes(10);
