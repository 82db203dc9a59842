//! What `why` tells.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::text::harmless;
use super::values::{Time, text, time};
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Story {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) summary: String,
    pub(crate) details: Vec<String>,
    pub(crate) story: Vec<StoryLine>,
    pub(crate) older_lines: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct StoryLine {
    pub(crate) at: Option<Time>,
    pub(crate) text: String,
    pub(crate) actor: Option<String>,
    pub(crate) audit_seq: Option<u64>,
}

impl From<pb::Explanation> for Story {
    fn from(told: pb::Explanation) -> Self {
        let line = |line: pb::StoryLine| StoryLine {
            at: time(line.at_unix_ms),
            actor: text(&line.actor),
            audit_seq: (line.audit_seq != 0).then_some(line.audit_seq),
            text: line.text,
        };
        Self {
            id: told.id,
            kind: told.kind,
            summary: told.summary,
            details: told.details,
            story: told.story.into_iter().map(line).collect(),
            older_lines: told.older_lines,
        }
    }
}

impl Story {
    /// As it is read on a terminal.
    pub(crate) fn told(&self, clock: &Clock) -> String {
        let mut text = format!("{}: {}\n", harmless(&self.id), harmless(&self.summary));
        for detail in &self.details {
            text.push_str(&format!("  {}\n", harmless(detail)));
        }
        if !self.story.is_empty() {
            text.push('\n');
        }
        if self.older_lines > 0 {
            let older = self.older_lines;
            text.push_str(&format!(
                "  ({older} older lines, or more, are in the audit log: an admin's `fleet audit export`)\n"
            ));
        }
        let mut day = String::new();
        for line in &self.story {
            let at = line.at.map_or_else(|| "-".to_owned(), |at| clock.second(at.0));
            // The day is said once.
            let (date, time) = at.split_once(' ').unwrap_or(("", &at));
            if date != day {
                day = date.to_owned();
                text.push_str(&format!("{date}\n"));
            }
            let actor = line.actor.as_ref().map(|actor| format!(" ({actor})")).unwrap_or_default();
            text.push_str(&format!("  {time}  {}{}\n", harmless(&line.text), harmless(&actor)));
        }
        text
    }
}

impl Row for Story {
    const SCHEMA: &'static str = "fleet.why/v1";
    const LIST_SCHEMA: &'static str = "fleet.whys/v1";
    const FIELDS: &'static [&'static str] =
        &["id", "kind", "summary", "details", "story", "older_lines"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("ID", |s: &Self, _| s.id.clone()),
            Column::new("SUMMARY", |s: &Self, _| s.summary.clone()),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![("Id", self.id.clone()), ("Summary", self.summary.clone())]
    }
}
