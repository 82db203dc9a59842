//! What the agent asks of the as-user helper and what it gets back: one JSON document each way, on stdin and stdout.
//!
//! Both sides are always the same binary, so there is no version here.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use self::resume::{ResumeAnswer, ResumeRequest};
use self::watch::WatchRequest;

pub mod resume;
pub mod watch;

/// Longest request the helper reads.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest single answer line the agent reads.
pub const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most paths in one `Stat`.
pub const STAT_PATHS_MAX: usize = 1024;

/// One thing to do as the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Is this a directory in which the user can create and delete a file? Optionally make it first, parents included.
    CheckDir { path: PathBuf, create: bool },
    /// Stat each path, following links.
    Stat { paths: Vec<PathBuf> },
    /// Write a small file atomically (temporary name, fsync, rename), readable by all.
    WriteFile { path: PathBuf, text: String },
    /// Read a small file whole; a longer one is refused.
    ReadFile { path: PathBuf, bytes_max: u64 },
    /// Create the file or set its modification time to now.
    Touch { path: PathBuf },
    /// Remove the file if it is there.
    RemoveFile { path: PathBuf },
    /// Can the user read the first byte of this file, or list this directory?
    Readable { path: PathBuf },
    /// Can the user connect to this socket?
    Connect { path: PathBuf },
    /// Send the metadata of a regular file, then, after a `go` line on stdin, its bytes.
    Stream { path: PathBuf },
    /// Something with the checkpoints of a job.
    Checkpoint(CheckpointOp),
}

/// What only the code of checkpoints can do. The agent's helper hands it on; this crate only carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointOp {
    /// Check, flush and list a checkpoint that the job told of.
    Inspect { dir: PathBuf, job: String, path: PathBuf },
    /// Choose what an attempt resumes from. See `checkpoint::resume`.
    Resume(Box<ResumeRequest>),
    /// Move back what was moved aside for an attempt that has ended, unless a later one has begun.
    PutBack { dir: PathBuf, job: String, attempt: u32 },
    /// Remove what fleet wrote beside the checkpoints of a job that has ended.
    RemoveJobFiles { dir: PathBuf, job: String, marker: String },
    /// Watch for checkpoints until stdin closes. See `checkpoint::watch`.
    Watch(Box<WatchRequest>),
}

/// What came of an [`Op`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done,
    Stats(Vec<Result<FileStat, OpError>>),
    Text(String),
    /// What [`CheckpointOp::Resume`] chose.
    Resume(Box<ResumeAnswer>),
    /// What [`CheckpointOp::Inspect`] found out.
    Facts(Box<fleet_core::checkpoint::Facts>),
    /// Follows `Stream`; the bytes come after it.
    File(FileStat),
}

/// Writes one line of the helper's answer.
pub fn answer<T: serde::Serialize>(output: &mut impl Write, value: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// What is known about a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileStat {
    pub kind: FileKind,
    pub size_bytes: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub dev: u64,
    pub ino: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Dir,
    Other,
}

impl From<&std::fs::Metadata> for FileStat {
    fn from(meta: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let ns = |sec: i64, nsec: i64| sec.saturating_mul(1_000_000_000).saturating_add(nsec);
        let kind = if meta.is_file() {
            FileKind::File
        } else if meta.is_dir() {
            FileKind::Dir
        } else {
            FileKind::Other
        };
        Self {
            kind,
            size_bytes: meta.size(),
            mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
            dev: meta.dev(),
            ino: meta.ino(),
        }
    }
}

/// Why the user's operation failed; the path is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct OpError {
    pub kind: OpErrorKind,
    pub path: PathBuf,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpErrorKind {
    NotFound,
    Denied,
    NotADirectory,
    NotARegularFile,
    ReadOnly,
    NoSpace,
    TooLarge,
    NotUtf8,
    Other,
}

impl OpError {
    pub fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as E;
        let kind = match error.kind() {
            E::NotFound => OpErrorKind::NotFound,
            E::PermissionDenied => OpErrorKind::Denied,
            E::NotADirectory => OpErrorKind::NotADirectory,
            E::ReadOnlyFilesystem => OpErrorKind::ReadOnly,
            E::StorageFull | E::QuotaExceeded => OpErrorKind::NoSpace,
            _ => OpErrorKind::Other,
        };
        Self { kind, path: path.into(), why: error.to_string() }
    }

    pub fn new(kind: OpErrorKind, path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self { kind, path: path.into(), why: why.into() }
    }
}
