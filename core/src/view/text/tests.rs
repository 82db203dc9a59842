#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use super::gpu_list;
use crate::event::Event;
use crate::gpu::GpuName;
use crate::gpu_use::{GpuUse, MeasuredUse, UseRow};
use crate::health::{ConditionStatus, Health, Severity};
use crate::id::{AllocationId, JobId, ReservationId};
use crate::job::JobState;
use crate::lease::{Epoch, LeaseHolder};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::Liveness;
use crate::reason::{
    Closed, Emptying, Few, KeptFor, NAMED_MAX, NodePart, NotOpen, Obstacle, Shut, ShutReservation,
    TakenBy, TakenGpus, WaitReason,
};
use crate::time::{Millis, Timestamp};
use crate::view::job::{Leaving, LeavingHow};
use crate::view::{GpuState, JobReason, Names, NodeState, ReservationShown};

/// The names that a test gives.
#[derive(Default)]
struct Known(BTreeMap<GpuUuid, GpuName>);

impl Names for Known {
    fn gpu(&self, uuid: &GpuUuid) -> Option<GpuName> {
        self.0.get(uuid).cloned()
    }
}

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn gpu(number: u8) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{number}")).unwrap()
}

fn name(on: &str, index: u32) -> GpuName {
    GpuName { node: node(on), index }
}

/// GPUs 0 and 3 of titan01, and GPU 1 of titan02.
fn known() -> Known {
    Known(
        [(gpu(1), name("titan01", 0)), (gpu(2), name("titan01", 3)), (gpu(3), name("titan02", 1))]
            .into(),
    )
}

#[test]
fn gpus_of_one_node_are_named_together() {
    let names = known();
    assert_eq!(gpu_list(&names, &[gpu(1), gpu(2), gpu(3)]), "titan01:0,3, titan02:1");
    assert_eq!(gpu_list(&names, &[gpu(9), gpu(1)]), format!("{}, titan01:0", gpu(9)));
    assert_eq!(gpu_list(&names, &[]), "");
}

#[test]
fn an_event_names_the_card_and_its_node_once() {
    let placed = |gpus: Vec<GpuUuid>| Event::JobPlaced {
        job: JobId::parse("job-a").unwrap(),
        allocation: AllocationId::parse("alloc-a-1").unwrap(),
        node: node("titan01"),
        gpus,
        epoch: Epoch::default(),
        resume_from: None,
        owner: UserName::parse("ada").unwrap(),
    };
    let told = |event: Event, names: &Known| event.told(Timestamp(1), names);
    assert_eq!(told(placed(vec![gpu(1), gpu(2)]), &known()), "placed on titan01:0,3, for ada");
    assert_eq!(told(placed(Vec::new()), &known()), "placed on titan01, for ada");
    let unnamed = told(placed(vec![gpu(9)]), &known());
    assert_eq!(
        unnamed,
        format!("placed on {} on titan01, for ada", gpu(9)),
        "a GPU without a name"
    );
    let raised = |gpu| Event::ConditionRaised {
        node: node("titan01"),
        gpu,
        kind: "xid_79".to_owned(),
        severity: Severity::Fatal,
        message: "fell off the bus".to_owned(),
    };
    assert_eq!(told(raised(Some(gpu(2))), &known()), "titan01:3: fatal (fell off the bus)");
    assert_eq!(told(raised(None), &known()), "titan01: fatal (fell off the bus)");
}

#[test]
fn measured_use_says_how_much_of_it_was_used() {
    let row = |gpu_number, busy| UseRow {
        model: "v100".to_owned(),
        seen: GpuUse {
            gpu: gpu(gpu_number),
            holder: LeaseHolder::Reservation(ReservationId::parse("res-a").unwrap()),
            within: None,
            measured_ms: Millis::hours(1),
            busy_ms: Millis::minutes(busy),
            occupied_ms: Millis::ZERO,
            utilization: 0,
            memory_peak_bytes: 0,
        },
    };
    let (from, until) = (Timestamp(0), Timestamp(0) + Millis::hours(1));
    let rows = vec![row(1, 60), row(2, 12)];
    let seen = MeasuredUse { node: node("titan01"), from, until, rows };
    let said = Event::GpuUseMeasured(Box::new(seen)).told(until, &known());
    assert_eq!(said, "titan01 measured 2.0 GPU-hours within 1h: 1.2 used");
}

#[test]
fn a_story_says_for_whom_from_when_and_until_when() {
    let (reservation, owner) =
        (ReservationId::parse("res-a").unwrap(), UserName::parse("rada").unwrap());
    let told = |event: Event| event.told(Timestamp(0), &known());
    let hours = |n| Timestamp(0) + Millis::hours(n);
    let created = Event::ReservationCreated {
        reservation: reservation.clone(),
        owner: owner.clone(),
        node: node("titan01"),
        gpus: vec![gpu(1)],
        starts_at: hours(2),
        ends_at: hours(3),
        with: Vec::new(),
        series: None,
        adopts: false,
    };
    let said = told(created);
    assert!(said.contains("rada") && said.ends_with(", in 2h for 1h"), "{said}");
    let placed = Event::JobPlaced {
        job: JobId::parse("job-a").unwrap(),
        allocation: AllocationId::parse("alloc-a-1").unwrap(),
        node: node("titan01"),
        gpus: vec![gpu(1)],
        epoch: Epoch::default(),
        resume_from: None,
        owner,
    };
    assert_eq!(told(placed), "placed on titan01:0, for rada");
    let extended =
        Event::ReservationExtended { reservation: reservation.clone(), ends_at: hours(5) };
    assert_eq!(told(extended), "the reservation ends in 5h now");
    let by_itself = Event::ReservationWentOn { reservation, ends_at: hours(1) };
    assert_eq!(
        told(by_itself),
        "reservation extended: it is in use, and nobody else reserved its GPUs; it ends in 1h now"
    );
}

#[test]
fn what_a_node_did_alone_is_told_with_how_late_it_was_reported() {
    let closed = Event::WindowClosedByNode {
        reservation: ReservationId::parse("res-a").unwrap(),
        node: node("titan01"),
        at: Timestamp(0),
        gpus: Vec::new(),
    };
    let late = closed.told(Timestamp(0) + Millis::minutes(7), &known());
    assert!(late.ends_with("(reported 7m later)"), "{late}");
    let at_once = closed.told(Timestamp(0) + Millis::secs(1), &known());
    assert!(!at_once.contains("reported"), "{at_once}");
}

#[test]
fn a_text_that_came_as_one_is_read_with_names() {
    let text = format!("{} is lost, {} and {} are not", gpu(1), gpu(9), gpu(3));
    assert_eq!(
        known().in_text(&text),
        format!("titan01:0 is lost, {} and titan02:1 are not", gpu(9))
    );
}

#[test]
fn a_waiting_job_is_told_who_has_the_gpus() {
    let (job, owner) = (JobId::parse("job-b").unwrap(), UserName::parse("bob").unwrap());
    let taken = TakenGpus {
        gpus: vec![name("titan01", 0), name("titan01", 3)],
        by: TakenBy::Job { job: job.clone(), owner: owner.clone() },
    };
    let emptied = TakenGpus {
        gpus: vec![name("titan01", 1)],
        by: TakenBy::Emptying { after: Emptying::Job(job), owner },
    };
    let obstacle = Obstacle::Taken([taken.clone(), emptied].into_iter().collect());
    let wait = WaitReason::Gpus { wanted: "4 GPUs on one node".to_owned(), obstacle }.alone();
    assert_eq!(
        wait.to_string(),
        "waits for 4 GPUs on one node: titan01:0,3 are held by job-b (bob), \
         titan01:1 is being emptied after job-b (bob)"
    );
    assert!(!wait.is_forever());
    let many: Few<TakenGpus> = std::iter::repeat_n(taken, NAMED_MAX + 2).collect();
    assert_eq!((many.named.len(), many.more), (NAMED_MAX, 2));
    assert!(Obstacle::Taken(many).to_string().ends_with(", 2 more"));
}

#[test]
fn what_waits_for_ever_says_so() {
    let id = ReservationId::parse("res-a").unwrap();
    let shut = |why| WaitReason::Reservation(ShutReservation { id: id.clone(), why }).alone();
    let ended = shut(Shut::Ended);
    assert!(ended.is_forever());
    assert_eq!(ended.to_string(), "can never start: its reservation res-a has ended; cancel it");
    let not_begun = shut(Shut::NotBegun);
    assert!(!not_begun.is_forever());
    assert_eq!(not_begun.to_string(), "its reservation res-a has not begun");
    let mut excluded = WaitReason::Excluded.alone();
    excluded.excluded = [(node("titan01"), "no such user".to_owned())].into_iter().collect();
    assert!(excluded.is_forever());
    assert_eq!(
        excluded.to_string(),
        "can never start: not on titan01: no such user; `fleet node uncordon` lets it try again there"
    );
}

#[test]
fn an_obstacle_offers_what_would_start_now() {
    let kept = KeptFor::Job { job: None, node: node("titan01") };
    let shorter = Obstacle::TooLong { longest: Millis::minutes(95), then: kept };
    assert_eq!(
        shorter.to_string(),
        "starts now with -t 95m: after that, titan01 is held for an earlier job, which is ahead in the queue"
    );
    let cpu = |offer| {
        let of = NodePart::All;
        Obstacle::Cpu { node: node("titan01"), wanted: 8_000, free: 2_500, of, offer }
    };
    assert_eq!(
        cpu(true).to_string(),
        "waits for 8 cores on titan01, 2.5 are free; starts now with -c 2"
    );
    assert_eq!(cpu(false).to_string(), "waits for 8 cores on titan01, 2.5 are free");
    let closed = Closed::Cordoned { by: "root".to_owned(), reason: "fan".to_owned() };
    let closed = Obstacle::Closed { node: node("titan01"), why: NotOpen::Closed(closed) };
    assert_eq!(closed.to_string(), "titan01 is cordoned by root: fan");
}

#[test]
fn a_job_without_a_limit_says_what_keeps_its_place() {
    let leaving = Leaving {
        causes: vec!["it named no time limit, and job-b of bob waits".to_owned()],
        how: LeavingHow::NextCheckpoint,
        within: Some(Millis::minutes(59)),
        keeps_with_a_limit: Some(JobId::parse("job-a").unwrap()),
    };
    assert_eq!(
        JobReason::Leaving(leaving).text(&known()),
        "leaves at its next checkpoint (it named no time limit, and job-b of bob waits); \
         leaves within 59m at the latest; to keep its place: fleet job set job-a -t TIME"
    );
}

#[test]
fn a_job_that_must_leave_says_where_it_goes_and_by_when() {
    let leaving = |how, within| {
        let causes = vec!["drain of titan01".to_owned()];
        let keeps_with_a_limit = None;
        JobReason::Leaving(Leaving { causes, how, within, keeps_with_a_limit }).text(&known())
    };
    let moves = LeavingHow::Moves { node: node("titan01"), gpus: vec![gpu(1), gpu(2)] };
    assert_eq!(
        leaving(moves, Some(Millis::minutes(5))),
        "moves at its next checkpoint (drain of titan01); titan01:0,3 is held for it; \
         leaves within 5m at the latest"
    );
    let lost = leaving(LeavingHow::LosesWork, None);
    assert_eq!(
        lost,
        "is stopped (drain of titan01); it declares no checkpoint, so its work is lost"
    );
}

#[test]
fn each_word_stands_for_one_state() {
    macro_rules! checked {
        ($($name:ident),+) => {$(
            let words: BTreeSet<&str> = $name::ALL.iter().map(|one| one.word()).collect();
            assert_eq!(words.len(), $name::ALL.len(), "{words:?}");
            for one in $name::ALL {
                assert_eq!($name::from_word(one.word()), Some(*one));
            }
            assert_eq!($name::from_word("of a newer version"), None);
        )+};
    }
    checked!(GpuState, NodeState, ReservationShown, JobState, Health, Severity);
    checked!(ConditionStatus, Liveness);
}
