//! Checkpoints.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, or_dash, size, text, time};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Checkpoint {
    pub(crate) job: String,
    pub(crate) allocation: String,
    pub(crate) seq: u64,
    pub(crate) path: String,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) completed_at: Option<Time>,
    pub(crate) node: Option<String>,
}

impl From<pb::Checkpoint> for Checkpoint {
    fn from(seen: pb::Checkpoint) -> Self {
        Self {
            completed_at: time(seen.completed_at_unix_ms),
            node: text(&seen.node),
            job: seen.job,
            allocation: seen.allocation,
            seq: seen.seq,
            path: seen.path,
            size_bytes: size(seen.size_bytes),
        }
    }
}

impl Row for Checkpoint {
    const SCHEMA: &'static str = "fleet.checkpoint/v1";
    const LIST_SCHEMA: &'static str = "fleet.checkpoints/v1";
    const FIELDS: &'static [&'static str] =
        &["job", "allocation", "seq", "path", "size_bytes", "completed_at", "node"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("JOB", |c: &Self, _| c.job.clone()),
            Column::new("SEQ", |c: &Self, _| c.seq.to_string()).right(),
            Column::new("COMPLETED", |c: &Self, clock| {
                or_dash(c.completed_at.map(|at| clock.second(at.0)))
            }),
            Column::new("SIZE", |c: &Self, _| or_dash(c.size_bytes.map(Bytes))).right(),
            Column::new("NODE", |c: &Self, _| or_dash(c.node.as_ref())),
            Column::new("ALLOCATION", |c: &Self, _| c.allocation.clone()).wide(),
            Column::new("PATH", |c: &Self, _| c.path.clone()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Job", self.job.clone()),
            ("Allocation", self.allocation.clone()),
            ("Number", self.seq.to_string()),
            ("Path", self.path.clone()),
            ("Size", or_dash(self.size_bytes.map(Bytes))),
            ("Completed", or_dash(self.completed_at.map(|at| clock.second(at.0)))),
            ("Node", or_dash(self.node.as_ref())),
        ]
    }
}
