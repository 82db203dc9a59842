//! Other nodes say whether a job that must leave could continue there.

use super::world::{World, bad, gpu, job, node, person, plain, training};
use crate::allocation::AttemptEnd;
use crate::command::{Command, NodeCommand, Report};
use crate::health::Severity;
use crate::id::AllocationId;
use crate::time::Millis;

const NO_MARKER: &str = "/ck is not the directory the earlier attempt saved in (no marker there)";

fn drain(w: &mut World, deadline: Option<Millis>) {
    let deadline = deadline.map(|length| w.now + length);
    let drain = Command::Node(NodeCommand::Drain {
        node: node("titan01"),
        reason: "disk".to_owned(),
        deadline,
    });
    w.give(person("root"), drain).unwrap();
}

fn asked(w: &World, name: &str) -> Vec<AllocationId> {
    w.fsm.desired(&node(name), &[]).probes.into_iter().map(|probe| probe.allocation).collect()
}

fn answers(w: &mut World, on: &str, id: &AllocationId, problem: Option<&str>) {
    let problem = problem.map(str::to_owned);
    w.report(on, Report::Probed { allocation: id.clone(), problem }).unwrap();
}

#[test]
fn a_job_whose_checkpoints_no_other_node_sees_stays_until_the_deadline_of_a_drain() {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    drain(&mut w, Some(Millis::hours(1)));
    w.take_deferral(&a, 1);
    assert!(asked(&w, "titan01").is_empty(), "its own node sees them");
    for name in ["titan02", "titan03"] {
        assert_eq!(asked(&w, name), std::slice::from_ref(&a));
        answers(&mut w, name, &a, Some(NO_MARKER));
        assert!(asked(&w, name).is_empty(), "asked once");
    }
    w.checkpoint(&a, 2, Millis::secs(1));
    assert_eq!(w.state_of("a"), "running", "there is nowhere to go");
    let deferral = w.fsm.allocation(&a).unwrap().deferral.clone().unwrap();
    let why = deferral.held_back.unwrap();
    assert!(why.starts_with("no other node can continue it (titan02: /ck is not"), "{why}");
    w.pass(Millis::hours(1));
    assert_eq!(w.state_of("a"), "stopping", "an admin set a deadline");
}

#[test]
fn a_gpu_that_fails_is_left_for_another_one_of_the_only_node_that_sees_them() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(&a, 1);
    answers(&mut w, "titan02", &a, Some(NO_MARKER));
    w.checkpoint(&a, 2, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping", "titan01:1 is free");
    w.end(&a, AttemptEnd::Exited { code: 143 });
    assert_eq!(w.schedule(), 1);
    let place = w.fsm.job(&job("a")).unwrap().place().cloned().unwrap();
    assert_eq!((place.node, place.gpus), (node("titan01"), vec![gpu("titan01", 1)]));
}

#[test]
fn one_node_that_sees_them_is_enough() {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::ZERO);
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.take_deferral(&a, 1);
    answers(&mut w, "titan02", &a, Some(NO_MARKER));
    answers(&mut w, "titan03", &a, None);
    // A second word of a node that is not asked any more changes nothing.
    answers(&mut w, "titan03", &a, Some(NO_MARKER));
    w.checkpoint(&a, 2, Millis::secs(1));
    assert_eq!(w.state_of("a"), "stopping");
    let excluded: Vec<_> = w.fsm.job(&job("a")).unwrap().excluded_nodes.keys().collect();
    assert_eq!(excluded, [&node("titan02")]);
}

#[test]
fn nobody_is_asked_about_what_saved_nothing_and_no_command_line_is_sent() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.run("b", plain(1), "titan01", &[1]);
    drain(&mut w, None);
    assert!(asked(&w, "titan02").is_empty());
    w.give(person("root"), Command::Node(NodeCommand::Uncordon { node: node("titan01") })).unwrap();
    w.checkpoint(&a, 1, Millis::ZERO);
    drain(&mut w, None);
    let probes = w.fsm.desired(&node("titan02"), &[]).probes;
    let [probe] = &probes[..] else { panic!("{probes:?}") };
    assert_eq!(probe.allocation, a);
    assert!(probe.place.spec.argv.is_empty() && probe.place.spec.env.is_empty());
}
