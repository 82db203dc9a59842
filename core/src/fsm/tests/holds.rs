//! Jobs that are held, and released.

use super::world::{START, World, job, node, person, plain, res, training, user};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{Command, JobCommand, Preempt};
use crate::event::Event;
use crate::job::{JOBS_OPEN_MAX, JobSpec, SubmitJob};
use crate::name::ClassName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::ReservationState;
use crate::scheduler::{self, WAITS_MAX, plan};
use crate::state::Fsm;
use crate::time::Millis;
use crate::view::{self, NamesAt};

fn hold(w: &mut World, who: &str, name: &str) -> Result<Reply, Rejection> {
    w.give(person(who), Command::Job(JobCommand::Hold { id: job(name) }))
}

fn release(w: &mut World, who: &str, name: &str) -> Result<Reply, Rejection> {
    w.give(person(who), Command::Job(JobCommand::ReleaseHold { id: job(name) }))
}

/// The jobs that a plan starts now, in its order.
fn starting(w: &World) -> Vec<String> {
    scheduler::placements(&w.fsm).iter().map(|line| line.job.to_string()).collect()
}

fn reason(w: &World, name: &str) -> String {
    let of = w.fsm.job(&job(name)).unwrap();
    let reason = view::job::job(&w.fsm, &plan(&w.fsm), of, None).unwrap();
    reason.text(&NamesAt::now(&w.fsm))
}

#[test]
fn a_held_job_does_not_start_and_keeps_its_place_in_the_order_of_submission() {
    let mut w = World::with(&["titan01"]);
    for name in ["a", "b", "c"] {
        w.submit("ada", name, plain(2)).unwrap();
    }
    assert_eq!(hold(&mut w, "ada", "a"), Ok(Reply::Done));
    assert_eq!(w.said(), ["ada holds the job: it does not start until it is released"]);
    assert_eq!(starting(&w), ["job-b", "job-c"], "it keeps nobody waiting");
    assert_eq!(reason(&w, "a"), "held by ada; release it: fleet job release job-a");
    w.pass(Millis::minutes(130));
    assert_eq!(reason(&w, "a"), "held by ada for 2h 10m; release it: fleet job release job-a");
    assert!(!plan(&w.fsm).waiting.contains_key(&job("a")));
    assert_eq!(release(&mut w, "ada", "a"), Ok(Reply::Done));
    assert_eq!(w.said(), ["ada released the job: it can start again"]);
    assert_eq!(starting(&w), ["job-a", "job-b"]);
}

#[test]
fn a_second_hold_or_release_changes_nothing_and_says_so() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    assert_eq!(release(&mut w, "ada", "a"), Ok(Reply::Unchanged));
    hold(&mut w, "ada", "a").unwrap();
    w.pass(Millis::hours(1));
    assert_eq!(hold(&mut w, "ada", "a"), Ok(Reply::Unchanged));
    assert!(w.last.is_empty(), "{:?}", w.last);
    assert_eq!(w.fsm.hold_of(&job("a")).unwrap().since, START);
}

/// Who holds, who holds after that, and whether the owner may release it then.
#[test]
fn only_an_admin_releases_what_an_admin_holds() {
    for (first, second, owner_may) in [
        ("ada", None, true),
        ("root", None, false),
        ("ada", Some("root"), false),
        ("root", Some("ada"), false),
    ] {
        let mut w = World::with(&["titan01"]);
        w.submit("ada", "a", plain(1)).unwrap();
        hold(&mut w, first, "a").unwrap();
        if let Some(second) = second {
            hold(&mut w, second, "a").unwrap();
        }
        let said = release(&mut w, "ada", "a");
        assert_eq!(said.is_ok(), owner_may, "{first}, {second:?}: {said:?}");
        if !owner_may {
            let said = said.unwrap_err().to_string();
            assert_eq!(
                said,
                "permission denied: only an admin (admin root holds job-a) may do this"
            );
            assert!(reason(&w, "a").contains("held by root (admin); an admin releases it"));
        }
        release(&mut w, "root", "a").unwrap();
        assert_eq!(starting(&w), ["job-a"]);
    }
}

#[test]
fn an_admin_holds_a_job_of_their_own_as_its_owner() {
    let mut w = World::with(&["titan01"]);
    w.submit("root", "a", plain(1)).unwrap();
    hold(&mut w, "root", "a").unwrap();
    assert!(!w.fsm.hold_of(&job("a")).unwrap().admin);
}

#[test]
fn others_neither_hold_nor_release_a_job() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    assert!(matches!(hold(&mut w, "bob", "a"), Err(Rejection::Denied { .. })));
    hold(&mut w, "ada", "a").unwrap();
    assert!(matches!(release(&mut w, "bob", "a"), Err(Rejection::Denied { .. })));
}

#[test]
fn only_a_job_that_waits_can_be_held() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    let said = hold(&mut w, "ada", "a").unwrap_err().to_string();
    assert_eq!(
        said,
        "job-a: the job is running and only a job that waits can be held. To stop the job: fleet cancel job-a. \
         To queue it again after that: fleet job restart job-a"
    );
    assert_eq!(release(&mut w, "ada", "a"), Ok(Reply::Unchanged));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    for said in [hold(&mut w, "ada", "a"), release(&mut w, "ada", "a")] {
        assert_eq!(said.unwrap_err().to_string(), "job-a is already completed");
    }
    for said in [hold(&mut w, "ada", "nosuch"), release(&mut w, "ada", "nosuch")] {
        assert!(matches!(said, Err(Rejection::NotFound { .. })), "{said:?}");
    }
}

#[test]
fn a_job_is_held_from_its_submission() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", JobSpec { hold: true, ..plain(1) }).unwrap();
    assert!(matches!(&w.last[..], [Event::JobQueued { .. }, Event::Hold(_)]), "{:?}", w.last);
    assert!(starting(&w).is_empty());
    let both = JobSpec { hold: true, immediate: true, ..plain(1) };
    let said = w.submit("ada", "b", both).unwrap_err().to_string();
    assert!(said.contains("leave out --hold or --immediate"), "{said}");
    release(&mut w, "ada", "a").unwrap();
    assert_eq!(starting(&w), ["job-a"]);
}

/// Held before its begin and released before or after it.
#[test]
fn a_hold_and_a_begin_both_count() {
    for release_before in [true, false] {
        let mut w = World::with(&["titan01"]);
        let begin = Some(START + Millis::hours(5));
        w.submit("ada", "a", JobSpec { begin, ..plain(1) }).unwrap();
        hold(&mut w, "ada", "a").unwrap();
        assert_eq!(w.fsm.next_deadline(), None, "no time changes a held job");
        w.pass(Millis::hours(if release_before { 1 } else { 6 }));
        assert!(starting(&w).is_empty());
        release(&mut w, "ada", "a").unwrap();
        if release_before {
            assert!(starting(&w).is_empty());
            assert_eq!(w.fsm.paused_until(&job("a")), begin);
            w.pass(Millis::hours(4));
        }
        assert_eq!(starting(&w), ["job-a"]);
    }
}

#[test]
fn the_time_of_a_hold_does_not_count_as_waiting() {
    let mut w = World::with(&["titan01"]);
    w.run("full", JobSpec { time_limit: Millis::days(30), ..plain(4) }, "titan01", &[0, 1, 2, 3]);
    w.submit("ada", "held", plain(1)).unwrap();
    w.submit("bob", "other", plain(1)).unwrap();
    w.pass(Millis::days(2));
    hold(&mut w, "ada", "held").unwrap();
    w.pass(WAITS_MAX);
    release(&mut w, "ada", "held").unwrap();
    let comes_first =
        |w: &World, name: &str| scheduler::comes_first(w.fsm.job(&job(name)).unwrap(), w.fsm.now());
    assert_eq!((comes_first(&w, "held"), comes_first(&w, "other")), (false, true));
    w.pass(WAITS_MAX.saturating_sub(Millis::days(2)));
    assert!(!comes_first(&w, "held"), "it has waited for exactly the bound");
    w.pass(Millis::minutes(1));
    assert!(comes_first(&w, "held"));
}

#[test]
fn no_place_is_kept_for_a_held_job() {
    let mut w = World::with(&["titan01"]);
    w.run("half", plain(2), "titan01", &[0, 1]);
    w.submit("ada", "large", plain(4)).unwrap();
    w.submit("bob", "long", JobSpec { time_limit: Millis::days(2), ..plain(1) }).unwrap();
    let kept = scheduler::next(&w.fsm).kept;
    assert_eq!(kept.iter().map(|kept| &kept.job).collect::<Vec<_>>(), [&job("large")]);
    w.give(Actor::controller(), Command::Job(JobCommand::KeepPlaces { kept, look_at: None }))
        .unwrap();
    assert!(starting(&w).is_empty(), "the long job would delay the large one");
    hold(&mut w, "ada", "large").unwrap();
    assert_eq!((w.fsm.kept_places().next(), w.fsm.next_deadline().is_some()), (None, true));
    assert_eq!(starting(&w), ["job-long"]);
    // A place of before the hold is not kept again by the release alone.
    release(&mut w, "ada", "large").unwrap();
    assert_eq!(w.fsm.kept_places().next(), None);
}

#[test]
fn nothing_leaves_for_a_job_that_is_held() {
    let mut w = World::with(&["titan01"]);
    let spec = JobSpec { class: ClassName::parse("scavenger").unwrap(), ..training() };
    let mut spec = JobSpec { time_limit: Millis::hours(24), ..spec };
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    w.submit("bob", "b", plain(1)).unwrap();
    let order = scheduler::next(&w.fsm).preempt.unwrap();
    w.give(Actor::controller(), Command::Job(JobCommand::Preempt(order.clone()))).unwrap();
    assert!(w.fsm.allocation(&a).unwrap().is_preempted());
    hold(&mut w, "bob", "b").unwrap();
    assert!(w.fsm.preemptions().is_empty());
    assert!(!w.fsm.allocation(&a).unwrap().is_preempted(), "the other job stays");
    assert_eq!(scheduler::next(&w.fsm).preempt, None);
    // An order of before the hold comes too late.
    let late = Preempt { node: node("titan01"), ..order };
    assert!(w.give(Actor::controller(), Command::Job(JobCommand::Preempt(late))).is_err());
}

#[test]
fn a_line_of_a_plan_from_before_the_hold_is_refused() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    hold(&mut w, "ada", "a").unwrap();
    let said = w.place("a", "titan01", &[0]).unwrap_err();
    assert!(matches!(said, Rejection::PlanStale { .. }), "{said:?}");
}

#[test]
fn a_held_job_that_was_interrupted_comes_first_again_after_its_release() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.end(&a, AttemptEnd::NodeFault { message: "a fan".to_owned() });
    w.release("titan01");
    w.submit("bob", "b", plain(4)).unwrap();
    hold(&mut w, "ada", "a").unwrap();
    assert_eq!(starting(&w), ["job-b"]);
    release(&mut w, "ada", "a").unwrap();
    assert_eq!(starting(&w)[0], "job-a");
}

#[test]
fn a_held_job_ends_with_its_reservation_and_can_be_cancelled() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(2)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.submit("ada", "b", plain(1)).unwrap();
    hold(&mut w, "ada", "a").unwrap();
    hold(&mut w, "ada", "b").unwrap();
    assert!(starting(&w).is_empty());
    w.pass(Millis::hours(2));
    assert_ne!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Active);
    assert_eq!(w.state_of("a"), "timed_out");
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("b") })).unwrap();
    assert_eq!(w.state_of("b"), "cancelled");
    assert_eq!((w.fsm.hold_of(&job("a")), w.fsm.hold_of(&job("b"))), (None, None));
}

/// A held job is restored with its hold, and counts as open.
#[test]
fn held_jobs_are_in_a_snapshot_and_count_as_open() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    hold(&mut w, "root", "a").unwrap();
    let again = Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.hold_of(&job("a")), w.fsm.hold_of(&job("a")));
    for n in 1..JOBS_OPEN_MAX {
        let (id, owner) = (job(&format!("j{n}")), user("ada"));
        let spec = JobSpec { hold: true, ..plain(1) };
        let wish = SubmitJob { id, owner, spec, marker: "m".to_owned() };
        let envelope = w.envelope(person("ada"), Command::Job(JobCommand::Submit(Box::new(wish))));
        // The invariants of so many take long; the last command's are checked.
        w.fsm.apply(n as u64 + 1_000, &envelope).reply.unwrap();
    }
    w.index = 1_000 + JOBS_OPEN_MAX as u64;
    let said = w.submit("ada", "late", plain(1)).unwrap_err().to_string();
    assert!(said.contains("open jobs"), "{said}");
}

/// The answer to a question queues a job, but does not lift a hold.
#[test]
fn a_job_that_asks_its_owner_can_be_held_as_well() {
    for release_first in [true, false] {
        let mut w = World::with(&["titan01"]);
        let a = w.run("a", training(), "titan01", &[0]);
        w.checkpoint(&a, 1, Millis::ZERO);
        w.torn_checkpoint(&a, 2);
        w.end(&a, AttemptEnd::NothingToResume { tried: Vec::new() });
        w.release("titan01");
        assert!(w.fsm.job(&job("a")).unwrap().question.is_some());
        hold(&mut w, "ada", "a").unwrap();
        let restart = Command::Job(JobCommand::Restart {
            id: job("a"),
            from: crate::checkpoint::RestartFrom::Scratch,
            time_limit: None,
        });
        if release_first {
            release(&mut w, "ada", "a").unwrap();
            assert!(starting(&w).is_empty());
            w.give(person("ada"), restart).unwrap();
        } else {
            w.give(person("ada"), restart).unwrap();
            assert!(starting(&w).is_empty());
            release(&mut w, "ada", "a").unwrap();
        }
        assert_eq!(starting(&w), ["job-a"]);
    }
}
