//! Shows how much people may reserve, by group.

use fleet_proto::json::limits::{Approvers, ReservationLimits};

use super::{Column, Row};
use crate::times::{Clock, length};

/// What stands for a limit that is not there.
pub(crate) const NO_LIMIT: &str = "none";

fn gpus(limits: &ReservationLimits) -> String {
    limits.gpus.map_or(NO_LIMIT.to_owned(), |gpus| gpus.to_string())
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or(NO_LIMIT.to_owned(), length)
}

impl Row for ReservationLimits {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GROUP", |limits: &Self, _| limits.group.clone()),
            Column::new("GPUS", |limits: &Self, _| gpus(limits)),
            Column::new("TIME", |limits: &Self, _| shown(limits.length_ms)),
            Column::new("AHEAD", |limits: &Self, _| shown(limits.ahead_ms)),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Group", self.group.clone()),
            ("GPUs at once", gpus(self)),
            ("Time", shown(self.length_ms)),
            ("Ahead", shown(self.ahead_ms)),
        ]
    }
}

/// `ada, bob`; `none`.
fn names(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

impl Row for Approvers {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("MEMBERS", |approvers: &Self, _| names(&approvers.members)),
            Column::new("GROUPS", |approvers: &Self, _| names(&approvers.groups)),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![("Members", names(&self.members)), ("Groups", names(&self.groups))]
    }
}
