//! The controllers, and how each stands.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::status::Status;
use super::values::{or_dash, text};
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Controller {
    pub(crate) id: u64,
    pub(crate) addr: String,
    /// `leader`, `follower`, `candidate`, `learner`, `joining`, `leaving`, `unreachable`.
    pub(crate) role: String,
    pub(crate) voter: bool,
    pub(crate) term: Option<u64>,
    pub(crate) last_log_index: Option<u64>,
    pub(crate) applied_index: Option<u64>,
    pub(crate) version: Option<String>,
    /// Why it has no figures.
    pub(crate) problem: Option<String>,
}

impl From<pb::Controller> for Controller {
    fn from(one: pb::Controller) -> Self {
        Self {
            version: text(&one.version),
            problem: text(&one.problem),
            id: one.id,
            addr: one.address,
            role: one.role,
            voter: one.voter,
            term: one.term,
            last_log_index: one.last_log_index,
            applied_index: one.applied_index,
        }
    }
}

impl Row for Controller {
    const SCHEMA: &'static str = "fleet.controller/v1";
    const LIST_SCHEMA: &'static str = "fleet.controllers/v1";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "addr",
        "role",
        "voter",
        "term",
        "last_log_index",
        "applied_index",
        "version",
        "problem",
    ];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("ID", |c: &Self, _| c.id.to_string()).right(),
            Column::new("ADDRESS", |c: &Self, _| c.addr.clone()),
            Column::new("ROLE", |c: &Self, _| c.role.clone()),
            Column::new("VOTES", |c: &Self, _| if c.voter { "yes" } else { "no" }.to_owned()),
            Column::new("TERM", |c: &Self, _| or_dash(c.term.map(|n| n.to_string()))).right(),
            Column::new("LOG", |c: &Self, _| or_dash(c.last_log_index.map(|n| n.to_string())))
                .right(),
            Column::new("APPLIED", |c: &Self, _| or_dash(c.applied_index.map(|n| n.to_string())))
                .right(),
            Column::new("PROBLEM", |c: &Self, _| or_dash(c.problem.clone())),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Controller", self.id.to_string()),
            ("Address", self.addr.clone()),
            ("Role", self.role.clone()),
        ]
    }
}

/// The fleet as the asked controller sees it, and all controllers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ControllerStatus {
    #[serde(flatten)]
    pub(crate) status: Status,
    pub(crate) items: Vec<Controller>,
}

impl Row for ControllerStatus {
    const SCHEMA: &'static str = "fleet.controller_status/v1";
    const LIST_SCHEMA: &'static str = "fleet.controller_statuses/v1";
    const FIELDS: &'static [&'static str] = Status::FIELDS;

    fn columns() -> Vec<Column<Self>> {
        vec![Column::new("CLUSTER", |s: &Self, _| s.status.cluster_id.clone())]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        self.status.lines(clock)
    }
}
