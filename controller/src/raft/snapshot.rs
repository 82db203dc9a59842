//! Snapshot files: the FSM's bytes with where in the log they belong, checksummed, replaced whole.
//!
//! One file, `snapshot`: a line with format version, checksum and length of the description, the
//! description as JSON, then the FSM's bytes as `Fsm::to_snapshot` made them. A damaged, foreign or
//! newer file refuses the start. Written to a temporary file, synced, renamed, directory synced.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::codec::{StoredLogId, StoredMembershipAt};
use super::journal::Identity;
use super::types::{LogId, SnapshotMeta};
use crate::disk::{Disk, read_all, replace_file};

/// Name of the file.
const SNAPSHOT_FILE: &str = "snapshot";
/// Largest snapshot written, sent or read.
pub(crate) const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;
/// Version of the file.
const SNAPSHOT_FILE_VERSION: u32 = 1;
/// First word of the file; the version follows it.
const MAGIC: &str = "fleet-snapshot";

/// The FSM's bytes, shared.
pub(crate) type SnapshotData = Arc<Vec<u8>>;

/// What a snapshot contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) cluster: String,
    pub(crate) last: Option<StoredLogId>,
    pub(crate) membership: StoredMembershipAt,
    body_bytes: u64,
    body_sha256: String,
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFileError {
    #[error("{}: {problem}; the snapshot is damaged and nothing was changed: restore this controller from a backup, or remove it from the cluster and let a new one (with a new id) join", file.display())]
    Damaged { file: PathBuf, problem: String },
    #[error("{} has format version {found}, this build reads up to {SNAPSHOT_FILE_VERSION}: install the newer fleet again", file.display())]
    TooNew { file: PathBuf, found: u32 },
    #[error("{} belongs to cluster {found}, not to {wanted}: the data directory of another controller?", file.display())]
    Foreign { file: PathBuf, found: String, wanted: String },
    #[error("cannot read or write {}", file.display())]
    Io { file: PathBuf, source: io::Error },
}

/// A snapshot as read: what it is, and the FSM's bytes.
pub(crate) type ReadSnapshot = (Description, Vec<u8>);

/// The place of the snapshot file.
#[derive(Debug)]
pub(crate) struct SnapshotFile {
    disk: Arc<dyn Disk>,
    cluster: String,
    /// Held while the file is replaced, with the newest position in it.
    newest: Mutex<Option<StoredLogId>>,
}

/// Encodes a whole file.
fn encode(
    cluster: &str,
    last: Option<StoredLogId>,
    membership: StoredMembershipAt,
    body: &[u8],
) -> Result<Vec<u8>, serde_json::Error> {
    let description = serde_json::to_vec(&Description {
        cluster: cluster.to_owned(),
        last,
        membership,
        body_bytes: body.len() as u64,
        body_sha256: hex::encode(Sha256::digest(body)),
    })?;
    let checksum = crc32fast::hash(&description);
    let first = format!("{MAGIC} {SNAPSHOT_FILE_VERSION} {checksum:08x} {}\n", description.len());
    let mut bytes = Vec::with_capacity(first.len() + description.len() + 1 + body.len());
    bytes.extend(first.into_bytes());
    bytes.extend(description);
    bytes.push(b'\n');
    bytes.extend_from_slice(body);
    Ok(bytes)
}

enum Problem {
    Damaged(&'static str),
    TooNew(u32),
}

/// Decodes a whole file; `Err` says what is wrong with it.
fn decode(bytes: &[u8]) -> Result<(Description, &[u8]), Problem> {
    let damaged = Problem::Damaged;
    let end = bytes.iter().position(|b| *b == b'\n').ok_or(damaged("no first line"))?;
    let first = std::str::from_utf8(&bytes[..end]).map_err(|_| damaged("the first line"))?;
    let words: Vec<&str> = first.split(' ').collect();
    let [magic, version, checksum, len] = words[..] else {
        return Err(damaged("the first line"));
    };
    let version: u32 = version.parse().map_err(|_| damaged("the format version"))?;
    if magic != MAGIC || version == 0 {
        return Err(damaged("the first line"));
    }
    let len: usize = len.parse().map_err(|_| damaged("the first line"))?;
    let rest = &bytes[end + 1..];
    let description = rest.get(..len).ok_or(damaged("the description is cut short"))?;
    if format!("{:08x}", crc32fast::hash(description)) != checksum
        || rest.get(len) != Some(&b'\n')
        || format!("{MAGIC} {version} {checksum} {len}") != first
    {
        return Err(damaged("the description"));
    }
    if version > SNAPSHOT_FILE_VERSION {
        return Err(Problem::TooNew(version));
    }
    let description: Description =
        serde_json::from_slice(description).map_err(|_| damaged("the description"))?;
    let body = &rest[len + 1..];
    if body.len() as u64 != description.body_bytes
        || hex::encode(Sha256::digest(body)) != description.body_sha256
    {
        return Err(damaged("the contents do not match their checksum"));
    }
    Ok((description, body))
}

impl SnapshotFile {
    /// Reads the snapshot, if there is one.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        identity: &Identity,
    ) -> Result<(SnapshotFile, Option<ReadSnapshot>), SnapshotFileError> {
        let file =
            SnapshotFile { disk, cluster: identity.cluster.clone(), newest: Mutex::new(None) };
        let read = file.read()?;
        if let Some((description, _)) = &read {
            *file.newest.lock().unwrap_or_else(PoisonError::into_inner) = description.last;
        }
        Ok((file, read))
    }

    /// The disk the file is on.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    fn path(&self) -> PathBuf {
        self.disk.path().join(SNAPSHOT_FILE)
    }

    /// Reads and checks the file; `None` if there is none.
    pub(crate) fn read(&self) -> Result<Option<ReadSnapshot>, SnapshotFileError> {
        let path = self.path();
        let file = match self.disk.open(SNAPSHOT_FILE) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(SnapshotFileError::Io { file: path, source }),
        };
        let bytes = read_all(&*file, SNAPSHOT_BYTES_MAX)
            .map_err(|source| SnapshotFileError::Io { file: path.clone(), source })?;
        let (description, body) = decode(&bytes).map_err(|problem| match problem {
            Problem::Damaged(what) => {
                SnapshotFileError::Damaged { file: path.clone(), problem: what.to_owned() }
            }
            Problem::TooNew(found) => SnapshotFileError::TooNew { file: path.clone(), found },
        })?;
        if description.cluster != self.cluster {
            return Err(SnapshotFileError::Foreign {
                file: path,
                found: description.cluster,
                wanted: self.cluster.clone(),
            });
        }
        Ok(Some((description, body.to_vec())))
    }

    /// Replaces the file, unless a newer snapshot is there already.
    pub(crate) fn write(&self, meta: &SnapshotMeta, body: &[u8]) -> io::Result<()> {
        let last = meta.last_log_id.map(StoredLogId::from);
        let bytes = encode(&self.cluster, last, (&meta.last_membership).into(), body)?;
        if bytes.len() as u64 > SNAPSHOT_BYTES_MAX {
            return Err(io::Error::other("the snapshot is larger than can be read back"));
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if *newest <= last {
            replace_file(&*self.disk, SNAPSHOT_FILE, &bytes)?;
            *newest = last;
        }
        Ok(())
    }
}

impl Description {
    /// The position as openraft wants it.
    pub(crate) fn to_meta(&self) -> Result<SnapshotMeta, String> {
        Ok(SnapshotMeta {
            last_log_id: self.last.map(LogId::from),
            last_membership: self.membership.to_membership()?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_snapshot_is_noticed() {
        let last = Some(StoredLogId { term: 1, node: 2, index: 3 });
        let body = b"{\"v\":1,\"some\":\"state\"}";
        let bytes = encode("fleet-test", last, StoredMembershipAt::default(), body).unwrap();
        let (description, read) = decode(&bytes).ok().unwrap();
        assert_eq!((description.last, read), (last, &body[..]));
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode(&damaged).is_err(), "byte {at} bit {bit}");
            }
        }
    }
}
