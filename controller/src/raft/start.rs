//! Opens the stores in the right order, checks that they belong together, and starts openraft.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use openraft::{BasicNode, Config, SnapshotPolicy};

use super::codec::StoredLogId;
use super::divergence;
use super::handle::RaftHandle;
use super::journal::{self, Identity, JournalError};
use super::log_store::LogStore;
use super::member_report::Members;
use super::network::{Network, PeerConnector};
use super::snapshot::{SnapshotFile, SnapshotFileError};
use super::state_machine::{Apply, RestoreError, StateMachine};
use super::types::Raft;
use super::versions::Versions;
use super::writer::{Pace, Writers};
use crate::audit::{AUDIT_FILE, AuditError, AuditStore};
use crate::disk::{Disk, DiskError, RealDisk};
use crate::fatal::{EXIT_STORE_FAILED, EXIT_STORE_REFUSED, FatalHook};

/// A follower that hears nothing for a time between this and [`longest_election_ms`] of it starts an election.
/// The leader's lease is as long as the longer one, so larger values cost time after a leader's death.
pub const ELECTION_MS: u64 = 450;
/// Heartbeats in the shortest election timeout.
const HEARTBEATS: u64 = 4;
/// Entries after which a snapshot is made, if it is worth its bytes (`snapshot_due.rs`).
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
    /// [`Versions::BUILT`], but in tests of upgrades.
    pub versions: Versions,
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

/// What the stores stand on where that is not this machine's disk and threads: a simulation brings its
/// own. Everything runs on the caller's runtime then, in an order that a seed repeats.
#[derive(Debug, Clone)]
pub struct Foundation {
    pub disk: Arc<dyn Disk>,
    /// What the writers wait for before the disk does what they ask.
    pub pace: Pace,
    pub apply: Apply,
    /// Entries between two snapshots, entries kept beside one, bytes of a segment: small, so that
    /// all of it happens within a short run.
    pub snapshot_every: u64,
    pub entries_kept: u64,
    pub segment_bytes: u64,
    /// The shortest election timeout.
    pub election_ms: u64,
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
fn raft_config(config: &RaftConfig, measures: Measures) -> Result<Config, StartError> {
    let Measures { snapshot_every, kept, election_ms, .. } = measures;
    Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: election_ms / HEARTBEATS,
        election_timeout_min: election_ms,
        election_timeout_max: longest_election_ms(election_ms),
        enable_pre_vote: Some(true),
        // A leader that lost power with an entry that others had applied, and not yet on its own disk, must
        // not keep leading the same term: it would give that index to another command.
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

/// When snapshots are made, how large files get, and how patient elections are.
#[derive(Debug, Clone, Copy)]
struct Measures {
    snapshot_every: u64,
    kept: u64,
    segment_bytes: u64,
    election_ms: u64,
}

/// Opens everything under `config.dir` and starts to take part.
pub async fn start(config: RaftConfig) -> Result<RaftHandle, StartError> {
    start_at_pace(config, ELECTION_MS).await
}

/// [`start`] for a machine or network where elections must be slower. All members use the same.
pub async fn start_at_pace(config: RaftConfig, election_ms: u64) -> Result<RaftHandle, StartError> {
    let measures = Measures {
        snapshot_every: SNAPSHOT_EVERY,
        kept: ENTRIES_KEPT,
        segment_bytes: journal::SEGMENT_BYTES,
        election_ms,
    };
    let handle = open(config, measures).await?;
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
    let election_ms = ELECTION_MS;
    open(config, Measures { snapshot_every, kept, segment_bytes, election_ms }).await
}

async fn open(config: RaftConfig, measures: Measures) -> Result<RaftHandle, StartError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&config.dir)?);
    let open_audit = |config: &RaftConfig| {
        AuditStore::open(&config.dir.join(AUDIT_FILE), &config.cluster, config.fatal.clone())
    };
    start_parts(config, disk, Writers::Threads, Apply::default(), open_audit, measures).await
}

/// [`start`] on other foundations than this machine's: for simulations.
pub async fn start_on(
    config: RaftConfig,
    foundation: Foundation,
) -> Result<RaftHandle, StartError> {
    let Foundation {
        disk,
        pace,
        apply,
        snapshot_every,
        entries_kept: kept,
        segment_bytes,
        election_ms,
    } = foundation;
    let for_audit = Arc::clone(&disk);
    let open_audit = |config: &RaftConfig| {
        AuditStore::open_on(&*for_audit, &config.cluster, config.fatal.clone())
    };
    let measures = Measures { snapshot_every, kept, segment_bytes, election_ms };
    start_parts(config, disk, Writers::Tasks(pace), apply, open_audit, measures).await
}

async fn start_parts(
    config: RaftConfig,
    disk: Arc<dyn Disk>,
    writers: Writers,
    apply: Apply,
    open_audit: impl Fn(&RaftConfig) -> Result<AuditStore, AuditError>,
    measures: Measures,
) -> Result<RaftHandle, StartError> {
    let marked = divergence::marked(&*disk);
    let marked = marked.map_err(|source| DiskError::Open { path: config.dir.clone(), source })?;
    if let Some((file, index)) = marked {
        return Err(StartError::Diverged { file, index });
    }
    let identity = Identity { cluster: config.cluster.clone(), node: config.node };
    let (snapshots, snapshot) = SnapshotFile::open(Arc::clone(&disk), &identity)?;
    let (create, fatal) = (config.create, config.fatal.clone());
    let log = LogStore::open_with(
        disk,
        identity,
        create,
        measures.segment_bytes,
        fatal.clone(),
        writers,
    )?;
    check_no_gap(&config, &log, snapshot.as_ref().and_then(|(description, _)| description.last))?;
    let audit = open_audit(&config)?;
    let version_max = config.versions.max;
    let state_machine =
        StateMachine::restore(snapshots, snapshot, audit.clone(), version_max, apply, fatal)?;
    let view = state_machine.view();
    let (members, own) = (Members::default(), state_machine.own_check());
    let network = Network {
        cluster: config.cluster.clone(),
        node: config.node,
        connector: Arc::clone(&config.connector),
        audit: audit.clone(),
        members: members.clone(),
    };
    let openraft = Arc::new(raft_config(&config, measures)?);
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
