//! openraft's state machine over [`Fsm`]: decodes nothing, decides nothing, only applies and tells.
//!
//! The FSM lives in memory; recovery is the latest snapshot plus the log behind it. Each entry is
//! applied under a short write lock, its audit record handed to the audit store, its reply sent to
//! its proposer, and its index published. Snapshots are built from a copy, beside apply.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use fleet_core::command::ClusterCommand;
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::{Command, Envelope, Fsm};
use futures::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use tokio::sync::watch;

use super::divergence::{self, OwnCheck};
use super::member_report::CORE;
use super::snapshot::{ReadSnapshot, SnapshotData, SnapshotFile};
use super::snapshot_due::SnapshotDue;
use super::types::{Answer, LogId, Snapshot, SnapshotMeta, StoredMembership, TypeConfig};
use crate::audit::AuditStore;
use crate::blocking::blocking;
use crate::fatal::{Fatal, FatalHook};

/// What the rest of the controller reads: the state, and how far it is.
#[derive(Debug)]
pub(crate) struct View {
    fsm: RwLock<Fsm>,
    applied: watch::Sender<u64>,
    evictions: Evictions,
    pub(super) snapshots: SnapshotDue,
}

/// Evictions begun by commands that this controller proposed, since its start.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    after_checkpoint: AtomicU64,
    without_checkpoint: AtomicU64,
}

impl Evictions {
    fn count(&self, events: &[Event]) {
        for event in events {
            if let Event::EvictionStarted { after_checkpoint, .. } = event {
                let count = match after_checkpoint {
                    Some(_) => &self.after_checkpoint,
                    None => &self.without_checkpoint,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl View {
    /// Runs `reader` on the state. Short: apply waits for it.
    pub(crate) fn read<T>(&self, reader: impl FnOnce(&Fsm) -> T) -> T {
        // `apply` is total; if it panicked all the same, the process is about to end.
        reader(&self.fsm.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Evictions since the start: after a new checkpoint, and without one.
    pub(crate) fn evictions(&self) -> [u64; 2] {
        let counts = [&self.evictions.after_checkpoint, &self.evictions.without_checkpoint];
        counts.map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn write<T>(&self, writer: impl FnOnce(&mut Fsm) -> T) -> T {
        writer(&mut self.fsm.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How an entry is applied: [`Fsm::apply`], but for a simulation that watches it.
#[derive(Clone)]
pub struct Apply(Arc<ApplyFn>);

type ApplyFn = dyn Fn(&mut Fsm, u64, &Envelope) -> Outcome + Send + Sync;

impl Default for Apply {
    fn default() -> Self {
        Apply(Arc::new(Fsm::apply))
    }
}

impl Apply {
    /// Calls `apply` with the state, the entry's index and the entry.
    pub fn with(
        apply: impl Fn(&mut Fsm, u64, &Envelope) -> Outcome + Send + Sync + 'static,
    ) -> Apply {
        Apply(Arc::new(apply))
    }
}

impl std::fmt::Debug for Apply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Apply")
    }
}

/// The adapter.
#[derive(Debug)]
pub(crate) struct StateMachine {
    view: Arc<View>,
    apply: Apply,
    last: Option<LogId>,
    membership: StoredMembership,
    snapshots: Arc<SnapshotFile>,
    audit: AuditStore,
    own: OwnCheck,
    cluster_version_max: u32,
    fatal: FatalHook,
}

/// Why a snapshot that was read is not used.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(
        "the snapshot cannot be used: {0}; install the fleet version that wrote it, or restore this controller from a backup"
    )]
    Unreadable(String),
    #[error(
        "the snapshot names audit record {seq}, which the audit database does not hold; restore both from the same backup"
    )]
    AuditMissing { seq: u64 },
    #[error(
        "the cluster runs version {found}, this program up to {max}: install the newer fleet again"
    )]
    NewerCluster { found: u32, max: u32 },
    #[error(transparent)]
    Audit(#[from] crate::audit::AuditError),
}

impl StateMachine {
    /// Starts from `snapshot`, or empty.
    pub(crate) fn restore(
        snapshots: SnapshotFile,
        snapshot: Option<ReadSnapshot>,
        audit: AuditStore,
        cluster_version_max: u32,
        apply: Apply,
        fatal: FatalHook,
    ) -> Result<StateMachine, RestoreError> {
        let worth = SnapshotDue::default();
        let (fsm, meta) = match snapshot {
            None => (Fsm::new(), SnapshotMeta::default()),
            Some((description, body)) => {
                let meta = description.to_meta().map_err(RestoreError::Unreadable)?;
                worth.made(last_index(&meta), body.len());
                (decode(&body)?, meta)
            }
        };
        if fsm.cluster_version() > cluster_version_max {
            let (found, max) = (fsm.cluster_version(), cluster_version_max);
            return Err(RestoreError::NewerCluster { found, max });
        }
        check_audit(&fsm, &audit)?;
        let applied = watch::Sender::new(last_index(&meta));
        Ok(StateMachine {
            view: Arc::new(View {
                fsm: RwLock::new(fsm),
                applied,
                evictions: Evictions::default(),
                snapshots: worth,
            }),
            apply,
            last: meta.last_log_id,
            membership: meta.last_membership,
            snapshots: Arc::new(snapshots),
            audit,
            own: OwnCheck::default(),
            cluster_version_max,
            fatal,
        })
    }

    pub(crate) fn own_check(&self) -> OwnCheck {
        self.own.clone()
    }

    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.last, last_membership: self.membership.clone() }
    }

    /// A cluster that was raised above what this program can run must not be followed by it: the state
    /// machine would refuse what the others accepted.
    fn refuse_newer_version(&self, command: &Command) -> io::Result<()> {
        match command {
            Command::Cluster(ClusterCommand::SetVersion { version })
                if *version > self.cluster_version_max =>
            {
                let max = self.cluster_version_max;
                let problem = format!(
                    "the cluster was raised to version {version}, this program runs up to {max}: install the newer fleet again"
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, problem))
            }
            _ => Ok(()),
        }
    }

    /// Stops this controller if its state after entry `at` was not what most others had.
    fn compare(&self, at: u64, core: &str, digest: Option<&str>) -> io::Result<()> {
        let own = self.own.newest().filter(|own| own.index == at && core == CORE);
        let (Some(own), Some(others)) = (own, digest) else { return Ok(()) };
        if own.digest == others {
            return Ok(());
        }
        divergence::mark(self.snapshots.disk(), &own, others)?;
        let what = format!("the state after log entry {at}");
        let detail = format!("most controllers have the digest {others}, this one {}", own.digest);
        self.fatal.stop(&Fatal::Diverged { what, detail });
        Err(io::Error::other("this controller's state differs from that of the others"))
    }

    /// Applies one entry; an error stops the node.
    fn apply_one(&mut self, item: EntryResponder<TypeConfig>) -> io::Result<()> {
        let (entry, responder) = item;
        let index = entry.log_id.index;
        let (reply, audit) = match entry.payload {
            EntryPayload::Blank => (None, None),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                (None, None)
            }
            EntryPayload::Normal(command) => {
                let envelope = command.envelope();
                self.refuse_newer_version(&envelope.command)?;
                let outcome = self.view.write(|fsm| (self.apply.0)(fsm, index, envelope));
                // Not what is replayed or was proposed elsewhere: each is counted once in the fleet.
                if responder.is_some() {
                    self.view.evictions.count(&outcome.events);
                }
                if let Command::Cluster(ClusterCommand::CheckState { index: at, core, digest }) =
                    &envelope.command
                {
                    self.compare(*at, core, digest.as_deref())?;
                    self.own.take(self.view.read(Fsm::clone), index);
                }
                (Some(outcome.reply), outcome.audit)
            }
        };
        self.last = Some(entry.log_id);
        self.audit.applied(index, audit).map_err(io::Error::other)?;
        self.view.applied.send_replace(index);
        if let Some(responder) = responder {
            responder.send(Answer { reply });
        }
        Ok(())
    }
}

/// Index of the last entry in a snapshot; 0 for none.
fn last_index(meta: &SnapshotMeta) -> u64 {
    meta.last_log_id.map_or(0, |id| id.index)
}

fn decode(body: &[u8]) -> Result<Fsm, RestoreError> {
    Fsm::from_snapshot(body).map_err(|e| RestoreError::Unreadable(e.to_string()))
}

/// The records that made this state must be stored: the log that could make them again is gone.
fn check_audit(fsm: &Fsm, audit: &AuditStore) -> Result<(), RestoreError> {
    let (seq, hash) = fsm.audit_head();
    if !audit.contains(seq, hash.unwrap_or_default())? {
        return Err(RestoreError::AuditMissing { seq });
    }
    Ok(())
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let applied = item.and_then(|item| self.apply_one(item));
            if let Err(error) = applied {
                // An entry that cannot be read or decoded is never skipped.
                self.fatal.store_failed("applying a log entry", &error);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        let due = self.view.snapshots.is_due(last_index(&self.meta()));
        if force || due { Some(self.get_snapshot_builder().await) } else { None }
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            view: Arc::clone(&self.view),
            fsm: self.view.read(Fsm::clone),
            meta: self.meta(),
            snapshots: Arc::clone(&self.snapshots),
            audit: self.audit.clone(),
            fatal: self.fatal.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> io::Result<()> {
        let installed = install(meta, &snapshot, &self.snapshots, &self.audit).await;
        let fsm = installed.inspect_err(|error| {
            self.fatal.store_failed("installing a snapshot", error);
        })?;
        self.view.write(|state| *state = fsm);
        self.view.snapshots.made(last_index(meta), snapshot.len());
        self.last = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.view.applied.send_replace(last_index(meta));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let snapshots = Arc::clone(&self.snapshots);
        let read = blocking(move || snapshots.read())
            .await
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
        let Some((description, body)) = read else { return Ok(None) };
        let meta = description.to_meta().map_err(io::Error::other)?;
        Ok(Some(Snapshot { meta, snapshot: Arc::new(body) }))
    }
}

/// Checks a received snapshot and puts it on disk; gives back its state.
async fn install(
    meta: &SnapshotMeta,
    body: &SnapshotData,
    snapshots: &Arc<SnapshotFile>,
    audit: &AuditStore,
) -> io::Result<Fsm> {
    let fsm = decode(body).map_err(io::Error::other)?;
    check_audit(&fsm, audit).map_err(io::Error::other)?;
    let (meta, body, snapshots) = (meta.clone(), Arc::clone(body), Arc::clone(snapshots));
    blocking(move || snapshots.write(&meta, &body)).await.map_err(io::Error::other)??;
    Ok(fsm)
}

/// A copy of the state on its way to disk.
#[derive(Debug)]
pub(crate) struct Builder {
    view: Arc<View>,
    fsm: Fsm,
    meta: SnapshotMeta,
    snapshots: Arc<SnapshotFile>,
    audit: AuditStore,
    fatal: FatalHook,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        // The log below a snapshot may be purged, so its audit records must be durable first.
        self.audit.flush().await.map_err(io::Error::other)?;
        let (fsm, meta) = (std::mem::take(&mut self.fsm), self.meta.clone());
        let snapshots = Arc::clone(&self.snapshots);
        let expected = self.view.snapshots.expected_bytes();
        let built = blocking(move || {
            // Indexes are not stored, so the states' digests say nothing about them.
            if !fsm.derived_is_true() {
                return Ok(None);
            }
            let mut body = Vec::with_capacity(expected);
            serde_json::to_writer(&mut body, &fsm.document())?;
            let body = Arc::new(body);
            drop(fsm);
            snapshots.write(&meta, &body).map(|()| Some((meta, body)))
        })
        .await
        .map_err(io::Error::other)?;
        let built = built.inspect_err(|error: &io::Error| {
            self.fatal.store_failed("writing a snapshot", error);
        })?;
        let Some((meta, snapshot)) = built else {
            let what = "an index in memory".to_owned();
            let detail =
                "it is not what the state says; it is made again at the next start".to_owned();
            self.fatal.stop(&Fatal::Diverged { what, detail });
            return Err(io::Error::other("an index in memory differs from the state"));
        };
        self.view.snapshots.made(last_index(&meta), snapshot.len());
        tracing::info!(log_index = last_index(&meta), bytes = snapshot.len(), "snapshot written");
        Ok(Snapshot { meta, snapshot })
    }
}
