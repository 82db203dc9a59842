//! Shows what a controller logs.

use fleet_proto::json::log_level::LogLevel;

use super::{Column, Row};
use crate::times::Clock;

impl Row for LogLevel {
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
