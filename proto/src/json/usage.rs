//! Defines the JSON of what people held of the fleet.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// A row of `fleet usage`: what somebody or something held in a window of time, and how much of that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsageRow {
    /// What the rows are: `user`, `project`, `node`, `model`, `class`.
    pub by: String,
    /// The user, project, node, model or class; null: the total, or reservations among classes.
    pub name: Option<String>,
    /// All rows together, with those that are left out.
    pub total: bool,
    pub from: Option<Time>,
    pub until: Option<Time>,
    /// Audit records were pruned: what was held before is missing; null: nothing is.
    pub complete_from: Option<Time>,
    /// GPUs times milliseconds, held by reservations, used or not.
    pub reserved_gpu_ms: u64,
    /// Of that: held by jobs within them.
    pub in_jobs_gpu_ms: u64,
    /// Held by jobs outside of reservations.
    pub jobs_gpu_ms: u64,
    /// All that was held: a job within a reservation is in it once.
    pub held_gpu_ms: u64,
    /// Of jobs: what a fault of the node or an eviction destroyed.
    pub lost_gpu_ms: u64,
    /// Of all that was held: the GPU was busy, as its node measured it. Used, idle and unknown are all that was held.
    pub used_gpu_ms: u64,
    /// Measured and not busy, whether a process was on the GPU or not.
    pub idle_gpu_ms: u64,
    /// Not measured: the node was off, its agent stopped, or the driver gives no utilisation.
    pub unknown_gpu_ms: u64,
    /// Of what was used or idle: a process was on the GPU.
    pub occupied_gpu_ms: u64,
    /// Jobs that held a GPU.
    pub jobs: u64,
    /// Reservations that held a GPU.
    pub reservations: u64,
}

impl UsageRow {
    /// The rows, then the total.
    pub fn all(usage: pb::Usage) -> Vec<Self> {
        let pb::Usage { by, rows, total, from_unix_ms, until_unix_ms, .. } = &usage;
        let times = (time(*from_unix_ms), time(*until_unix_ms), time(usage.complete_from_unix_ms));
        let row = |row: &pb::UsageRow, total| {
            let (from, until, complete_from) = times;
            Self {
                by: by.clone(),
                name: text(&row.name),
                total,
                from,
                until,
                complete_from,
                reserved_gpu_ms: row.reserved_gpu_ms,
                in_jobs_gpu_ms: row.in_jobs_gpu_ms,
                jobs_gpu_ms: row.jobs_gpu_ms,
                held_gpu_ms: row.held_gpu_ms,
                lost_gpu_ms: row.lost_gpu_ms,
                used_gpu_ms: row.used_gpu_ms,
                idle_gpu_ms: row.idle_gpu_ms,
                unknown_gpu_ms: row.unknown_gpu_ms,
                occupied_gpu_ms: row.occupied_gpu_ms,
                jobs: row.jobs,
                reservations: row.reservations,
            }
        };
        let mut all: Vec<Self> = rows.iter().map(|one| row(one, false)).collect();
        all.push(row(&total.clone().unwrap_or_default(), true));
        all
    }
}

impl Document for UsageRow {
    const SCHEMA: &'static str = "fleet.usage/v1";
    const LIST_SCHEMA: &'static str = "fleet.usages/v1";
    const FIELDS: &'static [&'static str] = &[
        "by",
        "name",
        "total",
        "from",
        "until",
        "complete_from",
        "reserved_gpu_ms",
        "in_jobs_gpu_ms",
        "jobs_gpu_ms",
        "held_gpu_ms",
        "lost_gpu_ms",
        "used_gpu_ms",
        "idle_gpu_ms",
        "unknown_gpu_ms",
        "occupied_gpu_ms",
        "jobs",
        "reservations",
    ];
}
