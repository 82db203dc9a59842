//! Jobs whose time is changed, and jobs whose reservation is over.

use super::world::{World, bad, gpu, job, node, person, plain, res};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{Command, JobCommand, NodeCommand, ReservationCommand};
use crate::desired::Order;
use crate::event::Event;
use crate::health::Severity;
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;
use crate::view;

fn set(w: &mut World, who: &str, name: &str, limit: Millis) -> Result<Reply, Rejection> {
    w.give(person(who), Command::Job(JobCommand::SetTimeLimit { id: job(name), time_limit: limit }))
}

fn refusal(answer: Result<Reply, Rejection>) -> String {
    answer.unwrap_err().to_string()
}

fn within(name: &str) -> JobSpec {
    JobSpec { reservation: Some(res(name)), time_limit_given: false, ..plain(1) }
}

/// Places job-a, which waits, and lets it run.
fn begin(w: &mut World) -> AllocationId {
    assert_eq!(w.schedule(), 1);
    let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&id);
    id
}

fn outcome(w: &World, name: &str) -> (String, String) {
    let job = w.fsm.job(&job(name)).unwrap();
    (job.state.word().to_owned(), job.outcome.as_ref().map_or("", |o| &o.reason).to_owned())
}

#[test]
fn the_limit_of_a_running_job_counts_from_its_start() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    let started_at = w.now;
    w.pass(Millis::minutes(5));
    set(&mut w, "ada", "a", Millis::minutes(9)).unwrap();
    assert_eq!(w.said(), ["time limit set to 9m by ada: it ends in 4m"]);
    let allocation = w.fsm.allocation(&a).unwrap();
    assert_eq!(allocation.time_limit_at, Some(started_at + Millis::minutes(9)));
    w.pass(Millis::minutes(3));
    assert!(w.fsm.allocation(&a).unwrap().stop.is_none());
    set(&mut w, "ada", "a", Millis::hours(5)).unwrap();
    w.pass(Millis::hours(4));
    assert!(w.fsm.allocation(&a).unwrap().stop.is_none(), "it was made longer again");
    w.pass(Millis::hours(1));
    assert!(w.fsm.allocation(&a).unwrap().stop.is_some());
    let said = refusal(set(&mut w, "ada", "a", Millis::hours(9)));
    assert!(said.contains("job-a is being stopped"), "{said}");
}

#[test]
fn a_limit_that_is_over_already_stops_nothing() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.pass(Millis::minutes(12));
    let said = refusal(set(&mut w, "ada", "a", Millis::minutes(12)));
    assert!(said.contains("job-a has run for 12m already; `fleet cancel` ends it"), "{said}");
    assert!(w.fsm.allocation(&a).unwrap().stop.is_none());
    assert_eq!(w.fsm.job(&job("a")).unwrap().spec.time_limit, Millis::hours(1));
    for limit in [Millis::ZERO, Millis::days(61)] {
        let said = refusal(set(&mut w, "ada", "a", limit));
        assert!(said.contains("must be more than 0 and at most 60d"), "{said}");
    }
    assert!(set(&mut w, "bea", "a", Millis::minutes(20)).is_err(), "it is not hers");
    set(&mut w, "root", "a", Millis::minutes(20)).unwrap();
    w.end(&a, AttemptEnd::Exited { code: 0 });
    let said = refusal(set(&mut w, "ada", "a", Millis::hours(2)));
    assert!(said.contains("completed"), "{said}");
}

#[test]
fn a_job_does_not_grow_into_what_is_promised_to_somebody_else() {
    let mut w = World::with(&["titan01"]);
    w.run("a", plain(4), "titan01", &[0, 1, 2, 3]);
    w.reserve("bea", "b", 4, Millis::hours(2), Millis::hours(1)).unwrap();
    w.pass(Millis::minutes(30));
    let said = refusal(set(&mut w, "ada", "a", Millis::hours(3)));
    // The time to stop is the promise's, too.
    let most = "at most 1h 59m: then a GPU of it is reserved for bea (res-b)";
    assert!(said.contains(most), "{said}");
    set(&mut w, "ada", "a", Millis::minutes(119)).unwrap();
    w.give(person("bea"), Command::Reservation(ReservationCommand::Release { id: res("b") }))
        .unwrap();
    set(&mut w, "ada", "a", Millis::hours(3)).unwrap();
}

#[test]
fn the_limit_of_a_waiting_job_is_what_it_asks_for() {
    let mut w = World::with(&["titan01"]);
    w.run("a", plain(4), "titan01", &[0, 1, 2, 3]);
    w.submit("ada", "b", plain(4)).unwrap();
    set(&mut w, "ada", "b", Millis::minutes(7)).unwrap();
    assert_eq!(w.said(), ["time limit set to 7m by ada"]);
    assert_eq!(w.fsm.job(&job("b")).unwrap().spec.time_limit, Millis::minutes(7));
    assert!(w.fsm.job(&job("b")).unwrap().allocation().is_none());
}

#[test]
fn a_job_stays_within_its_reservation() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    w.submit("ada", "a", within("r")).unwrap();
    begin(&mut w);
    let said = refusal(set(&mut w, "ada", "a", Millis::hours(2)));
    assert!(
        said.contains(
            "at most 1h: its reservation res-r ends then. To extend it: fleet extend res-r"
        )
    );
    set(&mut w, "ada", "a", Millis::minutes(30)).unwrap();
}

#[test]
fn a_job_in_a_reservation_is_seen_to_end_with_it_at_the_latest() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    w.submit("ada", "a", JobSpec { time_limit: Millis::hours(24), ..within("r") }).unwrap();
    assert_eq!(w.schedule(), 1);
    let ends_by = |w: &World| {
        let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
        view::job::ends_by(&w.fsm, w.fsm.allocation(&id).unwrap())
    };
    assert_eq!(ends_by(&w), None, "it has not started");
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    assert_eq!(ends_by(&w), Some(w.fsm.reservation(&res("r")).unwrap().window.ends_at));
    set(&mut w, "ada", "a", Millis::minutes(20)).unwrap();
    assert_eq!(ends_by(&w), Some(w.now + Millis::minutes(20)));
}

#[test]
fn a_reservation_says_what_is_wrong_with_its_gpus() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(1)).unwrap();
    w.reserve("ada", "s", 4, Millis::days(5), Millis::hours(1)).unwrap();
    let told = |w: &World, name: &str| {
        let reservation = w.fsm.reservation(&res(name)).unwrap();
        view::reservation::broken(&w.fsm, reservation).map(|broken| broken.to_string())
    };
    assert_eq!(told(&w, "r"), None);
    w.conditions("titan01", vec![bad("titan01", 2, Severity::Fatal)]);
    let has = told(&w, "r").unwrap();
    assert!(has.starts_with("titan01:2 is unhealthy: "), "{has}");
    assert!(has.ends_with("; to get another GPU, reserve again"), "{has}");
    let will = told(&w, "s").unwrap();
    assert!(will.ends_with("; fleet replaces it at the start if another GPU is free"), "{will}");
    w.conditions("titan01", (0..4).map(|n| bad("titan01", n, Severity::Fatal)).collect());
    assert!(told(&w, "r").unwrap().contains(", and 1 more; "));
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert_eq!(told(&w, "r"), None, "it is being emptied");
}

#[test]
fn who_waits_for_a_reservation_that_ends_is_over_with_it() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    w.submit("ada", "a", within("r")).unwrap();
    let a = begin(&mut w);
    w.submit("ada", "b", within("r")).unwrap();
    w.submit("ada", "c", plain(4)).unwrap();
    w.heard.clear();
    w.pass(Millis::hours(1));
    let node = w.fsm.desired(&node("titan01"), std::slice::from_ref(&a));
    let orders: Vec<_> = node.allocations.iter().map(|one| &one.order).collect();
    let said = "its reservation res-r ended";
    assert!(matches!(&orders[..], [Order::Stop { why, .. }] if why == said), "{orders:?}");
    let over = "its reservation res-r is over, and it still waited";
    assert_eq!(outcome(&w, "b"), ("timed_out".to_owned(), over.to_owned()));
    assert!(w.heard.iter().any(|event| w.sentence(event) == format!("timed out: {over}")));
    assert_eq!(outcome(&w, "c").0, "queued", "it is bound to none");
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!(outcome(&w, "a"), ("timed_out".to_owned(), "its reservation ended".to_owned()));
    assert!(w.said().contains(&"timed out: its reservation ended".to_owned()), "{:?}", w.said());
}

#[test]
fn who_waits_for_a_reservation_that_is_cancelled_is_over_with_it() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::days(3), Millis::hours(1)).unwrap();
    w.submit("ada", "a", within("r")).unwrap();
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert_eq!(outcome(&w, "a").0, "timed_out");
}

#[test]
fn what_a_fault_ended_waits_again_while_its_reservation_lasts() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    w.submit("ada", "a", JobSpec { restarts: 3, ..within("r") }).unwrap();
    let a = begin(&mut w);
    w.pass(Millis::minutes(10));
    w.end(&a, AttemptEnd::Lost { message: "the node booted".to_owned() });
    assert_eq!(outcome(&w, "a").0, "queued");
}

#[test]
fn what_a_fault_ended_does_not_wait_for_a_reservation_that_is_over() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    w.submit("ada", "a", JobSpec { restarts: 3, ..within("r") }).unwrap();
    let a = begin(&mut w);
    w.pass(Millis::hours(1));
    w.end(&a, AttemptEnd::Lost { message: "the node booted".to_owned() });
    let (state, why) = outcome(&w, "a");
    assert_eq!(state, "timed_out", "{why}");
}

#[test]
fn starts_and_ends_of_what_holds_a_gpu_name_it_and_its_owner() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    let named = |w: &World| {
        w.heard.iter().any(|event| {
            matches!(event, Event::ReservationStarted { owner, gpus, .. }
                if owner.as_str() == "ada" && *gpus == [gpu("titan01", 0)])
                && event.objects().contains(&gpu("titan01", 0).to_string())
        })
    };
    assert!(named(&w));
    w.pass(Millis::hours(1));
    w.release("titan01");
    let released = w.last.iter().find_map(|event| match event {
        Event::GpusReleased { holder, node: on, .. } if *on == node("titan01") => {
            Some(holder.clone())
        }
        _ => None,
    });
    assert_eq!(released.as_deref(), Some("res-r"));
}

/// A job of an hour whose node falls silent after `minutes`. It allows a silence of ten. Nobody advances time for three
/// hours.
fn silent_after(minutes: u64) -> World {
    let mut w = World::with(&["titan01"]);
    let stop_after = Some(Millis::minutes(10));
    w.run("a", JobSpec { restarts: 1, stop_after, ..plain(1) }, "titan01", &[0]);
    w.pass(Millis::minutes(minutes));
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(1));
    let silent =
        Command::Node(NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for });
    w.give(Actor::controller(), silent).unwrap();
    w.pass(Millis::hours(3));
    w
}

#[test]
fn what_is_lost_after_the_stop_at_its_limit_timed_out_and_has_no_code() {
    let lost = AttemptEnd::Lost { message: "its shim is gone".to_owned() };
    let fault = AttemptEnd::NodeFault { message: "no exit record".to_owned() };
    let by_signal = [(AttemptEnd::Exited { code: 0 }, Some(0)), (lost, None), (fault, None)];
    for (end, code) in by_signal {
        let mut w = World::with(&["titan01"]);
        let a = w.run("a", JobSpec { restarts: 3, ..plain(1) }, "titan01", &[0]);
        w.pass(Millis::hours(1));
        w.end(&a, end);
        assert_eq!(outcome(&w, "a"), ("timed_out".to_owned(), "its time limit".to_owned()));
        let ended = w.fsm.job(&job("a")).unwrap().outcome.clone().unwrap();
        assert_eq!(ended.exit_code, code, "an attached `fleet run` makes 125 of both");
    }
}

#[test]
fn a_job_that_was_lost_before_its_time_was_over_has_not_timed_out() {
    assert_eq!(outcome(&silent_after(20), "a").0, "queued", "lost first");
    assert_eq!(outcome(&silent_after(55), "a").0, "timed_out", "out of time first");
}
