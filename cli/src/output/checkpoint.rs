//! Shows checkpoints.

use fleet_proto::json::checkpoint::Checkpoint;

use super::values::or_dash;
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

/// `whole`, `unchecked`, or `torn: why`.
pub(crate) fn content_shown(seen: &Checkpoint) -> String {
    match (&seen.content, &seen.torn_because) {
        (Some(content), Some(why)) => format!("{content}: {why}"),
        (Some(content), None) => content.clone(),
        (None, _) => "-".to_owned(),
    }
}

impl Row for Checkpoint {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("JOB", |c: &Self, _| c.job.clone()),
            Column::new("NUMBER", |c: &Self, _| c.number.to_string()).right(),
            Column::new("ATTEMPT", |c: &Self, _| c.attempt.to_string()).right().wide(),
            Column::new("STEP", |c: &Self, _| or_dash(c.step)).right().rank(4),
            Column::when("COMPLETED", |c: &Self| c.completed_at),
            Column::new("SIZE", |c: &Self, _| or_dash(c.size_bytes.map(Bytes))).right().rank(3),
            Column::new("NODE", |c: &Self, _| or_dash(c.node.as_ref())).rank(5),
            Column::new("RULE", |c: &Self, _| or_dash(c.rule.as_ref())).rank(6),
            Column::new("CONTENT", |c: &Self, _| content_shown(c)).clip_to(9),
            Column::new("PLACE", |c: &Self, _| or_dash(c.place.as_ref())),
            Column::new("DOUBT", |c: &Self, _| or_dash(c.doubt.as_ref())).rank(2),
            Column::new("ALLOCATION", |c: &Self, _| c.allocation.clone()).wide(),
            Column::new("PATH", |c: &Self, _| c.path.clone()).clip_to(12),
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
            ("Content", content_shown(self)),
            ("Place", or_dash(self.place.as_ref())),
            ("Doubt", or_dash(self.doubt.as_ref())),
            ("Path", self.path.clone()),
            ("Size", or_dash(self.size_bytes.map(Bytes))),
            ("Completed", or_dash(self.completed_at.map(|at| clock.second(at.0)))),
            ("Node", or_dash(self.node.as_ref())),
        ]
    }
}
