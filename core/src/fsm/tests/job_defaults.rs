//! The fleet's default for `--stop-after`.

use super::world::{World, agent, job, node, person, plain};
use crate::actor::Actor;
use crate::command::{Command, JobCommand, JobDefaultsChange, NodeCommand};
use crate::event::Event;
use crate::job::JobSpec;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::time::Millis;

const TEN: Millis = Millis::minutes(10);

fn set(w: &mut World, who: &str, stop_after: Option<Millis>) -> Result<(), Rejection> {
    give(w, person(who), Some(stop_after.unwrap_or(Millis::ZERO)), None)
}

fn give(
    w: &mut World,
    who: Actor,
    stop_after: Option<Millis>,
    without_gpus_percent: Option<u8>,
) -> Result<(), Rejection> {
    let change = JobDefaultsChange { stop_after, without_gpus_percent, ..Default::default() };
    let command = Command::Job(JobCommand::SetDefaults(change));
    w.give(who, command).map(drop)
}

fn stop_after(w: &World, name: &str) -> (Option<Millis>, bool) {
    let spec = &w.fsm.job(&job(name)).unwrap().spec;
    (spec.stop_after, spec.stop_after_default)
}

#[test]
fn a_job_takes_the_default_unless_it_says_something_itself() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "before", plain(1)).unwrap();
    set(&mut w, "root", Some(TEN)).unwrap();
    assert_eq!(
        w.said(),
        ["defaults for jobs set by root: --stop-after 10m, --without-gpus 50%, --places-kept 16; \
          they were: --stop-after never, --without-gpus 50%, --places-kept 16"]
    );
    let own = |after| JobSpec { stop_after: Some(after), ..plain(1) };
    w.submit("ada", "none", plain(1)).unwrap();
    assert_eq!(w.said(), ["queued by ada, --stop-after 10m (the fleet's default)"]);
    w.submit("ada", "own", own(Millis::hours(1))).unwrap();
    assert_eq!(w.said(), ["queued by ada"]);
    w.submit("ada", "never", own(Millis::ZERO)).unwrap();
    set(&mut w, "root", None).unwrap();
    w.submit("ada", "after", plain(1)).unwrap();
    assert_eq!(stop_after(&w, "before"), (None, false), "it was there before");
    assert_eq!(stop_after(&w, "none"), (Some(TEN), true), "it keeps what it was submitted with");
    assert_eq!(stop_after(&w, "own"), (Some(Millis::hours(1)), false));
    assert_eq!(stop_after(&w, "never"), (None, false));
    assert_eq!(stop_after(&w, "after"), (None, false));
}

#[test]
fn a_job_of_a_dead_node_is_replaced_by_the_default_and_runs_for_ever_without() {
    for (default, state) in [(Some(TEN), "queued"), (None, "running")] {
        let mut w = World::with(&["titan01"]);
        set(&mut w, "root", default).unwrap();
        w.run("a", JobSpec { restarts: 1, ..plain(1) }, "titan01", &[0]);
        let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(1));
        let silent =
            Command::Node(NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for });
        w.give(Actor::controller(), silent).unwrap();
        w.pass(Millis::minutes(30));
        assert_eq!(w.state_of("a"), state);
    }
}

#[test]
fn a_default_out_of_bounds_is_refused_with_the_bounds_and_only_admins_set_one() {
    let mut w = World::with(&["titan01"]);
    for (wrong, shown) in [(Millis::secs(59), "59s"), (Millis::days(61), "61d")] {
        let said = set(&mut w, "root", Some(wrong)).unwrap_err().to_string();
        let bounds = format!("{shown} is not between 1m and 60d; `never` turns the default off");
        assert!(said.contains(&bounds), "{said}");
    }
    for who in [person("ada"), agent("titan01")] {
        assert!(give(&mut w, who, Some(TEN), None).is_err());
    }
    assert!(w.fsm.job_defaults().is_default());
    set(&mut w, "root", Some(TEN)).unwrap();
    assert!(matches!(w.last[..], [Event::JobDefaultsSet { .. }]));
    set(&mut w, "root", Some(TEN)).unwrap();
    assert!(w.last.is_empty(), "nothing changed");
}

#[test]
fn one_default_is_set_without_the_other_and_the_part_without_gpus_has_bounds() {
    let mut w = World::with(&["titan01"]);
    set(&mut w, "root", Some(TEN)).unwrap();
    give(&mut w, person("root"), None, Some(30)).unwrap();
    let said = "defaults for jobs set by root: --stop-after 10m, --without-gpus 30%, --places-kept 16; \
                they were: --stop-after 10m, --without-gpus 50%, --places-kept 16";
    assert_eq!(w.said(), [said]);
    let refused = give(&mut w, person("root"), Some(Millis::ZERO), Some(91)).unwrap_err();
    assert!(refused.to_string().contains("91% is not between 0% and 90%"), "{refused}");
    assert_eq!(w.fsm.job_defaults().stop_after, Some(TEN), "neither of the two changed");
    assert_eq!(w.fsm.job_defaults().without_gpus_percent, 30);
}

#[test]
fn places_are_kept_for_at_least_one_job_and_at_most_64() {
    let mut w = World::with(&["titan01"]);
    let mut keep = |places| {
        let change = JobDefaultsChange { places_kept: Some(places), ..Default::default() };
        let done = w.give(person("root"), Command::Job(JobCommand::SetDefaults(change)));
        done.map_err(|refused| refused.to_string()).map(|_| w.fsm.job_defaults().places_kept)
    };
    for wrong in [0, 65, 300] {
        let refused = keep(wrong).unwrap_err();
        assert!(refused.contains(&format!("{wrong} is not between 1 and 64")), "{refused}");
    }
    for right in [1, 64] {
        assert_eq!(keep(right), Ok(right));
    }
}
