//! What a controller logs.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LogLevel {
    pub(crate) controller_id: u64,
    pub(crate) level: String,
    /// What `default` means.
    pub(crate) usual: String,
}

impl From<pb::LogLevelReply> for LogLevel {
    fn from(reply: pb::LogLevelReply) -> Self {
        Self { controller_id: reply.controller_id, level: reply.level, usual: reply.usual }
    }
}

impl Row for LogLevel {
    const SCHEMA: &'static str = "fleet.log_level/v1";
    const LIST_SCHEMA: &'static str = "fleet.log_levels/v1";
    const FIELDS: &'static [&'static str] = &["controller_id", "level", "usual"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("CONTROLLER", |level, _| level.controller_id.to_string()),
            Column::new("LOGS", |level, _| level.level.clone()),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Controller", self.controller_id.to_string()),
            ("Logs", self.level.clone()),
            ("Default", self.usual.clone()),
        ]
    }
}
