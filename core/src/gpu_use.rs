//! Measured use: how busy the GPUs were that somebody held, as their nodes measured it.
//!
//! An agent measures and reports; `fsm/gpu_use.rs` takes each report once and says it in one event; `usage.rs` adds those
//! events up. A node has measured nothing of the time that no row holds: that time is unknown, never idle.

use serde::{Deserialize, Serialize};

use crate::id::ReservationId;
use crate::lease::LeaseHolder;
use crate::name::{GpuUuid, NodeName};
use crate::time::{Millis, Timestamp};

/// A report holds no more than this much time, and all of it in one hour of UTC.
pub const USE_SLOT_MAX: Millis = Millis::hours(1);
/// Most rows in one report. A node with more ends the report and begins the next.
pub const USE_ROWS_MAX: usize = 150;
/// A node keeps what was not confirmed for 720 hours.
pub const USE_KEPT_MAX: Millis = Millis::hours(720);
/// What began longer ago than this is refused: an hour more than nodes keep.
pub const USE_AGE_MAX: Millis = Millis::hours(721);
/// A node's clock may be ahead of the controllers' by this much.
pub const USE_AHEAD_MAX: Millis = Millis::minutes(5);

/// What was measured of one GPU while one holder had it. All times are within the report's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    pub gpu: GpuUuid,
    /// The attempt, or the reservation while no attempt of it had the GPU.
    pub holder: LeaseHolder,
    /// The reservation that the attempt was in: the time counts as the reservation's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ReservationId>,
    /// The driver gave a utilisation. Each sample stands for the time to the next, at most 15 seconds.
    pub measured_ms: Millis,
    /// Of that: the utilisation was above zero.
    pub busy_ms: Millis,
    /// Of that: a process was on the GPU, busy or not.
    pub occupied_ms: Millis,
    /// Percent times milliseconds: divided by `measured_ms` it is the mean utilisation.
    pub utilization: u64,
    /// Most memory in use at any sample, by all processes together.
    pub memory_peak_bytes: u64,
}

impl GpuUse {
    /// The stay whose time this is: that of the reservation around an attempt, or of the holder itself.
    pub fn counts_for(&self) -> &str {
        match (&self.within, &self.holder) {
            (Some(id), _) | (None, LeaseHolder::Reservation(id)) => id.as_str(),
            (None, LeaseHolder::Allocation(id)) => id.as_str(),
        }
    }
}

/// What a node reports: all that it measured in a part of an hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUse {
    pub from: Timestamp,
    pub until: Timestamp,
    pub rows: Vec<GpuUse>,
}

/// A row as the audit log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseRow {
    /// The GPU's model, so that a report needs no list of GPUs.
    pub model: String,
    #[serde(flatten)]
    pub seen: GpuUse,
}

/// What a node measured in a part of an hour, as the audit log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredUse {
    pub node: NodeName,
    pub from: Timestamp,
    pub until: Timestamp,
    pub rows: Vec<UseRow>,
}

impl MeasuredUse {
    /// All rows together, in GPU-milliseconds: measured, and busy of that.
    pub fn sums(&self) -> (u64, u64) {
        let sum = |of: fn(&GpuUse) -> Millis| {
            self.rows.iter().fold(0_u64, |sum, row| sum.saturating_add(of(&row.seen).0))
        };
        (sum(|row| row.measured_ms), sum(|row| row.busy_ms))
    }
}

/// The beginning of the hour of UTC that `at` is in.
pub fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp(at.0 - at.0 % Millis::hours(1).0)
}
