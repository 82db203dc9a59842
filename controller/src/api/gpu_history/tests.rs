//! Who had a GPU, by its records.

#![allow(clippy::unwrap_used, reason = "tests")]

use fleet_core::Actor;
use fleet_core::allocation::AttemptEnd;
use fleet_core::id::LeaseId;
use fleet_core::lease::{Epoch, LeaseHolder};
use fleet_core::name::{NodeName, UserName};

use super::*;

fn gpu() -> GpuUuid {
    GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000001").unwrap()
}

fn other() -> GpuUuid {
    GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000002").unwrap()
}

fn node() -> NodeName {
    NodeName::parse("titan01").unwrap()
}

fn reservation() -> ReservationId {
    ReservationId::parse("res-a").unwrap()
}

fn owner() -> UserName {
    UserName::parse("ada").unwrap()
}

/// One record an event, as many seconds after the beginning as its place in the list.
fn stays_of(events: Vec<(u64, Event)>) -> Vec<Stay> {
    let record = |(at, event): (u64, Event)| AuditBody {
        v: 1,
        seq: at,
        log_index: at,
        at: Timestamp(at * 1_000),
        actor: Actor::controller(),
        action: String::new(),
        request: None,
        allowed_by: None,
        refused: None,
        objects: Vec::new(),
        events: vec![event],
        prev: String::new(),
    };
    let records: Vec<AuditBody> = events.into_iter().map(record).collect();
    stays(&records, &gpu())
}

/// Holder, owner, from and until in seconds.
fn told(events: Vec<(u64, Event)>) -> Vec<String> {
    let second = |at: Option<Timestamp>| at.map_or("-".to_owned(), |at| (at.0 / 1_000).to_string());
    let line = |stay: Stay| {
        format!("{} {} {}..{}", stay.shown, stay.owner, second(stay.from), second(stay.until))
    };
    stays_of(events).into_iter().map(line).collect()
}

fn attempt(number: u32) -> AllocationId {
    AllocationId::of_attempt(&JobId::parse("job-a").unwrap(), number)
}

fn placed(number: u32, gpus: Vec<GpuUuid>, owner: UserName) -> Event {
    Event::JobPlaced {
        job: JobId::parse("job-a").unwrap(),
        allocation: attempt(number),
        node: node(),
        gpus,
        epoch: Epoch::default(),
        resume_from: None,
        owner,
    }
}

fn released(holder: &str) -> Event {
    let lease = LeaseId::parse("lease-1").unwrap();
    let (node, gpus) = (node(), vec![gpu(), other()]);
    let (declared_by, holder, stay) = (None, holder.to_owned(), Box::new(unused_stay()));
    Event::GpusReleased { lease, node, gpus, declared_by, holder, stay }
}

/// The history does not read it.
fn unused_stay() -> fleet_core::stay::Stay {
    fleet_core::stay::Stay {
        holder: LeaseHolder::Reservation(reservation()),
        owner: owner(),
        account: fleet_core::lease::Account {
            project: fleet_core::name::ProjectName::default_project(),
            class: None,
        },
        within: None,
        node: node(),
        models: std::collections::BTreeMap::new(),
        from: Timestamp(0),
        until: Timestamp(0),
        lost: None,
    }
}

fn started() -> Event {
    let lease = LeaseId::parse("lease-1").unwrap();
    let (reservation, epoch, owner) = (reservation(), Epoch::default(), owner());
    Event::ReservationStarted { reservation, lease, epoch, owner, gpus: vec![gpu()] }
}

#[test]
fn a_job_has_a_gpu_from_its_placement_until_it_is_proven_empty() {
    let first = attempt(1).to_string();
    assert_eq!(
        told(vec![
            (1, placed(1, vec![gpu()], owner())),
            (2, placed(9, vec![other()], owner())),
            (5, released(&first)),
            (7, placed(2, vec![gpu()], owner())),
        ]),
        ["job-a ada 1..5", "job-a ada 7..-"]
    );
}

#[test]
fn a_job_in_a_reservation_has_it_as_well() {
    assert_eq!(
        told(vec![
            (1, started()),
            (2, placed(1, vec![gpu()], owner())),
            (4, released(attempt(1).as_str())),
            (9, released("res-a")),
        ]),
        ["res-a ada 1..9", "job-a ada 2..4"]
    );
}

#[test]
fn what_a_node_did_alone_has_the_nodes_times() {
    let (gpus, at) = (vec![gpu()], Timestamp(3_000));
    let (reservation, node, owner) = (reservation(), node(), owner());
    let opened = Event::WindowOpenedByNode {
        reservation: reservation.clone(),
        node: node.clone(),
        at,
        owner,
        gpus: gpus.clone(),
    };
    let closed = Event::WindowClosedByNode { reservation, node, at: Timestamp(8_000), gpus };
    let all = vec![(20, opened.clone()), (21, started()), (22, closed.clone())];
    assert_eq!(told(all), ["res-a ada 3..8"]);
    let then_empty = vec![(20, opened), (22, closed), (30, released("res-a"))];
    assert_eq!(told(then_empty), ["res-a ada 3..8"]);
}

#[test]
fn who_had_it_before_the_first_record_is_known_by_its_end() {
    let stays = stays_of(vec![(4, released(attempt(1).as_str()))]);
    let [stay] = stays.as_slice() else { panic!("{stays:?}") };
    assert_eq!((stay.shown.as_str(), stay.from), ("job-a", None));
    assert!(stay.touches(Timestamp(1), Timestamp(2)));
    assert!(!stay.touches(Timestamp(4_000), Timestamp(5_000)));
}

#[test]
fn the_stop_that_was_ordered_says_why_it_ended() {
    let job = JobId::parse("job-a").unwrap();
    let end = AttemptEnd::Signaled { signal: 15 };
    let ended = Event::AttemptEnded { job: job.clone(), allocation: attempt(1), end: end.clone() };
    let why = "cancelled by ada".to_owned();
    let stopping = Event::JobStopping { job, allocation: attempt(1), why };
    let stay = stays_of(vec![(1, placed(1, vec![gpu()], owner()))]).remove(0);
    assert_eq!(how_it_ended(&[&ended, &stopping], &stay), "cancelled by ada");
    assert_eq!(how_it_ended(&[&ended], &stay), end.to_string());
    let declared = Stay { declared_by: Some("root".to_owned()), ..stay };
    assert_eq!(how_it_ended(&[], &declared), "declared free by root");
}

#[test]
fn who_has_it_now_is_known_without_a_record_and_stays_in_a_cut_answer() {
    let now = Stay { from: Some(Timestamp(500)), ..Stay::of_holder("res-a") };
    let mut known =
        stays_of(vec![(1, placed(1, vec![gpu()], owner())), (3, released(attempt(1).as_str()))]);
    add_missing(&mut known, vec![now.clone()]);
    assert_eq!(known[0], now, "it began first");
    add_missing(&mut known, vec![now.clone()]);
    assert_eq!(known.len(), 2, "once");
    assert_eq!(cut_to(&mut known, 1), Some(Timestamp(3_000)));
    assert_eq!(known, [now]);
    assert_eq!(cut_to(&mut known, 1), None);
}

#[test]
fn an_eviction_is_named_instead_of_the_signal_that_came_of_it() {
    let job = JobId::parse("job-a").unwrap();
    let evicted = Event::EvictionStarted {
        job: job.clone(),
        allocation: attempt(1),
        causes: vec!["drained by root".to_owned()],
        after_checkpoint: None,
        saves_nothing: false,
    };
    let end = AttemptEnd::Signaled { signal: 15 };
    let ended = Event::AttemptEnded { job, allocation: attempt(1), end };
    let stay = Stay::of_holder("alloc-a-1");
    assert_eq!(how_it_ended(&[&ended, &evicted], &stay), "evicted (drained by root)");
}
