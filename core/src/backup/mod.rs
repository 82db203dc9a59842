//! The backup file: everything a controller needs to start again, in one checked file. Pure bytes.
//!
//! Written by a controller (`fleet controller snapshot save`, the nightly backup, `fleet-controller
//! backup`), read by `fleet-controller restore` and `verify`, and by the CLI while it saves one. It
//! holds **secrets**: the key of the certificate authority. Nothing here reads or writes a file.
//!
//! ```text
//! fleet-backup 1
//! part manifest 512
//! {"v":1,…}
//! part file:ca.key 241
//! …
//! part state 1048576          the state machine's snapshot, in order
//! part audit 1048576          whole lines of the audit log, from the first kept
//! end <SHA-256 of every byte before this line>
//! ```
//!
//! Every part's bytes are followed by a line feed. A file without its `end` is no backup.

mod check;
mod parse;

pub use check::{Check, Checked};
pub use parse::Parser;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::time::Timestamp;

/// Version of the file that this build writes.
pub const BACKUP_VERSION: u32 = 1;
/// Longest part. Longer things are several parts of one kind.
pub const PART_BYTES_MAX: usize = 4 << 20;
/// Wanted length of a part of state or audit log.
pub const PART_BYTES: usize = 1 << 20;
/// Most files of the certificate authority.
pub const FILES_MAX: usize = 1_000;
/// Largest state that is read back.
pub const STATE_BYTES_MAX: u64 = 1 << 30;
/// Longest line of the format itself.
const LINE_BYTES_MAX: usize = 200;
const MAGIC: &str = "fleet-backup";

/// What the backup is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub v: u32,
    pub cluster: String,
    pub incarnation: u64,
    pub cluster_version: u32,
    /// The wall clock of the controller that wrote it.
    pub made_at: Timestamp,
    /// That controller, and the version of fleet it ran.
    pub controller: u64,
    pub fleet: String,
    /// Term and index of the last log entry in it.
    pub term: u64,
    pub index: u64,
    /// The controllers it knew, with their addresses.
    pub controllers: BTreeMap<u64, String>,
    pub state_bytes: u64,
    /// Number of the newest audit record.
    pub audit_records: u64,
    /// Number of the last audit record that was pruned, and so is not in the backup; 0: all are in it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub audit_pruned: u64,
    /// Hash of the newest audit record; empty if there is none.
    pub audit_head: String,
    /// Names of the certificate authority's files.
    pub files: Vec<String>,
}

impl Manifest {
    /// How many audit records are in the backup.
    pub fn audit_records_here(&self) -> u64 {
        self.audit_records.saturating_sub(self.audit_pruned)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One part, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Manifest(Box<Manifest>),
    File {
        name: String,
        bytes: Vec<u8>,
    },
    State(Vec<u8>),
    /// Whole lines.
    Audit(String),
}

/// Why bytes are not a backup, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    #[error("this is not a backup of fleet: it does not begin with \"{MAGIC}\"")]
    NotABackup,
    #[error(
        "the backup has version {found}, this build reads up to {BACKUP_VERSION}: use the newer fleet"
    )]
    TooNew { found: u32 },
    #[error("byte {at}: {problem}; the backup is damaged")]
    Damaged { at: u64, problem: String },
    #[error("the backup ends at byte {at} without its last line: it was cut off")]
    Cut { at: u64 },
    #[error("the backup's checksum does not match its contents: it is damaged")]
    Checksum,
    #[error("{0}; the backup is damaged")]
    Contradiction(String),
}

/// Whether `name` may be the name of a file of the certificate authority: one plain path component.
pub fn is_file_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.bytes().all(legal)
}

/// Makes the bytes of a backup, piece by piece.
#[derive(Debug)]
pub struct Writer {
    sum: Sha256,
}

impl Writer {
    /// A writer, and the first bytes.
    pub fn begin(manifest: &Manifest) -> Result<(Writer, Vec<u8>), serde_json::Error> {
        let mut writer = Writer { sum: Sha256::new() };
        let mut bytes = format!("{MAGIC} {BACKUP_VERSION}\n").into_bytes();
        writer.sum.update(&bytes);
        bytes.extend(writer.part("manifest", &serde_json::to_vec(manifest)?));
        Ok((writer, bytes))
    }

    /// A file of the certificate authority. The name has been checked by [`is_file_name`].
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Vec<u8> {
        self.part(&format!("file:{name}"), bytes)
    }

    /// The next piece of the state, at most [`PART_BYTES_MAX`] long.
    pub fn state(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.part("state", bytes)
    }

    /// The next lines of the audit log, each ended, at most [`PART_BYTES_MAX`] long.
    pub fn audit(&mut self, lines: &str) -> Vec<u8> {
        self.part("audit", lines.as_bytes())
    }

    /// The last line.
    pub fn end(self) -> Vec<u8> {
        format!("end {}\n", hex::encode(self.sum.finalize())).into_bytes()
    }

    fn part(&mut self, kind: &str, bytes: &[u8]) -> Vec<u8> {
        let mut part = format!("part {kind} {}\n", bytes.len()).into_bytes();
        part.extend_from_slice(bytes);
        part.push(b'\n');
        self.sum.update(&part);
        part
    }
}

#[cfg(test)]
mod tests;
