//! Jobs that named no time limit: they leave for people who have less, after what their class guarantees.

use super::preemption::{lead, leaves, wait_for_what_comes};
use super::world::{World, job, person, plain, res, training};
use crate::allocation::AttemptEnd;
use crate::command::{Command, JobCommand};
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::rejection::Rejection;
use crate::time::Millis;

fn open(spec: JobSpec) -> JobSpec {
    JobSpec { time_limit: Millis::hours(24), time_limit_given: false, ..spec }
}

/// One node with four GPUs, all of ada's job that named no limit.
fn held_by_ada(spec: JobSpec) -> (World, AllocationId) {
    let mut w = World::with(&["titan01"]);
    let mut spec = open(spec);
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    (w, a)
}

fn limit(w: &mut World, time_limit: Millis) {
    let command = JobCommand::SetTimeLimit { id: job("a"), time_limit };
    w.give(person("ada"), Command::Job(command)).unwrap();
}

#[test]
fn one_that_saves_nothing_has_had_its_time_after_three_hours_where_somebody_waits() {
    let (mut w, a) = held_by_ada(plain(4));
    w.submit("bob", "b", open(plain(1))).unwrap();
    lead(&mut w);
    assert!(!leaves(&w, &a), "its class guarantees two hours");
    while !leaves(&w, &a) {
        wait_for_what_comes(&mut w);
    }
    let began = w.fsm.allocation(&a).unwrap().started_at.unwrap();
    assert_eq!(w.now.since(began), Millis::hours(2));
    let text = &w.fsm.allocation(&a).unwrap().causes.values().next().unwrap().text;
    assert_eq!(text, "it named no time limit, and job-b of bob waits");
    w.pass(Millis::hours(1).saturating_sub(Millis(1)));
    assert_eq!(w.state_of("a"), "running", "its owner has an hour to name a limit");
    w.pass(Millis(1));
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!(w.state_of("a"), "timed_out");
    w.release("titan01");
    lead(&mut w);
    assert_eq!(w.state_of("b"), "starting");
}

#[test]
fn one_that_saves_leaves_at_its_checkpoint_and_is_queued_again() {
    let (mut w, a) = held_by_ada(training());
    w.pass(Millis::hours(3));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    w.take_deferral(&a, 1);
    w.pass(Millis::minutes(5));
    w.checkpoint(&a, 2, Millis::ZERO);
    w.end(&a, AttemptEnd::Exited { code: 0 });
    let left = w.fsm.job(&job("a")).unwrap();
    assert_eq!((left.state.word(), left.restarts_used), ("queued", 0));
    w.release("titan01");
    lead(&mut w);
    assert_eq!((w.state_of("a"), w.state_of("b")), ("queued", "starting"));
}

#[test]
fn its_owner_keeps_the_place_by_naming_a_limit() {
    let (mut w, a) = held_by_ada(plain(4));
    w.submit("bob", "b", plain(1)).unwrap();
    w.pass(Millis::hours(2));
    lead(&mut w);
    assert!(leaves(&w, &a));
    limit(&mut w, Millis::hours(20));
    assert!(!leaves(&w, &a));
    lead(&mut w);
    w.pass(Millis::hours(10));
    lead(&mut w);
    assert_eq!((w.state_of("a"), w.state_of("b")), ("running", "queued"));
    w.fsm.check_invariants().unwrap();
}

#[test]
fn nobody_leaves_for_its_own_owner_or_for_one_who_would_have_more() {
    for (who, gpus, leaves_for) in
        [("ada", 1, false), ("bob", 1, true), ("bob", 4, true), ("cyd", 1, false)]
    {
        let mut w = World::with(&["titan01", "titan02"]);
        let mut spec = open(plain(4));
        spec.gpus.count = 4;
        let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
        let mut held = JobSpec { time_limit: Millis::days(2), ..plain(4) };
        held.gpus.count = 4;
        w.submit("cyd", "c", held).unwrap();
        let c = w.place("c", "titan02", &[0, 1, 2, 3]).unwrap();
        w.start(&c);
        w.pass(Millis::hours(2));
        w.submit(who, "b", plain(gpus)).unwrap();
        lead(&mut w);
        assert_eq!(leaves(&w, &a), leaves_for, "{who} {gpus}");
        assert!(!leaves(&w, &c));
    }
}

#[test]
fn a_reservation_takes_its_place_after_the_same_time() {
    let (mut w, a) = held_by_ada(plain(4));
    let to_leave = Millis::hours(3) + Millis::secs(30 + 120);
    let early = to_leave.saturating_sub(Millis(1));
    let refused = w.reserve("bob", "r", 2, early, Millis::hours(1)).unwrap_err();
    let Rejection::GpusHeld { next: Some(next), .. } = refused else { panic!("{refused}") };
    let late = next.starts_at.since(w.now + to_leave);
    assert!(late >= Millis::minutes(2) && late <= Millis::minutes(7), "{late}");
    w.reserve("bob", "r", 2, to_leave, Millis::hours(1)).unwrap();
    let end = w.fsm.allocation(&a).unwrap().time_limit_at.unwrap();
    w.pass(end.since(w.now));
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!(w.state_of("a"), "timed_out");
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().gpus.len(), 2);
}

#[test]
fn one_person_does_not_lose_everything_to_several() {
    let mut w = World::with(&["titan01"]);
    let ids: Vec<AllocationId> =
        (0..4).map(|at| w.run(&format!("a{at}"), open(plain(1)), "titan01", &[at])).collect();
    w.pass(Millis::hours(2));
    for (who, name) in [("bob", "b0"), ("bob", "b1"), ("cyd", "c0"), ("cyd", "c1")] {
        w.submit(who, name, plain(1)).unwrap();
    }
    lead(&mut w);
    let left = ids.iter().filter(|id| leaves(&w, id)).count();
    assert!((1..=3).contains(&left), "{left} of 4");
}

#[test]
fn large_jobs_of_another_do_not_hide_a_person_who_has_nothing() {
    let mut w = World::with(&["titan01"]);
    let ids: Vec<AllocationId> =
        (0..4).map(|at| w.run(&format!("a{at}"), open(plain(1)), "titan01", &[at])).collect();
    // Nobody leaves for his own.
    for at in 0..5 {
        let mut large = plain(4);
        large.gpus.count = 4;
        w.submit("ada", &format!("l{at}"), large).unwrap();
    }
    w.submit("bob", "b", plain(1)).unwrap();
    w.pass(Millis::hours(2));
    lead(&mut w);
    assert!(ids.iter().any(|id| leaves(&w, id)));
}
