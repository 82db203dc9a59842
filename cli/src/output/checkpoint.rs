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
    /// Rises over the life of the job.
    pub(crate) number: u64,
    pub(crate) attempt: u32,
    pub(crate) step: Option<u64>,
    pub(crate) rule: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) torn_because: Option<String>,
    pub(crate) place: Option<String>,
    pub(crate) doubt: Option<String>,
    pub(crate) files: Option<u64>,
}

impl Checkpoint {
    /// `whole`, `unchecked`, or `torn: why`.
    pub(crate) fn content_shown(&self) -> String {
        match (&self.content, &self.torn_because) {
            (Some(content), Some(why)) => format!("{content}: {why}"),
            (Some(content), None) => content.clone(),
            (None, _) => "-".to_owned(),
        }
    }
}

impl From<pb::Checkpoint> for Checkpoint {
    fn from(seen: pb::Checkpoint) -> Self {
        Self {
            completed_at: time(seen.completed_at_unix_ms),
            node: text(&seen.node),
            number: if seen.number == 0 { seen.seq } else { seen.number },
            attempt: seen.attempt,
            step: seen.step,
            rule: text(&seen.rule),
            content: text(&seen.content),
            torn_because: text(&seen.torn_because),
            place: text(&seen.presence),
            doubt: text(&seen.doubt),
            files: (seen.files > 0).then_some(seen.files),
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
    const FIELDS: &'static [&'static str] = &[
        "job",
        "allocation",
        "seq",
        "path",
        "size_bytes",
        "completed_at",
        "node",
        "number",
        "attempt",
        "step",
        "rule",
        "content",
        "torn_because",
        "place",
        "doubt",
        "files",
    ];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("JOB", |c: &Self, _| c.job.clone()),
            Column::new("NUMBER", |c: &Self, _| c.number.to_string()).right(),
            Column::new("ATTEMPT", |c: &Self, _| c.attempt.to_string()).right().wide(),
            Column::new("STEP", |c: &Self, _| or_dash(c.step)).right(),
            Column::new("COMPLETED", |c: &Self, clock| {
                or_dash(c.completed_at.map(|at| clock.second(at.0)))
            }),
            Column::new("SIZE", |c: &Self, _| or_dash(c.size_bytes.map(Bytes))).right(),
            Column::new("NODE", |c: &Self, _| or_dash(c.node.as_ref())),
            Column::new("RULE", |c: &Self, _| or_dash(c.rule.as_ref())),
            Column::new("CONTENT", |c: &Self, _| c.content_shown()),
            Column::new("PLACE", |c: &Self, _| or_dash(c.place.as_ref())),
            Column::new("DOUBT", |c: &Self, _| or_dash(c.doubt.as_ref())),
            Column::new("ALLOCATION", |c: &Self, _| c.allocation.clone()).wide(),
            Column::new("PATH", |c: &Self, _| c.path.clone()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Job", self.job.clone()),
            ("Number", self.number.to_string()),
            ("Attempt", self.attempt.to_string()),
            ("Allocation", self.allocation.clone()),
            ("Step", or_dash(self.step)),
            ("Rule", or_dash(self.rule.as_ref())),
            ("Content", self.content_shown()),
            ("Place", or_dash(self.place.as_ref())),
            ("Doubt", or_dash(self.doubt.as_ref())),
            ("Path", self.path.clone()),
            ("Size", or_dash(self.size_bytes.map(Bytes))),
            ("Completed", or_dash(self.completed_at.map(|at| clock.second(at.0)))),
            ("Node", or_dash(self.node.as_ref())),
        ]
    }
}
