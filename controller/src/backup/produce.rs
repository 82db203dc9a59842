//! The bytes of a backup, in order, into a channel: description, authority, state, audit log.
//!
//! The state is copied at one instant; the audit log is read from the first record that this state keeps to the
//! newest one that it names. So both belong together, however much is written meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fleet_core::backup::{self, FILES_MAX, Manifest, PART_BYTES, Writer};
use fleet_core::{AuditRecord, Fsm};
use fleet_proto::transport::files;
use tokio::sync::mpsc;

use crate::audit::{AuditError, AuditStore, Query};
use crate::blocking::blocking;
use crate::clock::wall;
use crate::raft::RaftHandle;

/// Records read at a time.
const PAGE: usize = 500;
/// How long the records of an entry that was just applied may take to be there.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before it is looked again.
const RECORDS_PAUSE: Duration = Duration::from_millis(20);
/// Keys of one controller that the next one makes for itself.
const OWN_KEYS: [&str; 4] = ["server.key", "server.crt", "audit.key", "audit.crt"];

/// What a backup is made of.
#[derive(Debug)]
pub struct Contents {
    pub fsm: Fsm,
    pub term: u64,
    pub controller: u64,
    pub controllers: BTreeMap<u64, String>,
    pub audit: AuditStore,
    /// Records behind those in the store.
    pub newer: Vec<AuditRecord>,
    pub pki_dir: PathBuf,
}

/// Why a backup could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProduceError {
    #[error("read the certificate authority in {}: {problem}", folder.display())]
    Authority { folder: PathBuf, problem: String },
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("audit record {0} is not there")]
    AuditMissing(u64),
    #[error("audit records were pruned while the backup was made: make it again")]
    Pruned,
    #[error("this controller holds no cluster yet")]
    NoCluster,
    #[error("encode the description")]
    Encode(#[from] serde_json::Error),
    #[error("nobody takes the bytes any more")]
    Closed,
}

impl Contents {
    /// The state of a running controller, as it is now.
    pub fn of(raft: &RaftHandle, pki_dir: &Path) -> Contents {
        let fsm = raft.read(Fsm::clone);
        let status = raft.status();
        let peers = status.voters.into_iter().chain(status.learners);
        Contents {
            fsm,
            term: status.leadership.term,
            controller: status.node,
            controllers: peers.map(|peer| (peer.node, peer.address)).collect(),
            audit: raft.audit().clone(),
            newer: Vec::new(),
            pki_dir: pki_dir.to_owned(),
        }
    }
}

/// Sends the whole backup into `chunks`.
pub async fn produce(
    contents: Contents,
    chunks: mpsc::Sender<Vec<u8>>,
) -> Result<Manifest, ProduceError> {
    let Contents { fsm, term, controller, controllers, audit, newer, pki_dir } = contents;
    let send = async |bytes| chunks.send(bytes).await.map_err(|_| ProduceError::Closed);
    let authority =
        blocking(move || read_authority(&pki_dir)).await.map_err(|_| ProduceError::Closed)??;
    let (seq, head) = fsm.audit_head();
    let head = head.unwrap_or_default().to_owned();
    let pruned = fsm.audit_pruned().map_or(0, |pruned| pruned.through);
    let cluster = fsm.cluster().ok_or(ProduceError::NoCluster)?.to_string();
    let (incarnation, cluster_version) = (fsm.incarnation(), fsm.cluster_version());
    let index = fsm.applied();
    let state = blocking(move || fsm.to_snapshot()).await.map_err(|_| ProduceError::Closed)?;
    let manifest = Manifest {
        v: backup::BACKUP_VERSION,
        cluster,
        incarnation,
        cluster_version,
        made_at: wall(),
        controller,
        fleet: env!("CARGO_PKG_VERSION").to_owned(),
        term,
        index,
        controllers,
        state_bytes: state.len() as u64,
        audit_records: seq,
        audit_pruned: pruned,
        audit_head: head,
        files: authority.keys().cloned().collect(),
    };
    let (mut writer, first) = Writer::begin(&manifest)?;
    send(first).await?;
    for (name, bytes) in &authority {
        send(writer.file(name, bytes)).await?;
    }
    for piece in state.chunks(PART_BYTES) {
        send(writer.state(piece)).await?;
    }
    let stored = seq.saturating_sub(newer.len() as u64);
    let mut next = pruned + 1;
    let mut lines = String::new();
    while next <= stored {
        let page = page(&audit, next, stored).await?;
        for record in &page {
            if !lines.is_empty() && lines.len() + record.line.len() > PART_BYTES {
                send(writer.audit(&std::mem::take(&mut lines))).await?;
            }
            lines.push_str(&record.line);
            lines.push('\n');
        }
        next += page.len() as u64;
    }
    for record in newer.iter().filter(|record| record.body.seq > pruned) {
        lines.push_str(&record.line);
        lines.push('\n');
        if lines.len() > PART_BYTES {
            send(writer.audit(&std::mem::take(&mut lines))).await?;
        }
    }
    if !lines.is_empty() {
        send(writer.audit(&lines)).await?;
    }
    send(writer.end()).await?;
    Ok(manifest)
}

/// The next records, at least one. The newest may be a moment behind the state.
async fn page(audit: &AuditStore, from: u64, to: u64) -> Result<Vec<AuditRecord>, ProduceError> {
    let deadline = tokio::time::Instant::now() + RECORDS_TIMEOUT;
    loop {
        let query =
            Query { from_seq: Some(from), to_seq: Some(to), limit: PAGE, ..Query::default() };
        let records = audit.query(query).await?.records;
        if let Some(first) = records.first() {
            return if first.body.seq == from { Ok(records) } else { Err(ProduceError::Pruned) };
        }
        if audit.floor()?.seq >= from {
            return Err(ProduceError::Pruned);
        }
        if tokio::time::Instant::now() > deadline {
            return Err(ProduceError::AuditMissing(from));
        }
        tokio::time::sleep(RECORDS_PAUSE).await;
    }
}

/// All files of the authority but one controller's own keys.
fn read_authority(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, ProduceError> {
    let failed = |problem: String| ProduceError::Authority { folder: folder.to_owned(), problem };
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| failed(e.to_string()))? {
        let entry = entry.map_err(|e| failed(e.to_string()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = entry.file_type().map_err(|e| failed(e.to_string()))?.is_file();
        let wanted = is_file
            && backup::is_file_name(&name)
            && !name.ends_with(".tmp")
            && !OWN_KEYS.contains(&name.as_str());
        if wanted {
            let bytes = files::read_limited(&entry.path()).map_err(|e| failed(e.to_string()))?;
            found.insert(name, bytes);
        }
    }
    if found.is_empty() || found.len() > FILES_MAX {
        return Err(failed(format!("it holds {} files", found.len())));
    }
    Ok(found)
}
