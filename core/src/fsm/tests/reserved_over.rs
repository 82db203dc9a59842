//! Reservations of GPUs on which jobs of lower classes run: those leave before the reservation begins.

use super::world::{World, bad, job, node, person, plain, res, training};
use crate::actor::Actor;
use crate::allocation::{AttemptEnd, StopWhy};
use crate::class::{ClassChange, Preemptible};
use crate::command::{
    ClassCommand, Command, NodeCommand, Report, ReservationChange, ReservationCommand,
};
use crate::health::Severity;
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::name::ClassName;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reservation::ReservationState;
use crate::time::{Millis, Timestamp};

/// A save within half an hour, the grace of the job, the release.
const TO_LEAVE: Millis = Millis::secs(30 * 60 + 30 + 120);

fn scavenger(spec: JobSpec) -> JobSpec {
    let class = ClassName::parse("scavenger").unwrap();
    JobSpec { class, time_limit: Millis::hours(24), ..spec }
}

/// Four GPUs, all with a scavenger that saved each ten minutes, three times; its guarantee is over.
fn full() -> (World, AllocationId) {
    let mut w = World::with(&["titan01"]);
    let mut spec = scavenger(training());
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    (w, a)
}

fn end_of(w: &World, a: &AllocationId) -> Timestamp {
    w.fsm.allocation(a).unwrap().time_limit_at.unwrap()
}

fn next_free(refused: &Rejection) -> Option<Timestamp> {
    match refused {
        Rejection::GpusHeld { next, .. } => next.as_ref().map(|slot| slot.starts_at),
        other => panic!("{other}"),
    }
}

fn set(w: &mut World, change: ClassChange) {
    let (name, change) = (ClassName::parse("scavenger").unwrap(), Box::new(change));
    w.give(person("root"), Command::Class(ClassCommand::Set { name, change })).unwrap();
}

#[test]
fn the_next_slot_is_when_the_job_has_left_for_certain_and_that_one_is_given() {
    let (mut w, a) = full();
    let own = end_of(&w, &a);
    let refused = w.reserve("bob", "r", 2, Millis::ZERO, Millis::hours(1)).unwrap_err();
    // In whole steps of five minutes, with time to ask for it.
    let next = next_free(&refused).unwrap();
    assert!(
        next.0.is_multiple_of(300_000) && next >= w.now + TO_LEAVE + Millis::minutes(2),
        "{next:?}"
    );
    w.pass(Millis::secs(90));
    w.reserve("eve", "e", 2, next.since(w.now), Millis::hours(1)).unwrap();
    let (mut w, a) = full();
    let early = TO_LEAVE.saturating_sub(Millis(1));
    w.reserve("bob", "r", 2, early, Millis::hours(1)).unwrap_err();
    w.reserve("bob", "r", 2, TO_LEAVE, Millis::hours(1)).unwrap();
    assert_eq!(end_of(&w, &a), w.now + TO_LEAVE - Millis::secs(30));
    assert_eq!(w.fsm.allocation(&a).unwrap().own_limit_at, Some(own));
    let told = "job-a leaves titan01 within 32m 30s: then res-r of bob begins";
    assert!(w.said().iter().any(|said| said == told), "{:?}", w.said());
    w.fsm.check_invariants().unwrap();
}

#[test]
fn the_job_leaves_at_its_last_save_before_the_reservation_and_continues_from_there() {
    let (mut w, a) = full();
    let starts_at = w.now + Millis::hours(2);
    w.reserve("bob", "r", 4, Millis::hours(2), Millis::hours(1)).unwrap();
    let mut seq = 3;
    // It saves each ten minutes; nothing else happens in this fleet but what the state itself names.
    while w.fsm.allocation(&a).unwrap().stop.is_none() {
        let save = w.now + Millis::minutes(10);
        while let Some(at) = w.fsm.next_deadline().filter(|at| *at < save) {
            w.pass(at.since(w.now));
            if w.fsm.allocation(&a).unwrap().deferral.as_ref().is_some_and(|d| d.baseline.is_none())
            {
                w.take_deferral(&a, seq);
            }
        }
        w.pass(save.since(w.now));
        seq += 1;
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let early = starts_at.since(w.now);
    assert!(early <= Millis::minutes(15) && early >= Millis::minutes(1), "{early}");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    let left = w.fsm.job(&job("a")).unwrap();
    assert_eq!((left.state.word(), left.restarts_used, left.preempted_at.len()), ("queued", 0, 1));
    w.release("titan01");
    w.pass(starts_at.since(w.now));
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Active);
}

#[test]
fn one_that_does_not_save_is_stopped_in_time_and_one_that_never_does_begins_again() {
    for spec in [training(), JobSpec { restarts: 0, ..plain(1) }] {
        let mut w = World::with(&["titan01"]);
        let mut spec = scavenger(spec);
        spec.gpus.count = 4;
        let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
        // One that has saved nothing is let alone for a day; its limit is beyond that.
        let ahead = Millis::hours(25);
        w.give(
            person("ada"),
            Command::Job(crate::command::JobCommand::SetTimeLimit {
                id: job("a"),
                time_limit: Millis::days(3),
            }),
        )
        .unwrap();
        w.reserve("bob", "r", 4, ahead, Millis::hours(1)).unwrap();
        let end = end_of(&w, &a);
        w.pass(end.since(w.now).saturating_sub(Millis(1)));
        assert_eq!(w.state_of("a"), "running");
        w.pass(Millis(1));
        assert_eq!(w.state_of("a"), "stopping");
        w.end(&a, AttemptEnd::Exited { code: 143 });
        let left = w.fsm.job(&job("a")).unwrap();
        assert_eq!((left.state.word(), left.restarts_used), ("queued", 0));
    }
}

#[test]
fn a_release_gives_the_time_back_and_an_edit_moves_it() {
    let (mut w, a) = full();
    let own = end_of(&w, &a);
    w.reserve("bob", "r", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(end_of(&w, &a), w.now + Millis::hours(2) - Millis::secs(30));
    let starts_at = Some(w.now + Millis::hours(3));
    let change = ReservationChange { starts_at, ..ReservationChange::default() };
    let edit = ReservationCommand::Edit { id: res("r"), change, seen: None };
    w.give(person("bob"), Command::Reservation(edit)).unwrap();
    assert_eq!(end_of(&w, &a), w.now + Millis::hours(3) - Millis::secs(30));
    let release = ReservationCommand::Release { id: res("r") };
    w.give(person("bob"), Command::Reservation(release)).unwrap();
    assert_eq!(end_of(&w, &a), own);
    assert!(!w.fsm.allocation(&a).unwrap().is_cut());
    let told = "no reservation ends job-a before its time limit any more";
    assert!(w.said().iter().any(|said| said == told), "{:?}", w.said());
    // Nor does anything stop it then.
    w.pass(Millis::hours(4));
    assert_eq!(w.state_of("a"), "running");
}

#[test]
fn nobody_leaves_whose_class_does_not_say_so_or_who_would_not_hear_of_it() {
    let refused = |w: &mut World| {
        let reserved = w.reserve("bob", "r", 1, Millis::hours(2), Millis::hours(1));
        matches!(reserved, Err(Rejection::GpusHeld { .. }))
    };
    let mut w = World::with(&["titan01"]);
    let spec = JobSpec { time_limit: Millis::hours(24), ..plain(4) };
    w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    assert!(refused(&mut w), "it is of the class that a reservation ranks as");

    let (mut w, _) = full();
    set(&mut w, ClassChange { preemptible: Some(Preemptible::Never), ..ClassChange::default() });
    assert!(refused(&mut w));

    let (mut w, _) = full();
    set(&mut w, ClassChange { min_run: Some(Millis::hours(3)), ..ClassChange::default() });
    assert!(refused(&mut w), "its guarantee ends later");

    let (mut w, _) = full();
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(5));
    let silent = NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for };
    w.give(Actor::controller(), Command::Node(silent)).unwrap();
    assert!(refused(&mut w), "its node is not heard");

    let (mut w, _) = full();
    assert!(!refused(&mut w));
}

#[test]
fn what_is_free_comes_first_and_then_what_loses_least() {
    let mut w = World::with(&["titan01", "titan02"]);
    let none = w.run("none", scavenger(plain(1)), "titan01", &[0]);
    w.run("x", JobSpec { time_limit: Millis::hours(24), ..plain(3) }, "titan01", &[1, 2, 3]);
    let mut spec = scavenger(training());
    spec.gpus.count = 3;
    let saves = w.run("saves", spec, "titan02", &[0, 1, 2]);
    w.pass(Millis::minutes(20));
    w.checkpoint(&saves, 1, Millis::ZERO);
    let cut = |w: &World| [&none, &saves].map(|a| w.fsm.allocation(a).unwrap().is_cut());
    w.reserve("bob", "free", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(cut(&w), [false, false], "one GPU is free");
    w.reserve("bob", "r", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(cut(&w), [false, true], "what saves loses nothing");
    w.reserve("bob", "s", 2, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(cut(&w), [false, true], "the rest of what leaves anyhow");
    w.reserve("bob", "t", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(cut(&w), [true, true]);
}

#[test]
fn a_node_that_has_not_heard_of_the_release_stops_it_and_it_is_queued_again() {
    let (mut w, a) = full();
    w.reserve("bob", "r", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    let (epoch, at) = (w.fsm.allocation(&a).unwrap().epoch, end_of(&w, &a));
    let release = ReservationCommand::Release { id: res("r") };
    w.give(person("bob"), Command::Reservation(release)).unwrap();
    w.pass(Millis::hours(3));
    let why = StopWhy::TimeLimit;
    let stopped = Report::StoppedAlone { allocation: a.clone(), epoch, why, at };
    w.report("titan01", stopped).unwrap();
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!(w.state_of("a"), "queued");
}

#[test]
fn what_happens_while_it_stops_costs_it_nothing_either() {
    let mut w = World::with(&["titan01"]);
    let mut spec = scavenger(JobSpec { restarts: 0, ..plain(1) });
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    w.reserve("bob", "r", 4, Millis::hours(2), Millis::hours(1)).unwrap();
    // Of the class that a reservation ranks as, when it was promised already.
    let class = ClassName::normal();
    let set = crate::command::JobCommand::SetClass { id: job("a"), class };
    w.give(person("root"), Command::Job(set)).unwrap();
    let end = end_of(&w, &a);
    w.pass(end.since(w.now));
    assert_eq!(w.state_of("a"), "stopping");
    // Its node reports something in its grace.
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    let left = w.fsm.job(&job("a")).unwrap();
    assert_eq!((left.state.word(), left.restarts_used), ("queued", 0));
}

#[test]
fn it_is_not_asked_within_its_guarantee_and_gets_no_place_before_others() {
    let mut w = World::with(&["titan01", "titan02"]);
    let change = ClassChange {
        min_run: Some(Millis::hours(2)),
        save_limit: Some(Millis::hours(1)),
        ..ClassChange::default()
    };
    set(&mut w, change);
    let mut spec = scavenger(training());
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    w.run("x", JobSpec { time_limit: Millis::hours(24), ..plain(4) }, "titan02", &[0, 1, 2, 3]);
    let began = w.now;
    w.pass(Millis::minutes(50));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.pass(Millis::minutes(50));
    w.checkpoint(&a, 2, Millis::ZERO);
    w.reserve("bob", "r", 4, Millis::minutes(83), Millis::hours(1)).unwrap();
    let asked = loop {
        let at = w.fsm.next_deadline().unwrap();
        w.pass(at.since(w.now));
        if w.fsm.allocation(&a).unwrap().deferral.is_some() {
            break w.now;
        }
    };
    assert_eq!(asked.since(began), Millis::hours(2));
    assert!(crate::scheduler::plan(&w.fsm).held.is_empty(), "a place is held before all new work");
}

#[test]
fn a_reservation_of_next_week_is_no_reason_for_what_its_node_did_alone() {
    let mut w = World::with(&["titan01"]);
    let mut spec = scavenger(JobSpec { restarts: 0, ..plain(1) });
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    w.reserve("bob", "r", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    w.reserve("eve", "next", 4, Millis::days(7), Millis::hours(1)).unwrap();
    let (epoch, at) = (w.fsm.allocation(&a).unwrap().epoch, end_of(&w, &a));
    let release = ReservationCommand::Release { id: res("r") };
    w.give(person("bob"), Command::Reservation(release)).unwrap();
    w.pass(Millis::hours(3));
    let stopped =
        Report::StoppedAlone { allocation: a.clone(), epoch, why: StopWhy::TimeLimit, at };
    w.report("titan01", stopped).unwrap();
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    let left = w.fsm.job(&job("a")).unwrap();
    assert_eq!((left.state.word(), left.restarts_used), ("queued", 0));
    assert!(left.preempted_at.is_empty(), "nobody wanted its GPUs");
}
