//! Who held and used which GPUs: derived once, by whatever way the records come, and gone with them.

use fleet_core::gpu_use::{GpuUse, MeasuredUse, UseRow};
use fleet_core::id::{LeaseId, ReservationId};
use fleet_core::lease::{Account, LeaseHolder};
use fleet_core::name::{GpuUuid, NodeName, ProjectName, UserName};
use fleet_core::stay::Stay;
use fleet_core::usage::{Question, Sums, Usage, UsageBy};
use fleet_core::{Millis, Window};

use super::*;
use crate::audit::derived::{forget, rows};
use crate::audit::measured;
use crate::audit::stays::{self, Added, add_stays};
use crate::audit::store::RECORDS;

const HOUR: u64 = Millis::hours(1).0;

fn stay(number: u64, from: u64, until: u64) -> Stay {
    Stay {
        holder: LeaseHolder::Reservation(ReservationId::parse(&format!("res-{number}")).unwrap()),
        owner: UserName::parse("ada").unwrap(),
        account: Account { project: ProjectName::default_project(), class: None },
        within: None,
        node: NodeName::parse("titan01").unwrap(),
        models: [("v100".to_owned(), 2)].into(),
        from: Timestamp(from),
        until: Timestamp(until),
        lost: None,
    }
}

/// Both GPUs of stay `number` were measured for half of its hour, and busy for a quarter.
fn measured_of(number: u64, from: u64) -> Event {
    let row = |gpu: &str| UseRow {
        model: "v100".to_owned(),
        seen: GpuUse {
            gpu: GpuUuid::parse(gpu).unwrap(),
            holder: stay(number, 0, 0).holder,
            within: None,
            measured_ms: Millis(HOUR / 2),
            busy_ms: Millis(HOUR / 4),
            occupied_ms: Millis(HOUR / 2),
            utilization: 0,
            memory_peak_bytes: 0,
        },
    };
    Event::GpuUseMeasured(Box::new(MeasuredUse {
        node: NodeName::parse("titan01").unwrap(),
        from: Timestamp(from),
        until: Timestamp(from + HOUR),
        rows: vec![row("GPU-01"), row("GPU-02")],
    }))
}

/// Record `n` is of hour `n`, ends a stay of that hour and says what was measured of it; every second one ends two.
fn releases(length: u64) -> Vec<AuditRecord> {
    let mut prev = audit::GENESIS.to_owned();
    let released = |stay: Stay| Event::GpusReleased {
        lease: LeaseId::parse("lease-1").unwrap(),
        node: stay.node.clone(),
        gpus: Vec::new(),
        declared_by: None,
        holder: stay.of().to_owned(),
        stay: Box::new(stay),
    };
    let made = (1..=length).map(|seq| {
        let at = seq * HOUR;
        let mut events = vec![released(stay(seq, at - HOUR, at)), measured_of(seq, at - HOUR)];
        if seq % 2 == 0 {
            events.push(Event::ServedByNode(Box::new(stay(100_000 + seq, at - HOUR, at))));
        }
        let record = record(seq, at, &["titan01"], &prev);
        let record = audit::seal(AuditBody { events, ..record.body });
        prev.clone_from(&record.hash);
        record
    });
    made.collect()
}

/// All together: reservations, and hours of a GPU.
async fn sums(store: &AuditStore, from: u64, until: u64, through: u64) -> (u64, u64) {
    let Sums { reservation_count, reserved, .. } = all(store, from, until, through).await;
    (reservation_count, reserved / HOUR)
}

/// Quarters of an hour of a GPU that were used and idle.
async fn used(store: &AuditStore, from: u64, until: u64, through: u64) -> (u64, u64) {
    let Sums { seen, .. } = all(store, from, until, through).await;
    (seen.busy * 4 / HOUR, seen.idle() * 4 / HOUR)
}

async fn all(store: &AuditStore, from: u64, until: u64, through: u64) -> Sums {
    let window = Window { starts_at: Timestamp(from), ends_at: Timestamp(until) };
    let usage = Usage::of(Question { window, by: UsageBy::User, owner: None });
    match store.add_stays(usage, Vec::new(), window, through).await.unwrap() {
        Added::All { usage, .. } => usage.rows().1,
        Added::TooMany => panic!("too many"),
    }
}

#[tokio::test]
async fn a_window_has_the_parts_of_its_stays_by_records_up_to_the_one_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &releases(10));
    assert_eq!(sums(&store, 0, 20 * HOUR, 10).await, (15, 30));
    assert_eq!(sums(&store, 0, 20 * HOUR, 3).await, (4, 8), "the state knows of the later ones");
    // Half of hour 3, all of hours 4 and 5, half of hour 6 with its two.
    assert_eq!(sums(&store, 2 * HOUR + HOUR / 2, 5 * HOUR + HOUR / 2, 10).await, (6, 9));
    assert_eq!(sums(&store, 30 * HOUR, 40 * HOUR, 10).await, (0, 0));
    assert_eq!(used(&store, 0, 20 * HOUR, 10).await, (20, 20));
    assert_eq!(used(&store, 0, 20 * HOUR, 3).await, (6, 6));
    // Half of what was measured in hours 3 and 6, all of hours 4 and 5.
    assert_eq!(used(&store, 2 * HOUR + HOUR / 2, 5 * HOUR + HOUR / 2, 10).await, (6, 6));
    assert_eq!(used(&store, 30 * HOUR, 40 * HOUR, 10).await, (0, 0));
}

#[tokio::test]
async fn a_stay_that_began_long_before_the_window_and_ended_long_after_it_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let mut records = releases(3);
    let last = records.pop().unwrap();
    let long = Event::ServedByNode(Box::new(stay(3, HOUR, 900 * HOUR)));
    records.push(audit::seal(AuditBody { events: vec![long], ..last.body }));
    feed(&store, &records);
    assert_eq!(sums(&store, 500 * HOUR, 501 * HOUR, 3).await, (1, 2));
}

#[tokio::test]
async fn records_that_come_again_or_from_elsewhere_give_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let records = releases(8);
    feed(&store, &records);
    let first = sums(&store, 0, 20 * HOUR, 8).await;
    let first_used = used(&store, 0, 20 * HOUR, 8).await;
    assert_eq!(first_used, (16, 16));
    feed(&store, &records);
    assert_eq!(used(&store, 0, 20 * HOUR, 8).await, first_used);
    assert_eq!(sums(&store, 0, 20 * HOUR, 8).await, first);
    store.close().await.unwrap();
    let again = open(dir.path(), loud()).unwrap();
    assert_eq!(sums(&again, 0, 20 * HOUR, 8).await, first);
    feed(&again, &records);
    assert_eq!(sums(&again, 0, 20 * HOUR, 8).await, first);

    // A new controller fetches them as lines.
    let elsewhere = tempfile::tempdir().unwrap();
    let joined = open(elsewhere.path(), loud()).unwrap();
    let lines: String = records.iter().map(|record| format!("{}\n", record.line)).collect();
    joined.fetched(lines).await.unwrap();
    assert_eq!(sums(&joined, 0, 20 * HOUR, 8).await, first);
    assert_eq!(used(&joined, 0, 20 * HOUR, 8).await, first_used);
}

#[tokio::test]
async fn a_database_without_stays_or_with_other_ones_gets_them_from_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    // More than one transaction reads.
    feed(&store, &releases(4_100));
    let first = sums(&store, 0, 5_000 * HOUR, 4_100).await;
    assert_eq!(first, (6_150, 12_300));
    for version in [None, Some(0)] {
        let store = open_again(dir.path(), &store, version).await;
        assert_eq!(sums(&store, 0, 5_000 * HOUR, 4_100).await, first, "{version:?}");
        assert_eq!(used(&store, 0, 5_000 * HOUR, 4_100).await, (8_200, 8_200), "{version:?}");
        store.close().await.unwrap();
    }
}

/// As another build left it: without the table, or with one of another version.
async fn open_again(dir: &Path, store: &AuditStore, version: Option<u64>) -> AuditStore {
    store.close().await.ok();
    {
        let db = redb::Database::open(dir.join("audit.redb")).unwrap();
        forget(&db, version).unwrap();
    }
    open(dir, loud()).unwrap()
}

#[tokio::test]
async fn what_was_pruned_is_not_counted_and_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    let mut records = releases(10);
    let sixth = &records[5];
    let event = Event::AuditPruned {
        through: 6,
        hash: sixth.hash.clone(),
        until: sixth.body.at,
        records: 6,
        by: "root".to_owned(),
    };
    let last = records[9].clone();
    let body =
        AuditBody { seq: 11, log_index: 30, events: vec![event], prev: last.hash, ..last.body };
    records.push(audit::seal(body));
    feed(&store, &records);
    // Hours 7 to 10, and two more of even ones.
    assert_eq!(sums(&store, 0, 20 * HOUR, 11).await, (6, 12));
    let swept = async {
        loop {
            let read = redb::ReadableDatabase::begin_read(&*store.db().unwrap()).unwrap();
            let first =
                read.open_table(RECORDS).unwrap().first().unwrap().map(|(seq, _)| seq.value());
            if first == Some(7) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), swept).await.unwrap();
    assert_eq!(sums(&store, 0, 20 * HOUR, 11).await, (6, 12));
    assert_eq!(used(&store, 0, 20 * HOUR, 11).await, (8, 8));
    let left = rows(&store.db().unwrap(), stays::TABLE).unwrap();
    assert_eq!(left, 6, "those that were pruned are deleted with their records");
    assert_eq!(rows(&store.db().unwrap(), measured::TABLE).unwrap(), 4);
    let store = open_again(dir.path(), &store, None).await;
    assert_eq!(sums(&store, 0, 20 * HOUR, 11).await, (6, 12));
    assert_eq!(used(&store, 0, 20 * HOUR, 11).await, (8, 8));
}

#[tokio::test]
async fn a_report_reads_no_more_stays_than_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), loud()).unwrap();
    feed(&store, &releases(10));
    store.flush().await.unwrap();
    let window = Window { starts_at: Timestamp(0), ends_at: Timestamp(20 * HOUR) };
    let usage = Usage::of(Question { window, by: UsageBy::User, owner: None });
    let db = store.db().unwrap();
    let read = |most| add_stays(&db, usage.clone(), &[], window, 10, most).unwrap();
    assert!(matches!(read((14, 10)), Added::TooMany));
    let all = |most| match read(most) {
        Added::All { usage, measured_left_out } => (measured_left_out, usage.rows().1),
        Added::TooMany => panic!("too many"),
    };
    let (left_out, whole) = all((15, 10));
    assert!(!left_out && whole.seen.measured > 0);
    // What was held is shown all the same.
    let (left_out, held) = all((15, 9));
    assert!(left_out && held.seen.measured == 0 && held.held() == whole.held());
}
