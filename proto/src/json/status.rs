//! Defines the JSON of the fleet as a whole, as one controller sees it.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// The fleet as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The name of the set of controllers; it does not change.
    pub cluster_id: String,
    /// Rises by one at each restore from a backup.
    pub incarnation: u64,
    /// The version of the rules that all controllers can carry out.
    pub cluster_version: u32,
    /// The number of the controller that answers.
    pub controller_id: u64,
    /// Its role: `leader`, `follower`, `candidate`, `learner`.
    pub role: String,
    /// Its term of leadership.
    pub term: u64,
    /// The last entry of the log that it has applied.
    pub applied_index: u64,
    /// The fleet's time; null: not known.
    pub now: Option<Time>,
    /// The version of the controller's program.
    pub version: String,
    /// Who the controller takes the caller for; null: nobody it knows.
    pub caller: Option<String>,
    /// Whether the caller is an admin.
    pub caller_is_admin: bool,
    /// How many nodes there are.
    pub nodes: u32,
    /// How many of them are ready.
    pub nodes_ready: u32,
    /// How many GPUs there are.
    pub gpus: u32,
    /// How many of them are free.
    pub gpus_free: u32,
    /// How many jobs run.
    pub jobs_running: u32,
    /// How many jobs wait.
    pub jobs_queued: u32,
    /// How many reservations are active.
    pub reservations_active: u32,
    /// What an operator should know, one sentence each.
    pub warnings: Vec<String>,
}

impl From<pb::Status> for Status {
    fn from(status: pb::Status) -> Self {
        Self {
            now: time(status.now_unix_ms),
            caller: text(&status.caller),
            cluster_id: status.cluster_id,
            incarnation: status.incarnation,
            cluster_version: status.cluster_version,
            controller_id: status.controller_id,
            role: status.role,
            term: status.term,
            applied_index: status.applied_index,
            version: status.version,
            caller_is_admin: status.caller_is_admin,
            nodes: status.nodes,
            nodes_ready: status.nodes_ready,
            gpus: status.gpus,
            gpus_free: status.gpus_free,
            jobs_running: status.jobs_running,
            jobs_queued: status.jobs_queued,
            reservations_active: status.reservations_active,
            warnings: status.warnings,
        }
    }
}

impl Document for Status {
    const SCHEMA: &'static str = "fleet.status/v1";
    const LIST_SCHEMA: &'static str = "fleet.statuses/v1";
    const FIELDS: &'static [&'static str] = &[
        "cluster_id",
        "incarnation",
        "cluster_version",
        "controller_id",
        "role",
        "term",
        "applied_index",
        "now",
        "version",
        "caller",
        "caller_is_admin",
        "nodes",
        "nodes_ready",
        "gpus",
        "gpus_free",
        "jobs_running",
        "jobs_queued",
        "reservations_active",
        "warnings",
    ];
}
