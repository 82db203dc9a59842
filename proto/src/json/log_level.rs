//! Defines the JSON of what a controller logs.

use serde::Serialize;

use super::Document;
use crate::v1 as pb;

/// What a controller logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogLevel {
    /// The controller's number.
    pub controller_id: u64,
    /// What it logs now: a level, or a level for each part.
    pub level: String,
    /// What `default` means.
    pub usual: String,
}

impl From<pb::LogLevelReply> for LogLevel {
    fn from(reply: pb::LogLevelReply) -> Self {
        Self { controller_id: reply.controller_id, level: reply.level, usual: reply.usual }
    }
}

impl Document for LogLevel {
    const SCHEMA: &'static str = "fleet.log_level/v1";
    const LIST_SCHEMA: &'static str = "fleet.log_levels/v1";
    const FIELDS: &'static [&'static str] = &["controller_id", "level", "usual"];
}
