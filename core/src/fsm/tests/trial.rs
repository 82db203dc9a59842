//! Jobs that are tried without being submitted.

use proptest::prelude::*;

use super::preemption::lead;
use super::world::{START, World, job, node, person, plain, res, training, user};
use crate::command::{Command, JobCommand};
use crate::fsm::JobTrial;
use crate::job::{JobSpec, SubmitJob};
use crate::name::ClassName;
use crate::rejection::Rejection;
use crate::reservation::GpuRequest;
use crate::scheduler;
use crate::time::Millis;

fn wish(who: &str, spec: JobSpec) -> SubmitJob {
    SubmitJob { id: job("new"), owner: user(who), spec, marker: "m".to_owned() }
}

fn trial(w: &World, who: &str, spec: JobSpec) -> Result<JobTrial, Rejection> {
    let before = w.fsm.to_snapshot();
    let tried = w.fsm.clone().try_job(&person(who), wish(who, spec), w.now);
    assert_eq!(w.fsm.to_snapshot(), before, "nothing changes");
    tried.map(|(trial, then)| {
        then.check_invariants().unwrap();
        trial
    })
}

#[test]
fn a_job_that_would_start_now_has_its_place() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.run("full", plain(4), "titan01", &[0, 1, 2, 3]);
    let said = trial(&w, "ada", plain(2)).unwrap();
    let (on, gpus) = said.at.clone().unwrap();
    assert_eq!((on, gpus.len()), (node("titan02"), 2));
    assert_eq!((said.starts_now, said.starts_at), (true, Some(START)));
    assert_eq!((said.place, said.reason, said.leaving), (None, None, Vec::new()));
}

#[test]
fn a_job_that_would_wait_has_its_place_in_the_queue_and_an_expected_start() {
    let mut w = World::with(&["titan01"]);
    w.run("full", plain(4), "titan01", &[0, 1, 2, 3]);
    w.submit("ada", "first", plain(4)).unwrap();
    w.pass(Millis::minutes(10));
    lead(&mut w);
    let said = trial(&w, "ada", plain(4)).unwrap();
    assert_eq!((said.starts_now, said.place), (false, Some(2)));
    let reason = said.reason.unwrap();
    assert!(reason.starts_with("waits for 4 GPUs on one node: "), "{reason}");
    // Two jobs of an hour each are before it, with their graces.
    let starts_in = said.starts_at.unwrap().since(w.now);
    assert!((Millis::minutes(110)..Millis::minutes(112)).contains(&starts_in), "{starts_in}");
    assert_eq!(said.at.map(|(on, gpus)| (on, gpus.len())), Some((node("titan01"), 4)));
}

#[test]
fn the_jobs_that_would_leave_are_named() {
    let mut w = World::with(&["titan01"]);
    let class = ClassName::parse("scavenger").unwrap();
    let mut spec = JobSpec { class, time_limit: Millis::hours(24), ..training() };
    spec.gpus.count = 4;
    let a = w.run("a", spec, "titan01", &[0, 1, 2, 3]);
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let said = trial(&w, "bob", plain(1)).unwrap();
    assert!(!said.starts_now);
    let leaving: Vec<_> = said.leaving.iter().map(|of| (&of.job, of.owner.as_str())).collect();
    assert_eq!(leaving, [(&job("a"), "ada")]);
    assert_eq!(said.reason.as_deref(), Some("job-a leaves titan01 for it"));
    // It saves each ten minutes.
    let starts_in = said.starts_at.unwrap().since(w.now);
    assert!((Millis::minutes(10)..Millis::minutes(20)).contains(&starts_in), "{starts_in}");
    assert!(!w.fsm.allocation(&a).unwrap().is_preempted());
}

#[test]
fn a_job_in_a_reservation_is_said_to_be_there() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "now", 2, Millis::ZERO, Millis::hours(2)).unwrap();
    w.reserve("ada", "later", 1, Millis::hours(1), Millis::hours(2)).unwrap();
    let within = |name: &str| JobSpec { reservation: Some(res(name)), ..plain(1) };
    let said = trial(&w, "ada", within("now")).unwrap();
    assert_eq!((said.starts_now, said.reservation), (true, Some(res("now"))));
    let said = trial(&w, "ada", within("later")).unwrap();
    assert_eq!((said.starts_now, said.starts_at), (false, Some(START + Millis::hours(1))));
}

#[test]
fn a_job_that_is_held_or_begins_later_is_not_in_the_queue() {
    let w = World::with(&["titan01"]);
    let said = trial(&w, "ada", JobSpec { hold: true, ..plain(1) }).unwrap();
    let reason = "held until it is released".to_owned();
    assert_eq!(said, JobTrial { reason: Some(reason), ..JobTrial::default() });
    let begin = Some(START + Millis::hours(5));
    let said = trial(&w, "ada", JobSpec { begin, ..plain(1) }).unwrap();
    assert_eq!((said.starts_at, said.place), (None, None));
    assert_eq!(said.reason.as_deref(), Some("begins in 5h at the earliest (--begin)"));
}

/// Each is refused as a submission is.
#[test]
fn a_trial_is_refused_as_a_submission_is() {
    let mut w = World::with(&["titan01"]);
    w.run("full", plain(4), "titan01", &[0, 1, 2, 3]);
    w.reserve("bob", "his", 1, Millis::hours(2), Millis::hours(2)).unwrap();
    let class = |name: &str| ClassName::parse(name).unwrap();
    let on = |name: &str| GpuRequest { node: Some(node(name)), count: 1, ..GpuRequest::default() };
    for spec in [
        plain(5),
        JobSpec { gpus: on("nosuch"), ..plain(1) },
        JobSpec { argv: Vec::new(), ..plain(1) },
        JobSpec { class: class("urgent"), ..plain(1) },
        JobSpec { class: class("nosuch"), ..plain(1) },
        JobSpec { reservation: Some(res("his")), ..plain(1) },
        JobSpec { immediate: true, ..plain(1) },
        JobSpec { begin: Some(START + Millis::days(400)), ..plain(1) },
        JobSpec { memory_bytes: Some(1 << 60), ..plain(1) },
    ] {
        let said = trial(&w, "ada", spec.clone()).unwrap_err();
        let command = JobCommand::Submit(Box::new(wish("ada", spec)));
        let submitted = w.give(person("ada"), Command::Job(command)).unwrap_err();
        assert_eq!(said, submitted);
    }
    // An account that is closed, and a job for somebody else.
    let for_bob = w.fsm.clone().try_job(&person("ada"), wish("bob", plain(1)), w.now);
    assert!(matches!(for_bob, Err(Rejection::Denied { .. })));
}

/// A job that is there before: how many GPUs, how many hours, whether a scavenger, and whether of ada.
type Before = (u32, u64, bool, bool);

/// What a trial says of a job of ada's is what happens to it if it is submitted then.
fn comes_true(jobs: Vec<Before>, gpus: u32, hours: u64) -> Result<(), TestCaseError> {
    let mut w = World::with(&["titan01", "titan02"]);
    let of = |gpus: u32, hours: u64, low: bool| JobSpec {
        time_limit: Millis::hours(hours),
        class: ClassName::parse(if low { "scavenger" } else { "normal" }).unwrap(),
        ..plain(gpus)
    };
    for (n, (gpus, hours, low, by_ada)) in jobs.into_iter().enumerate() {
        let who = if by_ada { "ada" } else { "bob" };
        w.submit(who, &format!("j{n}"), of(gpus, hours, low)).unwrap();
        lead(&mut w);
        if let Some(a) = w.fsm.job(&job(&format!("j{n}"))).unwrap().allocation().cloned() {
            w.start(&a);
        }
        w.pass(Millis::minutes(20));
        lead(&mut w);
    }
    let spec = of(gpus, hours, false);
    let said = trial(&w, "ada", spec.clone()).unwrap();
    w.submit("ada", "new", spec).unwrap();
    lead(&mut w);
    let new = w.fsm.job(&job("new")).unwrap();
    let attempt = new.allocation().and_then(|id| w.fsm.allocation(id));
    prop_assert_eq!(said.starts_now, attempt.is_some());
    match attempt {
        Some(a) => prop_assert_eq!(said.at, Some((a.node.clone(), a.gpus.clone()))),
        None => {
            let waits = &scheduler::explain(&w.fsm, &job("new")).unwrap();
            prop_assert_eq!(said.place, Some(waits.place));
            prop_assert_eq!(said.starts_at, waits.earliest);
            let freed = w.fsm.preemptions().get(&job("new"));
            let leave = freed.map_or(0, |place| place.victims.len());
            prop_assert_eq!(said.leaving.len(), leave);
        }
    }
    Ok(())
}

/// The job gets a place that others leave for, and then the one that waited before it gets one too and is listed first.
#[test]
fn a_trial_runs_until_the_plan_rests() {
    let scavengers = [(1, 2, true, false), (3, 2, true, false), (4, 2, true, false)];
    let others = [(1, 1, true, false), (1, 1, false, true), (0, 1, false, false)];
    comes_true([scavengers, others].concat(), 1, 1).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_a_trial_says_comes_true(
        jobs in proptest::collection::vec(
            (0..5_u32, 1..30_u64, any::<bool>(), any::<bool>()), 0..12,
        ),
        gpus in 0..5_u32,
        hours in 1..30_u64,
    ) {
        comes_true(jobs, gpus, hours)?;
    }
}
