//! Deferred eviction: what waits, what triggers, what is never lost.

use super::world::{World, bad, gpu, job, node, person, plain, res, training};
use crate::allocation::AttemptEnd;
use crate::command::{ClusterCommand, Command, NodeCommand, ReservationCommand};
use crate::event::Event;
use crate::health::Severity;
use crate::job::JobState;
use crate::rejection::Rejection;
use crate::time::{Millis, Timestamp};

#[test]
fn a_degraded_gpu_is_left_at_the_next_checkpoint_and_not_before() {
    let mut w = World::with(&["titan01", "titan02"]);
    let first = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&first, 1, Millis::ZERO);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    assert!(
        w.said().iter().any(|s| s.contains("will move after its next checkpoint")),
        "{:?}",
        w.said()
    );
    assert_eq!(w.state_of("a"), "running");

    w.take_deferral(&first, 1);
    // The same checkpoint again is nothing new.
    w.checkpoint(&first, 1, Millis::ZERO);
    assert_eq!(w.state_of("a"), "running");
    w.checkpoint(&first, 2, Millis::ZERO);
    assert_eq!(w.state_of("a"), "stopping");
    assert!(
        w.last
            .iter()
            .any(|e| matches!(e, Event::EvictionStarted { after_checkpoint: Some(2), .. }))
    );

    // A program that saves on SIGTERM and exits 0 was evicted all the same.
    w.end(&first, AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("a"), "queued");
    assert_eq!(w.schedule(), 1);
    let second = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    let a = w.fsm.allocation(&second).unwrap();
    assert_eq!(a.resume_from.as_deref(), Some("/ck/2.pt"));
    assert!(!a.gpus.contains(&gpu("titan01", 0)));
    assert_eq!(w.fsm.job(&job("a")).unwrap().restarts_used, 0);
    // The bad GPU is not given away before it was proven empty, nor after.
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_some());
    w.release("titan01");
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
    w.submit("bob", "b", plain(4)).unwrap();
    w.schedule();
    let place = w.fsm.job(&job("b")).unwrap().place().cloned();
    assert!(place.is_none_or(|p| p.node == node("titan02")), "titan01 has no four good GPUs");
}

#[test]
fn a_checkpoint_before_the_agent_took_the_order_triggers_nothing() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.checkpoint(&a, 1, Millis::ZERO);
    assert_eq!(w.state_of("a"), "running");
    w.take_deferral(&a, 1);
    // The agent reports it long after it was complete, because of a partition.
    w.checkpoint(&a, 2, Millis::minutes(5));
    assert_eq!(w.state_of("a"), "running");
    w.checkpoint(&a, 3, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping");
}

#[test]
fn a_fatal_fault_ends_the_attempt_at_once_and_the_job_goes_on_from_its_checkpoint() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Fatal)]);
    assert_eq!(w.state_of("a"), "stopping");
    assert_eq!(w.fsm.allocation(&a).unwrap().stop.as_ref().unwrap().grace, Millis::ZERO);
    w.end(&a, AttemptEnd::Signaled { signal: 9 });
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((j.state, j.restarts_used), (JobState::Queued, 1));
    assert_eq!(w.schedule(), 1);
}

#[test]
fn a_fault_without_restarts_left_fails_the_job_with_the_cause() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Fatal)]);
    w.end(&a, AttemptEnd::Signaled { signal: 9 });
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!(j.state, JobState::Failed);
    assert!(j.outcome.as_ref().unwrap().reason.contains("page retirement"), "{:?}", j.outcome);
}

#[test]
fn work_that_saves_nothing_may_finish_on_a_degraded_gpu() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.pass(Millis::minutes(59));
    assert_eq!(w.state_of("a"), "running");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("a"), "completed");
}

#[test]
fn the_wait_has_a_limit_and_flapping_does_not_renew_it() {
    let mut w = World::with(&["titan01", "titan02"]);
    let spec = crate::job::JobSpec {
        max_deferral: Some(Millis::minutes(10)),
        time_limit: Millis::hours(20),
        ..training()
    };
    let a = w.run("a", spec, "titan01", &[0]);
    for _ in 0..2 {
        w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
        w.pass(Millis::minutes(4));
        w.conditions("titan01", vec![]);
        assert!(w.fsm.allocation(&a).unwrap().deferral.is_none());
    }
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.pass(Millis::minutes(1));
    assert_eq!(w.state_of("a"), "running");
    w.pass(Millis::minutes(1));
    assert_eq!(w.state_of("a"), "stopping", "eight minutes were spent before");
}

#[test]
fn where_nothing_else_fits_it_runs_on_until_the_limit() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    for (name, index) in [("b", 1), ("c", 2), ("d", 3)] {
        w.run(name, plain(1), "titan01", &[index]);
    }
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(&a, 0);
    w.checkpoint(&a, 1, Millis::ZERO);
    assert_eq!(w.state_of("a"), "running");
    assert!(w.fsm.allocation(&a).unwrap().deferral.as_ref().unwrap().held_back.is_some());
}

#[test]
fn a_drain_empties_the_node_by_the_same_machine() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    let b = w.run("b", plain(1), "titan01", &[1]);
    let deadline = Some(w.now + Millis::minutes(30));
    let reason = "new fans".to_owned();
    w.give(
        person("root"),
        Command::Node(NodeCommand::Drain { node: node("titan01"), reason, deadline }),
    )
    .unwrap();
    w.take_deferral(&a, 0);
    w.checkpoint(&a, 1, Millis::ZERO);
    assert_eq!((w.state_of("a"), w.state_of("b")), ("stopping", "running"));
    w.pass(Millis::minutes(30));
    assert_eq!(w.state_of("b"), "stopping", "the drain's deadline holds for all");
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    w.end(&b, AttemptEnd::Signaled { signal: 15 });
    assert_eq!((w.state_of("a"), w.state_of("b")), ("queued", "failed"));
    let drained = Event::NodeDrained { node: node("titan01") };
    assert!(!w.last.contains(&drained), "its GPUs are not proven empty");
    w.release("titan01");
    assert!(w.last.contains(&drained));
}

#[test]
fn a_drain_takes_no_deadline_that_has_passed() {
    let mut w = World::with(&["titan01"]);
    let job = w.run("a", plain(1), "titan01", &[0]);
    let drain = |deadline: Timestamp| {
        let reason = "new fans".to_owned();
        Command::Node(NodeCommand::Drain {
            node: node("titan01"),
            reason,
            deadline: Some(deadline),
        })
    };
    let refused = w.give(person("root"), drain(w.now - Millis::hours(1)));
    assert!(
        matches!(refused, Err(Rejection::InvalidField { ref field, .. }) if field == "deadline")
    );
    assert_eq!(w.state_of("a"), "running");
    // `now` on a clock that is behind.
    w.give(person("root"), drain(w.now - Millis::minutes(1))).unwrap();
    w.pass(Millis::secs(1));
    assert!(w.fsm.allocation(&job).unwrap().stop.is_some());
}

#[test]
fn a_node_is_not_drained_while_somebody_holds_a_gpu_of_it() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "x", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    let drain = Command::Node(NodeCommand::Drain {
        node: node("titan01"),
        reason: "fans".to_owned(),
        deadline: None,
    });
    w.give(person("root"), drain).unwrap();
    let drained = Event::NodeDrained { node: node("titan01") };
    assert!(!w.last.contains(&drained) && !w.fsm.is_empty(&node("titan01")));
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("x") }))
        .unwrap();
    w.release("titan01");
    assert!(w.last.contains(&drained) && w.fsm.is_empty(&node("titan01")));
}

#[test]
fn a_cancelled_drain_leaves_the_work_alone() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    let reason = "new fans".to_owned();
    w.give(
        person("root"),
        Command::Node(NodeCommand::Drain { node: node("titan01"), reason, deadline: None }),
    )
    .unwrap();
    w.give(person("root"), Command::Node(NodeCommand::Uncordon { node: node("titan01") })).unwrap();
    assert!(w.fsm.allocation(&a).unwrap().deferral.is_none());
    w.checkpoint(&a, 1, Millis::ZERO);
    assert_eq!(w.state_of("a"), "running");
}

#[test]
fn a_storm_freezes_evictions_until_somebody_thaws_them() {
    let names = ["titan01", "titan02", "titan03", "titan04"];
    let mut w = World::with(&names);
    let a = w.run("a", training(), "titan04", &[0]);
    for name in ["titan01", "titan02"] {
        w.conditions(name, vec![bad(name, 0, Severity::Fatal)]);
    }
    w.conditions("titan04", vec![bad("titan04", 0, Severity::Fatal)]);
    assert!(w.last.iter().any(|e| matches!(e, Event::EvictionsFrozen { affected: 3, of: 4 })));
    assert_eq!(w.state_of("a"), "running");
    w.give(person("root"), Command::Cluster(ClusterCommand::ThawEvictions)).unwrap();
    assert_eq!(w.state_of("a"), "stopping");
    let _ = a;
}

#[test]
fn done_means_completed_even_after_a_stop() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(&a, 0);
    w.checkpoint(&a, 1, Millis::ZERO);
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    let mut report = super::world::ended(AttemptEnd::Exited { code: 0 }, true);
    report.done = true;
    w.report("titan01", crate::command::Report::Ended { allocation: a, epoch, report }).unwrap();
    assert_eq!(w.state_of("a"), "completed");
}

#[test]
fn a_story_waits_for_no_checkpoint_of_a_job_that_declares_none() {
    for (deadline, then) in [(None, "it may finish"), (Some(()), "it runs until the deadline")] {
        let mut w = World::with(&["titan01", "titan02"]);
        let a = w.run("a", plain(1), "titan01", &[0]);
        let deadline = deadline.map(|()| w.now + Millis::minutes(30));
        let (node, reason) = (node("titan01"), "driver".to_owned());
        w.give(person("root"), Command::Node(NodeCommand::Drain { node, reason, deadline }))
            .unwrap();
        let said = w.said().join("\n");
        let expected = format!("declares no checkpoint, so {then}");
        assert!(said.contains(&expected) && !said.contains("next checkpoint"), "{said}");
        w.take_deferral(&a, 0);
        assert_eq!(w.said(), ["the node knows that the job must leave"]);
        if deadline.is_some() {
            w.pass(Millis::minutes(30));
            let said = w.said().join("\n");
            assert!(said.contains("evicted without a checkpoint, as it declares none"), "{said}");
        }
    }
}
