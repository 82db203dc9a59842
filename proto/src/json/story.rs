//! Defines the JSON of what happened to a thing, and why.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// What happened to a thing, and why it stands as it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Story {
    /// The thing: a job, a reservation, a GPU, a node.
    pub id: String,
    /// `job`, `reservation`, `gpu`, `node`.
    pub kind: String,
    /// One sentence: how it stands now.
    pub summary: String,
    /// What that means for the one who asks, or what to do.
    pub details: Vec<String>,
    /// When a job that waits could start by what is known now; null: it does not wait, or that is not known.
    pub expected_start: Option<Time>,
    /// What happened to it, the oldest first.
    pub story: Vec<StoryLine>,
    /// This many older lines, or more, are in the audit log only.
    pub older_lines: u64,
    /// Audit records up to this time were pruned, and some may be of this story; null: none was.
    pub pruned_until: Option<Time>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoryLine {
    /// When; null: not known.
    pub at: Option<Time>,
    /// What, as a sentence.
    pub text: String,
    /// Who did it; null: not known.
    pub actor: Option<String>,
    /// The number of its audit record; null: there is none.
    pub audit_seq: Option<u64>,
}

impl From<pb::Explanation> for Story {
    fn from(explanation: pb::Explanation) -> Self {
        let line = |line: pb::StoryLine| StoryLine {
            at: time(line.at_unix_ms),
            actor: text(&line.actor),
            audit_seq: (line.audit_seq != 0).then_some(line.audit_seq),
            text: line.text,
        };
        Self {
            id: explanation.id,
            kind: explanation.kind,
            summary: explanation.summary,
            details: explanation.details,
            expected_start: time(explanation.expected_start_unix_ms),
            story: explanation.story.into_iter().map(line).collect(),
            older_lines: explanation.older_lines,
            pruned_until: time(explanation.pruned_until_unix_ms),
        }
    }
}

impl Document for Story {
    const SCHEMA: &'static str = "fleet.why/v1";
    const LIST_SCHEMA: &'static str = "fleet.whys/v1";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "kind",
        "summary",
        "details",
        "expected_start",
        "story",
        "older_lines",
        "pruned_until",
    ];
}
