//! Jobs whose registry does not answer.

use super::world::{World, ended, job, plain};
use crate::allocation::{AttemptEnd, EndReport};
use crate::command::Report;
use crate::job::JobSpec;
use crate::scheduler::plan;
use crate::time::Millis;
use crate::view::{self, NamesAt};

/// An attempt that could not get its image, since the registry does not answer.
fn no_image(w: &mut World, name: &str) {
    let id = w.fsm.job(&job(name)).unwrap().allocation().cloned().unwrap();
    let a = w.fsm.allocation(&id).unwrap().clone();
    let end = AttemptEnd::NodeFault { message: "registry r is not reachable".to_owned() };
    let report = EndReport { no_image: true, ..ended(end, false) };
    let report = Report::Ended { allocation: id, epoch: a.epoch, report };
    w.report(a.node.as_str(), report).unwrap();
    w.release(a.node.as_str());
}

/// What `fleet ps` and `fleet why` say of a job that waits for its image.
fn told(w: &World) -> String {
    let why = view::job::job(&w.fsm, &plan(&w.fsm), w.fsm.job(&job("a")).unwrap(), None);
    why.expect("a reason").text(&NamesAt::now(&w.fsm))
}

#[test]
fn an_evening_without_a_registry_costs_a_job_nothing_but_time() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.submit("ada", "a", JobSpec { restarts: 0, ..plain(1) }).unwrap();
    let mut pauses = Vec::new();
    let begun = w.now;
    for tried in 0..40 {
        assert_eq!(w.schedule(), 1, "try {tried} after {}", w.now.since(begun));
        no_image(&mut w, "a");
        if let Some(until) = w.fsm.paused_until(&job("a")) {
            pauses.push(until.since(w.now));
            let told = told(&w);
            // All nodes together are the first try.
            let next = pauses.len() + 1;
            let again = format!("; tries again in {}, try {next}", until.since(w.now));
            assert!(told.starts_with("registry r is not reachable"), "{told}");
            assert!(told.ends_with(&again), "{told}");
            w.pass(until.since(w.now));
        }
        assert_eq!(w.state_of("a"), "queued");
    }
    let secs = |secs: &[u64]| secs.iter().map(|secs| Millis::secs(*secs)).collect::<Vec<_>>();
    assert_eq!(pauses[..8], secs(&[10, 20, 40, 80, 160, 320, 600, 600]));
    assert_eq!(pauses.len(), 39, "the other node is tried once, without a pause");
    assert!(w.now.since(begun) > Millis::hours(5));
    assert!(w.fsm.job(&job("a")).unwrap().excluded_nodes.is_empty());
    // It is back: nothing was used up.
    assert_eq!(w.schedule(), 1);
    let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&id);
    let job = w.fsm.job(&job("a")).unwrap();
    assert_eq!((job.restarts_used, job.start_faults, job.image_wait.clone()), (0, 0, None));
}

#[test]
fn after_a_day_without_its_registry_a_job_fails_and_says_so() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    while w.state_of("a") == "queued" {
        w.schedule();
        no_image(&mut w, "a");
        if let Some(until) = w.fsm.paused_until(&job("a")) {
            w.pass(until.since(w.now));
        }
    }
    let reason = &w.fsm.job(&job("a")).unwrap().outcome.as_ref().unwrap().reason;
    assert_eq!(reason, "registry r is not reachable; it was tried for 1d");
}

#[test]
fn hours_in_the_queue_are_no_wait_for_the_registry() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    for _ in 0..3 {
        w.schedule();
        no_image(&mut w, "a");
        let until = w.fsm.paused_until(&job("a")).unwrap();
        // Then it waits for a GPU, all night long.
        w.pass(until.since(w.now) + Millis::hours(20));
        assert_eq!(w.state_of("a"), "queued");
    }
}
