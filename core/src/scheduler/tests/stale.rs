//! The re-check of a plan's lines: each line is good for the state it was made for, and refused, with
//! the reason, for any state in which it is not.

use super::story::{BEGINNING, Story, check, length};
use crate::command::Placement;
use crate::scheduler::plan;

fn told(script: &str) -> Story {
    let mut story = Story::new();
    story.tell(script);
    story
}

/// The line that places the first job, and what `check` says to it after `change`.
fn after(script: &str, change: &str, alter: impl Fn(&mut Placement)) -> String {
    let mut story = told(script);
    let mut line = plan(&story.fsm).placements.remove(0);
    assert!(check(&story.fsm, &line).is_ok(), "the plan's own line");
    story.tell(change);
    alter(&mut line);
    match check(&story.fsm, &line) {
        Ok(_) => "good".to_owned(),
        Err(rejection) => rejection.to_string(),
    }
}

#[test]
fn a_line_is_refused_once_the_state_has_moved_on() {
    let script = "node titan01 titan-x*2
                  node titan02 titan-x*4
                  run job-a ada 1 4h";
    let cases = [
        ("", "good"),
        ("cordon titan02 fans", "good"),
        ("cordon titan01 fans", "titan01 is cordoned by root: fans"),
        ("silent titan01", "titan01 is unreachable"),
        ("degraded titan01", "titan01 is degraded: test"),
        ("lost titan01:0", "titan01:0 is lost"),
        ("dirty titan01:0 mia", "titan01:0 is in use without a lease: mia"),
        ("fatal titan01:0", "titan01:0 is unhealthy: off the bus"),
        ("fatal titan01:1", "good"),
        (
            "reserve res-x bob titan01:0 +1h +2h",
            "titan01:0 is promised to a reservation before the job's end",
        ),
        ("reserve res-x bob titan01:0 +5h +6h", "good"),
        ("reserve res-x bob titan01:0 +0h +2h", "a GPU is taken"),
        ("reserve res-x ada titan01:0 +0h +2h", "a GPU is taken"),
        ("reserve res-x ada titan01:0 +0h +4h", "good"),
        ("place", "it is starting"),
        ("run job-b bob titan01:0 1h\n cancel job-a\n place", "it is cancelled"),
    ];
    for (change, expected) in cases {
        let got = after(script, change, |_| {});
        let got = got.strip_prefix("job-a is not as the plan assumed: ").unwrap_or(&got);
        assert_eq!(got, expected, "after {change:?}");
    }
}

#[test]
fn a_line_nobody_planned_is_refused() {
    let script = "node titan01 titan-x*2+v100*1
                  node titan02 titan-x*4
                  run job-a ada titan-x:2@titan01 4h";
    let story = told(script);
    let gpus = |at: &[usize]| -> Vec<_> {
        let node = story.fsm.nodes().values().next().unwrap();
        at.iter().map(|at| node.gpus[*at].clone()).collect()
    };
    let other = story.fsm.nodes().values().nth(1).unwrap();
    type Change<'a> = &'a dyn Fn(&mut Placement);
    let cases: [(Change<'_>, &str); 8] = [
        (&|line| line.gpus.truncate(1), "it wants 2 GPUs, the line has 1"),
        (&|line| line.gpus = gpus(&[0, 0]), "it wants 2 GPUs, the line has 2"),
        (&|line| line.gpus = gpus(&[1, 2]), "a GPU is not one that the job asked for"),
        (&|line| line.gpus = other.gpus[..2].to_vec(), "titan01 has no GPU-746974616e30323a30"),
        (&|line| line.node = other.name.clone(), "the job does not fit titan02"),
        (&|line| line.cpu_millis = 1, "its share of the node is another now"),
        (&|line| line.memory_bytes += 1, "its share of the node is another now"),
        (&|line| line.job = crate::id::JobId::parse("job-x").unwrap(), "the job is gone"),
    ];
    for (alter, expected) in cases {
        let got = after(script, "", alter);
        assert!(got.ends_with(expected), "{got} is not {expected}");
    }
}

#[test]
fn a_line_for_a_reservation_names_its_lease() {
    let story = told(
        "node titan01 titan-x*2
         reserve res-x ada 1 +0h +8h
         run job-a ada 1 24h res=res-x
         run job-b ada 1 24h",
    );
    let lines = plan(&story.fsm).placements;
    let approved: Vec<_> = lines.iter().map(|line| check(&story.fsm, line).unwrap()).collect();
    let reservation = story.fsm.reservations().next().unwrap();
    assert_eq!(approved[0].parent, reservation.lease);
    assert_eq!(approved[0].ends_by, Some(BEGINNING + length("8h")));
    assert_eq!((&approved[1].parent, approved[1].ends_by), (&None, None));
}

#[test]
fn two_lines_for_one_gpu_are_not_both_good() {
    let mut story = told(
        "node titan01 titan-x*1
         run job-a ada 1 4h
         run job-b bob 1 4h",
    );
    let line = plan(&story.fsm).placements.remove(0);
    let mut twin = line.clone();
    twin.job = crate::id::JobId::parse("job-b").unwrap();
    let reply = story.controller(crate::Command::Job(crate::command::JobCommand::Place {
        placements: vec![line, twin],
    }));
    let Ok(crate::Reply::Placed { results }) = reply else { panic!("{reply:?}") };
    assert!(results[0].is_ok());
    let refused = results[1].as_ref().unwrap_err().to_string();
    assert!(refused.ends_with("titan01 has not that much CPU and memory free"), "{refused}");
    story.fsm.check_invariants().unwrap();
}
