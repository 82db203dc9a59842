//! Log, snapshot and audit database together on one disk: the power is cut after every operation, unsynced
//! writes lost, kept or torn, and again while they recover; every byte of each is flipped and every file cut.
//! The demand is the same: all that was acknowledged, the vote, the membership, the audit log; or a refusal.

use std::sync::Mutex;

use fleet_core::Fsm;
use openraft::EntryPayload;

use super::sim_disk::{SimDisk, Unsynced};
use super::*;
use crate::audit::{AuditStore, Query};
use crate::raft::Fatal;
use crate::raft::codec::{self, StoredConfig, StoredLogId, StoredVote};
use crate::raft::journal::{Group, Identity, Journal};
use crate::raft::snapshot::SnapshotFile;
use crate::raft::types::{Entry, LogId, Membership, SnapshotMeta, StoredMembership};

const STEPS: u64 = 14;
const SEGMENT_BYTES: u64 = 3_000;

/// On a runtime of one thread, where work that blocks is done in place.
fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

fn identity() -> Identity {
    Identity { cluster: CLUSTER.to_owned(), node: 1 }
}

fn id(index: u64) -> StoredLogId {
    StoredLogId { term: 1 + index / 10, node: 1, index }
}

fn membership(n: u64) -> Membership {
    let nodes = BTreeMap::from([(1, openraft::BasicNode::new(format!("10.0.0.1:{n}")))]);
    Membership::new(vec![[1].into()], nodes).unwrap()
}

/// What was acknowledged, or would have been by the operation that failed.
#[derive(Debug, Clone, Default)]
struct Model {
    vote: Option<StoredVote>,
    last: Option<u64>,
    membership: Option<StoredConfig>,
    fsm: Fsm,
    audit: Vec<String>,
}

/// The three stores and the state they make.
struct Stores {
    journal: Journal,
    snapshots: SnapshotFile,
    audit: AuditStore,
    model: Model,
}

impl Model {
    /// What is different, if anything.
    fn differs_from(&self, other: &Model) -> Option<String> {
        let (was, is) = (self, other);
        if was.fsm.digest() != is.fsm.digest() {
            return Some(format!(
                "the state is another, after entries {:?} and {:?}",
                was.last, is.last
            ));
        }
        let rest = |model: &Model| {
            let Model { vote, last, membership, fsm: _, audit } = model;
            format!("{vote:?} {last:?} {membership:?}, {} audit records", audit.len())
        };
        if rest(was) != rest(is) || was.audit != is.audit {
            return Some(format!("{} and {}", rest(was), rest(is)));
        }
        None
    }

    fn apply(&mut self, entry: &Entry) -> Option<fleet_core::AuditRecord> {
        self.last = Some(entry.log_id.index);
        match &entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Membership(membership) => {
                self.membership = Some(membership.into());
                None
            }
            EntryPayload::Normal(command) => {
                let record = self.fsm.apply(entry.log_id.index, command.envelope()).audit?;
                self.audit.push(record.line.clone());
                Some(record)
            }
        }
    }
}

/// Opens everything as `start` does, and applies what the log holds. An error is a refusal.
fn open(disk: &SimDisk, create: bool) -> Result<Stores, String> {
    let shared: Arc<dyn crate::raft::Disk> = Arc::new(disk.clone());
    let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
    let hook = Arc::clone(&told);
    let fatal = FatalHook::with(move |fatal| hook.lock().unwrap().push(fatal.clone()));
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let (snapshots, snapshot) =
        SnapshotFile::open(Arc::clone(&shared), &identity()).map_err(|e| text(&e))?;
    let (journal, state) = Journal::open(Arc::clone(&shared), identity(), create, SEGMENT_BYTES)
        .map_err(|e| text(&e))?;
    let audit = AuditStore::open_on(&*shared, CLUSTER, fatal).map_err(|e| text(&e))?;
    let mut model = Model { vote: state.vote, ..Model::default() };
    let mut at = None;
    if let Some((description, body)) = snapshot {
        model.fsm = Fsm::from_snapshot(&body).map_err(|e| text(&e))?;
        let meta = description.to_meta()?;
        model.membership = Some(meta.last_membership.membership().into());
        at = description.last;
        model.last = at.map(|at| at.index);
    }
    if state.purged > at {
        return Err("the log begins behind the snapshot".to_owned());
    }
    let (seq, hash) = model.fsm.audit_head();
    if !audit.contains(seq, hash.unwrap_or_default()).map_err(|e| text(&e))? {
        return Err("the snapshot names an audit record that is not there".to_owned());
    }
    for (index, (_, place)) in &state.entries {
        if at.is_some_and(|at| *index <= at.index) {
            continue;
        }
        let entry = codec::decode_entry(&place.read().map_err(|e| text(&e))?)?;
        let record = model.apply(&entry);
        audit.applied(*index, record).map_err(|e| text(&e))?;
    }
    let flushed = wait(audit.flush());
    if let Some(fatal) = told.lock().unwrap().first() {
        return Err(fatal.to_string());
    }
    flushed.map_err(|e| text(&e))?;
    let mut lines = Vec::new();
    let mut from_seq = None;
    loop {
        let query = Query { from_seq, ..Query::default() };
        let page = wait(audit.query(query)).map_err(|e| text(&e))?;
        lines.extend(page.records.into_iter().map(|record| record.line));
        match page.next {
            Some(next) => from_seq = Some(next),
            None => break,
        }
    }
    model.audit = lines;
    Ok(Stores { journal, snapshots, audit, model })
}

impl Stores {
    /// Writes a group, then applies its entries. Gives back what it would have been, if it fails.
    fn write(
        &mut self,
        group: &Group,
        entries: &[Entry],
        vote: Option<StoredVote>,
    ) -> Result<(), Box<Model>> {
        let mut attempted = self.model.clone();
        attempted.vote = vote.or(attempted.vote);
        let records: Vec<_> =
            entries.iter().map(|e| (e.log_id.index, attempted.apply(e))).collect();
        if self.journal.append(group).is_err() {
            return Err(Box::new(attempted));
        }
        self.model = attempted;
        for (index, record) in records {
            self.audit.applied(index, record).map_err(|_| Box::new(self.model.clone()))?;
        }
        Ok(())
    }

    fn step(&mut self, n: u64) -> Result<(), Box<Model>> {
        let mut group = Group::default();
        let mut vote = None;
        if n.is_multiple_of(4) {
            let given = StoredVote { term: n, node: 1, committed: n.is_multiple_of(8) };
            group.push_vote(given).unwrap();
            vote = Some(given);
        }
        let next = self.model.last.map_or(0, |last| last + 1);
        let payloads = match n % 5 {
            1 => {
                vec![EntryPayload::Membership(membership(n)), EntryPayload::Normal(logged(note(n)))]
            }
            3 => vec![EntryPayload::Blank],
            _ => vec![
                EntryPayload::Normal(logged(note(2 * n))),
                EntryPayload::Normal(logged(note(2 * n + 1))),
            ],
        };
        let entries: Vec<Entry> = (next..)
            .zip(payloads)
            .map(|(index, payload)| Entry { log_id: id(index).into(), payload })
            .collect();
        for entry in &entries {
            group.push_entry(entry.log_id.into(), &codec::encode_entry(entry).unwrap());
        }
        self.write(&group, &entries, vote)?;
        let failed = |model: &Model| Box::new(model.clone());
        if n % 3 == 2 {
            wait(self.audit.flush()).map_err(|_| failed(&self.model))?;
        }
        if n % 6 == 5 {
            self.snapshot().map_err(|()| failed(&self.model))?;
        }
        Ok(())
    }

    /// As the snapshot's builder does it, then the purge that follows.
    fn snapshot(&mut self) -> Result<(), ()> {
        wait(self.audit.flush()).map_err(drop)?;
        let last = id(self.model.last.unwrap());
        let config = self.model.membership.clone().unwrap_or_default();
        let meta = SnapshotMeta {
            last_log_id: Some(last.into()),
            last_membership: StoredMembership::new(
                Some(LogId::from(last)),
                config.to_membership().unwrap(),
            ),
        };
        self.snapshots.write(&meta, &self.model.fsm.to_snapshot()).map_err(drop)?;
        let mut group = Group::default();
        group.push_purge(last, last).unwrap();
        self.journal.append(&group).map_err(drop)?;
        self.journal.drop_purged().map_err(drop)
    }
}

/// Runs the steps until the disk fails. What was acknowledged, and what the failed step would have made.
fn run(disk: &SimDisk) -> (Model, Model) {
    let Ok(mut stores) = open(disk, true) else { return Default::default() };
    for n in 0..STEPS {
        if let Err(attempted) = stores.step(n) {
            return (stores.model, *attempted);
        }
    }
    (stores.model.clone(), stores.model)
}

/// Opens to one of the two; the audit log is that of the state.
fn holds(files: &BTreeMap<String, Vec<u8>>, allowed: (&Model, &Model), what: &str) {
    let found = open(&SimDisk::with_files(files), true);
    let found = found.unwrap_or_else(|e| panic!("{what}: refused after a power cut: {e}")).model;
    let problem = [allowed.0, allowed.1].map(|model| model.differs_from(&found));
    assert!(problem.iter().any(Option::is_none), "{what}: {problem:?}");
}

#[test]
fn a_power_cut_after_any_operation_loses_no_vote_entry_membership_or_audit_record() {
    let whole = SimDisk::default();
    run(&whole);
    let total = whole.operations();
    // Before the stores were made once there is nothing to lose: `init` writes the identity last.
    let made = SimDisk::default();
    drop(open(&made, true).map(drop));
    let first = made.operations();
    for operation in first..=total {
        let disk = SimDisk::default();
        disk.fail_after(operation);
        let (before, after) = run(&disk);
        let torn = Unsynced::Some(operation as u64 * 31);
        for unsynced in [Unsynced::Lost, Unsynced::Kept, torn] {
            let files = disk.cut(unsynced);
            let what = format!("cut after {operation} of {total}, unsynced {unsynced:?}");
            holds(&files, (&before, &after), &what);
            // And again during the recovery: at places that differ from one cut to the next.
            for again in [operation % 3, 3 + operation % 7, 10 + operation % 13] {
                let disk = SimDisk::with_files(&files);
                disk.fail_after(again);
                drop(open(&disk, true).map(drop));
                let what = format!("{what}, cut again after {again}");
                holds(&disk.cut(unsynced), (&before, &after), &what);
            }
        }
    }
    assert!(total - first > 100, "only {} operations were cut", total - first);
}

/// A store at rest.
fn at_rest() -> (BTreeMap<String, Vec<u8>>, Model) {
    let disk = SimDisk::default();
    let mut stores = open(&disk, true).unwrap();
    for n in 0..STEPS {
        stores.step(n).unwrap();
    }
    wait(stores.audit.close()).unwrap();
    stores.journal.close().unwrap();
    let model = stores.model;
    (disk.cut(Unsynced::Lost), model)
}

/// Refused, or nothing is lost.
fn refused_or_whole(files: &BTreeMap<String, Vec<u8>>, model: &Model, what: &str) -> bool {
    match open(&SimDisk::with_files(files), false) {
        Err(_) => true,
        Ok(stores) => {
            let problem = model.differs_from(&stores.model);
            assert_eq!(problem, None, "{what}: opened with something else in it");
            false
        }
    }
}

#[test]
fn every_flipped_byte_of_the_snapshot_and_every_cut_of_any_file_is_refused_or_costs_nothing() {
    let (files, model) = at_rest();
    assert!(!refused_or_whole(&files, &model, "at rest"));
    let mut snapshot = 0;
    for at in 0..files["snapshot"].len() {
        let mut damaged = files.clone();
        damaged.get_mut("snapshot").unwrap()[at] ^= 0x20;
        snapshot += usize::from(refused_or_whole(&damaged, &model, &format!("snapshot byte {at}")));
    }
    assert_eq!(snapshot, files["snapshot"].len(), "each flipped byte of a snapshot is noticed");
    for (name, bytes) in &files {
        // The audit database is long and mostly empty.
        let stride = (bytes.len() / 400).max(1);
        for len in (0..bytes.len()).step_by(stride) {
            let mut cut = files.clone();
            cut.get_mut(name).unwrap().truncate(len);
            refused_or_whole(&cut, &model, &format!("{name} cut to {len}"));
        }
        let mut fewer = files.clone();
        fewer.remove(name);
        assert!(refused_or_whole(&fewer, &model, &format!("{name} missing")), "{name} missing");
    }
}
