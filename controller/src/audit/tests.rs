//! The audit database: queries, restarts, records that replay makes again, damage.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};

use fleet_core::audit::export::{Format, Signature};
use fleet_core::audit::verify::verify_text;
use fleet_core::audit::{self, AuditBody};
use fleet_core::{Actor, AuditRecord, Event, Timestamp};
use futures::TryStreamExt;
use redb::ReadableTable;

use super::*;
use crate::fatal::{EXIT_DIVERGED, Fatal, FatalHook};

mod prune;
mod stays;

const CLUSTER: &str = "fleet-test";

fn open(dir: &Path, fatal: FatalHook) -> Result<AuditStore, AuditError> {
    AuditStore::open(&dir.join("audit.redb"), CLUSTER, fatal)
}

fn loud() -> FatalHook {
    FatalHook::with(|fatal| panic!("the process would have ended: {fatal}"))
}

fn record(seq: u64, at: u64, objects: &[&str], prev: &str) -> AuditRecord {
    audit::seal(AuditBody {
        v: audit::AUDIT_VERSION,
        seq,
        log_index: seq * 2,
        at: Timestamp(at),
        actor: Actor::controller(),
        action: "set_cluster_version".to_owned(),
        request: None,
        allowed_by: Some("controller".to_owned()),
        refused: None,
        objects: objects.iter().map(|text| (*text).to_owned()).collect(),
        events: vec![Event::ClusterVersionSet { version: 1 }],
        prev: prev.to_owned(),
    })
}

/// Records 1 to `length`; every third touches `job-a`, every record `titan01`; time is 100 × seq.
fn chain(length: u64) -> Vec<AuditRecord> {
    let mut prev = audit::GENESIS.to_owned();
    (1..=length)
        .map(|seq| {
            let job = if seq % 3 == 0 { "job-a" } else { "job-ab" };
            let record = record(seq, seq * 100, &[job, "titan01"], &prev);
            prev.clone_from(&record.hash);
            record
        })
        .collect()
}

fn feed(store: &AuditStore, records: &[AuditRecord]) {
    for record in records {
        store.applied(record.body.log_index, Some(record.clone())).unwrap();
    }
}

async fn seqs(store: &AuditStore, query: Query) -> (Vec<u64>, Option<u64>) {
    let page = store.query(query).await.unwrap();
    (page.records.iter().map(|record| record.body.seq).collect(), page.next)
}

#[tokio::test]
async fn pages_by_number_time_and_object_in_both_orders() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &chain(20));
    let query = Query::default();
    assert_eq!(seqs(&store, Query { limit: 3, ..query.clone() }).await, (vec![1, 2, 3], Some(4)));
    let newest = Query { order: RecordOrder::NewestFirst, limit: 3, ..query.clone() };
    assert_eq!(seqs(&store, newest.clone()).await, (vec![20, 19, 18], Some(17)));
    let next = Query { to_seq: Some(17), ..newest };
    assert_eq!(seqs(&store, next).await.0, [17, 16, 15]);

    let job = Query { object: Some("job-a".to_owned()), ..query.clone() };
    assert_eq!(seqs(&store, job.clone()).await, (vec![3, 6, 9, 12, 15, 18], None));
    let job = Query { order: RecordOrder::NewestFirst, limit: 2, ..job };
    assert_eq!(seqs(&store, job.clone()).await, (vec![18, 15], Some(12)));
    assert_eq!(store.query(job.clone()).await.unwrap().behind, 4, "3, 6, 9 and 12");
    assert_eq!(store.query(Query { limit: 6, ..job }).await.unwrap().behind, 0);
    let nothing = Query { object: Some("job".to_owned()), ..query.clone() };
    assert_eq!(seqs(&store, nothing).await, (vec![], None), "not a prefix: the whole id");

    let span = |since, until| Query {
        since: Some(Timestamp(since)),
        until: Some(Timestamp(until)),
        ..Query::default()
    };
    assert_eq!(seqs(&store, span(500, 801)).await.0, [5, 6, 7, 8]);
    assert_eq!(seqs(&store, span(501, 800)).await.0, [6, 7]);
    assert_eq!(seqs(&store, span(800, 500)).await.0, [0; 0]);
    assert_eq!(seqs(&store, span(5_000, 9_000)).await.0, [0; 0]);
    let last = Query { since: Some(Timestamp(1_900)), ..query };
    assert_eq!(seqs(&store, last).await.0, [19, 20]);
}

#[tokio::test]
async fn no_page_is_longer_than_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &chain(PAGE_RECORDS_MAX as u64 + 5));
    let (page, next) = seqs(&store, Query { limit: usize::MAX, ..Query::default() }).await;
    assert_eq!((page.len(), next), (PAGE_RECORDS_MAX, Some(PAGE_RECORDS_MAX as u64 + 1)));
}

#[tokio::test]
async fn records_survive_a_restart_and_replay_makes_the_same_ones_again() {
    let dir = tempfile::tempdir().unwrap();
    let records = chain(10);
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &records);
    store.applied(50, None).unwrap();
    store.flush().await.unwrap();
    assert_eq!(store.durable_log_index().unwrap(), 50);
    store.close().await.unwrap();

    let store = open(dir.path(), loud()).unwrap();
    assert_eq!(store.head().unwrap(), Head { seq: 10, hash: records[9].hash.clone() });
    feed(&store, &records[4..]);
    assert_eq!(seqs(&store, Query::default()).await.0.len(), 10);
    assert_eq!(store.durable_log_index().unwrap(), 50, "replay does not set it back");
    assert!(store.contains(7, &records[6].hash).unwrap());
    assert!(!store.contains(7, &records[5].hash).unwrap());
    assert!(!store.contains(11, &records[5].hash).unwrap());
}

#[tokio::test]
async fn a_replay_that_differs_or_leaves_a_gap_ends_the_process() {
    let records = chain(5);
    let mut other = records[2].body.clone();
    other.action = "cancel_job".to_owned();
    let differing = audit::seal(other);
    let skipping = record(7, 700, &[], &records[4].hash);
    let unchained = record(6, 600, &[], &records[3].hash);
    for (bad, durable) in
        [(&differing, true), (&differing, false), (&skipping, true), (&unchained, true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
        let hook = Arc::clone(&told);
        let hook = FatalHook::with(move |fatal| hook.lock().unwrap().push(fatal.clone()));
        let store = open(dir.path(), hook).unwrap();
        feed(&store, &records);
        if durable {
            store.flush().await.unwrap();
        }
        store.applied(90, Some(bad.clone())).unwrap();
        assert!(store.flush().await.is_err(), "the writer must have stopped");
        let told = told.lock().unwrap().clone();
        assert!(matches!(told[..], [Fatal::Diverged { .. }]), "{told:?}");
        assert_eq!(told[0].exit_code(), EXIT_DIVERGED);
    }
}

#[tokio::test]
async fn fetched_records_are_checked_before_they_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let records = chain(6);
    feed(&store, &records[..2]);
    let lines = |records: &[AuditRecord]| {
        records.iter().map(|record| record.line.clone() + "\n").collect::<String>()
    };
    // It begins before what is there already, as a sender may repeat itself.
    store.fetched(lines(&records[1..4])).await.unwrap();
    assert_eq!(store.head().unwrap().seq, 4);
    let changed = lines(&records[4..]).replace("controller", "contr0ller");
    store.fetched(changed).await.unwrap_err();
    store.fetched(lines(&records[5..])).await.unwrap_err();
    store.fetched("nonsense\n".to_owned()).await.unwrap_err();
    assert_eq!(store.head().unwrap().seq, 4, "nothing bad was kept");
    store.fetched(lines(&records)).await.unwrap();
    assert_eq!(store.head().unwrap().hash, records[5].hash);
}

#[tokio::test]
async fn exports_verify_offline_and_say_what_they_leave_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &chain(1_234));
    let sign = |bytes: &[u8]| Signature {
        algorithm: "test".to_owned(),
        key: "k".to_owned(),
        value: audit::hash_of_unsealed(&String::from_utf8_lossy(bytes)),
    };
    let export = async |query: Query, format| {
        let request = ExportRequest {
            query,
            format,
            cluster: CLUSTER.to_owned(),
            exported_at: Timestamp(1),
            signer: Some(Arc::new(sign)),
        };
        let pieces: Vec<String> = store.export(request).try_collect().await.unwrap();
        pieces.concat()
    };
    for format in [Format::JsonLines, Format::Csv] {
        let check = |bytes: &[u8], signature: &Signature| *signature == sign(bytes);
        let text = export(Query::default(), format).await;
        let whole = verify_text(&text, Some(&check)).unwrap();
        assert_eq!((whole.count, whole.from_genesis, whole.filtered), (1_234, true, false));
        let part = Query { from_seq: Some(100), to_seq: Some(900), ..Query::default() };
        let part = verify_text(&export(part, format).await, Some(&check)).unwrap();
        assert_eq!((part.first_seq, part.last_seq, part.count), (100, 900, 801));
        let job = Query { object: Some("job-a".to_owned()), ..Query::default() };
        let job = verify_text(&export(job, format).await, Some(&check)).unwrap();
        assert_eq!((job.count, job.filtered), (411, true));
        // One line lost on the way.
        let mut lines: Vec<&str> = text.lines().collect();
        lines.remove(700);
        verify_text(&lines.join("\n"), None).unwrap_err();
    }
}

#[tokio::test]
async fn the_database_of_another_cluster_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), loud()).unwrap().close().await.unwrap();
    let refused = AuditStore::open(&dir.path().join("audit.redb"), "fleet-other", loud());
    assert!(matches!(refused, Err(AuditError::Foreign { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_record_changed_on_disk_is_not_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &chain(3));
    store.close().await.unwrap();
    let file = dir.path().join("audit.redb");
    {
        let db = redb::Database::open(&file).unwrap();
        let write = db.begin_write().unwrap();
        {
            let mut records = write.open_table(store::RECORDS).unwrap();
            let line = records.get(2).unwrap().unwrap().value().replace("titan01", "titan02");
            records.insert(2, line.as_str()).unwrap();
        }
        write.commit().unwrap();
    }
    let store = open(dir.path(), loud()).unwrap();
    let found = store.query(Query::default()).await;
    assert!(matches!(found, Err(AuditError::Damaged { seq: 2, .. })), "{found:?}");
}

#[tokio::test]
async fn a_damaged_page_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &chain(200));
    store.close().await.unwrap();
    let file = dir.path().join("audit.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    // In the middle of a record, where nothing but a checksum can notice.
    let text = b"set_cluster_version";
    let at = (0..bytes.len() - text.len()).rfind(|at| bytes[*at..].starts_with(text)).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(&file, bytes).unwrap();
    let refused = open(dir.path(), loud());
    assert!(matches!(refused, Err(AuditError::Open { .. })), "{refused:?}");
}

/// Every later version reads the database of version 1: `testdata/audit-v1.hex` holds the lines of 32 bytes that
/// are not all zero. `FLEET_WRITE_GOLDEN` writes that file again: only until a version was released.
#[tokio::test]
async fn the_database_of_version_1_can_be_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/audit-v1.hex");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.redb");
    let records = chain(7);
    if std::env::var_os("FLEET_WRITE_GOLDEN").is_some() {
        let store = open(dir.path(), loud()).unwrap();
        feed(&store, &records);
        store.close().await.unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let mut text = format!("{:x}\n", bytes.len());
        for (at, line) in (0..).step_by(32).zip(bytes.chunks(32)) {
            if line.iter().any(|b| *b != 0) {
                text.push_str(&format!("{at:x} {}\n", hex::encode(line)));
            }
        }
        std::fs::write(&golden, text).unwrap();
        std::fs::remove_file(&file).unwrap();
    }
    let text = std::fs::read_to_string(golden).unwrap();
    let mut lines = text.lines();
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let mut bytes = vec![0; number(lines.next().unwrap())];
    for (at, line) in lines.filter_map(|line| line.split_once(' ')) {
        let line = hex::decode(line).unwrap();
        bytes[number(at)..][..line.len()].copy_from_slice(&line);
    }
    std::fs::write(&file, bytes).unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let read = store.query(Query::default()).await.unwrap().records;
    assert_eq!(read, records);
    assert_eq!(store.durable_log_index().unwrap(), 14);
    // Both indices can be read too, and the store takes more records.
    let job = Query { object: Some("job-a".to_owned()), ..Query::default() };
    assert_eq!(seqs(&store, job).await.0, [3, 6]);
    let late = Query { since: Some(Timestamp(600)), ..Query::default() };
    assert_eq!(seqs(&store, late).await.0, [6, 7]);
    feed(&store, &chain(9)[7..]);
    assert_eq!(store.query(Query::default()).await.unwrap().records.len(), 9);
}
