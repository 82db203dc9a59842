//! Classes, and work that leaves for jobs of higher classes.

use std::borrow::Cow;

use super::world::{World, bad, job, node, person, plain, training, user};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::class::{Class, ClassChange, Preemptible};
use crate::command::{ClassCommand, Command, JobCommand, NodeCommand};
use crate::health::Severity;
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::name::ClassName;
use crate::preemption::{HELD_FREE_MAX, PREEMPTIONS_OF_A_JOB_MAX};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler;
use crate::time::Millis;

fn class(name: &str) -> ClassName {
    ClassName::parse(name).unwrap()
}

fn of(name: &str, spec: JobSpec) -> JobSpec {
    JobSpec { class: class(name), ..spec }
}

fn give(w: &mut World, command: ClassCommand) -> Result<Reply, Rejection> {
    w.give(person("root"), Command::Class(command))
}

fn set(w: &mut World, name: &str, change: ClassChange) -> Result<Reply, Rejection> {
    give(w, ClassCommand::Set { name: class(name), change: Box::new(change) })
}

/// Does what the leader does, until there is nothing to do.
pub(super) fn lead(w: &mut World) {
    for _ in 0..20 {
        let all = scheduler::next(&w.fsm).commands(&w.fsm);
        if all.is_empty() {
            return;
        }
        for command in all {
            w.give(Actor::controller(), Command::Job(command)).unwrap();
        }
    }
    panic!("the plan never comes to rest");
}

/// What the state's own next instant brings, as the leader waits for it.
pub(super) fn wait_for_what_comes(w: &mut World) {
    let next = w.fsm.next_deadline().unwrap();
    w.pass(next.since(w.now));
    lead(w);
}

pub(super) fn leaves(w: &World, id: &AllocationId) -> bool {
    w.fsm.allocation(id).unwrap().is_preempted()
}

/// One node, all of its four GPUs taken by a scavenger that saves each ten minutes, three times so far.
fn full() -> (World, AllocationId) {
    let mut w = World::with(&["titan01"]);
    let spec = JobSpec { time_limit: Millis::hours(24), ..training() };
    let mut spec = of("scavenger", spec);
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    (w, a)
}

#[test]
fn a_scavenger_leaves_at_its_next_checkpoint_and_is_queued_behind() {
    let (mut w, a) = full();
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    let said: Vec<String> = w.heard.iter().map(|event| w.sentence(event)).collect();
    let ordered = "job-a leaves titan01 for job-b of bob (class normal)";
    assert!(said.iter().any(|line| line == ordered), "{said:#?}");
    assert_eq!(w.state_of("a"), "running");
    w.take_deferral(&a, 3);
    w.pass(Millis::minutes(9));
    w.checkpoint(&a, 4, Millis::ZERO);
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Exited { code: 143 });
    assert_eq!(w.state_of("a"), "queued");
    // Its GPUs are not proven empty yet: the job that they are for waits for them, and so does what left.
    lead(&mut w);
    assert_eq!((w.state_of("a"), w.state_of("b")), ("queued", "queued"));
    w.release("titan01");
    lead(&mut w);
    assert_eq!(w.state_of("b"), "starting");
    assert!(w.fsm.preemptions().is_empty());
    let left = w.fsm.job(&job("a")).unwrap();
    assert_eq!((left.restarts_used, left.preempted_at.len()), (0, 1));
    // With its GPU count it fits nowhere; it resumes when the other job is over.
    assert_eq!(left.state.word(), "queued");
    let b = w.fsm.job(&job("b")).unwrap().allocation().unwrap().clone();
    w.start(&b);
    w.end(&b, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    lead(&mut w);
    assert_eq!(w.state_of("a"), "starting");
}

#[test]
fn nobody_leaves_before_the_time_that_the_class_guarantees() {
    let mut w = World::with(&["titan01"]);
    let change = ClassChange { min_run: Some(Millis::hours(2)), ..ClassChange::default() };
    set(&mut w, "scavenger", change).unwrap();
    let mut spec = of("scavenger", JobSpec { time_limit: Millis::hours(24), ..training() });
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    let began = w.now;
    w.pass(Millis::minutes(10));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    // Nothing else happens in this fleet.
    while !leaves(&w, &a) {
        assert!(w.now.since(began) < Millis::hours(3), "it never leaves");
        wait_for_what_comes(&mut w);
    }
    assert_eq!(w.now.since(began), Millis::hours(2));
}

#[test]
fn what_has_saved_nothing_of_its_own_is_left_alone_for_a_day() {
    let mut w = World::with(&["titan01"]);
    let mut spec = of("scavenger", JobSpec { time_limit: Millis::days(3), ..training() });
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    w.submit("bob", "b", plain(1)).unwrap();
    w.pass(Millis::hours(5));
    lead(&mut w);
    assert!(!leaves(&w, &a));
    // From its first save on it is like any other; the plan looks again by itself.
    w.checkpoint(&a, 1, Millis::ZERO);
    wait_for_what_comes(&mut w);
    assert!(leaves(&w, &a));
}

#[test]
fn one_that_does_not_save_in_time_is_stopped_and_loses_no_restart() {
    let (mut w, a) = full();
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    w.take_deferral(&a, 3);
    w.pass(Millis::minutes(30).saturating_sub(Millis(1)));
    assert_eq!(w.state_of("a"), "running");
    w.pass(Millis(1));
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Exited { code: 143 });
    let left = w.fsm.job(&job("a")).unwrap();
    assert_eq!((left.state.word(), left.restarts_used), ("queued", 0));
}

#[test]
fn what_saves_nothing_leaves_at_once_where_its_class_says_so_and_else_never() {
    for (name, stops) in [("scavenger", true), ("careful", false)] {
        let mut w = World::with(&["titan01"]);
        let first = ClassChange {
            priority: Some(10),
            everybody: Some(true),
            min_run: Some(Millis::ZERO),
            preemptible: Some(Preemptible::Checkpoint),
            ..ClassChange::default()
        };
        give(&mut w, ClassCommand::Create { name: class("careful"), first: Box::new(first) })
            .unwrap();
        w.run("a", of(name, plain(4)), "titan01", &[0, 1, 2, 3]);
        w.pass(Millis::minutes(20));
        w.submit("bob", "b", plain(1)).unwrap();
        lead(&mut w);
        w.pass(Millis(1));
        let state = if stops { "stopping" } else { "running" };
        assert_eq!(w.state_of("a"), state, "{name}");
    }
}

#[test]
fn the_one_that_loses_least_leaves_and_no_more_than_needed() {
    let mut w = World::with(&["titan01", "titan02"]);
    let scavenger = || of("scavenger", JobSpec { time_limit: Millis::hours(24), ..training() });
    // It saves every twenty minutes and has just saved: it loses nothing by leaving at its next save.
    let often = w.run("often", scavenger(), "titan01", &[0]);
    // Every three hours: what it has done since would be lost.
    let rarely = w.run("rarely", scavenger(), "titan01", &[1]);
    let none = w.run("none", of("scavenger", plain(1)), "titan01", &[2]);
    w.run("x", plain(1), "titan01", &[3]);
    w.run("y", plain(4), "titan02", &[0, 1, 2, 3]);
    for at in 1..=18 {
        w.pass(Millis::minutes(2));
        if at % 6 == 0 {
            w.checkpoint(&often, at / 6, Millis::ZERO);
        }
        if at % 17 == 0 {
            w.checkpoint(&rarely, at / 17, Millis::ZERO);
        }
    }
    w.submit("bob", "b", JobSpec { time_limit: Millis::hours(8), ..plain(1) }).unwrap();
    lead(&mut w);
    let all = [&often, &rarely, &none].map(|id| leaves(&w, id));
    assert_eq!(all, [true, false, false]);
}

#[test]
fn what_would_start_as_soon_by_itself_takes_nobodys_place() {
    let (mut w, a) = full();
    // The other job's own limit is over before the scavenger could have left.
    w.boot("titan02", "boot-1").unwrap();
    let spec = JobSpec { time_limit: Millis::minutes(11), ..plain(4) };
    w.run("x", spec, "titan02", &[0, 1, 2, 3]);
    w.submit("bob", "b", plain(4)).unwrap();
    lead(&mut w);
    assert!(!leaves(&w, &a));
}

#[test]
fn who_goes_away_leaves_the_others_where_they_are() {
    let (mut w, a) = full();
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    w.give(person("bob"), Command::Job(JobCommand::Cancel { id: job("b") })).unwrap();
    assert!(!leaves(&w, &a) && w.fsm.preemptions().is_empty());
    assert!(w.fsm.allocation(&a).unwrap().deferral.is_none());
    w.pass(Millis::minutes(9));
    w.checkpoint(&a, 4, Millis::ZERO);
    assert_eq!(w.state_of("a"), "running");
}

#[test]
fn what_was_freed_is_held_for_the_job_that_it_was_freed_for() {
    let (mut w, a) = full();
    w.submit("bob", "b", plain(4)).unwrap();
    lead(&mut w);
    w.take_deferral(&a, 3);
    w.checkpoint(&a, 4, Millis::ZERO);
    w.end(&a, AttemptEnd::Exited { code: 143 });
    // Somebody with a better place in the queue, and an older plan that gives it the GPUs.
    w.submit("cyd", "c", JobSpec { time_limit: Millis::hours(8), ..plain(4) }).unwrap();
    w.release("titan01");
    let refused = w.place("c", "titan01", &[0, 1, 2, 3]).unwrap_err();
    assert!(refused.to_string().contains("held for the job that it was freed for"), "{refused}");
    lead(&mut w);
    assert_eq!((w.state_of("b"), w.state_of("c")), ("starting", "queued"));
}

#[test]
fn a_place_that_is_not_taken_is_given_up() {
    let (mut w, a) = full();
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    w.take_deferral(&a, 3);
    w.checkpoint(&a, 4, Millis::ZERO);
    w.end(&a, AttemptEnd::Exited { code: 143 });
    // Its GPUs are never proven empty.
    let held_until = w.fsm.preemptions()[&job("b")].held_until;
    assert!(held_until >= w.now + HELD_FREE_MAX);
    w.pass(held_until.since(w.now).saturating_sub(Millis(1)));
    assert!(!w.fsm.preemptions().is_empty());
    assert_eq!(w.fsm.next_deadline(), Some(held_until));
    w.pass(Millis(1));
    assert!(w.fsm.preemptions().is_empty());
    let said: Vec<String> = w.said();
    let given_up =
        "nothing leaves for job-b any more: it did not start on the place that was freed";
    assert!(said.iter().any(|line| line == given_up), "{said:#?}");
}

#[test]
fn a_node_that_is_drained_ends_the_preemption_and_the_drain_counts() {
    let (mut w, a) = full();
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    let drain =
        NodeCommand::Drain { node: node("titan01"), reason: "fans".to_owned(), deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    assert!(w.fsm.preemptions().is_empty() && !leaves(&w, &a));
    assert!(w.fsm.allocation(&a).unwrap().deferral.is_some());
}

#[test]
fn work_that_must_leave_for_a_fault_is_nobodys_to_take() {
    let (mut w, a) = full();
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    assert!(!leaves(&w, &a));
}

#[test]
fn a_job_is_preempted_a_few_times_a_day_and_then_left_alone() {
    let (mut w, _) = full();
    let mut seq = 3;
    for round in 0..=PREEMPTIONS_OF_A_JOB_MAX {
        let a = w.fsm.job(&job("a")).unwrap().allocation().unwrap().clone();
        w.start(&a);
        w.pass(Millis::minutes(20));
        seq += 1;
        w.checkpoint(&a, seq, Millis::ZERO);
        let name = format!("b{round}");
        w.submit("bob", &name, plain(4)).unwrap();
        lead(&mut w);
        if round == PREEMPTIONS_OF_A_JOB_MAX {
            assert!(!leaves(&w, &a));
            return;
        }
        assert!(leaves(&w, &a), "round {round}");
        w.take_deferral(&a, seq);
        seq += 1;
        w.checkpoint(&a, seq, Millis::ZERO);
        w.end(&a, AttemptEnd::Exited { code: 143 });
        w.release("titan01");
        lead(&mut w);
        let b = w.fsm.job(&job(&name)).unwrap().allocation().unwrap().clone();
        w.start(&b);
        w.end(&b, AttemptEnd::Exited { code: 0 });
        w.release("titan01");
        lead(&mut w);
    }
}

#[test]
fn one_that_lost_its_place_takes_nobodys() {
    let mut w = World::with(&["titan01", "titan02"]);
    let scavenger = of("scavenger", JobSpec { time_limit: Millis::hours(24), ..training() });
    let mut wide = scavenger.clone();
    wide.gpus.count = 4;
    let low = w.run("low", wide.clone(), "titan02", &[0, 1, 2, 3]);
    let mut middle = training();
    middle.gpus.count = 4;
    middle.time_limit = Millis::hours(24);
    let a = w.run("a", middle, "titan01", &[0, 1, 2, 3]);
    w.pass(Millis::hours(2));
    w.checkpoint(&a, 1, Millis::ZERO);
    // The highest class takes the scavenger's place first: it is lower.
    let urgent = of("urgent", JobSpec { time_limit: Millis::hours(8), ..plain(4) });
    let mut bound = urgent.clone();
    bound.gpus.node = Some(node("titan01"));
    w.submit("root", "u", bound).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a) && !leaves(&w, &low));
    w.take_deferral(&a, 1);
    w.checkpoint(&a, 2, Millis::ZERO);
    w.end(&a, AttemptEnd::Exited { code: 143 });
    w.release("titan01");
    w.checkpoint(&low, 1, Millis::ZERO);
    lead(&mut w);
    assert_eq!((w.state_of("u"), w.state_of("a")), ("starting", "queued"));
    w.pass(Millis::hours(1));
    lead(&mut w);
    assert!(!leaves(&w, &low), "no chain");
}

#[test]
fn a_higher_class_is_served_first_and_only_those_who_may_use_it() {
    let mut w = World::with(&["titan01"]);
    w.run("a", plain(4), "titan01", &[0, 1, 2, 3]);
    w.submit("ada", "n", plain(4)).unwrap();
    w.submit("bob", "s", of("scavenger", plain(4))).unwrap();
    let refused = w.submit("bob", "u", of("urgent", plain(4))).unwrap_err().to_string();
    assert!(refused.contains("somebody who may use class urgent"), "{refused}");
    let mut change = ClassChange::default();
    change.people.add_members = [user("bob")].into();
    set(&mut w, "urgent", change).unwrap();
    w.submit("bob", "u", of("urgent", plain(4))).unwrap();
    let unknown = w.submit("bob", "x", of("golden", plain(4))).unwrap_err().to_string();
    assert_eq!(unknown, "there is no class \"golden\"");
    let plan = scheduler::plan(&w.fsm);
    let places = ["u", "n", "s"].map(|name| plan.waiting[&job(name)].place);
    assert_eq!(places, [1, 2, 3]);
    // Another class is another place.
    let lower = JobCommand::SetClass { id: job("u"), class: class("scavenger") };
    w.give(person("bob"), Command::Job(lower)).unwrap();
    let plan = scheduler::plan(&w.fsm);
    let places = ["n", "u", "s"].map(|name| plan.waiting[&job(name)].place);
    assert_eq!(places, [1, 3, 2]);
    let stranger = JobCommand::SetClass { id: job("u"), class: class("normal") };
    assert!(w.give(person("ada"), Command::Job(stranger)).is_err());
}

#[test]
fn a_class_allows_each_person_so_many_gpus() {
    let mut w = World::with(&["titan01", "titan02"]);
    set(&mut w, "normal", ClassChange { gpus_each: Some(2), ..ClassChange::default() }).unwrap();
    for name in ["a", "b", "c"] {
        w.submit("ada", name, plain(1)).unwrap();
    }
    w.submit("bob", "d", plain(2)).unwrap();
    let refused = w.submit("bob", "e", plain(3)).unwrap_err().to_string();
    assert!(refused.contains("3 is more than class normal allows a person: 2"), "{refused}");
    lead(&mut w);
    let states = ["a", "b", "c", "d"].map(|name| w.state_of(name));
    assert_eq!(states, ["starting", "starting", "queued", "starting"]);
    let why = scheduler::plan(&w.fsm).waiting[&job("c")].reason.to_string();
    assert_eq!(why, "class normal allows 2 GPUs a person; its owner has 2 there");
    let refused = w.place("c", "titan02", &[3]).unwrap_err().to_string();
    assert!(refused.contains("class normal allows"), "{refused}");
    let now = JobSpec { immediate: true, ..plain(1) };
    let refused = w.submit("ada", "f", now).unwrap_err().to_string();
    assert!(refused.contains("class normal allows 2 GPUs a person"), "{refused}");
}

#[test]
fn what_somebody_reserved_is_theirs_beside_the_limit_of_a_class() {
    let mut w = World::with(&["titan01"]);
    set(&mut w, "normal", ClassChange { gpus_each: Some(1), ..ClassChange::default() }).unwrap();
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(8)).unwrap();
    for name in ["a", "b", "c", "d"] {
        w.submit("ada", name, plain(1)).unwrap();
    }
    lead(&mut w);
    let states = ["a", "b", "c", "d"].map(|name| w.state_of(name));
    assert_eq!(states, ["starting", "starting", "starting", "queued"]);
}

#[test]
fn classes_are_changed_as_a_whole_or_not_at_all() {
    let mut w = World::with(&["titan01"]);
    let refusal = |answer: Result<Reply, Rejection>| answer.unwrap_err().to_string();
    let create = |name: &str, first| ClassCommand::Create { name: class(name), first };
    let plain_change = || Box::new(ClassChange::default());
    assert!(w.give(person("ada"), Command::Class(create("x", plain_change()))).is_err());
    assert!(refusal(give(&mut w, create("urgent", plain_change()))).contains("already"));
    for (change, said) in [
        (ClassChange { priority: Some(1_000_001), ..ClassChange::default() }, "more than 1000000"),
        (ClassChange { min_run: Some(Millis::days(8)), ..ClassChange::default() }, "more than 7d"),
        (ClassChange { save_limit: Some(Millis(1)), ..ClassChange::default() }, "not between"),
    ] {
        let said_too = ClassChange { preempts: Some(true), ..change };
        assert!(refusal(set(&mut w, "scavenger", said_too)).contains(said));
    }
    let scavenger = w.fsm.class(&class("scavenger")).map(Cow::into_owned);
    assert_eq!(scavenger, Class::built_in(&class("scavenger")));
    let nobody = ClassChange { everybody: Some(false), ..ClassChange::default() };
    assert!(refusal(set(&mut w, "normal", nobody)).contains("everybody may use normal"));
    let gone = ClassCommand::Remove { name: class("scavenger") };
    assert!(refusal(give(&mut w, gone)).contains("scavenger stays"));
    let open = ClassChange { everybody: Some(true), ..ClassChange::default() };
    give(&mut w, create("x", Box::new(open))).unwrap();
    w.submit("ada", "a", of("x", plain(1))).unwrap();
    let gone = || ClassCommand::Remove { name: class("x") };
    assert_eq!(refusal(give(&mut w, gone())), "class x is in use: job-a");
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    give(&mut w, gone()).unwrap();
}

#[test]
fn several_leave_together_so_that_little_stands_empty() {
    let mut w = World::with(&["titan01"]);
    let spec = || of("scavenger", JobSpec { time_limit: Millis::hours(24), ..training() });
    // One saves every 20 minutes, the others every 2.
    let slow = w.run("slow", spec(), "titan01", &[0]);
    let fast: Vec<AllocationId> =
        (1..4).map(|at: u32| w.run(&format!("fast{at}"), spec(), "titan01", &[at])).collect();
    for at in 1..=30 {
        w.pass(Millis::minutes(2));
        for id in &fast {
            w.checkpoint(id, at, Millis::ZERO);
        }
        if at % 10 == 0 {
            w.checkpoint(&slow, at / 10, Millis::ZERO);
        }
    }
    w.submit("bob", "b", plain(4)).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &slow) && fast.iter().all(|id| leaves(&w, id)));
    w.take_deferral(&slow, 3);
    for id in &fast {
        w.take_deferral(id, 30);
    }
    let ordered = w.now;
    let (mut left, mut seq) = (Vec::new(), 30);
    while left.len() < 4 && w.now.since(ordered) < Millis::minutes(40) {
        w.pass(Millis::minutes(2));
        seq += 1;
        let since = w.now.since(ordered);
        for id in fast.iter().filter(|id| !left.contains(*id)).cloned().collect::<Vec<_>>() {
            w.checkpoint(&id, seq, Millis::ZERO);
            if w.fsm.allocation(&id).unwrap().stop.is_some() {
                assert!(since >= Millis::minutes(16), "{id} left after {since}");
                left.push(id);
            }
        }
        if since == Millis::minutes(20) {
            w.checkpoint(&slow, 4, Millis::ZERO);
            assert!(w.fsm.allocation(&slow).unwrap().stop.is_some());
            left.push(slow.clone());
        }
    }
    assert_eq!(left.len(), 4);
}

/// A scavenger on all four GPUs of a node, which may leave.
fn scavenger(w: &mut World, name: &str, on: &str) -> AllocationId {
    let mut spec = of("scavenger", JobSpec { time_limit: Millis::hours(24), ..training() });
    spec.gpus.count = 4;
    w.run(name, spec, on, &[0, 1, 2, 3])
}

#[test]
fn of_two_jobs_of_one_shape_the_one_whose_place_is_free_starts() {
    let mut w = World::with(&["titan01", "titan02"]);
    let (a, b) = (scavenger(&mut w, "a", "titan01"), scavenger(&mut w, "b", "titan02"));
    w.pass(Millis::minutes(20));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.checkpoint(&b, 1, Millis::ZERO);
    w.submit("bob", "x", plain(4)).unwrap();
    lead(&mut w);
    w.pass(Millis::secs(1));
    w.submit("cyd", "y", plain(4)).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a) && leaves(&w, &b));
    // What leaves for the second saves first.
    let second = w.fsm.preemptions()[&job("y")].node.clone();
    let first_free = if second == node("titan01") { &a } else { &b };
    w.take_deferral(first_free, 1);
    w.checkpoint(first_free, 2, Millis::ZERO);
    w.end(first_free, AttemptEnd::Exited { code: 143 });
    w.release(second.as_str());
    lead(&mut w);
    assert_eq!((w.state_of("x"), w.state_of("y")), ("queued", "starting"));
}

#[test]
fn a_place_that_was_freed_is_no_place_for_a_job_that_must_leave() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = scavenger(&mut w, "a", "titan01");
    let long = JobSpec { time_limit: Millis::hours(24), ..training() };
    let leaver = w.run("l", long, "titan02", &[0]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&leaver, seq, Millis::ZERO);
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let mut bound = JobSpec { time_limit: Millis::hours(8), ..plain(4) };
    bound.gpus.node = Some(node("titan01"));
    w.submit("bob", "b", bound).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    let drain =
        NodeCommand::Drain { node: node("titan02"), reason: "fans".to_owned(), deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    w.take_deferral(&a, 3);
    w.checkpoint(&a, 4, Millis::ZERO);
    w.end(&a, AttemptEnd::Exited { code: 143 });
    w.release("titan01");
    lead(&mut w);
    assert_eq!(w.state_of("b"), "starting");
}

#[test]
fn interrupted_work_of_a_lower_class_takes_no_place_that_is_held_before_it() {
    let mut w = World::with(&["titan01", "titan02"]);
    let long = || JobSpec { time_limit: Millis::hours(24), ..training() };
    let leaver = w.run("l", long(), "titan02", &[0]);
    let low = w.run("s", of("scavenger", long()), "titan01", &[0]);
    let holder = w.run("h", plain(2), "titan01", &[2, 3]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&leaver, seq, Millis::ZERO);
        w.checkpoint(&low, seq, Millis::ZERO);
    }
    let drain =
        NodeCommand::Drain { node: node("titan02"), reason: "fans".to_owned(), deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    // Its node's fault takes the scavenger's place from it, so that it is interrupted.
    w.end(&low, AttemptEnd::NodeFault { message: "shim lost".to_owned() });
    w.release("titan01");
    w.submit("root", "u", of("urgent", JobSpec { time_limit: Millis::hours(8), ..plain(1) }))
        .unwrap();
    lead(&mut w);
    assert_eq!(w.state_of("u"), "starting");
    drop(holder);
}

#[test]
fn a_class_that_changes_ends_what_its_rules_no_longer_allow() {
    for change in [
        ClassChange { preemptible: Some(Preemptible::Never), ..ClassChange::default() },
        ClassChange { min_run: Some(Millis::hours(5)), ..ClassChange::default() },
    ] {
        let (mut w, a) = full();
        w.submit("bob", "b", plain(1)).unwrap();
        lead(&mut w);
        assert!(leaves(&w, &a));
        set(&mut w, "scavenger", change).unwrap();
        assert!(!leaves(&w, &a) && w.fsm.preemptions().is_empty());
        lead(&mut w);
        assert!(!leaves(&w, &a));
    }
}

#[test]
fn a_reservation_of_the_place_and_a_broken_gpu_of_it_end_the_preemption() {
    let (mut w, a) = full();
    w.submit("bob", "b", JobSpec { time_limit: Millis::hours(30), ..plain(1) }).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    // By then the scavenger's own limit is over, so the calendar has room; the other job would still be there.
    w.reserve("cyd", "r", 4, Millis::hours(25), Millis::hours(2)).unwrap();
    assert!(!leaves(&w, &a) && w.fsm.preemptions().is_empty());
    let (mut w, a) = full();
    w.submit("bob", "b", plain(4)).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    assert!(!leaves(&w, &a) && w.fsm.preemptions().is_empty());
}

#[test]
fn a_limit_is_not_passed_by_another_class() {
    let mut w = World::with(&["titan01"]);
    set(&mut w, "scavenger", ClassChange { gpus_each: Some(1), ..ClassChange::default() }).unwrap();
    w.run("a", plain(1), "titan01", &[0]);
    w.run("b", plain(1), "titan01", &[1]);
    let lower = |name| JobCommand::SetClass { id: job(name), class: class("scavenger") };
    w.give(person("ada"), Command::Job(lower("a"))).unwrap();
    let refused = w.give(person("ada"), Command::Job(lower("b"))).unwrap_err().to_string();
    assert!(refused.contains("class scavenger allows 1 GPU a person"), "{refused}");
    w.submit("ada", "wide", plain(3)).unwrap();
    assert!(w.give(person("ada"), Command::Job(lower("wide"))).is_err());
}

#[test]
fn a_drain_that_was_lifted_takes_no_time_from_a_later_save() {
    let (mut w, a) = full();
    let drain =
        NodeCommand::Drain { node: node("titan01"), reason: "fans".to_owned(), deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    w.pass(Millis::hours(1));
    let uncordon = NodeCommand::Uncordon { node: node("titan01") };
    w.give(person("root"), Command::Node(uncordon)).unwrap();
    assert_eq!(w.fsm.allocation(&a).unwrap().deferral_spent, Millis::hours(1));
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    let limit = w.fsm.preemptions()[&job("b")].victims[&a];
    assert_eq!(limit.since(w.now), Millis::minutes(30));
}

#[test]
fn time_spent_for_another_job_is_no_time_of_a_drain() {
    let mut w = World::with(&["titan01"]);
    let mut spec = of("scavenger", JobSpec { time_limit: Millis::hours(24), ..training() });
    spec.gpus.count = 4;
    spec.max_deferral = Some(Millis::minutes(60));
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    w.pass(Millis::minutes(20));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.submit("bob", "b", plain(1)).unwrap();
    lead(&mut w);
    w.pass(Millis::minutes(25));
    let drain =
        NodeCommand::Drain { node: node("titan01"), reason: "fans".to_owned(), deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    let deadline = w.fsm.allocation(&a).unwrap().deferral.as_ref().unwrap().deadline.unwrap();
    assert_eq!(deadline.since(w.now), Millis::minutes(60));
}

#[test]
fn a_job_that_others_leave_for_takes_no_place_that_is_held_for_one_that_must_leave() {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let a = scavenger(&mut w, "a", "titan01");
    let long = JobSpec { time_limit: Millis::hours(24), ..training() };
    let mut wide = long.clone();
    wide.gpus.count = 4;
    let leaver = w.run("l", wide, "titan02", &[0, 1, 2, 3]);
    w.run("x", plain(4), "titan03", &[0, 1, 2, 3]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&leaver, seq, Millis::ZERO);
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let drain =
        NodeCommand::Drain { node: node("titan02"), reason: "fans".to_owned(), deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    w.submit("bob", "b", JobSpec { time_limit: Millis::hours(8), ..plain(4) }).unwrap();
    lead(&mut w);
    assert!(leaves(&w, &a));
    // A place elsewhere gets free: it is held for the one that must leave its node.
    let x = w.fsm.job(&job("x")).unwrap().allocation().unwrap().clone();
    w.end(&x, AttemptEnd::Exited { code: 0 });
    w.release("titan03");
    lead(&mut w);
    assert_eq!(w.state_of("b"), "queued");
}
