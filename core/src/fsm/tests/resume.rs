//! Resuming: which checkpoint the next attempt gets, steps back, questions to the owner, restarts, retries, time.

use std::collections::BTreeSet;

use super::world::{World, bad, job, node, person, plain, saved, training};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::checkpoint::{
    CheckpointId, Content, Passed, Presence, RestartFrom, Resumed, RetryOn, Rule, RuleChoice,
};
use crate::command::{Command, JobCommand, NodeCommand, Report};
use crate::desired::Order;
use crate::fsm::validate;
use crate::health::Severity;
use crate::id::AllocationId;
use crate::job::{CheckpointPlan, JobSpec};
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::time::Millis;

fn current(w: &World) -> AllocationId {
    w.fsm.job(&job("a")).unwrap().allocation().cloned().expect("it has an attempt")
}

/// The checkpoints that the node of the running attempt gets to resume from.
fn told(w: &World) -> Vec<String> {
    let a = w.fsm.allocation(&current(w)).unwrap();
    let desired = w.fsm.desired(&a.node, &[]);
    let order = desired.allocations.into_iter().find(|one| one.id == a.id).unwrap().order;
    let Order::Start(start) = order else { panic!("it has started") };
    let resume = start.resume.expect("it resumes");
    resume.candidates.into_iter().map(|candidate| candidate.path).collect()
}

/// Places the job again; its node takes the first checkpoint that it got.
fn resume(w: &mut World) -> AllocationId {
    assert_eq!(w.schedule(), 1);
    let id = current(w);
    let a = w.fsm.allocation(&id).unwrap().clone();
    let first = w.fsm.job(&job("a")).unwrap().candidates().first().cloned();
    if let Some(first) = first {
        let resumed = Resumed { taken: Some(first.id), path: first.path, ..Resumed::default() };
        let report = Report::Resumed { allocation: id.clone(), epoch: a.epoch, resumed };
        w.report(a.node.as_str(), report).unwrap();
    }
    w.start(&id);
    id
}

fn fail(w: &mut World, id: &AllocationId, code: i32) {
    let on = w.fsm.allocation(id).unwrap().node.to_string();
    w.end(id, AttemptEnd::Exited { code });
    w.release(&on);
}

fn lost(w: &mut World, id: &AllocationId) {
    let on = w.fsm.allocation(id).unwrap().node.to_string();
    w.end(id, AttemptEnd::NodeFault { message: "its shim was lost".to_owned() });
    w.release(&on);
}

#[test]
fn numbers_rise_over_the_life_of_a_job_and_the_newest_whole_one_comes_first() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    for seq in 1..=10 {
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let torn = Some(Content::Torn { why: "cut".to_owned() });
    let changed = |seq, content, presence| Report::CheckpointChanged {
        attempt: None,
        allocation: a.clone(),
        seq,
        content,
        presence,
    };
    w.report("titan01", changed(10, torn, None)).unwrap();
    w.report("titan01", changed(8, None, Some(Presence::Gone))).unwrap();
    lost(&mut w, &a);
    assert_eq!(w.schedule(), 1);
    assert_eq!(told(&w), ["/ck/9.pt", "/ck/7.pt", "/ck/6.pt", "/ck/5.pt", "/ck/4.pt", "/ck/3.pt"]);
    let b = current(&w);
    w.start(&b);
    w.checkpoint(&b, 1, Millis::ZERO);
    let j = w.fsm.job(&job("a")).unwrap();
    let last = j.last_checkpoint.as_ref().unwrap();
    assert_eq!((last.number, last.attempt, last.seq), (11, 2, 1));
    // What the second attempt resumed from was changed meanwhile: its node says so of the first attempt's number 9.
    let content = Some(Content::Torn { why: "written after the resume".to_owned() });
    let on = w.fsm.allocation(&b).unwrap().node.to_string();
    let earlier = Report::CheckpointChanged {
        allocation: b.clone(),
        seq: 9,
        attempt: Some(1),
        content,
        presence: None,
    };
    w.report(&on, earlier).unwrap();
    let candidates = w.fsm.job(&job("a")).unwrap().candidates();
    assert_eq!(candidates[..2].iter().map(|c| c.number).collect::<Vec<_>>(), [11, 7]);
}

#[test]
fn a_failure_soon_after_a_resume_takes_the_one_before_at_most_three_times() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    for seq in 1..=6 {
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    lost(&mut w, &a);
    let restarts = w.fsm.job(&job("a")).unwrap().restarts_used;
    for (code, next) in [(9, "/ck/5.pt"), (3, "/ck/4.pt"), (3, "/ck/3.pt")] {
        let id = resume(&mut w);
        fail(&mut w, &id, code);
        assert_eq!(w.fsm.job(&job("a")).unwrap().candidates()[0].path, next);
    }
    let id = resume(&mut w);
    fail(&mut w, &id, 3);
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((w.state_of("a"), j.restarts_used), ("failed", restarts), "at fleet's own cost");
    let outcome = j.outcome.as_ref().unwrap();
    assert_eq!(outcome.exit_code, Some(9), "that of the first of these failures");
    assert!(outcome.reason.contains("/ck/6.pt: exit code 9; /ck/5.pt: exit code 3"), "{outcome:?}");
}

#[test]
fn a_new_checkpoint_forgets_the_steps_back() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.checkpoint(&a, 2, Millis::ZERO);
    lost(&mut w, &a);
    let b = resume(&mut w);
    fail(&mut w, &b, 1);
    let c = resume(&mut w);
    assert_eq!(w.fsm.allocation(&c).unwrap().resumed, Some(CheckpointId { attempt: 1, seq: 1 }));
    w.checkpoint(&c, 1, Millis::ZERO);
    assert_eq!(w.fsm.job(&job("a")).unwrap().steps_back.taken, 0);
    // With progress of its own a failure is the program's.
    fail(&mut w, &c, 1);
    assert_eq!(w.state_of("a"), "failed");
}

#[test]
fn where_nothing_is_left_the_owner_is_asked_and_nobody_waits_for_it() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    lost(&mut w, &a);
    assert_eq!(w.schedule(), 1);
    let b = current(&w);
    let tried = vec!["checkpoint 1 (/ck/1.pt): it is not there any more".to_owned()];
    w.end(&b, AttemptEnd::NothingToResume { tried });
    w.release("titan01");
    let j = w.fsm.job(&job("a")).unwrap();
    assert!(j.question.as_ref().unwrap().why.contains("/ck/1.pt"), "{:?}", j.question);
    assert!(j.excluded_nodes.is_empty(), "no node is to blame");
    assert_eq!((w.state_of("a"), w.schedule()), ("queued", 0));
    w.submit("bob", "b", plain(4)).unwrap();
    assert_eq!(w.schedule(), 1, "it is in nobody's way");
    let from = RestartFrom::Scratch;
    let restart = |from| Command::Job(JobCommand::Restart { id: job("a"), from, time_limit: None });
    let stranger = w.give(person("eve"), restart(from));
    assert!(matches!(stranger, Err(Rejection::Denied { .. })));
    w.give(person("ada"), restart(from)).unwrap();
    let again = w.give(person("ada"), restart(from));
    assert!(matches!(again, Err(Rejection::NotRestartable { .. })), "{again:?}");
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    assert_eq!(w.state_of("a"), "cancelled");
}

#[test]
fn one_that_asks_can_be_cancelled_and_one_with_only_torn_ones_asks_at_once() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    let content = Some(Content::Torn { why: "cut".to_owned() });
    let torn = Report::CheckpointChanged {
        allocation: a.clone(),
        seq: 1,
        attempt: None,
        content,
        presence: None,
    };
    w.report("titan01", torn).unwrap();
    lost(&mut w, &a);
    let why = w.fsm.job(&job("a")).unwrap().question.clone().unwrap().why;
    assert!(why.ends_with("no usable checkpoint: checkpoint 1 is torn: cut"), "{why}");
    let newest = RestartFrom::Newest;
    let refused = w.give(
        person("ada"),
        Command::Job(JobCommand::Restart { id: job("a"), from: newest, time_limit: None }),
    );
    assert!(matches!(refused, Err(Rejection::NotRestartable { .. })), "{refused:?}");
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    assert_eq!(w.state_of("a"), "cancelled");
}

#[test]
fn a_restart_begins_a_new_limit_and_a_new_budget() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.checkpoint(&a, 2, Millis::ZERO);
    fail(&mut w, &a, 5);
    assert_eq!(w.state_of("a"), "failed");
    let from = RestartFrom::Checkpoint(CheckpointId { attempt: 1, seq: 1 });
    let time_limit = Some(Millis::hours(2));
    w.give(person("ada"), Command::Job(JobCommand::Restart { id: job("a"), from, time_limit }))
        .unwrap();
    assert_eq!(w.said(), ["restarted by ada, from checkpoint 1"]);
    assert_eq!(w.schedule(), 1);
    assert_eq!(told(&w), ["/ck/1.pt"], "its owner's word goes before what is newest");
    let b = current(&w);
    w.start(&b);
    let limit = w.fsm.allocation(&b).unwrap().time_limit_at;
    assert_eq!(limit, Some(w.now + Millis::hours(2)));
    for (from, problem) in [
        (RestartFrom::Newest, "it is running"),
        (RestartFrom::Checkpoint(CheckpointId { attempt: 9, seq: 9 }), "it is running"),
    ] {
        let time_limit = None;
        let refused = w.give(
            person("ada"),
            Command::Job(JobCommand::Restart { id: job("a"), from, time_limit }),
        );
        let Err(Rejection::NotRestartable { why, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(why, problem);
    }
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    w.end(&b, AttemptEnd::Signaled { signal: 15 });
    w.release("titan01");
    let from = RestartFrom::Checkpoint(CheckpointId { attempt: 9, seq: 9 });
    let refused = w.give(
        person("ada"),
        Command::Job(JobCommand::Restart { id: job("a"), from, time_limit: None }),
    );
    let Err(Rejection::NotRestartable { why, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(why, "it has no checkpoint 9-9");
}

#[test]
fn a_restart_from_what_is_gone_or_torn_says_which() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.torn_checkpoint(&a, 2);
    let (content, presence) = (None, Some(Presence::Gone));
    let gone = Report::CheckpointChanged {
        allocation: a.clone(),
        seq: 1,
        attempt: None,
        content,
        presence,
    };
    w.report("titan01", gone).unwrap();
    fail(&mut w, &a, 5);
    for (seq, problem) in [(1, "checkpoint 1 is gone"), (2, "checkpoint 2 is torn: cut")] {
        let from = RestartFrom::Checkpoint(CheckpointId { attempt: 1, seq });
        let restart = Command::Job(JobCommand::Restart { id: job("a"), from, time_limit: None });
        let refused = w.give(person("ada"), restart);
        let Err(Rejection::NotRestartable { why, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(why, problem);
    }
}

#[test]
fn an_evicted_program_that_ends_politely_has_not_completed() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(&a, 0);
    w.checkpoint(&a, 1, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("a"), "queued");
}

#[test]
fn a_torn_checkpoint_makes_nobody_leave() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(&a, 0);
    w.torn_checkpoint(&a, 1);
    assert_eq!(w.state_of("a"), "running");
    assert_eq!(w.said(), ["checkpoint 1 does not count: /ck/1.pt"]);
}

#[test]
fn a_torn_checkpoint_is_no_progress() {
    // A full disk: each save is cut, and the program fails.
    let retry_on = RetryOn { any: true, ..RetryOn::default() };
    let mut w = World::with(&["titan01"]);
    let first = w.run("a", JobSpec { retry_on, ..training() }, "titan01", &[0]);
    let mut id = first;
    for pause in [10, 20, 40] {
        w.torn_checkpoint(&id, 1);
        fail(&mut w, &id, 28);
        let until = w.fsm.paused_until(&job("a")).unwrap();
        assert_eq!(until.since(w.now), Millis::secs(pause), "the pauses grow");
        w.pass(Millis::secs(pause));
        assert_eq!(w.schedule(), 1);
        id = current(&w);
        w.start(&id);
    }
    // An attempt that resumed and saved nothing else takes the one before.
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.checkpoint(&a, 2, Millis::ZERO);
    lost(&mut w, &a);
    let b = resume(&mut w);
    w.torn_checkpoint(&b, 1);
    fail(&mut w, &b, 1);
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((w.state_of("a"), j.steps_back.taken), ("queued", 1));
    assert_eq!(j.candidates()[0].path, "/ck/1.pt");
}

#[test]
fn torn_checkpoints_push_out_no_good_one_and_leave_the_gap_as_it_is() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    for seq in 1..=2 {
        w.checkpoint(&a, seq, Millis::ZERO);
        w.pass(Millis::minutes(10));
    }
    for seq in 3..=20 {
        w.torn_checkpoint(&a, seq);
        w.pass(Millis::minutes(1));
    }
    let j = w.fsm.job(&job("a")).unwrap();
    let numbers: Vec<u64> = j.checkpoints().map(|c| c.number).collect();
    assert_eq!(numbers, [20, 19, 18, 17, 16, 15, 2, 1], "the oldest torn ones are forgotten");
    assert_eq!(j.gaps(), [Millis::minutes(10)]);
    let candidates: Vec<String> = j.candidates().into_iter().map(|c| c.path).collect();
    assert_eq!(candidates, ["/ck/2.pt", "/ck/1.pt"]);
}

#[test]
fn a_job_that_saved_only_torn_checkpoints_begins_again_by_its_restarts() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", JobSpec { restarts: 1, ..training() }, "titan01", &[0]);
    w.torn_checkpoint(&a, 1);
    lost(&mut w, &a);
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((w.state_of("a"), j.restarts_used, &j.question), ("queued", 1, &None));
    assert_eq!(w.schedule(), 1);
}

#[test]
fn one_heard_late_is_listed_under_its_attempt_and_is_not_the_newest() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a =
        w.run("a", JobSpec { stop_after: Some(Millis::minutes(1)), ..training() }, "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    let saved_at = w.now;
    let command = Command::Node(NodeCommand::SetLiveness {
        node: node("titan01"),
        liveness: Liveness::Unreachable,
        silent_for: Millis::minutes(1),
    });
    w.give(Actor::controller(), command).unwrap();
    w.pass(Millis::minutes(1));
    let b = resume(&mut w);
    assert_eq!(w.fsm.allocation(&b).unwrap().node.as_str(), "titan02");
    w.pass(Millis::minutes(1));
    w.checkpoint(&b, 1, Millis::ZERO);
    let late = saved(&a, 2, saved_at + Millis::secs(30), Millis::minutes(6), Content::Whole);
    w.report("titan01", late.clone()).unwrap();
    assert_eq!(w.said(), ["checkpoint 3 saved: /ck/2.pt"]);
    w.report("titan01", late).unwrap();
    assert!(w.said().is_empty(), "said once");
    let j = w.fsm.job(&job("a")).unwrap();
    let listed: Vec<(u64, u32)> = j.checkpoints().map(|c| (c.number, c.attempt)).collect();
    assert_eq!(listed, [(2, 2), (3, 1), (1, 1)]);
    // Nobody else speaks for that attempt.
    let forged = saved(&a, 3, saved_at, Millis::minutes(6), Content::Whole);
    w.report("titan02", forged).unwrap();
    assert_eq!(w.fsm.job(&job("a")).unwrap().checkpoints().count(), 3);
    // What was dropped for newer ones is not new when the node says it again.
    for seq in 2..10 {
        w.checkpoint(&b, seq, Millis::ZERO);
    }
    w.said();
    for seq in 1..3 {
        let again = saved(&a, seq, saved_at, Millis::minutes(6), Content::Whole);
        w.report("titan01", again).unwrap();
    }
    assert!(w.said().is_empty(), "said a second time");
    assert_eq!(w.fsm.job(&job("a")).unwrap().checkpoints_heard, 11);
}

#[test]
fn a_program_that_dies_beside_a_fault_of_its_gpu_resumes() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    let mut lost = bad("titan01", 0, Severity::Degraded);
    lost.kind = "xid_74".to_owned();
    w.conditions("titan01", vec![lost]);
    w.end(&a, AttemptEnd::Exited { code: 1 });
    assert_eq!(w.state_of("a"), "queued");
    // Heat ends no program.
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    let mut hot = bad("titan01", 0, Severity::Degraded);
    hot.kind = "too_hot".to_owned();
    w.conditions("titan01", vec![hot]);
    w.end(&a, AttemptEnd::Exited { code: 1 });
    assert_eq!(w.state_of("a"), "failed");
}

#[test]
fn what_was_saved_after_a_fatal_fault_comes_last() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.pass(Millis::minutes(1));
    let mut fatal = bad("titan01", 0, Severity::Fatal);
    fatal.since = w.now;
    w.pass(Millis::secs(1));
    // The report of the fault comes behind that of what was saved after it.
    w.checkpoint(&a, 2, Millis::ZERO);
    w.conditions("titan01", vec![fatal]);
    w.checkpoint(&a, 3, Millis::ZERO);
    w.end(&a, AttemptEnd::Signaled { signal: 9 });
    // Their content is not checked here, so that only their owner takes them.
    let candidates = w.fsm.job(&job("a")).unwrap().candidates();
    let paths: Vec<&str> = candidates.iter().map(|c| c.path.as_str()).collect();
    assert_eq!(paths, ["/ck/1.pt"]);
}

#[test]
fn failures_that_the_owner_names_are_tried_again_after_a_pause() {
    let retry_on = RetryOn { exit_codes: BTreeSet::from([75]), ..RetryOn::default() };
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", JobSpec { retry_on, ..training() }, "titan01", &[0]);
    fail(&mut w, &a, 75);
    assert_eq!((w.state_of("a"), w.schedule()), ("queued", 0), "it pauses");
    let until = w.fsm.paused_until(&job("a")).unwrap();
    assert_eq!(w.fsm.next_deadline(), Some(until), "nothing else happens in this fleet");
    w.pass(Millis::secs(10));
    assert_eq!(w.schedule(), 1);
    let b = current(&w);
    w.start(&b);
    fail(&mut w, &b, 75);
    assert_eq!(w.fsm.paused_until(&job("a")), Some(w.now + Millis::secs(20)));
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    assert_eq!((w.state_of("a"), w.fsm.paused_until(&job("a"))), ("cancelled", None));
}

#[test]
fn the_limit_runs_over_all_attempts_up_to_what_is_resumed() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", JobSpec { time_limit: Millis::hours(10), ..training() }, "titan01", &[0]);
    w.pass(Millis::hours(4));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.pass(Millis::hours(2));
    let end = AttemptEnd::NodeFault { message: "its shim was lost".to_owned() };
    let report =
        crate::allocation::EndReport { ended_at: w.now, ..super::world::ended(end, false) };
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    w.report("titan01", Report::Ended { allocation: a, epoch, report }).unwrap();
    w.release("titan01");
    assert_eq!(
        w.fsm.job(&job("a")).unwrap().time_left(),
        Millis::hours(6),
        "the fault's 2 h are not counted"
    );
    let b = resume(&mut w);
    let limit = w.fsm.allocation(&b).unwrap().time_limit_at;
    assert_eq!(limit, Some(w.now + Millis::hours(6)));
}

#[test]
fn one_cause_on_one_node_uses_one_restart_where_there_is_another_node() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    lost(&mut w, &a);
    w.place("a", "titan01", &[0]).unwrap();
    let b = current(&w);
    w.start(&b);
    lost(&mut w, &b);
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!(j.restarts_used, 1);
    assert_eq!(j.excluded_nodes.len(), 1, "it goes elsewhere");
}

#[test]
fn what_a_node_passed_over_is_known_afterwards() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.checkpoint(&a, 2, Millis::ZERO);
    lost(&mut w, &a);
    assert_eq!(w.schedule(), 1);
    let b = current(&w);
    let epoch = w.fsm.allocation(&b).unwrap().epoch;
    let why = "model.pt is missing".to_owned();
    let passed = Passed {
        id: CheckpointId { attempt: 1, seq: 2 },
        why: why.clone(),
        content: Some(Content::Torn { why }),
        presence: None,
    };
    let resumed = Resumed {
        taken: Some(CheckpointId { attempt: 1, seq: 1 }),
        path: "/ck/1.pt".to_owned(),
        passed: vec![passed],
        aside: vec!["/ck/2.pt".to_owned()],
        ..Resumed::default()
    };
    w.report("titan01", Report::Resumed { allocation: b, epoch, resumed }).unwrap();
    let said = w.said();
    assert!(
        said[2].starts_with(
            "resumes from checkpoint 1: /ck/1.pt; skipped 1-2: model.pt is missing; moved 1"
        ),
        "{said:?}"
    );
    let j = w.fsm.job(&job("a")).unwrap();
    let newest = j.last_checkpoint.as_ref().unwrap();
    assert_eq!((newest.facts.content.word(), newest.presence), ("torn", Presence::Aside));
}

/// Each checkpoint has the name of the one before; the third save was cut.
#[test]
fn a_kept_one_is_a_candidate_and_is_back_under_its_name_when_it_is_taken() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    for seq in 1..=2 {
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let lost_as = |seq, presence| Report::CheckpointChanged {
        allocation: a.clone(),
        seq,
        attempt: None,
        content: None,
        presence: Some(presence),
    };
    w.report("titan01", lost_as(1, Presence::Gone)).unwrap();
    w.report("titan01", lost_as(2, Presence::Kept)).unwrap();
    lost(&mut w, &a);
    assert_eq!(w.schedule(), 1);
    assert_eq!(told(&w), ["/ck/2.pt"]);
    let b = current(&w);
    let epoch = w.fsm.allocation(&b).unwrap().epoch;
    let resumed = Resumed {
        taken: Some(CheckpointId { attempt: 1, seq: 2 }),
        path: "/ck/2.pt".to_owned(),
        aside: vec!["/ck/2.pt".to_owned()],
        from_kept: true,
        ..Resumed::default()
    };
    w.report("titan01", Report::Resumed { allocation: b, epoch, resumed }).unwrap();
    let said = w.said();
    let words = "resumes from checkpoint 2: /ck/2.pt, which fleet had kept and put back";
    assert!(said.iter().any(|line| line.starts_with(words)), "{said:?}");
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!(j.last_checkpoint.as_ref().unwrap().presence, Presence::There);
}

#[test]
fn options_about_checkpoints_are_checked() {
    let plan = |change: &dyn Fn(&mut CheckpointPlan)| {
        let mut spec = training();
        change(spec.checkpoint.as_mut().expect("it saves"));
        validate::job_spec(&spec)
    };
    assert!(plan(&|plan| plan.signal = Some(10)).is_ok());
    for signal in [0, 9, 19, 65] {
        assert!(plan(&|plan| plan.signal = Some(signal)).is_err(), "{signal}");
    }
    for (dir, is_legal) in [
        ("/runs/x/{attempt}", true),
        ("/runs/x/{attempt}/", true),
        ("/{attempt}", true),
        ("/runs/{attempt}/ck", false),
        ("/runs/x-{attempt}", false),
        ("/runs/{attempt}/{attempt}", false),
        ("{attempt}", false),
    ] {
        let said = plan(&|plan| plan.dir = dir.to_owned());
        assert_eq!(said.is_ok(), is_legal, "{dir}: {said:?}");
    }
    let Err(Rejection::InvalidField { field, problem }) =
        plan(&|plan| plan.dir = "/runs/{attempt}/ck".to_owned())
    else {
        panic!("not the last part")
    };
    assert_eq!(field, "--checkpoint-dir");
    assert!(
        problem.contains("\"/runs/{attempt}/ck\": {attempt} must be the last part"),
        "{problem}"
    );
    assert!(plan(&|plan| plan.by_variable = true).is_err(), "no directory of its own");
    assert!(plan(&|plan| (plan.by_variable, plan.dir) = (true, "/x/{attempt}".to_owned())).is_ok());
    let file = || RuleChoice::Only(Rule::File);
    assert!(plan(&|plan| plan.rule = file()).is_ok());
    assert!(plan(&|plan| (plan.rule, plan.pattern) = (file(), None)).is_err());
    for codes in [vec![0], vec![256], (1..=65).collect()] {
        let retry_on = RetryOn { exit_codes: codes.into_iter().collect(), ..RetryOn::default() };
        assert!(validate::job_spec(&JobSpec { retry_on, ..training() }).is_err());
    }
    let resume_from = Some("relative.pt".to_owned());
    assert!(validate::job_spec(&JobSpec { resume_from, ..training() }).is_err());
}

#[test]
fn two_jobs_in_one_directory_are_told_and_nothing_is_moved() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.submit("bob", "b", training()).unwrap();
    let notes = &w.fsm.job(&job("b")).unwrap().checkpoint_notes;
    assert!(
        notes[0].to_string().starts_with("job-a has the same checkpoint directory"),
        "{notes:?}"
    );
    lost(&mut w, &a);
    w.place("a", "titan01", &[0]).unwrap();
    let allocation = w.fsm.allocation(&current(&w)).unwrap();
    let order = w.fsm.resume_order(w.fsm.job(&job("a")).unwrap(), allocation).unwrap();
    assert!(order.shared_dir && order.others_dead, "{order:?}");
}
