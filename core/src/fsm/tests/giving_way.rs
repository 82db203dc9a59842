//! Attempts that a reservation cuts short: their preparation took long, and it begins before their time is over.

use super::world::{World, job, person, plain, res, training};
use crate::allocation::{AttemptEnd, GIVES_WAY_LEAD, StopWhy};
use crate::command::{Command, Report, ReservationCommand};
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::reservation::ReservationState;
use crate::time::{Millis, Timestamp};

const CAUSE: &str = "reservation res-r of bob begins on its GPUs";

/// A job of one hour on titan01. Bob's reservation begins 61 minutes after its placement, its preparation takes 20.
fn cut(spec: JobSpec) -> (World, AllocationId, Timestamp) {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", spec).unwrap();
    let a = w.place("a", "titan01", &[0]).unwrap();
    w.reserve("bob", "r", 4, Millis::minutes(61), Millis::hours(1)).unwrap();
    w.pass(Millis::minutes(20));
    w.start(&a);
    let at = w.fsm.allocation(&a).unwrap().time_limit_at.unwrap();
    assert_eq!(at.since(w.now), Millis::secs(41 * 60 - 30));
    (w, a, at)
}

fn until(w: &mut World, at: Timestamp) {
    w.pass(at.since(w.now));
}

fn is_deferred(w: &World, a: &AllocationId) -> bool {
    w.fsm.allocation(a).unwrap().deferral.is_some()
}

fn evicted(w: &World, a: &AllocationId) -> bool {
    let stop = w.fsm.allocation(a).unwrap().stop.as_ref();
    stop.is_some_and(|s| matches!(&s.why, StopWhy::Evicted { causes, .. } if causes == &[CAUSE]))
}

#[test]
fn a_job_that_saves_is_asked_for_a_checkpoint_leaves_at_it_and_is_queued_again() {
    let (mut w, a, at) = cut(training());
    until(&mut w, at - GIVES_WAY_LEAD - Millis(1));
    w.checkpoint(&a, 1, Millis::ZERO);
    assert!(!is_deferred(&w, &a));
    assert_eq!(w.fsm.next_deadline(), Some(at - GIVES_WAY_LEAD));
    w.pass(Millis(1));
    assert!(is_deferred(&w, &a));
    w.take_deferral(&a, 1);
    w.pass(Millis::minutes(2));
    w.checkpoint(&a, 2, Millis::ZERO);
    assert!(evicted(&w, &a));
    w.heard.clear();
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((w.state_of("a"), j.restarts_used, j.queue.rank), ("queued", 0, 0));
    let told = format!("queued again (evicted ({CAUSE})), will continue from");
    assert!(w.heard.iter().any(|event| w.sentence(event).starts_with(&told)));
    w.release("titan01");
    until(&mut w, at + Millis::secs(30));
    let state = &w.fsm.reservation(&res("r")).unwrap().state;
    assert_eq!(*state, ReservationState::Active, "bob waits for nobody");
}

#[test]
fn a_job_that_does_not_save_in_time_leaves_when_the_reservation_begins() {
    let (mut w, a, at) = cut(training());
    w.checkpoint(&a, 1, Millis::ZERO);
    until(&mut w, at - Millis(1));
    assert!(is_deferred(&w, &a) && w.fsm.allocation(&a).unwrap().stop.is_none());
    w.pass(Millis(1));
    assert!(evicted(&w, &a));
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!((w.state_of("a"), w.fsm.job(&job("a")).unwrap().restarts_used), ("queued", 0));
}

#[test]
fn a_job_without_checkpoints_is_restarted_as_often_as_its_owner_allows() {
    for (restarts, state) in [(1, "queued"), (0, "failed")] {
        let (mut w, a, at) = cut(JobSpec { restarts, ..plain(1) });
        until(&mut w, at - Millis(1));
        assert!(!is_deferred(&w, &a), "there is nothing to wait for");
        w.pass(Millis(1));
        assert!(evicted(&w, &a));
        w.end(&a, AttemptEnd::Signaled { signal: 15 });
        assert_eq!(
            (w.state_of("a"), w.fsm.job(&job("a")).unwrap().restarts_used),
            (state, restarts)
        );
    }
}

#[test]
fn a_job_that_is_still_in_preparation_is_queued_again_at_no_cost() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    let a = w.place("a", "titan01", &[0]).unwrap();
    w.reserve("bob", "r", 4, Millis::minutes(61), Millis::hours(1)).unwrap();
    w.pass(Millis::secs(61 * 60 - 31));
    assert_eq!(w.fsm.next_deadline(), Some(w.now + Millis::secs(1)));
    assert!(w.fsm.allocation(&a).unwrap().stop.is_none());
    w.pass(Millis::secs(1));
    assert!(evicted(&w, &a));
    w.end(&a, AttemptEnd::CannotStart { message: "told to stop".to_owned() });
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((w.state_of("a"), j.restarts_used, j.spec.restarts), ("queued", 0, 0));
}

#[test]
fn a_job_gets_its_own_time_back_when_the_reservation_is_cancelled() {
    for early in [true, false] {
        let (mut w, a, at) = cut(training());
        let own = w.fsm.allocation(&a).unwrap().own_limit_at.unwrap();
        if !early {
            until(&mut w, at - Millis::minutes(1));
            assert!(is_deferred(&w, &a));
            w.take_deferral(&a, 0);
        }
        w.give(person("bob"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
            .unwrap();
        w.checkpoint(&a, 1, Millis::ZERO);
        assert!(w.fsm.allocation(&a).unwrap().stop.is_none(), "nobody comes");
        until(&mut w, at);
        assert!(!is_deferred(&w, &a));
        assert_eq!(w.fsm.allocation(&a).unwrap().time_limit_at, Some(own));
        until(&mut w, own);
        assert_eq!(w.fsm.allocation(&a).unwrap().stop.as_ref().unwrap().why, StopWhy::TimeLimit);
        w.end(&a, AttemptEnd::Signaled { signal: 15 });
        assert_eq!(w.state_of("a"), "timed_out");
    }
}

#[test]
fn what_its_node_stopped_alone_gave_way_whether_the_node_speaks_first_or_not() {
    for (time_first, after_own, state) in
        [(false, false, "queued"), (true, false, "queued"), (false, true, "timed_out")]
    {
        let (mut w, a, at) = cut(training());
        w.checkpoint(&a, 1, Millis::ZERO);
        let allocation = w.fsm.allocation(&a).unwrap();
        let (epoch, own) = (allocation.epoch, allocation.own_limit_at.unwrap());
        w.agents_answer = false;
        w.now = at + Millis::hours(9);
        if time_first {
            w.pass(Millis::ZERO);
            assert_eq!(
                w.fsm.allocation(&a).unwrap().stop.as_ref().unwrap().why,
                StopWhy::TimeLimit
            );
        }
        let at = if after_own { own } else { at };
        let stopped =
            Report::StoppedAlone { allocation: a.clone(), epoch, why: StopWhy::TimeLimit, at };
        w.report("titan01", stopped.clone()).unwrap();
        let before = w.fsm.audit_head().0;
        w.report("titan01", stopped).unwrap();
        assert_eq!(w.fsm.audit_head().0, before, "said again with every connection");
        w.end(&a, AttemptEnd::Signaled { signal: 15 });
        assert_eq!(w.state_of("a"), state, "time first: {time_first}");
    }
}
