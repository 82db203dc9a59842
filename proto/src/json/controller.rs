//! Defines the JSON of the controllers: each of them, and the fleet as the asked one sees it.

use serde::Serialize;

use super::Document;
use super::status::Status;
use super::values::text;
use crate::v1 as pb;

/// One controller, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Controller {
    /// Its number.
    pub id: u64,
    /// Host and port where the others reach it.
    pub addr: String,
    /// `leader`, `follower`, `candidate`, `learner`, `joining`, `leaving`, `unreachable`.
    pub role: String,
    /// Whether it has a vote.
    pub voter: bool,
    /// Its term of leadership; null: it did not answer.
    pub term: Option<u64>,
    /// The last entry of its log; null: it did not answer.
    pub last_log_index: Option<u64>,
    /// The last entry that it has applied; null: it did not answer.
    pub applied_index: Option<u64>,
    /// The version of its program; null: not known.
    pub version: Option<String>,
    /// Why it has no figures.
    pub problem: Option<String>,
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

impl Document for Controller {
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
}

/// The fleet as the asked controller sees it, and all controllers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControllerStatus {
    /// The fleet; its fields stand beside `items`.
    #[serde(flatten)]
    pub status: Status,
    /// All controllers.
    pub items: Vec<Controller>,
}

impl Document for ControllerStatus {
    const SCHEMA: &'static str = "fleet.controller_status/v1";
    const LIST_SCHEMA: &'static str = "fleet.controller_statuses/v1";
    const FIELDS: &'static [&'static str] = Status::FIELDS;
}
