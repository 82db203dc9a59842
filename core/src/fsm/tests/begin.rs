//! Jobs that begin later.

use super::world::{START, World, job, person, plain, res, user};
use crate::command::{Command, JobCommand};
use crate::event::Event;
use crate::job::SubmitJob;
use crate::job::{JOBS_OPEN_MAX, JobSpec};
use crate::scheduler::{self, plan};
use crate::time::{Millis, Timestamp};
use crate::view::{self, JobReason, Pause};

fn at(begin: Timestamp) -> JobSpec {
    JobSpec { begin: Some(begin), ..plain(1) }
}

#[test]
fn a_job_is_not_placed_before_it_begins() {
    let mut w = World::with(&["titan01"]);
    let begin = START + Millis::hours(5);
    w.submit("ada", "late", at(begin)).unwrap();
    assert!(matches!(&w.last[..], [Event::JobQueued { begin: Some(_), .. }]), "{:?}", w.last);
    assert!(scheduler::placements(&w.fsm).is_empty());
    assert_eq!(w.fsm.next_deadline(), Some(begin), "the leader wakes up for it");
    let why = view::job::job(&w.fsm, &plan(&w.fsm), w.fsm.job(&job("late")).unwrap(), None);
    let wait = begin.since(w.fsm.now());
    assert_eq!(why, Some(JobReason::Paused(Pause::Begin { wait })));
    w.pass(wait);
    let lines = scheduler::placements(&w.fsm);
    assert_eq!(lines.iter().map(|line| &line.job).collect::<Vec<_>>(), [&job("late")]);
}

#[test]
fn a_time_that_has_passed_meanwhile_is_now() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "now", at(START)).unwrap();
    assert!(matches!(&w.last[..], [Event::JobQueued { begin: None, .. }]), "{:?}", w.last);
    assert_eq!(scheduler::placements(&w.fsm).len(), 1);
}

#[test]
fn a_job_can_be_cancelled_before_it_begins() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "late", at(START + Millis::hours(5))).unwrap();
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("late") })).unwrap();
    assert_eq!((w.state_of("late"), w.fsm.next_deadline()), ("cancelled", None));
}

#[test]
fn a_begin_that_cannot_be_is_refused_with_the_reason() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(4)).unwrap();
    let later = START + Millis::hours(5);
    let cases = [
        (at(START + Millis::days(400)), "at most 365d ahead"),
        (JobSpec { immediate: true, ..at(later) }, "leave out --immediate"),
        (JobSpec { reservation: Some(res("r")), ..at(later) }, "res-r ends before that time"),
    ];
    for (spec, expected) in cases {
        let said = w.submit("ada", "late", spec).unwrap_err().to_string();
        assert!(said.contains("begin") && said.contains(expected), "{said}");
    }
    assert!(w.fsm.jobs().is_empty());
}

#[test]
fn jobs_that_begin_later_count_as_open() {
    let mut w = World::with(&["titan01"]);
    for n in 0..JOBS_OPEN_MAX {
        let spec = at(START + Millis::hours(5));
        let (id, owner) = (job(&format!("j{n}")), user("ada"));
        let wish = SubmitJob { id, owner, spec, marker: "m".to_owned() };
        let envelope = w.envelope(person("ada"), Command::Job(JobCommand::Submit(Box::new(wish))));
        // The invariants of so many take long; the last command's are checked.
        w.fsm.apply(n as u64 + 1_000, &envelope).reply.unwrap();
    }
    w.index = 1_000 + JOBS_OPEN_MAX as u64;
    let said = w.submit("ada", "late", plain(1)).unwrap_err().to_string();
    assert!(said.contains("open jobs"), "{said}");
}
