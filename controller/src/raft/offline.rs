//! What is done to a store while no controller runs on it: making one from a backup, and reading out
//! one that is left over.
//!
//! Called by `backup`. [`seed`] writes into an empty folder only; [`read_out`] changes nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fleet_core::{AuditRecord, Envelope, Fsm};
use openraft::{BasicNode, EntryPayload};

use super::codec::{StoredLogId, StoredVote};
use super::journal::{self, Group, Identity, Journal, JournalError};
use super::snapshot::{SnapshotFile, SnapshotFileError};
use super::start::StartError;
use super::state_machine::RestoreError;
use super::types::{Membership, SnapshotMeta, StoredMembership};
use crate::audit::{AUDIT_FILE, AuditStore, Head};
use crate::disk::{Disk, RealDisk};
use crate::fatal::FatalHook;

/// The one controller of a cluster that starts again from a backup.
#[derive(Debug)]
pub struct Seed<'a> {
    pub cluster: &'a str,
    pub node: u64,
    pub address: &'a str,
    /// Term of the newest entry in the backup.
    pub term: u64,
    /// The state of the backup.
    pub fsm: Fsm,
    /// The first command of the new incarnation.
    pub begin: Envelope,
}

/// An empty store that is being filled.
#[derive(Debug)]
pub struct Seeding {
    disk: Arc<dyn Disk>,
    audit: AuditStore,
}

/// Takes the empty folder `dir`. The audit records of the backup come next.
pub fn seed(dir: &Path, cluster: &str) -> Result<Seeding, StartError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir)?);
    let audit = AuditStore::open(&dir.join(AUDIT_FILE), cluster, FatalHook::exit_process())?;
    Ok(Seeding { disk, audit })
}

/// [`seed`] on another foundation than this machine's disk: for simulations.
pub fn seed_on(disk: Arc<dyn Disk>, cluster: &str) -> Result<Seeding, StartError> {
    let audit = AuditStore::open_on(&*disk, cluster, FatalHook::exit_process())?;
    Ok(Seeding { disk, audit })
}

impl Seeding {
    /// The audit log begins behind this record, which was pruned before the backup was made.
    pub async fn audit_begins_behind(&self, seq: u64, hash: &str) -> Result<(), StartError> {
        Ok(self.audit.begin_behind(Head { seq, hash: hash.to_owned() }).await?)
    }

    /// Takes whole lines of the audit log, each continuing the one before.
    pub async fn audit_lines(&self, lines: String) -> Result<(), StartError> {
        Ok(self.audit.fetched(lines).await?)
    }

    /// Applies the new incarnation's first command, and writes snapshot and log of a cluster whose only
    /// voter is the new controller. Closes the store.
    pub async fn finish(self, seed: Seed<'_>) -> Result<(), StartError> {
        let Seed { cluster, node, address, term, mut fsm, begin } = seed;
        let index = fsm.applied() + 1;
        let outcome = fsm.apply(index, &begin);
        if let Err(rejection) = outcome.reply {
            return Err(StartError::Consensus(format!("the new incarnation: {rejection}")));
        }
        self.audit.applied(index, outcome.audit)?;
        self.audit.close().await?;
        // Two entries that only the snapshot holds: the command, and the membership.
        let last = StoredLogId { term: term + 1, node, index: index + 1 };
        let nodes = BTreeMap::from([(node, BasicNode::new(address))]);
        let membership = Membership::new(vec![[node].into()], nodes)
            .map_err(|e| StartError::Consensus(e.to_string()))?;
        let meta = SnapshotMeta {
            last_log_id: Some(last.into()),
            last_membership: StoredMembership::new(Some(last.into()), membership),
        };
        let identity = Identity { cluster: cluster.to_owned(), node };
        let path = self.disk.path().to_owned();
        let (snapshots, _) = SnapshotFile::open(Arc::clone(&self.disk), &identity)?;
        snapshots
            .write(&meta, &fsm.to_snapshot())
            .map_err(|source| SnapshotFileError::Io { file: path.clone(), source })?;
        let (mut log, _) = Journal::open(self.disk, identity, true, journal::SEGMENT_BYTES)?;
        let mut group = Group::default();
        let written = group
            .push_vote(StoredVote { term: term + 1, node, committed: false })
            .and_then(|()| group.push_purge(last, last))
            .and_then(|()| log.append(&group).map(drop))
            .and_then(|()| log.close());
        written.map_err(|source| JournalError::Io { file: path, source })?;
        Ok(())
    }
}

/// Everything a stopped controller's store says, entries included of which it is not known whether a
/// majority held them: those that were acknowledged are among them.
#[derive(Debug)]
pub struct ReadOut {
    pub fsm: Fsm,
    pub term: u64,
    pub controllers: BTreeMap<u64, String>,
    /// The audit log on disk.
    pub audit: AuditStore,
    /// Records of entries at the end of the log that were never applied here.
    pub newer: Vec<AuditRecord>,
    // Held so that nobody else opens the store meanwhile.
    _disk: Arc<dyn Disk>,
}

/// Reads the store in `dir`. It must not be in use.
pub fn read_out(dir: &Path, cluster: &str, node: u64) -> Result<ReadOut, StartError> {
    let identity = Identity { cluster: cluster.to_owned(), node };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir)?);
    let (_, snapshot) = SnapshotFile::open(Arc::clone(&disk), &identity)?;
    let (_, state) = Journal::open(Arc::clone(&disk), identity, false, journal::SEGMENT_BYTES)?;
    let audit = AuditStore::open(&dir.join(AUDIT_FILE), cluster, FatalHook::exit_process())?;
    let unreadable = |problem: String| StartError::from(RestoreError::Unreadable(problem));
    let (mut fsm, mut at, mut membership) = match snapshot {
        None => (Fsm::new(), None, Membership::default()),
        Some((description, body)) => {
            let fsm = Fsm::from_snapshot(&body).map_err(|e| unreadable(e.to_string()))?;
            let meta = description.to_meta().map_err(unreadable)?;
            (fsm, description.last, meta.last_membership.membership().clone())
        }
    };
    if state.purged > at {
        return Err(StartError::Gap {
            dir: dir.to_owned(),
            purged: state.purged.map_or(0, |id| id.index),
            snapshot: at.map_or(0, |id| id.index),
        });
    }
    let stored = audit.head()?.seq;
    let mut newer = Vec::new();
    for (index, (id, place)) in &state.entries {
        if at.is_some_and(|at| *index <= at.index) {
            continue;
        }
        let line = place.read().map_err(|source| JournalError::Io { file: dir.into(), source })?;
        let entry = super::codec::decode_entry(&line).map_err(unreadable)?;
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(new) => membership = new,
            EntryPayload::Normal(command) => {
                newer.extend(
                    fsm.apply(*index, command.envelope()).audit.filter(|r| r.body.seq > stored),
                );
            }
        }
        at = Some(*id);
    }
    let controllers = membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect();
    let term = at.map_or(0, |id| id.term).max(state.vote.map_or(0, |vote| vote.term));
    Ok(ReadOut { fsm, term, controllers, audit, newer, _disk: disk })
}
