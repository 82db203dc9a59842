//! Pruned records: hidden at once, deleted bit by bit, and never needed again.

use std::time::Duration;

use fleet_core::audit::prune::Pruned;
use redb::ReadableTableMetadata;

use super::*;
use crate::audit::floor;

const PATIENCE: Duration = Duration::from_secs(30);

/// `length` records, and the anchor of a prune up to `through`.
fn pruned_chain(length: u64, through: u64) -> Vec<AuditRecord> {
    let mut records = chain(length);
    let at = |seq: u64| records[seq as usize - 1].clone();
    let event = Event::AuditPruned {
        through,
        hash: at(through).hash,
        until: at(through).body.at,
        records: through,
        by: "root".to_owned(),
    };
    let last = at(length);
    let body = AuditBody {
        seq: length + 1,
        log_index: last.body.log_index + 2,
        events: vec![event],
        prev: last.hash,
        ..last.body
    };
    records.push(audit::seal(body));
    records
}

async fn all(store: &AuditStore) -> Vec<u64> {
    seqs(store, Query::default()).await.0
}

/// Records that are in the file, whether a reader sees them or not.
fn stored(store: &AuditStore) -> u64 {
    let read = redb::ReadableDatabase::begin_read(&*store.db().unwrap()).unwrap();
    read.open_table(store::RECORDS).unwrap().len().unwrap()
}

async fn until_stored(store: &AuditStore, records: u64) {
    let deleted = async {
        while stored(store) > records {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, deleted).await.expect("pruned records are deleted");
}

fn loudly_told() -> (FatalHook, Arc<Mutex<Vec<Fatal>>>) {
    let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
    let hook = Arc::clone(&told);
    (FatalHook::with(move |fatal| hook.lock().unwrap().push(fatal.clone())), told)
}

#[tokio::test]
async fn what_was_pruned_is_not_found_in_any_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let records = pruned_chain(10, 6);
    feed(&store, &records[..10]);
    let prunable = store.prunable(6).await.unwrap().unwrap();
    assert_eq!(prunable.hash, records[5].hash);
    assert_eq!((prunable.first, prunable.through), (1, 6));
    assert_eq!((prunable.from, prunable.until), (Timestamp(100), Timestamp(600)));
    let lengths = records[..6].iter().map(|record| record.line.len() as u64 + 1);
    assert_eq!(prunable.bytes, lengths.sum::<u64>());
    assert_eq!(store.prunable(11).await.unwrap(), None);

    feed(&store, &records[10..]);
    let query = Query::default();
    assert_eq!(all(&store).await, [7, 8, 9, 10, 11]);
    let job = Query { object: Some("job-a".to_owned()), ..query.clone() };
    assert_eq!(seqs(&store, job.clone()).await.0, [9]);
    let newest = Query { order: RecordOrder::NewestFirst, limit: 1, ..job };
    assert_eq!(seqs(&store, newest.clone()).await.0, [9]);
    assert_eq!(store.query(newest).await.unwrap().behind, 0);
    let early = Query { until: Some(Timestamp(701)), ..query.clone() };
    assert_eq!(seqs(&store, early).await.0, [7]);
    let gone = Query { until: Some(Timestamp(600)), ..query };
    assert_eq!(seqs(&store, gone).await.0, [0; 0]);
    assert_eq!(store.prunable(6).await.unwrap(), None);
    assert_eq!(store.prunable(8).await.unwrap().unwrap().first, 7);
    // What a snapshot may still name.
    assert!(store.contains(3, "any").unwrap());
    assert!(store.contains(6, &records[5].hash).unwrap());
    assert!(!store.contains(6, &records[4].hash).unwrap());
    assert!(store.contains(7, &records[6].hash).unwrap());
    until_stored(&store, 5).await;
    assert_eq!(all(&store).await, [7, 8, 9, 10, 11]);
}

#[tokio::test]
async fn an_export_of_what_is_kept_verifies_by_its_anchor() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let records = pruned_chain(10, 6);
    feed(&store, &records);
    let pruned = Pruned::of(&records[10].body);
    for format in [Format::JsonLines, Format::Csv] {
        for from_seq in [None, Some(2), Some(7)] {
            let request = ExportRequest {
                query: Query { from_seq, ..Query::default() },
                format,
                cluster: CLUSTER.to_owned(),
                exported_at: Timestamp(1),
                signer: None,
            };
            let pieces: Vec<String> = store.export(request).try_collect().await.unwrap();
            let summary = verify_text(&pieces.concat(), None).unwrap();
            assert_eq!((summary.first_seq, summary.count), (7, 5));
            assert_eq!(summary.pruned, pruned);
        }
    }
}

/// The floor and the anchor are on disk together. Deleting takes several transactions, and a crash may come between.
#[tokio::test]
async fn a_crash_between_leaves_the_rest_to_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let (length, through) =
        (2 * floor::SWEEP_RECORDS as u64 + 500, 2 * floor::SWEEP_RECORDS as u64 + 400);
    let records = pruned_chain(length, through);
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &records);
    store.close().await.unwrap();
    for _ in 0..2 {
        let file = dir.path().join("audit.redb");
        {
            let db = redb::Database::open(&file).unwrap();
            assert!(floor::sweep(&db, through).unwrap(), "more is left");
        }
        let store = open(dir.path(), loud()).unwrap();
        assert!(stored(&store) > 101);
        assert_eq!(all(&store).await, (through + 1..=length + 1).collect::<Vec<_>>());
        store.close().await.unwrap();
    }
    let store = open(dir.path(), loud()).unwrap();
    until_stored(&store, 101).await;
    let last = records.last().unwrap();
    assert_eq!(store.head().unwrap(), Head { seq: length + 1, hash: last.hash.clone() });
    // The chain continues.
    let next = record(length + 2, 9_000_000, &["titan01"], &last.hash);
    feed(&store, &[next]);
    assert_eq!(all(&store).await.len(), 102);
}

#[tokio::test]
async fn a_log_that_makes_pruned_records_again_is_compared_at_the_floor() {
    let records = pruned_chain(10, 6);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &records);
    store.close().await.unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &records);
    assert_eq!(all(&store).await, [7, 8, 9, 10, 11]);
    store.close().await.unwrap();

    let (hook, told) = loudly_told();
    let store = open(dir.path(), hook).unwrap();
    let mut other = records[5].body.clone();
    other.action = "cancel_job".to_owned();
    store.applied(12, Some(audit::seal(other))).unwrap();
    assert!(store.flush().await.is_err(), "the writer must have stopped");
    assert!(matches!(told.lock().unwrap()[..], [Fatal::Diverged { .. }]));
}

#[tokio::test]
async fn a_prune_that_names_another_record_than_the_stored_one_ends_the_process() {
    let mut records = pruned_chain(10, 6);
    let anchor = records.pop().unwrap();
    let event = match &anchor.body.events[0] {
        Event::AuditPruned { through, until, records: count, by, .. } => Event::AuditPruned {
            through: *through,
            hash: records[4].hash.clone(),
            until: *until,
            records: *count,
            by: by.clone(),
        },
        other => panic!("{other:?}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let (hook, told) = loudly_told();
    let store = open(dir.path(), hook).unwrap();
    feed(&store, &records);
    store.flush().await.unwrap();
    let anchor = audit::seal(AuditBody { events: vec![event], ..anchor.body });
    store.applied(22, Some(anchor)).unwrap();
    assert!(store.flush().await.is_err(), "the writer must have stopped");
    assert!(matches!(told.lock().unwrap()[..], [Fatal::Diverged { .. }]));
    assert_eq!(store.floor().unwrap(), Head::default());
    assert_eq!(stored(&store), 10, "nothing was deleted");
}

#[tokio::test]
async fn a_member_that_comes_later_begins_behind_the_floor() {
    let records = pruned_chain(10, 6);
    let lines: String = records[6..].iter().map(|record| record.line.clone() + "\n").collect();
    let floor = Head { seq: 6, hash: records[5].hash.clone() };
    // It has nothing, less than what was pruned, or more.
    for here in [0, 3, 6, 8] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), loud()).unwrap();
        feed(&store, &records[..here]);
        store.begin_behind(floor.clone()).await.unwrap();
        assert_eq!(store.head().unwrap().seq, 6.max(here as u64));
        store.close().await.unwrap();
        let store = open(dir.path(), loud()).unwrap();
        store.begin_behind(floor.clone()).await.unwrap();
        store.fetched(lines.clone()).await.unwrap();
        assert_eq!(all(&store).await, [7, 8, 9, 10, 11], "it had {here}");
        // Its own log may end before: what it makes again is skipped, and compared at the floor.
        feed(&store, &records[here..]);
        until_stored(&store, 5).await;
        assert_eq!(store.head().unwrap().hash, records[10].hash);
        // A sender that is behind changes nothing.
        store.begin_behind(Head { seq: 2, hash: records[1].hash.clone() }).await.unwrap();
        assert_eq!(store.floor().unwrap(), floor);
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &records[..8]);
    let other = Head { seq: 6, hash: records[4].hash.clone() };
    assert!(store.begin_behind(other).await.is_err(), "it is of another log");
    assert_eq!(all(&store).await.len(), 8);
}
