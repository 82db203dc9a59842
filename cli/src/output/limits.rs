//! How much people may reserve, by group.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::{Column, Row};
use crate::times::{Clock, length};

/// What stands for a limit that is not there.
pub(crate) const NO_LIMIT: &str = "none";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ReservationLimits {
    pub(crate) group: String,
    pub(crate) gpus: Option<u32>,
    pub(crate) length_ms: Option<u64>,
    pub(crate) ahead_ms: Option<u64>,
}

impl From<pb::ReservationLimits> for ReservationLimits {
    fn from(limits: pb::ReservationLimits) -> Self {
        let pb::ReservationLimits { group, gpus, length_ms, ahead_ms } = limits;
        Self { group, gpus, length_ms, ahead_ms }
    }
}

impl ReservationLimits {
    fn gpus(&self) -> String {
        self.gpus.map_or(NO_LIMIT.to_owned(), |gpus| gpus.to_string())
    }
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or(NO_LIMIT.to_owned(), length)
}

impl Row for ReservationLimits {
    const SCHEMA: &'static str = "fleet.reservation_limits/v1";
    const LIST_SCHEMA: &'static str = "fleet.reservation_limits_list/v1";
    const FIELDS: &'static [&'static str] = &["group", "gpus", "length_ms", "ahead_ms"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GROUP", |limits: &Self, _| limits.group.clone()),
            Column::new("GPUS", |limits: &Self, _| limits.gpus()),
            Column::new("TIME", |limits: &Self, _| shown(limits.length_ms)),
            Column::new("AHEAD", |limits: &Self, _| shown(limits.ahead_ms)),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Group", self.group.clone()),
            ("GPUs at once", self.gpus()),
            ("Time", shown(self.length_ms)),
            ("Ahead", shown(self.ahead_ms)),
        ]
    }
}
