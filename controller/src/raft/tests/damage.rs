//! The journal against damage: every byte flipped, every cut, power cuts after every operation, a
//! second cut during recovery, missing and foreign files, disks that fail. Always the same demand:
//! give back everything that was acknowledged, or refuse; and never refuse after a mere power cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sim_disk::{SimDisk, Unsynced};
use crate::raft::codec::{self, Record, StoredEntry, StoredLogId, StoredPayload, StoredVote};
use crate::raft::journal::{Group, Identity, Journal, JournalError, JournalState};

const SEGMENT_BYTES: u64 = 700;

fn identity() -> Identity {
    Identity { cluster: "fleet-test".to_owned(), node: 1 }
}

fn open(disk: &SimDisk, create: bool) -> Result<(Journal, JournalState), JournalError> {
    Journal::open(Arc::new(disk.clone()), identity(), create, SEGMENT_BYTES)
}

/// A journal that stays in its first segment.
fn open_long(disk: &SimDisk) -> Journal {
    Journal::open(Arc::new(disk.clone()), identity(), true, 1 << 20).unwrap().0
}

/// How much of a segment is frames; zeros follow.
fn written(segment: &[u8]) -> usize {
    segment.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn id(term: u64, index: u64) -> StoredLogId {
    StoredLogId { term, node: 1, index }
}

/// What a journal holds, contents included, in a form that can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Contents {
    vote: Option<(u64, u64, bool)>,
    purged: Option<StoredLogId>,
    last: Option<StoredLogId>,
    entries: BTreeMap<u64, (StoredLogId, Vec<u8>)>,
}

impl Contents {
    fn of(state: &JournalState) -> Contents {
        let entry = |(at, (id, place)): (&u64, &(StoredLogId, crate::raft::journal::Place))| {
            (*at, (*id, place.read().unwrap()))
        };
        Contents {
            vote: state.vote.map(|v| (v.term, v.node, v.committed)),
            purged: state.purged,
            last: state.last,
            entries: state.entries.iter().map(entry).collect(),
        }
    }
}

/// One step of the workload: changes the model and says the same to the journal.
fn step(n: u64, model: &mut Contents, group: &mut Group) {
    let term = 1 + n / 10;
    if n.is_multiple_of(10) {
        let vote = StoredVote { term, node: 1, committed: n.is_multiple_of(20) };
        group.push_vote(vote).unwrap();
        model.vote = Some((vote.term, vote.node, vote.committed));
    }
    if n % 13 == 12 {
        let keep = model
            .last
            .map(|last| last.index - 1)
            .and_then(|at| model.entries.get(&at).map(|(id, _)| *id).or(model.purged));
        group.push_truncate(keep).unwrap();
        let _ = model.entries.split_off(&keep.map_or(0, |keep| keep.index + 1));
        model.last = keep;
    }
    for _ in 0..=n % 3 {
        let id = id(term, model.last.map_or(0, |last| last.index + 1));
        let record = Record::Entry(StoredEntry { log_id: id, payload: StoredPayload::Blank });
        let line = codec::encode(&record).unwrap();
        group.push_entry(id, &line);
        model.entries.insert(id.index, (id, line));
        model.last = Some(id);
    }
    if n % 9 == 8 {
        let upto = model.entries.values().nth(model.entries.len() / 2).unwrap().0;
        group.push_purge(upto, model.last.unwrap()).unwrap();
        model.entries = model.entries.split_off(&(upto.index + 1));
        model.purged = Some(upto);
    }
}

/// Runs the workload until the disk fails. Gives back the contents before and after the step that
/// failed: either may be found later, but nothing less and nothing else.
fn run(journal: &mut Journal, steps: u64) -> (Contents, Contents) {
    let mut acknowledged = Contents::default();
    for n in 0..steps {
        let mut attempted = acknowledged.clone();
        let mut group = Group::default();
        step(n, &mut attempted, &mut group);
        if journal.append(&group).is_err() {
            return (acknowledged, attempted);
        }
        acknowledged = attempted;
        let committed = acknowledged.last;
        if journal.set_committed(committed).is_err() || journal.drop_purged().is_err() {
            return (acknowledged.clone(), acknowledged);
        }
    }
    (acknowledged.clone(), acknowledged)
}

/// A journal of several segments at rest, and what is in it.
fn at_rest(steps: u64) -> (BTreeMap<String, Vec<u8>>, Contents) {
    let disk = SimDisk::default();
    let (mut journal, _) = open(&disk, true).unwrap();
    let (contents, _) = run(&mut journal, steps);
    journal.close().unwrap();
    let files = disk.cut(Unsynced::Lost);
    assert!(
        files.keys().filter(|name| name.starts_with("log-")).count() >= 3,
        "{:?}",
        files.keys()
    );
    (files, contents)
}

/// Opening gives exactly `contents`, or refuses as damaged without having changed a byte.
fn refuses_or_loses_nothing(
    files: &BTreeMap<String, Vec<u8>>,
    contents: &Contents,
    what: &str,
) -> bool {
    let disk = SimDisk::with_files(files);
    match open(&disk, false) {
        Ok((_, state)) => {
            assert_eq!(&Contents::of(&state), contents, "{what}");
            assert!(state.committed <= contents.last, "{what}");
            false
        }
        Err(JournalError::Io { source, .. }) => {
            panic!("{what}: not refused with a reason: {source}")
        }
        Err(_) => {
            assert_eq!(&disk.cut(Unsynced::Kept), files, "{what}: refused, but changed the files");
            true
        }
    }
}

#[test]
fn every_flipped_byte_is_refused_or_costs_nothing() {
    let (files, contents) = at_rest(25);
    let (mut refused, mut harmless, mut behind) = (0, 0, 0);
    for (name, bytes) in &files {
        for at in 0..bytes.len() {
            let is_behind = name.starts_with("log-") && at >= written(bytes);
            for mask in [0x01, 0x20, 0xff] {
                let mut damaged = files.clone();
                damaged.get_mut(name).unwrap()[at] ^= mask;
                match refuses_or_loses_nothing(&damaged, &contents, &format!("{name} byte {at}")) {
                    true => refused += 1,
                    false if is_behind => behind += 1,
                    false => harmless += 1,
                }
            }
        }
        if name.starts_with("log-") {
            assert_eq!(harmless, 0, "a flipped byte of {name} went unnoticed");
        }
    }
    assert!(refused > 3 * 2_000, "{refused} refused");
    assert!(harmless > 0, "one of the watermark's two copies may be damaged");
    assert!(behind > 0, "nothing was ever written behind the end of the log");
}

/// After a power cut the watermark may be old. Then a damaged last frame looks like a torn write; but
/// damage anywhere before it is still told apart, by what stands behind it.
#[test]
fn with_an_old_watermark_only_the_last_frame_can_pass_for_torn() {
    let disk = SimDisk::default();
    let mut journal = open_long(&disk);
    let old = disk.cut(Unsynced::Kept)["watermark"].clone();
    let (before, _) = run(&mut journal, 11);
    let start = written(&disk.cut(Unsynced::Kept)["log-0000000000000001.seg"]);
    let (mut after, mut group) = (before.clone(), Group::default());
    step(11, &mut after, &mut group);
    journal.append(&group).unwrap();
    let mut files = disk.cut(Unsynced::Kept);
    files.insert("watermark".to_owned(), old);
    let name = "log-0000000000000001.seg";
    for at in 0..written(&files[name]) {
        let mut damaged = files.clone();
        damaged.get_mut(name).unwrap()[at] ^= 0x20;
        if at < start {
            let refused = refuses_or_loses_nothing(&damaged, &after, &format!("byte {at}"));
            assert!(refused, "byte {at} is before the last frame at {start}");
        } else {
            let (_, state) = open(&SimDisk::with_files(&damaged), false).unwrap();
            assert_eq!(Contents::of(&state), before, "byte {at}");
        }
    }
}

#[test]
fn every_cut_of_every_file_is_refused_or_costs_nothing() {
    let (files, contents) = at_rest(25);
    for (name, bytes) in &files {
        for len in 0..bytes.len() {
            let costs_nothing = name == "watermark" || len >= written(bytes);
            for longer in [len, bytes.len()] {
                let what = format!("{name} cut to {len}, zeros up to {longer}");
                let mut cut = files.clone();
                let bytes = cut.get_mut(name).unwrap();
                bytes.truncate(len);
                bytes.resize(longer, 0);
                let refused = refuses_or_loses_nothing(&cut, &contents, &what);
                assert!(refused || costs_nothing, "{what}: it went unnoticed");
            }
        }
    }
}

#[test]
fn a_missing_a_swapped_and_a_doubled_file_are_refused() {
    let (files, contents) = at_rest(25);
    let names: Vec<&String> = files.keys().collect();
    for name in &names {
        let mut fewer = files.clone();
        fewer.remove(*name);
        assert!(refuses_or_loses_nothing(&fewer, &contents, &format!("{name} missing")));
    }
    for pair in names.windows(2) {
        let mut swapped = files.clone();
        swapped.insert(pair[0].clone(), files[pair[1]].clone());
        swapped.insert(pair[1].clone(), files[pair[0]].clone());
        assert!(refuses_or_loses_nothing(&swapped, &contents, &format!("{pair:?} swapped")));
    }
    // A record written twice, an older frame in place of the last one.
    let last = files.keys().rfind(|name| name.starts_with("log-")).unwrap();
    let mut doubled = files.clone();
    let bytes = doubled.get_mut(last).unwrap();
    let copy = bytes.clone();
    bytes.extend(copy);
    assert!(refuses_or_loses_nothing(&doubled, &contents, "the last file doubled"));
}

#[test]
fn the_store_of_another_cluster_or_node_is_refused() {
    let (files, _) = at_rest(25);
    for other in [
        Identity { cluster: "fleet-other".to_owned(), node: 1 },
        Identity { cluster: "fleet-test".to_owned(), node: 2 },
    ] {
        let disk = SimDisk::with_files(&files);
        let refused = Journal::open(Arc::new(disk), other, true, SEGMENT_BYTES).map(|_| ());
        assert!(matches!(refused, Err(JournalError::Foreign { .. })), "{refused:?}");
    }
}

/// After a power cut the journal opens, with everything acknowledged in it; and also when the power
/// is cut again while it recovers, after any operation of the recovery.
fn survives(files: &BTreeMap<String, Vec<u8>>, allowed: &[&Contents], what: &str) {
    let check = |files: &BTreeMap<String, Vec<u8>>, what: &str| {
        let disk = SimDisk::with_files(files);
        let (mut journal, state) = open(&disk, true).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = Contents::of(&state);
        assert!(allowed.contains(&&found), "{what}: found {found:?}, allowed {allowed:?}");
        // The journal also takes one more entry, which is there after the next opening.
        let next = id(99, state.last.map_or(0, |last| last.index + 1));
        let mut group = Group::default();
        let record = Record::Entry(StoredEntry { log_id: next, payload: StoredPayload::Blank });
        group.push_entry(next, &codec::encode(&record).unwrap());
        journal.append(&group).unwrap();
        drop(journal);
        let disk = SimDisk::with_files(&disk.cut(Unsynced::Lost));
        let (_, state) = open(&disk, false).unwrap_or_else(|e| panic!("{what}, reopened: {e}"));
        assert_eq!(state.last, Some(next), "{what}");
    };
    check(files, what);
    for operation in 0.. {
        let disk = SimDisk::with_files(files);
        disk.fail_after(operation);
        let recovered = open(&disk, true).is_ok();
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Some(operation as u64)] {
            check(&disk.cut(unsynced), &format!("{what}, cut again after {operation} operations"));
        }
        if recovered {
            break;
        }
    }
}

#[test]
fn a_power_cut_after_any_operation_loses_nothing_and_is_not_refused() {
    const STEPS: u64 = 28;
    let mut operation = 0;
    loop {
        let disk = SimDisk::default();
        disk.fail_after(operation);
        let ((before, after), finished) = match open(&disk, true) {
            Ok((mut journal, _)) => {
                let contents = run(&mut journal, STEPS);
                let total = disk.operations();
                (contents, total <= operation)
            }
            Err(_) => ((Contents::default(), Contents::default()), false),
        };
        let variants = (0..6).map(|n| Unsynced::Some(operation as u64 * 31 + n));
        for unsynced in [Unsynced::Lost, Unsynced::Kept].into_iter().chain(variants) {
            let what = format!("cut after {operation} operations, unsynced {unsynced:?}");
            survives(&disk.cut(unsynced), &[&before, &after], &what);
        }
        if finished {
            break;
        }
        operation += 1;
    }
    assert!(operation > 100, "only {operation} operations were cut");
}

/// The process is killed at any operation, between the write of a frame and its sync or between the new name of a file and
/// the sync of its folder; the next one reads what only the machine's memory has.
#[test]
fn what_a_restart_finds_is_durable_before_anybody_is_told_of_it() {
    const OPERATIONS: usize = 200;
    for killed_after in 0..OPERATIONS {
        let disk = SimDisk::default();
        let (mut journal, _) = open(&disk, true).unwrap();
        disk.fail_after(killed_after);
        run(&mut journal, 40);
        drop(journal);
        disk.fail_after(usize::MAX / 2);
        let (mut journal, state) = open(&disk, false).unwrap();
        let (mut found, mut group) = (Contents::of(&state), Group::default());
        let cut = || open(&SimDisk::with_files(&disk.cut(Unsynced::Lost)), false).unwrap().1;
        assert_eq!(Contents::of(&cut()), found, "killed after {killed_after} operations");
        step(41, &mut found, &mut group);
        journal.append(&group).unwrap();
        let kept = Contents::of(&cut());
        assert_eq!(kept, found, "killed after {killed_after} operations");
    }
}

#[test]
fn a_write_torn_at_any_byte_is_cut_off_and_what_was_before_stays() {
    let disk = SimDisk::default();
    let mut journal = open_long(&disk);
    let (before, _) = run(&mut journal, 6);
    let old = disk.cut(Unsynced::Kept);
    let mut after = before.clone();
    let mut group = Group::default();
    step(6, &mut after, &mut group);
    journal.append(&group).unwrap();
    let new = disk.cut(Unsynced::Kept);
    let name = new.keys().rfind(|name| name.starts_with("log-")).unwrap();
    let (start, end) = (written(&old[name]), written(&new[name]));
    assert!(start < end && end < old[name].len(), "it is written into zeros");
    for len in start..=end {
        // The disk may also have begun at the other end.
        let mut torn = old.clone();
        torn.get_mut(name).unwrap()[len..end].copy_from_slice(&new[name][len..end]);
        let allowed = if len == start { &after } else { &before };
        survives(&torn, &[allowed], &format!("torn before {len}"));
        for zeros in [0, 1, 40, 4_096] {
            // The watermark is the one before the write: a crash came before it was set.
            let mut torn = old.clone();
            let mut bytes = new[name][..len].to_vec();
            bytes.resize(len + zeros, 0);
            torn.insert(name.clone(), bytes);
            let allowed = if len == end { &after } else { &before };
            survives(&torn, &[allowed], &format!("torn at {len}, then {zeros} zeros"));
        }
    }
}
