//! Defines the JSON of a minute: what somebody used of a GPU in it.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// What a holder used of a GPU in a minute, as its node measured it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuMinute {
    /// When the minute begins.
    pub from: Option<Time>,
    /// The job or the reservation that had the GPU; null: nobody had it, and a process was on it.
    pub holder: Option<String>,
    /// The reservation that the job is in; null: it is in none, or nothing was measured.
    pub reservation: Option<String>,
    /// Whose it was; null: not known any more.
    pub owner: Option<String>,
    /// How much of the minute was measured; what is missing is unknown, not idle.
    pub measured_ms: u32,
    /// Of that: the GPU was busy.
    pub busy_ms: u32,
    /// Of that: a process had the GPU open.
    pub occupied_ms: u32,
    /// The mean over what was measured; null: nothing was.
    pub utilization_percent: Option<u32>,
    /// The most that was seen; null: nothing was measured.
    pub memory_peak_bytes: Option<u64>,
    /// The mean while it was known; null: it was not.
    pub power_watts: Option<u32>,
    /// The highest that was seen; null: it is not known.
    pub temperature_peak_celsius: Option<u32>,
    /// What had the GPU open, at most eight. Only the holder and admins see it.
    pub processes: Vec<Process>,
    /// How many more there were.
    pub more_processes: u32,
}

/// Processes of one user and one executable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// The number of the user on the node.
    pub uid: u32,
    /// The name of the user on the node; null: not known.
    pub user: Option<String>,
    /// The name of the executable; null: not known.
    pub name: Option<String>,
}

impl From<pb::GpuMinute> for GpuMinute {
    fn from(minute: pb::GpuMinute) -> Self {
        let process = |one: pb::GpuMinuteProcess| Process {
            uid: one.uid,
            user: text(&one.user),
            name: text(&one.name),
        };
        Self {
            from: time(minute.from_unix_ms),
            holder: text(&minute.holder),
            reservation: text(&minute.reservation),
            owner: text(&minute.owner),
            measured_ms: minute.measured_ms,
            busy_ms: minute.busy_ms,
            occupied_ms: minute.occupied_ms,
            utilization_percent: minute.utilization_percent,
            memory_peak_bytes: minute.memory_peak_bytes,
            power_watts: minute.power_watts,
            temperature_peak_celsius: minute.temperature_peak_celsius,
            processes: minute.processes.into_iter().map(process).collect(),
            more_processes: minute.more_processes,
        }
    }
}

impl Document for GpuMinute {
    const SCHEMA: &'static str = "fleet.gpu_minute/v1";
    const LIST_SCHEMA: &'static str = "fleet.gpu_minutes/v1";
    const FIELDS: &'static [&'static str] = &[
        "from",
        "holder",
        "reservation",
        "owner",
        "measured_ms",
        "busy_ms",
        "occupied_ms",
        "utilization_percent",
        "memory_peak_bytes",
        "power_watts",
        "temperature_peak_celsius",
        "processes",
        "more_processes",
    ];
}
