//! Defines the JSON of a checkpoint: where it is, how large it is and whether it counts.

use serde::Serialize;

use super::Document;
use super::values::{Time, size, text, time};
use crate::v1 as pb;

/// A checkpoint that fleet saw a job write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// The job that wrote it.
    pub job: String,
    /// The allocation of the attempt that wrote it.
    pub allocation: String,
    /// Its number within the attempt.
    pub seq: u64,
    /// The file or directory on its node.
    pub path: String,
    /// Its size in bytes; null: not known.
    pub size_bytes: Option<u64>,
    /// When it was complete, by the clock of its node; null: not known.
    pub completed_at: Option<Time>,
    /// The node where it was written; null: not known.
    pub node: Option<String>,
    /// Rises over the life of the job.
    pub number: u64,
    /// The attempt that wrote it, from 1; 0: not known.
    pub attempt: u32,
    /// The step of the training; null where it does not show one.
    pub step: Option<u64>,
    /// The rule by which it was recognised, `lightning`; null: not known.
    pub rule: Option<String>,
    /// `whole`, `unchecked`, `torn`; null: not known.
    pub content: Option<String>,
    /// Why it is torn; null where it is not.
    pub torn_because: Option<String>,
    /// `there`, `aside`, `kept`, `gone`; null: not known.
    pub place: Option<String>,
    /// `not flushed`, `writer unknown`, `after the fault`; null: there is no doubt.
    pub doubt: Option<String>,
    /// How many files it has; null: not known.
    pub files: Option<u64>,
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

impl Document for Checkpoint {
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
}
