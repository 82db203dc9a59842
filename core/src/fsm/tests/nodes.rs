//! Nodes: reboots, identities, moved GPUs, operators.

use super::world::{World, agent, facts, gpu, job, node, person, plain, training};
use crate::command::{Command, Report};
use crate::event::Event;
use crate::rejection::Rejection;
use crate::time::Millis;

#[test]
fn a_new_boot_ends_what_ran_and_frees_its_gpus() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.run("a", training(), "titan01", &[0]);
    w.boot("titan01", "boot-2").unwrap();
    assert_eq!(w.state_of("a"), "queued");
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
}

#[test]
fn a_gpu_that_did_not_come_back_frees_nothing() {
    let mut w = World::with(&["titan01"]);
    w.run("a", training(), "titan01", &[3]);
    let less = Box::new(facts("titan01", 3, "boot-2"));
    w.give(agent("titan01"), Command::RegisterNode { node: node("titan01"), facts: less }).unwrap();
    assert_eq!(w.state_of("a"), "queued", "the attempt is over all the same");
    assert!(w.fsm.hold(&gpu("titan01", 3)).is_some());
}

#[test]
fn the_same_boot_again_changes_nothing() {
    let mut w = World::with(&["titan01"]);
    w.run("a", training(), "titan01", &[0]);
    let before = w.fsm.digest();
    w.boot("titan01", "boot-1").unwrap();
    assert!(w.last.is_empty());
    assert_eq!(w.state_of("a"), "running");
    assert_ne!(w.fsm.digest(), before, "the applied index moved");
}

#[test]
fn another_machine_under_the_same_name_is_refused() {
    let mut w = World::with(&["titan01"]);
    let mut other = facts("titan01", 4, "boot-9");
    other.machine.machine_id = "cloned".to_owned();
    let command = Command::RegisterNode { node: node("titan01"), facts: Box::new(other) };
    assert!(matches!(w.give(agent("titan01"), command), Err(Rejection::NodeIdentity { .. })));
}

#[test]
fn an_agent_speaks_for_its_own_node_only() {
    let mut w = World::with(&["titan01", "titan02"]);
    let command = Command::ReportNode { node: node("titan01"), reports: vec![] };
    assert!(matches!(w.give(agent("titan02"), command), Err(Rejection::Denied { .. })));
}

#[test]
fn one_gpu_in_two_machines_counts_once() {
    let mut w = World::with(&["titan01"]);
    let mut second = facts("titan02", 4, "boot-1");
    second.gpus[0].uuid = gpu("titan01", 0);
    let command = Command::RegisterNode { node: node("titan02"), facts: Box::new(second) };
    w.give(agent("titan02"), command).unwrap();
    assert_eq!(w.fsm.gpu(&gpu("titan01", 0)).unwrap().node, node("titan01"));
    assert_eq!(w.fsm.node(&node("titan02")).unwrap().gpus.len(), 3);
}

#[test]
fn a_gpu_may_move_once_it_left() {
    let mut w = World::with(&["titan01"]);
    let less = facts("titan01", 3, "boot-1");
    w.report("titan01", Report::Facts { facts: less }).unwrap();
    let mut second = facts("titan02", 1, "boot-1");
    second.gpus[0].uuid = gpu("titan01", 3);
    let command = Command::RegisterNode { node: node("titan02"), facts: Box::new(second) };
    w.give(agent("titan02"), command).unwrap();
    assert_eq!(w.fsm.gpu(&gpu("titan01", 3)).unwrap().node, node("titan02"));
    assert!(!w.fsm.node(&node("titan01")).unwrap().gpus.contains(&gpu("titan01", 3)));
}

#[test]
fn an_operators_word_frees_a_gpu_and_is_kept() {
    let mut w = World::with(&["titan01"]);
    w.run("a", plain(1), "titan01", &[0]);
    let command = |reason: &str| Command::DeclareGpuFree {
        gpu: gpu("titan01", 0),
        reason: reason.to_owned(),
    };
    assert!(matches!(w.give(person("ada"), command("x")), Err(Rejection::Denied { .. })));
    assert!(matches!(w.give(person("root"), command(" ")), Err(Rejection::InvalidField { .. })));
    w.give(person("root"), command("the machine is switched off")).unwrap();
    assert!(w.last.iter().any(|e| matches!(e, Event::GpuDeclaredFree { .. })));
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
    assert_eq!(w.state_of("a"), "failed");
}

#[test]
fn closed_nodes_take_nothing_new() {
    let mut w = World::with(&["titan01"]);
    let reason = "maintenance".to_owned();
    w.give(person("root"), Command::CordonNode { node: node("titan01"), reason }).unwrap();
    w.submit("ada", "a", plain(1)).unwrap();
    assert_eq!(w.schedule(), 0);
    assert!(w.place("a", "titan01", &[0]).is_err());
    w.give(person("root"), Command::UncordonNode { node: node("titan01") }).unwrap();
    assert_eq!(w.schedule(), 1);
}

#[test]
fn the_clock_goes_back_only_by_an_operators_word() {
    let mut w = World::with(&["titan01"]);
    let right = w.now;
    w.now = w.now + Millis::days(3_650);
    w.submit("ada", "a", plain(1)).unwrap();
    w.now = right;
    w.submit("ada", "b", plain(1)).unwrap();
    assert_eq!(w.fsm.now(), right + Millis::days(3_650));
    w.give(person("root"), Command::ResetClock { to: right }).unwrap();
    assert_eq!(w.fsm.now(), right);
    assert!(w.fsm.job(&job("b")).is_some());
}
