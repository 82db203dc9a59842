//! What is charged, and to which user.

use super::world::{World, bad, ended, job, person, plain, res, training, user};
use crate::allocation::AttemptEnd;
use crate::command::{Command, ProjectCommand, Report, ReservationCommand};
use crate::fair_share::{HALF_LIFE_MAX, HALF_LIFE_MIN};
use crate::health::Severity;
use crate::job::JobSpec;
use crate::name::ProjectName;
use crate::rejection::Rejection;
use crate::scheduler::tally::Tally;
use crate::time::Millis;

/// GPU-minutes that somebody used: what ended, and with what runs. The half-life is long, so that nothing fades.
fn used(w: &World, who: &str) -> (u64, u64) {
    let minutes = |millis: u64| (millis + 30_000) / 60_000;
    let (now, half_life) = (w.now, w.fsm.fair_share().half_life);
    let of = user(who);
    let all = w.fsm.fair_share().used().filter(|(_, name, _)| **name == of);
    let done = all.map(|(_, _, used)| used.now(now, half_life).gpu_millis()).sum();
    let tally = Tally::of(&w.fsm);
    let all = tally.projects.values().filter_map(|people| people.get(&of));
    (minutes(done), minutes(all.map(|had| had.used.gpu_millis()).sum()))
}

fn world() -> World {
    let mut w = World::with(&["titan01", "titan02"]);
    set_half_life(&mut w, HALF_LIFE_MAX).unwrap();
    w
}

fn set_half_life(w: &mut World, half_life: Millis) -> Result<crate::Reply, Rejection> {
    w.give(person("root"), Command::Project(ProjectCommand::SetHalfLife { half_life }))
}

#[test]
fn a_job_is_charged_while_it_runs_and_to_its_end() {
    let mut w = world();
    let a = w.run("a", plain(2), "titan01", &[0, 1]);
    w.pass(Millis::minutes(10));
    assert_eq!(used(&w, "ada"), (0, 20), "it runs");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    assert_eq!(used(&w, "ada"), (20, 20));
    // Until its GPUs are proven empty it holds them, and is not charged.
    w.pass(Millis::minutes(10));
    assert_eq!(used(&w, "ada"), (20, 20));
}

#[test]
fn an_end_that_is_heard_late_is_charged_to_the_end() {
    let mut w = world();
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.pass(Millis::minutes(10));
    let mut report = ended(AttemptEnd::Exited { code: 0 }, false);
    report.ended_at = w.now;
    w.pass(Millis::hours(5));
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    w.report("titan01", Report::Ended { allocation: a, epoch, report }).unwrap();
    assert_eq!(used(&w, "ada"), (10, 10));
}

#[test]
fn what_a_fault_of_the_node_destroyed_is_not_charged() {
    let mut w = world();
    let a = w.run("a", training(), "titan01", &[0]);
    w.pass(Millis::minutes(30));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.pass(Millis::minutes(20));
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Fatal)]);
    w.end(&a, AttemptEnd::NodeFault { message: "GPU lost".to_owned() });
    assert_eq!(w.state_of("a"), "queued");
    assert_eq!(used(&w, "ada"), (30, 30));
    // A failure of its own is.
    let b = w.run("b", plain(1), "titan02", &[0]);
    w.pass(Millis::minutes(20));
    w.end(&b, AttemptEnd::Exited { code: 1 });
    assert_eq!(used(&w, "ada"), (50, 50));
}

#[test]
fn a_reservation_is_charged_from_its_start_to_its_release_used_or_not() {
    let mut w = world();
    w.reserve("ada", "r", 2, Millis::hours(1), Millis::hours(10)).unwrap();
    w.pass(Millis::minutes(30));
    assert_eq!(used(&w, "ada"), (0, 0), "a booking ahead is no use");
    w.pass(Millis::minutes(30));
    w.pass(Millis::minutes(30));
    assert_eq!(used(&w, "ada"), (0, 60));
    let inside = JobSpec { reservation: Some(res("r")), ..plain(1) };
    w.submit("ada", "a", inside).unwrap();
    assert_eq!(w.schedule(), 1);
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    w.pass(Millis::minutes(30));
    assert_eq!(used(&w, "ada"), (0, 120), "a job in it is not charged again");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    assert_eq!(used(&w, "ada"), (0, 120));
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert_eq!(used(&w, "ada"), (120, 120));
    w.pass(Millis::minutes(30));
    assert_eq!(used(&w, "ada"), (120, 120));
}

#[test]
fn work_without_gpus_is_charged_for_its_cores() {
    let mut w = world();
    let a = w.run("a", JobSpec { cpu_millis: Some(100), ..plain(0) }, "titan01", &[]);
    w.pass(Millis::minutes(1_000));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    // A tenth of a core, of sixteen that count as a GPU: six thousandths, rounded down.
    assert_eq!(used(&w, "ada"), (6, 6));
}

#[test]
fn use_counts_for_the_project_that_the_job_names() {
    let mut w = world();
    let vision = ProjectName::parse("vision").unwrap();
    let mut first = crate::project::ProjectChange::default();
    first.people.add_members = [user("ada")].into();
    let create = ProjectCommand::Create { name: vision.clone(), first };
    w.give(person("root"), Command::Project(create)).unwrap();
    let a = w.run("a", JobSpec { project: vision.clone(), ..plain(1) }, "titan01", &[0]);
    w.pass(Millis::minutes(10));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    let accounts: Vec<_> =
        w.fsm.fair_share().used().map(|(project, user, _)| (project, user)).collect();
    assert_eq!(accounts, [(&vision, &user("ada"))]);
}

#[test]
fn the_half_life_has_bounds_and_is_an_admins_to_set() {
    let mut w = world();
    for bad in [Millis::ZERO, Millis(HALF_LIFE_MIN.0 - 1), Millis(HALF_LIFE_MAX.0 + 1)] {
        let refused = set_half_life(&mut w, bad).unwrap_err();
        assert!(matches!(&refused, Rejection::InvalidField { field, .. } if field == "half_life"));
    }
    assert_eq!(w.fsm.fair_share().half_life, HALF_LIFE_MAX);
    let set = ProjectCommand::SetHalfLife { half_life: HALF_LIFE_MIN };
    assert!(w.give(person("ada"), Command::Project(set)).is_err());
    set_half_life(&mut w, HALF_LIFE_MIN).unwrap();
    assert_eq!(w.said(), ["use counts half after 1h, set by root; it was 90d"]);
}

#[test]
fn use_is_stored_and_read_back() {
    let mut w = world();
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.pass(Millis::minutes(10));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    let again = crate::Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.fair_share(), w.fsm.fair_share());
}
