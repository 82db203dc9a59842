//! The fleet as a whole, and join tokens.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, or_dash, text, time};
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Status {
    pub(crate) cluster_id: String,
    pub(crate) incarnation: u64,
    pub(crate) cluster_version: u32,
    pub(crate) controller_id: u64,
    pub(crate) role: String,
    pub(crate) term: u64,
    pub(crate) applied_index: u64,
    pub(crate) now: Option<Time>,
    pub(crate) version: String,
    pub(crate) caller: Option<String>,
    pub(crate) caller_is_admin: bool,
    pub(crate) nodes: u32,
    pub(crate) nodes_ready: u32,
    pub(crate) gpus: u32,
    pub(crate) gpus_free: u32,
    pub(crate) jobs_running: u32,
    pub(crate) jobs_queued: u32,
    pub(crate) reservations_active: u32,
    pub(crate) warnings: Vec<String>,
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

impl Status {
    /// The few lines on top of `status` and `top`.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!(
            "Nodes: {} of {} ready   GPUs: {} of {} free   Jobs: {} running, {} queued   \
             Reservations: {} active\n",
            self.nodes_ready,
            self.nodes,
            self.gpus_free,
            self.gpus,
            self.jobs_running,
            self.jobs_queued,
            self.reservations_active
        );
        for warning in &self.warnings {
            text.push_str(&format!("Warning: {}\n", super::text::harmless(warning)));
        }
        text
    }
}

impl Row for Status {
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

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("CLUSTER", |s: &Self, _| s.cluster_id.clone()),
            Column::new("CONTROLLER", |s: &Self, _| s.controller_id.to_string()),
            Column::new("ROLE", |s: &Self, _| s.role.clone()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let admin = if self.caller_is_admin { ", an admin" } else { "" };
        let caller = self.caller.as_ref().map(|caller| format!("{caller}{admin}"));
        let mut lines = vec![
            ("Cluster", format!("{} (incarnation {})", self.cluster_id, self.incarnation)),
            (
                "Controller",
                format!("{}, {}, version {}", self.controller_id, self.role, self.version),
            ),
            ("Cluster version", self.cluster_version.to_string()),
            ("Term", self.term.to_string()),
            ("Applied index", self.applied_index.to_string()),
            ("Fleet's time", or_dash(self.now.map(|now| clock.second(now.0)))),
            ("You are", or_dash(caller)),
        ];
        lines.extend(self.warnings.iter().map(|warning| ("Warning", warning.clone())));
        lines
    }
}

/// A token that lets nodes join. Holds a secret; printed once, never logged.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub(crate) struct JoinToken {
    pub(crate) id: String,
    pub(crate) join_line: String,
    pub(crate) token: String,
    pub(crate) expires_at: Option<Time>,
}

impl From<pb::JoinToken> for JoinToken {
    fn from(token: pb::JoinToken) -> Self {
        Self {
            expires_at: time(token.expires_at_unix_ms),
            id: token.id,
            join_line: token.join_line,
            token: token.token,
        }
    }
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Row for JoinToken {
    const SCHEMA: &'static str = "fleet.join_token/v1";
    const LIST_SCHEMA: &'static str = "fleet.join_tokens/v1";
    const FIELDS: &'static [&'static str] = &["id", "join_line", "token", "expires_at"];

    fn columns() -> Vec<Column<Self>> {
        vec![Column::new("TOKEN", |t: &Self, _| t.id.clone())]
    }

    /// Only the line to type: it can be piped to the node.
    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![("Type on the node", self.join_line.clone())]
    }
}
