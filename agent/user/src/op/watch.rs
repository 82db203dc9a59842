//! What the agent asks of the watching helper, and what the helper says, one JSON line each. Data only.
//!
//! `checkpoint::watch` is what the helper does, `checkpoint::observer` the agent's side. Both sides are always the same
//! binary, so there is no version here.

use std::path::PathBuf;

use fleet_core::checkpoint::{
    CheckpointId, CheckpointNote, Content, Facts, FileListDigest, RuleChoice,
};
use serde::{Deserialize, Serialize};

use super::{FileKind, FileStat, OpError};

/// The line on the helper's input that says: the attempt is being stopped.
pub const ENDING: &str = "ending\n";
/// The line that says: the job told of a checkpoint, which counts. As long as [`ENDING`].
pub const TOLD: &str = "told..\n";

/// The waiting times of observation, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// How long a file that was written in place and closed must keep still; and a directory that was filled in place.
    pub settle_closed_ms: u64,
    /// How long a file must keep still when nobody was seen closing it.
    pub settle_scanned_ms: u64,
    /// The same, when it is not known whether it is still open.
    pub settle_unknown_ms: u64,
    /// How often the directory is scanned.
    pub scan_ms: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            settle_closed_ms: 2_000,
            settle_scanned_ms: 10_000,
            settle_unknown_ms: 60_000,
            scan_ms: 10_000,
        }
    }
}

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    pub dir: PathBuf,
    /// The folder of `dir` that is looked into, and nothing else is; all of `dir` where it is empty. Paths are relative to
    /// `dir` all the same.
    pub folder: String,
    /// Without one, only what a rule recognises by its marker or content.
    pub pattern: Option<String>,
    pub rule: RuleChoice,
    /// Whose lists of files are written; none are where it is empty.
    pub job: String,
    /// Which attempt of it is watched.
    pub attempt: u32,
    /// No process of an earlier attempt is left anywhere: what only a scan finds is this attempt's.
    pub others_dead: bool,
    pub timings: Timings,
    /// Report what is there now as [`WatchLine::Before`] and count none of it.
    pub baseline: bool,
    /// File states that are not new.
    pub known: Vec<FileId>,
    /// What counted before this helper was started, for seeing it go.
    pub counted: Vec<CountedBefore>,
    /// What the attempt resumed from, until it is compared again.
    pub origin: Option<ResumedFrom>,
    /// Keep by a copy where there is no other way.
    pub keep_copy: bool,
}

/// One state of one file. The same state is never counted twice, under whatever name: a rename or a hard link of a
/// counted checkpoint is not another one. The device is left out, since NFS gets another one after a remount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    pub ino: u64,
    pub mtime_ns: i64,
    pub size_bytes: u64,
}

impl FileId {
    #[must_use]
    pub fn of(stat: &FileStat) -> Self {
        // The size of a directory itself says nothing, and some file systems change it behind one's back. It is not 0
        // here: that would say "empty file".
        let size_bytes = if stat.kind == FileKind::Dir { u64::MAX } else { stat.size_bytes };
        Self { ino: stat.ino, mtime_ns: stat.mtime_ns, size_bytes }
    }
}

/// What an attempt resumed from, as it was then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumedFrom {
    /// Relative to the checkpoint directory.
    pub path: String,
    pub ino: u64,
    /// Its writer replaces files by a rename, so that a hard link keeps what it was.
    #[serde(default)]
    pub may_link: bool,
    pub list: FileListDigest,
    /// None where only a look into the directory had found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CheckpointId>,
}

/// What became of it by the attempt's own first checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginFate {
    Same,
    /// Deleted, or overwritten by the attempt itself.
    Gone,
    /// Overwritten by the attempt itself, and still kept beside.
    Kept,
    /// By somebody else.
    Changed {
        why: String,
        content: Content,
    },
}

/// A checkpoint that an earlier helper of this attempt has counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedBefore {
    /// Relative to the checkpoint directory.
    pub path: String,
    pub id: FileId,
    pub list: Option<FileListDigest>,
}

/// What the helper says, one per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchLine {
    /// There before the attempt.
    Before(FileId),
    /// All of `Before` was said; from now on everything new counts.
    Ready,
    Seen(Box<SeenLine>),
    /// A checkpoint that counted is deleted, or lost a file.
    Gone(FileId),
    /// One that counted is deleted or overwritten, and is kept beside.
    Kept(FileId),
    /// What the attempt resumed from was compared again.
    Origin(OriginFate),
    Noted(CheckpointNote),
    /// A limit keeps the helper from checking something.
    Limited {
        what: String,
    },
    /// The directory cannot be watched now; it is tried again with each scan.
    Problem(OpError),
    Alive,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenLine {
    /// Relative to the checkpoint directory.
    pub path: String,
    pub id: FileId,
    pub size_bytes: u64,
    pub completed_at_unix_ms: u64,
    pub facts: Facts,
}
