//! Ended jobs are removed, and what fleet wrote beside their checkpoints.

use super::world::{World, job, node, person, plain, training};
use crate::allocation::AttemptEnd;
use crate::checkpoint::RestartFrom;
use crate::command::{AccessCommand, Command, JobCommand, Report};
use crate::fsm::removal::FILES_STAY;
use crate::job::{JobFiles, JobSpec};
use crate::rejection::Rejection;
use crate::time::Millis;

fn remove(id: &str) -> Command {
    Command::Job(JobCommand::Remove { id: job(id) })
}

fn ordered(w: &World, name: &str) -> Vec<String> {
    let removals = w.fsm.desired(&node(name), &[]).removals;
    removals.iter().map(|order| order.job.to_string()).collect()
}

fn answered(w: &mut World, name: &str, id: &str, problem: Option<&str>) {
    let (id, problem) = (job(id), problem.map(str::to_owned));
    w.report(name, Report::FilesRemoved { job: id, problem }).unwrap();
}

fn ended(w: &mut World, id: &str, spec: JobSpec) {
    let a = w.run(id, spec, "titan01", &[0]);
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
}

#[test]
fn a_job_without_checkpoints_is_gone_at_once() {
    let mut w = World::with(&["titan01"]);
    ended(&mut w, "a", plain(1));
    let refused = w.give(person("bob"), remove("a"));
    assert!(matches!(refused, Err(Rejection::Denied { .. })), "{refused:?}");
    w.give(person("ada"), remove("a")).unwrap();
    assert!(w.fsm.job(&job("a")).is_none());
    let again = w.give(person("ada"), remove("a"));
    assert!(matches!(again, Err(Rejection::NotFound { .. })), "{again:?}");
}

#[test]
fn one_that_has_not_ended_stays() {
    let mut w = World::with(&["titan01"]);
    w.run("a", training(), "titan01", &[0]);
    let Err(Rejection::NotRemovable { why, .. }) = w.give(person("ada"), remove("a")) else {
        panic!("it runs")
    };
    assert_eq!(why, "it is running; end it first: fleet cancel job-a");
}

#[test]
fn one_with_checkpoints_goes_when_its_node_has_removed_the_files() {
    let mut w = World::with(&["titan01", "titan02"]);
    ended(&mut w, "a", training());
    assert!(ordered(&w, "titan01").is_empty());
    w.give(person("ada"), remove("a")).unwrap();
    let said = "ada removes it; titan01 removes fleet's files beside its checkpoints first";
    assert_eq!(w.said(), [said]);
    assert_eq!(ordered(&w, "titan01"), ["job-a"]);
    assert!(ordered(&w, "titan02").is_empty());
    let restart = Command::Job(JobCommand::Restart {
        id: job("a"),
        from: RestartFrom::Newest,
        time_limit: None,
    });
    let refused = w.give(person("ada"), restart);
    assert!(matches!(refused, Err(Rejection::NotRestartable { .. })), "{refused:?}");
    answered(&mut w, "titan02", "a", None);
    assert!(w.fsm.job(&job("a")).is_some(), "another node says nothing of it");
    answered(&mut w, "titan01", "a", Some("/ck/.fleet: permission denied"));
    assert!(w.fsm.job(&job("a")).is_none());
    assert!(ordered(&w, "titan01").is_empty());
    let left = "not all of fleet's files were removed: /ck/.fleet: permission denied";
    assert_eq!(w.said(), [format!("removed by ada; {left}")]);
}

#[test]
fn the_files_go_thirty_days_after_the_end_and_a_restart_keeps_them() {
    let mut w = World::with(&["titan01"]);
    ended(&mut w, "a", training());
    w.pass(Millis(FILES_STAY.0 - 1_000));
    assert!(ordered(&w, "titan01").is_empty());
    let again = |from| Command::Job(JobCommand::Restart { id: job("a"), from, time_limit: None });
    w.give(person("ada"), again(RestartFrom::Newest)).unwrap();
    w.pass(Millis::days(1));
    assert!(ordered(&w, "titan01").is_empty(), "it waits or runs");
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    w.end(&a, AttemptEnd::Exited { code: 1 });
    w.pass(FILES_STAY);
    assert_eq!(ordered(&w, "titan01"), ["job-a"]);
    // The node could take away the marker that a new attempt has just written.
    let refused = w.give(person("ada"), again(RestartFrom::Scratch));
    assert!(matches!(refused, Err(Rejection::NotRestartable { .. })), "{refused:?}");
    answered(&mut w, "titan01", "a", None);
    assert_eq!(w.fsm.job(&job("a")).unwrap().files, JobFiles::Removed);
    assert!(ordered(&w, "titan01").is_empty());
    let Err(Rejection::NotRestartable { why, .. }) =
        w.give(person("ada"), again(RestartFrom::Newest))
    else {
        panic!("its lists are gone")
    };
    assert!(why.contains("fleet run --resume-from PATH"), "{why}");
    w.give(person("ada"), again(RestartFrom::Scratch)).unwrap();
    assert_eq!(w.fsm.job(&job("a")).unwrap().files, JobFiles::Stay);
}

#[test]
fn what_a_removed_node_was_to_remove_is_left() {
    let mut w = World::with(&["titan01", "titan02"]);
    ended(&mut w, "a", training());
    ended(&mut w, "b", training());
    w.give(person("ada"), remove("a")).unwrap();
    let (node, reason) = (node("titan01"), "sold".to_owned());
    let sold = Command::Access(AccessCommand::RemoveNode { node, reason });
    w.give(person("root"), sold).unwrap();
    assert!(w.fsm.job(&job("a")).is_none());
    w.give(person("ada"), remove("b")).unwrap();
    assert!(w.fsm.job(&job("b")).is_none(), "nobody is left who could");
}

#[test]
fn the_oldest_of_too_many_ended_jobs_goes_behind_its_files() {
    let mut w = World::with(&["titan01"]);
    ended(&mut w, "a", training());
    ended(&mut w, "b", plain(1));
    for _ in 0..3 {
        w.fsm.forget_oldest();
    }
    w.fsm.check_invariants().unwrap();
    assert!(w.fsm.job(&job("b")).is_none(), "nothing of it is on any disk");
    assert_eq!(ordered(&w, "titan01"), ["job-a"]);
    answered(&mut w, "titan01", "a", None);
    assert!(w.fsm.job(&job("a")).is_none());
    assert_eq!(w.said(), ["removed by fleet"]);
}
