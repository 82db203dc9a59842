//! Opens the stores in the right order, checks that they belong together, and starts openraft.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use openraft::{BasicNode, Config, SnapshotPolicy};

use super::about::Members;
use super::codec::StoredLogId;
use super::disk::{Disk, DiskError, RealDisk};
use super::divergence;
use super::fatal::{EXIT_STORE_FAILED, EXIT_STORE_REFUSED, FatalHook};
use super::handle::RaftHandle;
use super::journal::{self, Identity, JournalError};
use super::log_store::LogStore;
use super::network::{Network, PeerConnector};
use super::snapshot::{SnapshotFile, SnapshotFileError};
use super::state_machine::{RestoreError, StateMachine};
use super::types::Raft;
use crate::audit::{AuditError, AuditStore};

/// The audit database, beside log and snapshot.
pub(super) const AUDIT_FILE: &str = "audit.redb";
/// A follower that hears nothing for a time between this and [`longest_election_ms`] of it starts an election.
/// The leader's lease is as long as the longer one, so larger values cost time after a leader's death.
pub const ELECTION_MS: u64 = 600;
/// Heartbeats in the shortest election timeout.
const HEARTBEATS: u64 = 4;
/// Entries after which a snapshot is made.
const SNAPSHOT_EVERY: u64 = 5_000;
/// Entries kept in the log although a snapshot contains them, for followers that lag a little.
const ENTRIES_KEPT: u64 = 1_000;
/// Bytes of entries above which a snapshot is made, and everything in it purged, however few they are.
const LOG_BYTES_MAX: usize = 256 << 20;
/// Entries in one append message; each is at most [`super::handle::ENTRY_BYTES_MAX`].
const ENTRIES_PER_MESSAGE: u64 = 300;
/// A snapshot with its audit records may take this long to send and install.
const INSTALL_TIMEOUT_MS: u64 = 600_000;

/// What [`start`] needs to know.
#[derive(Clone)]
pub struct RaftConfig {
    /// Text of the cluster id: a store of another cluster is refused.
    pub cluster: String,
    /// This controller's id. Never used again for another controller or after a wiped disk.
    pub node: u64,
    /// Folder of log, snapshot and audit database.
    pub dir: PathBuf,
    /// Whether the stores may be made: only right after `init` (or for a new member). Otherwise an
    /// empty folder is refused, since a voter that forgot its vote could split the cluster.
    pub create: bool,
    /// Voters of a new cluster, this one included, with their addresses. One entry: a single voter.
    /// Ignored once the cluster exists; empty: wait until a leader adds this controller.
    pub members: BTreeMap<u64, String>,
    pub connector: Arc<dyn PeerConnector>,
    /// The highest cluster version this program can run at; less only in tests of upgrades.
    pub cluster_version_max: u32,
    /// What happens when the process must end.
    pub fatal: FatalHook,
}

impl std::fmt::Debug for RaftConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftConfig")
            .field("cluster", &self.cluster)
            .field("node", &self.node)
            .field("dir", &self.dir)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// Why consensus does not start. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotFileError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error("the log in {} begins after entry {purged}, but the snapshot ends at entry {snapshot}; restore this controller from a backup", dir.display())]
    Gap { dir: PathBuf, purged: u64, snapshot: u64 },
    #[error("{}: after entry {index} the state of this controller was not that of the others, and it was stopped for that. Starting it again could give wrong answers: keep the folder and report it, remove this controller from the cluster, and let a new one (with a new id) join", file.display())]
    Diverged { file: PathBuf, index: u64 },
    #[error("consensus does not start: {0}")]
    Consensus(String),
}

impl StartError {
    /// The exit code for a supervisor: a failing disk may get well, a refused store does not.
    pub fn exit_code(&self) -> i32 {
        match self {
            StartError::Disk(DiskError::Open { .. })
            | StartError::Journal(JournalError::Io { .. })
            | StartError::Snapshot(SnapshotFileError::Io { .. }) => EXIT_STORE_FAILED,
            StartError::Disk(_)
            | StartError::Journal(_)
            | StartError::Snapshot(_)
            | StartError::Audit(_)
            | StartError::Restore(_)
            | StartError::Gap { .. }
            | StartError::Diverged { .. }
            | StartError::Consensus(_) => EXIT_STORE_REFUSED,
        }
    }
}

fn consensus(error: impl std::fmt::Display) -> StartError {
    StartError::Consensus(error.to_string())
}

/// The longest election timeout and the leader's lease, where `election_ms` is the shortest.
pub(super) const fn longest_election_ms(election_ms: u64) -> u64 {
    election_ms * 5 / 3
}

/// openraft's configuration, with every value that matters named above.
fn raft_config(
    config: &RaftConfig,
    snapshot_every: u64,
    kept: u64,
    election_ms: u64,
) -> Result<Config, StartError> {
    Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: election_ms / HEARTBEATS,
        election_timeout_min: election_ms,
        election_timeout_max: longest_election_ms(election_ms),
        enable_pre_vote: Some(true),
        // A leader that lost power with an entry that others had applied, and not yet on its own disk, must
        // not go on leading the same term: it would give that index to another command.
        enable_leader_restore: Some(false),
        max_payload_entries: ENTRIES_PER_MESSAGE,
        install_snapshot_timeout: INSTALL_TIMEOUT_MS,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(snapshot_every),
        max_in_snapshot_log_to_keep: kept,
        ..Config::default()
    }
    .validate()
    .map_err(consensus)
}

/// Opens everything under `config.dir` and starts to take part.
pub async fn start(config: RaftConfig) -> Result<RaftHandle, StartError> {
    start_at_pace(config, ELECTION_MS).await
}

/// [`start`] for a machine or network where elections must be slower. All members use the same.
pub async fn start_at_pace(config: RaftConfig, election_ms: u64) -> Result<RaftHandle, StartError> {
    let sizes = (SNAPSHOT_EVERY, ENTRIES_KEPT, journal::SEGMENT_BYTES);
    let handle = open(config, sizes, election_ms).await?;
    handle.bound_log(LOG_BYTES_MAX);
    Ok(handle)
}

/// [`start`] with other sizes: for tests that want snapshots and purges early.
#[cfg(test)]
pub(super) async fn start_with(
    config: RaftConfig,
    snapshot_every: u64,
    kept: u64,
    segment_bytes: u64,
) -> Result<RaftHandle, StartError> {
    open(config, (snapshot_every, kept, segment_bytes), ELECTION_MS).await
}

/// `sizes`: entries between snapshots, entries kept, bytes of a segment.
async fn open(
    config: RaftConfig,
    sizes: (u64, u64, u64),
    election_ms: u64,
) -> Result<RaftHandle, StartError> {
    let (snapshot_every, kept, segment_bytes) = sizes;
    let identity = Identity { cluster: config.cluster.clone(), node: config.node };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&config.dir)?);
    let marked = divergence::marked(&*disk);
    let marked = marked.map_err(|source| DiskError::Open { path: config.dir.clone(), source })?;
    if let Some((file, index)) = marked {
        return Err(StartError::Diverged { file, index });
    }
    let (snapshots, snapshot) = SnapshotFile::open(Arc::clone(&disk), &identity)?;
    let log = LogStore::open(disk, identity, config.create, segment_bytes, config.fatal.clone())?;
    check_no_gap(&config, &log, snapshot.as_ref().and_then(|(description, _)| description.last))?;
    let audit =
        AuditStore::open(&config.dir.join(AUDIT_FILE), &config.cluster, config.fatal.clone())?;
    let state_machine = StateMachine::restore(
        snapshots,
        snapshot,
        audit.clone(),
        config.cluster_version_max,
        config.fatal.clone(),
    )?;
    let view = state_machine.view();
    let (members, own) = (Members::default(), state_machine.own_check());
    let network = Network {
        cluster: config.cluster.clone(),
        node: config.node,
        connector: Arc::clone(&config.connector),
        audit: audit.clone(),
        members: members.clone(),
    };
    let openraft = Arc::new(raft_config(&config, snapshot_every, kept, election_ms)?);
    let raft = Raft::new(config.node, openraft, network, log.clone(), state_machine)
        .await
        .map_err(consensus)?;
    if !config.members.is_empty() && !raft.is_initialized().await.map_err(consensus)? {
        let members: BTreeMap<u64, BasicNode> =
            config.members.iter().map(|(id, addr)| (*id, BasicNode::new(addr))).collect();
        raft.initialize(members).await.map_err(consensus)?;
    }
    Ok(RaftHandle::new(raft, view, log, audit, members, own, &config))
}

/// Every entry must be in the snapshot or in the log.
fn check_no_gap(
    config: &RaftConfig,
    log: &LogStore,
    snapshot: Option<StoredLogId>,
) -> Result<(), StartError> {
    let (purged, _) = log.bounds();
    match (purged, snapshot) {
        (Some(purged), snapshot) if snapshot.is_none_or(|s| s.index < purged.index) => {
            Err(StartError::Gap {
                dir: config.dir.clone(),
                purged: purged.index,
                snapshot: snapshot.map_or(0, |s| s.index),
            })
        }
        _ => Ok(()),
    }
}
