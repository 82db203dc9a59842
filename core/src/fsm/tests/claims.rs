//! A busy fleet drains: places that are held for jobs that must leave.

use super::world::{World, bad, gpu, job, node, person, plain, training};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{Command, JobCommand, NodeCommand};
use crate::health::Severity;
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler;
use crate::time::Millis;

const LONG: Millis = Millis::hours(24);

fn long(spec: JobSpec) -> JobSpec {
    JobSpec { time_limit: LONG, ..spec }
}

/// Two nodes of four GPUs, all busy; `a` runs on titan01:0, saved every 40 minutes, and must leave.
fn full() -> (World, AllocationId) {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", long(training()), "titan01", &[0]);
    for n in 1..4 {
        w.run(&format!("t1-{n}"), long(plain(1)), "titan01", &[n]);
    }
    for n in 0..4 {
        w.run(&format!("t2-{n}"), long(plain(1)), "titan02", &[n]);
    }
    for seq in 1..=4 {
        w.checkpoint(&a, seq, Millis::ZERO);
        w.pass(Millis::minutes(40));
    }
    for n in 0..16 {
        w.submit("bob", &format!("young-{n}"), long(plain(1))).unwrap();
    }
    assert_eq!(w.schedule(), 0);
    (w, a)
}

fn must_leave(w: &mut World, id: &AllocationId, seq: u64) {
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(id, seq);
}

fn ends(w: &mut World, name: &str) {
    let id = w.fsm.job(&job(name)).unwrap().allocation().cloned().unwrap();
    let on = w.fsm.allocation(&id).unwrap().node.to_string();
    w.end(&id, AttemptEnd::Exited { code: 0 });
    w.release(&on);
}

#[test]
fn a_freed_gpu_is_held_for_the_job_that_must_leave() {
    let (mut w, a) = full();
    must_leave(&mut w, &a, 4);
    ends(&mut w, "t2-1");
    assert_eq!(w.schedule(), 0, "sixteen younger jobs wait, and none takes its place");
    w.checkpoint(&a, 5, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping", "at the first save after its place is free");
    assert_eq!(w.schedule(), 0, "the place is held while it stops");
    w.end(&a, AttemptEnd::Exited { code: 143 });
    assert_eq!(w.schedule(), 1);
    let place = w.fsm.job(&job("a")).unwrap().place().cloned().unwrap();
    assert_eq!(place.node, node("titan02"));
}

#[test]
fn who_ends_before_the_save_may_run_there() {
    let (mut w, a) = full();
    // Just saved: the next is expected in 40 minutes.
    w.checkpoint(&a, 5, Millis::ZERO);
    must_leave(&mut w, &a, 5);
    ends(&mut w, "t2-1");
    assert_eq!(w.schedule(), 0);
    w.submit("eve", "short", JobSpec { time_limit: Millis::minutes(20), ..plain(1) }).unwrap();
    assert_eq!(w.schedule(), 1);
    assert_eq!(w.state_of("short"), "starting");
}

#[test]
fn a_hold_ends_and_the_gpu_goes_to_the_queue() {
    let (mut w, a) = full();
    must_leave(&mut w, &a, 4);
    ends(&mut w, "t2-1");
    assert_eq!(w.schedule(), 0);
    // Nothing else happens in this fleet: time alone makes the leader plan again.
    let mut planned = 0;
    for _ in 0..200 {
        let Some(next) = w.fsm.next_deadline() else { break };
        w.now = w.now.max(next);
        w.pass(Millis::ZERO);
        planned = w.schedule();
        if planned > 0 {
            break;
        }
    }
    assert_eq!(planned, 1, "two expected saves did not come");
    let waited =
        w.now.since(w.fsm.job(&job("a")).unwrap().last_checkpoint.as_ref().unwrap().completed_at);
    assert!(waited <= Millis::minutes(2 * 40 + 16), "{waited}");
    // With a new checkpoint it has a claim again.
    w.checkpoint(&a, 5, Millis::ZERO);
    ends(&mut w, "t2-2");
    assert_eq!(w.schedule(), 0);
}

#[test]
fn however_irregular_its_saves_are_a_place_is_not_held_for_longer_than_four_hours() {
    let (mut w, a) = full();
    // After gaps of 40 minutes one of nearly 7 hours: the next save may come at any time between.
    w.pass(Millis::hours(6));
    w.checkpoint(&a, 5, Millis::ZERO);
    must_leave(&mut w, &a, 5);
    ends(&mut w, "t2-1");
    w.pass(Millis::minutes(40 + 4 * 60 - 1));
    assert_eq!(w.schedule(), 0);
    w.pass(Millis::minutes(2));
    assert_eq!(w.schedule(), 1, "the second save that is expected gives no time more");
}

#[test]
fn two_that_must_leave_have_two_places() {
    let (mut w, a) = full();
    let mut conditions = vec![bad("titan01", 0, Severity::Degraded)];
    ends(&mut w, "t1-1");
    w.give(person("root"), Command::Job(JobCommand::Cancel { id: job("young-0") })).unwrap();
    w.submit("ada", "b", long(training())).unwrap();
    w.place("b", "titan01", &[1]).unwrap();
    let b = w.fsm.job(&job("b")).unwrap().allocation().cloned().unwrap();
    w.start(&b);
    conditions.push(bad("titan01", 1, Severity::Degraded));
    w.conditions("titan01", conditions);
    w.take_deferral(&a, 4);
    w.take_deferral(&b, 0);
    ends(&mut w, "t2-0");
    ends(&mut w, "t2-1");
    assert_eq!(w.schedule(), 0);
    ends(&mut w, "t2-2");
    assert_eq!(w.schedule(), 1, "the third one is for the queue");
}

#[test]
fn a_drain_empties_a_full_fleet() {
    let (mut w, a) = full();
    let drain = Command::Node(NodeCommand::Drain {
        node: node("titan01"),
        reason: "disk".to_owned(),
        deadline: None,
    });
    w.give(person("root"), drain).unwrap();
    w.take_deferral(&a, 4);
    w.checkpoint(&a, 5, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping", "nothing is free, and it leaves all the same");
}

#[test]
fn near_its_limit_it_leaves_at_the_last_save_before_it() {
    let mut w = World::with(&["titan01"]);
    let spec = JobSpec { max_deferral: Some(Millis::minutes(100)), ..long(training()) };
    let a = w.run("a", spec, "titan01", &[0]);
    for n in 1..4 {
        w.run(&format!("t1-{n}"), long(plain(1)), "titan01", &[n]);
    }
    for seq in 1..=3 {
        w.checkpoint(&a, seq, Millis::ZERO);
        w.pass(Millis::minutes(40));
    }
    must_leave(&mut w, &a, 3);
    w.checkpoint(&a, 4, Millis::secs(1));
    assert_eq!(w.state_of("a"), "running", "one more comes before the limit");
    w.pass(Millis::minutes(40));
    w.checkpoint(&a, 5, Millis::secs(1));
    assert_eq!(w.state_of("a"), "running");
    w.pass(Millis::minutes(40));
    w.checkpoint(&a, 6, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping", "the next one would come after it");
}

#[test]
fn nobody_who_does_not_continue_elsewhere_holds_a_place() {
    for saves_nothing in [true, false] {
        let mut w = World::with(&["titan01", "titan02"]);
        let spec = if saves_nothing { plain(1) } else { training() };
        let a = w.run("a", long(spec), "titan01", &[0]);
        for n in 0..4 {
            w.run(&format!("t2-{n}"), long(plain(1)), "titan02", &[n]);
        }
        for n in 1..4 {
            w.run(&format!("t1-{n}"), long(plain(1)), "titan01", &[n]);
        }
        w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
        w.take_deferral(&a, 0);
        w.submit("bob", "young", long(plain(1))).unwrap();
        ends(&mut w, "t2-0");
        assert_eq!(w.schedule(), usize::from(saves_nothing));
    }
}

#[test]
fn a_held_place_is_not_promised_to_a_reservation_that_begins_before_it_is_given_up() {
    let (mut w, a) = full();
    must_leave(&mut w, &a, 4);
    ends(&mut w, "t2-1");
    assert_eq!(w.schedule(), 0);
    let plan = scheduler::plan(&w.fsm);
    let held = &plan.held[&job("a")];
    assert_eq!((held.node.as_str(), held.gpus.as_slice()), ("titan02", &[gpu("titan02", 1)][..]));
    assert_eq!(held.window.starts_at, w.now, "it is free, and the save is due");
    let (hour, until) = (Millis::hours(1), held.window.ends_at.since(w.now));
    let Err(Rejection::GpusHeld { holdings, .. }) = w.reserve("eve", "r1", 1, Millis::ZERO, hour)
    else {
        panic!("its place is promised to somebody else")
    };
    assert!(holdings.iter().any(|held| held.holder == "job-a" && held.node == node("titan02")));
    // A promise for later is made: by then the place was taken, or given up.
    w.reserve("eve", "r2", 1, until + Millis::minutes(1), hour).unwrap();
    // With the job gone it is anybody's.
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    w.reserve("eve", "r3", 1, Millis::ZERO, Millis::minutes(10)).unwrap();
}

#[test]
fn a_plan_from_before_the_order_takes_no_held_place() {
    let (mut w, a) = full();
    ends(&mut w, "t2-1");
    let placements = scheduler::placements(&w.fsm);
    assert_eq!(placements.len(), 1, "nobody must leave yet");
    must_leave(&mut w, &a, 4);
    let placed = w.give(Actor::controller(), Command::Job(JobCommand::Place { placements }));
    let Ok(Reply::Placed { results }) = placed else { panic!("{placed:?}") };
    let [Err(refused)] = results.as_slice() else { panic!("{results:?}") };
    assert!(refused.to_string().contains("a GPU is held for a job that must leave"), "{refused}");
    w.checkpoint(&a, 5, Millis::ZERO);
    assert_eq!(w.state_of("a"), "stopping", "its place is there");
}

#[test]
fn where_interrupted_work_takes_a_held_place_another_one_is_held() {
    let (mut w, a) = full();
    ends(&mut w, "t2-0");
    w.submit("ada", "i", long(training())).unwrap();
    let interrupted = w.place("i", "titan02", &[0]).unwrap();
    w.start(&interrupted);
    w.end(&interrupted, AttemptEnd::NodeFault { message: "gone".to_owned() });
    w.release("titan02");
    ends(&mut w, "t2-1");
    // It is tried again after a pause.
    w.pass(Millis::minutes(1));
    let mut placements = scheduler::placements(&w.fsm);
    let named: Vec<_> = placements.iter().map(|line| line.job.as_str().to_owned()).collect();
    assert_eq!(named, ["job-i", "job-young-0"], "the interrupted one first");
    // A plan of another moment has them the other way round.
    let first = placements[0].gpus.clone();
    placements[0].gpus = std::mem::replace(&mut placements[1].gpus, first);
    must_leave(&mut w, &a, 4);
    let held = &scheduler::plan(&w.fsm).held[&job("a")];
    assert_eq!(held.gpus, placements[0].gpus);
    let placed = w.give(Actor::controller(), Command::Job(JobCommand::Place { placements }));
    let Ok(Reply::Placed { results }) = placed else { panic!("{placed:?}") };
    let [Ok(_), Err(refused)] = results.as_slice() else { panic!("{results:?}") };
    assert!(refused.to_string().contains("a GPU is held for a job that must leave"), "{refused}");
}

#[test]
fn what_was_evicted_without_a_checkpoint_has_a_place_of_its_own() {
    let (mut w, a) = full();
    let drain = Command::Node(NodeCommand::Drain {
        node: node("titan01"),
        reason: "disk".to_owned(),
        deadline: Some(w.now + Millis::secs(1)),
    });
    w.give(person("root"), drain).unwrap();
    w.pass(Millis::secs(2));
    let stopping = (1..4).filter(|n| w.state_of(&format!("t1-{n}")) == "stopping").count();
    assert_eq!((w.state_of("a"), stopping), ("stopping", 3), "{a}");
    ends(&mut w, "t2-0");
    ends(&mut w, "t2-1");
    assert_eq!(w.schedule(), 0, "both are for those that are on their way");
}
