//! Limits of projects: on GPUs at once and on GPU-hours, for jobs and reservations together.

use proptest::prelude::*;

use super::preemption::{lead, leaves, wait_for_what_comes};
use super::world::{World, job, node, person, plain, res, training, user};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::checkpoint::RestartFrom;
use crate::command::{
    Command, CreateReservation, JobCommand, ProjectCommand, Report, ReservationChange,
    ReservationCommand,
};
use crate::ending::WindowUse;
use crate::id::{AllocationId, SeriesId};
use crate::job::JobSpec;
use crate::name::{ClassName, ProjectName};
use crate::people::PeopleChange;
use crate::project::{LIMIT_GPU_HOURS_MAX, LIMIT_GPUS_MAX, ProjectChange, ProjectLimits};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{GpuRequest, ReservationState, Series};
use crate::scheduler::project_limit::committed;
use crate::scheduler::{self, Waiting};
use crate::time::{Millis, Timestamp, Window};

const HOUR: Millis = Millis::hours(1);
const NONE: ProjectLimits =
    ProjectLimits { gpus: None, gpus_each: None, gpu_hours: None, gpu_hours_each: None };

fn set(w: &mut World, limits: ProjectLimits) -> Result<Reply, Rejection> {
    let change = ProjectChange { limits, ..ProjectChange::default() };
    let name = ProjectName::default_project();
    w.give(person("root"), Command::Project(ProjectCommand::Set { name, change }))
}

/// Two nodes of four GPUs, and these limits of the project that everybody is in.
fn limited(limits: ProjectLimits) -> World {
    let mut w = World::with(&["titan01", "titan02"]);
    set(&mut w, limits).unwrap();
    w
}

fn for_hours(gpus: u32, hours: u64) -> JobSpec {
    JobSpec { time_limit: Millis::hours(hours), ..plain(gpus) }
}

fn states<const N: usize>(w: &World, names: [&str; N]) -> [&'static str; N] {
    names.map(|name| w.state_of(name))
}

fn waiting(w: &World, name: &str) -> Waiting {
    scheduler::plan(&w.fsm).waiting.remove(&job(name)).unwrap()
}

fn why(w: &World, name: &str) -> String {
    waiting(w, name).reason.to_string()
}

fn refusal(answer: Result<Reply, Rejection>) -> String {
    answer.unwrap_err().to_string()
}

fn attempt(w: &World, name: &str) -> AllocationId {
    w.fsm.job(&job(name)).unwrap().allocation().unwrap().clone()
}

fn book_on_titan02(w: &mut World, name: &str, count: u32, (from, length): (Millis, Millis)) {
    let starts_at = w.now + from;
    let window = Window { starts_at, ends_at: starts_at + length };
    let gpus = GpuRequest { count, node: Some(node("titan02")), ..GpuRequest::default() };
    let wish = CreateReservation::plain(res(name), user("bob"), gpus, window);
    w.give(person("bob"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
}

#[test]
fn jobs_wait_for_the_gpus_that_their_project_may_have_at_once() {
    let mut w = limited(ProjectLimits { gpus: Some(3), gpus_each: Some(2), ..NONE });
    for (who, name) in [("ada", "a"), ("ada", "b"), ("ada", "c"), ("bob", "d"), ("cyd", "e")] {
        w.submit(who, name, plain(1)).unwrap();
    }
    w.submit("dan", "f", plain(0)).unwrap();
    lead(&mut w);
    let now = states(&w, ["a", "b", "c", "d", "e", "f"]);
    // Shares come first: each gets one before somebody gets two.
    assert_eq!(now, ["starting", "queued", "queued", "starting", "starting", "starting"]);
    assert_eq!(why(&w, "b"), "project default allows 3 GPUs at once, and the project has 3");
    // The leader may have seen an earlier state.
    let said = w.place("b", "titan02", &[0]).unwrap_err().to_string();
    assert!(said.contains("project default allows 3 GPUs at once"), "{said}");
    let said = refusal(w.submit("ada", "g", JobSpec { immediate: true, ..plain(1) }));
    assert!(said.contains("project default allows 3 GPUs at once"), "{said}");
    for (name, on) in [("d", "titan01"), ("e", "titan01")] {
        let id = attempt(&w, name);
        w.start(&id);
        w.end(&id, AttemptEnd::Exited { code: 0 });
        w.release(on);
    }
    lead(&mut w);
    assert_eq!(states(&w, ["a", "b", "c"]), ["starting", "starting", "queued"]);
    let c = waiting(&w, "c");
    let said = "project default allows each person 2 GPUs at once, and ada has 2";
    assert_eq!((c.reason.to_string().as_str(), c.earliest), (said, Some(w.now + HOUR)));
    // Without the limit it starts.
    set(&mut w, ProjectLimits { gpus_each: Some(0), ..NONE }).unwrap();
    lead(&mut w);
    assert_eq!(w.state_of("c"), "starting");
}

#[test]
fn lines_of_one_plan_count_together() {
    let mut w = limited(ProjectLimits { gpus: Some(2), ..NONE });
    for name in ["a", "b", "c"] {
        w.submit("ada", name, plain(1)).unwrap();
    }
    set(&mut w, ProjectLimits { gpus: Some(0), ..NONE }).unwrap();
    let placements = scheduler::placements(&w.fsm);
    assert_eq!(placements.len(), 3);
    set(&mut w, ProjectLimits { gpus: Some(2), ..NONE }).unwrap();
    let place = Command::Job(JobCommand::Place { placements });
    let Reply::Placed { results } = w.give(Actor::controller(), place).unwrap() else { panic!() };
    let good: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, true, false]);
}

#[test]
fn jobs_and_reservations_count_together() {
    let mut w = limited(ProjectLimits { gpus: Some(3), gpus_each: Some(3), ..NONE });
    let a = w.run("a", for_hours(2, 4), "titan01", &[0, 1]);
    let said = refusal(w.reserve("bob", "r", 2, Millis::ZERO, HOUR));
    assert!(
        said.contains("GPUs at once in project default (the project has 2 at that time, and this would be 2 more; fleet project show default): at most 3"),
        "{said}"
    );
    assert!(refusal(w.reserve("bob", "r", 4, Millis::days(1), HOUR)).contains("default allows: 3"));
    // An admin books what they think right, and it counts for the others.
    w.reserve("root", "x", 1, Millis::hours(2), HOUR).unwrap();
    assert!(w.reserve("bob", "r", 1, Millis::ZERO, Millis::hours(3)).is_err());
    w.reserve("bob", "r", 1, Millis::ZERO, HOUR).unwrap();
    // Behind the job and the reservations all is free.
    w.reserve("ada", "s", 3, Millis::hours(5), HOUR).unwrap();
    let said = refusal(w.reserve("ada", "t", 1, Millis::hours(5), HOUR));
    assert!(said.contains("the project has 3 at that time"), "{said}");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    // It would still run when all three are reserved.
    w.submit("bob", "b", for_hours(1, 6)).unwrap();
    w.submit("bob", "c", for_hours(1, 4)).unwrap();
    lead(&mut w);
    assert_eq!(states(&w, ["b", "c"]), ["queued", "starting"]);
    let b = waiting(&w, "b");
    assert_eq!(
        b.reason.to_string(),
        "project default allows 3 GPUs at once, and the project will have 3 before the job would end; with -t 5h or \
         less the job need not wait for that"
    );
    assert_eq!(b.earliest, Some(w.now + Millis::hours(6)));
}

#[test]
fn a_reservation_within_its_limits_is_not_stopped_and_its_jobs_count_once() {
    let mut w = limited(ProjectLimits { gpus: Some(2), gpu_hours: Some(20), ..NONE });
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(8)).unwrap();
    for name in ["a", "b"] {
        let within = JobSpec { reservation: Some(res("r")), ..for_hours(1, 8) };
        w.submit("ada", name, within).unwrap();
    }
    // One that names none runs there too.
    lead(&mut w);
    assert_eq!(states(&w, ["a", "b"]), ["starting", "starting"]);
    let extend = |hours| {
        let ends_at = w.now + Millis::hours(hours);
        Command::Reservation(ReservationCommand::Extend { id: res("r"), ends_at })
    };
    let (within, beyond) = (extend(10), extend(11));
    let said = w.give(person("ada"), beyond.clone()).unwrap_err().to_string();
    assert!(
        said.contains("GPU-hours in project default (without this the project has used or booked 0.0 GPU-hours, with it 22.0"),
        "{said}"
    );
    w.give(person("ada"), within).unwrap();
    w.give(person("root"), beyond).unwrap();
    // An edit that adds nothing is no matter of limits.
    let change = ReservationChange { note: Some("x".to_owned()), ..ReservationChange::default() };
    let edit = ReservationCommand::Edit { id: res("r"), change, seen: None };
    w.give(person("ada"), Command::Reservation(edit)).unwrap();
}

#[test]
fn gpu_hours_are_those_used_as_they_fade_and_those_to_come() {
    let mut w = limited(ProjectLimits { gpu_hours: Some(100), gpu_hours_each: Some(60), ..NONE });
    let said = refusal(w.submit("ada", "x", for_hours(4, 16)));
    assert_eq!(
        said,
        "time_limit: on 4 GPUs for 16h it may use 64.0 GPU-hours, and project default allows each person 60: at most 15h (-t)"
    );
    let a = w.run("a", for_hours(4, 12), "titan01", &[0, 1, 2, 3]);
    w.submit("ada", "b", for_hours(1, 13)).unwrap();
    lead(&mut w);
    assert_eq!(
        why(&w, "b"),
        "project default allows each person 60 GPU-hours; ada has used or booked 48.0 GPU-hours, and this job may use \
         13.0 GPU-hours"
    );
    w.submit("bob", "c", for_hours(4, 13)).unwrap();
    w.submit("bob", "d", for_hours(4, 13)).unwrap();
    lead(&mut w);
    assert_eq!(states(&w, ["b", "c", "d"]), ["queued", "starting", "queued"], "52 and 48 are 100");
    let said = refusal(w.reserve("cyd", "r", 1, Millis::days(3), HOUR));
    assert!(
        said.contains("the project has used or booked 100.0 GPU-hours, with it 101.0"),
        "{said}"
    );
    // What it does not use is there for others at once.
    w.pass(Millis::hours(6));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    lead(&mut w);
    assert_eq!(states(&w, ["b", "c", "d"]), ["starting", "starting", "queued"]);
    w.reserve("cyd", "r", 1, Millis::days(3), Millis::hours(10)).unwrap();
}

#[test]
fn what_waits_for_use_to_fade_starts_by_the_time_that_was_said() {
    let mut w = limited(ProjectLimits { gpu_hours: Some(50), ..NONE });
    let a = w.run("a", for_hours(4, 12), "titan01", &[0, 1, 2, 3]);
    w.pass(Millis::hours(12));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    w.submit("bob", "b", for_hours(4, 5)).unwrap();
    lead(&mut w);
    let by = waiting(&w, "b").earliest.unwrap();
    // From a little less than 48 to 30: 0.68 half-lives.
    let days = by.since(w.now).0 / Millis::days(1).0;
    assert_eq!(days, 4, "{}", by.since(w.now));
    // The state itself says when to plan again: nothing else happens by then.
    assert_eq!(w.fsm.next_deadline(), Some(by));
    w.pass(by.since(w.now).saturating_sub(Millis::minutes(2)));
    lead(&mut w);
    assert_eq!((w.state_of("b"), w.fsm.next_deadline()), ("queued", Some(by)));
    wait_for_what_comes(&mut w);
    assert_eq!(w.state_of("b"), "starting");
}

#[test]
fn a_longer_time_limit_is_more_use() {
    let mut w = limited(ProjectLimits { gpu_hours_each: Some(20), ..NONE });
    w.run("a", for_hours(2, 5), "titan01", &[0, 1]);
    w.submit("ada", "b", for_hours(1, 20)).unwrap();
    let longer = |name: &str, hours| {
        Command::Job(JobCommand::SetTimeLimit { id: job(name), time_limit: Millis::hours(hours) })
    };
    w.pass(HOUR);
    let said = w.give(person("ada"), longer("a", 11)).unwrap_err().to_string();
    assert!(
        said.contains("GPU-hours in project default for each person (without this ada has used or booked 0.0 GPU-hours, with it 22.0"),
        "{said}"
    );
    w.give(person("ada"), longer("a", 10)).unwrap();
    w.give(person("root"), longer("a", 11)).unwrap();
    assert!(w.give(person("ada"), longer("b", 21)).is_err());
    w.give(person("ada"), longer("b", 1)).unwrap();
}

#[test]
fn one_that_could_never_start_says_so() {
    let mut w = limited(NONE);
    w.submit("ada", "a", for_hours(4, 10)).unwrap();
    set(&mut w, ProjectLimits { gpus: Some(2), ..NONE }).unwrap();
    lead(&mut w);
    assert!(waiting(&w, "a").reason.is_forever());
    assert_eq!(
        why(&w, "a"),
        "can never start: it wants 4 GPUs, and project default allows 2 at once"
    );
    set(&mut w, ProjectLimits { gpus: Some(0), gpu_hours_each: Some(39), ..NONE }).unwrap();
    lead(&mut w);
    assert_eq!(
        why(&w, "a"),
        "can never start: it may use 40.0 GPU-hours, and project default allows each person 39"
    );
    assert_eq!(waiting(&w, "a").earliest, None);
    assert!(refusal(w.submit("ada", "b", for_hours(4, 10))).contains("at most 9h 45m (-t)"));
    set(&mut w, ProjectLimits { gpu_hours_each: Some(40), ..NONE }).unwrap();
    lead(&mut w);
    assert_eq!(w.state_of("a"), "starting");
}

#[test]
fn use_fades_also_while_something_runs() {
    let mut w = limited(ProjectLimits { gpu_hours: Some(200), ..NONE });
    let a = w.run("a", for_hours(4, 40), "titan01", &[0, 1, 2, 3]);
    w.pass(Millis::hours(40));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    // 160 are used at most; this takes 30 more, and books others far ahead.
    w.run("b", for_hours(1, 30), "titan01", &[0]);
    w.reserve("ada", "r", 1, Millis::days(30), HOUR).unwrap();
    w.submit("ada", "c", for_hours(1, 24)).unwrap();
    lead(&mut w);
    let by = waiting(&w, "c").earliest.unwrap();
    assert!(by < w.now + Millis::hours(24), "{}", by.since(w.now));
    assert_eq!(w.fsm.look_at(), Some(by));
    w.pass(by.since(w.now).saturating_sub(Millis::minutes(2)));
    lead(&mut w);
    assert_eq!((w.state_of("c"), w.fsm.look_at()), ("queued", Some(by)));
    wait_for_what_comes(&mut w);
    assert_eq!(w.state_of("c"), "starting");
}

#[test]
fn those_that_wait_for_a_limit_are_foreseen_one_after_another() {
    let mut w = limited(ProjectLimits { gpus_each: Some(1), ..NONE });
    for name in ["a", "b", "c", "d"] {
        w.submit("ada", name, plain(1)).unwrap();
    }
    lead(&mut w);
    let hours = ["b", "c", "d"].map(|name| waiting(&w, name).earliest.unwrap().since(w.now));
    assert_eq!(hours, [1, 2, 3].map(Millis::hours));
}

#[test]
fn a_reservation_in_use_is_not_extended_beyond_the_limits_of_its_project() {
    for (limits, goes_on) in [
        (ProjectLimits { gpu_hours: Some(2), ..NONE }, false),
        (ProjectLimits { gpu_hours: Some(3), ..NONE }, true),
        // The other one begins as this one ends.
        (ProjectLimits { gpus: Some(2), ..NONE }, false),
        (ProjectLimits { gpus: Some(3), ..NONE }, true),
    ] {
        let mut w = limited(limits);
        w.reserve("ada", "r", 1, Millis::ZERO, HOUR).unwrap();
        book_on_titan02(&mut w, "s", 2, (HOUR, Millis::minutes(30)));
        let before = w.fsm.reservation(&res("r")).unwrap().window.ends_at;
        let on = w.fsm.reservation(&res("r")).unwrap().node.to_string();
        let (reservation, seen) = (res("r"), WindowUse::Used);
        w.report(&on, Report::Use { reservation, seen, came: true }).unwrap();
        w.pass(Millis::minutes(59));
        let after = w.fsm.reservation(&res("r")).unwrap().window.ends_at;
        assert_eq!(after > before, goes_on, "{limits}");
    }
}

#[test]
fn the_dates_of_a_series_add_up() {
    let mut w = limited(ProjectLimits { gpu_hours: Some(9), ..NONE });
    let dates = |w: &World, name: &str, count: u64| -> Vec<CreateReservation> {
        let date = |day| {
            let starts_at = w.now + Millis::days(day);
            let window = Window { starts_at, ends_at: starts_at + Millis::hours(2) };
            let gpus = GpuRequest { count: 2, ..GpuRequest::default() };
            CreateReservation::plain(res(&format!("{name}{day}")), user("ada"), gpus, window)
        };
        (1..=count).map(date).collect()
    };
    let series = |reservations, skip| {
        let series = Series { id: SeriesId::parse("ser-a").unwrap(), rule: "daily".to_owned() };
        Command::Reservation(ReservationCommand::CreateSeries { series, reservations, skip })
    };
    let (three, two) = (dates(&w, "r", 3), dates(&w, "s", 2));
    let said = w.give(person("ada"), series(three.clone(), false)).unwrap_err();
    let Rejection::DatesRefused { problems, of: 3, .. } = said else { panic!("{said}") };
    assert_eq!(problems.len(), 1);
    assert!(problems[0].why.to_string().contains("with it 12.0 GPU-hours"), "{}", problems[0].why);
    w.give(person("ada"), series(two, false)).unwrap();
    w.give(
        person("root"),
        Command::Reservation(ReservationCommand::ReleaseSeries {
            id: SeriesId::parse("ser-a").unwrap(),
            from: None,
        }),
    )
    .unwrap();
    w.give(person("ada"), series(three, true)).unwrap();
    assert_eq!(w.fsm.open_reservations().count(), 2);
}

#[test]
fn a_longer_time_limit_does_not_lead_into_what_others_booked() {
    let mut w = limited(ProjectLimits { gpus: Some(4), ..NONE });
    w.run("a", for_hours(2, 1), "titan01", &[0, 1]);
    book_on_titan02(&mut w, "r", 3, (Millis::hours(6), HOUR));
    let longer = |hours| {
        let time_limit = Millis::hours(hours);
        Command::Job(JobCommand::SetTimeLimit { id: job("a"), time_limit })
    };
    w.give(person("ada"), longer(6)).unwrap();
    let said = w.give(person("ada"), longer(7)).unwrap_err().to_string();
    assert!(
        said.contains(
            "(the project has 3 at that time, and this would be 2 more; fleet project show default)"
        ),
        "{said}"
    );
}

#[test]
fn a_restart_is_held_to_the_limits_with_its_new_time() {
    let mut w = limited(NONE);
    let a = w.run("a", for_hours(2, 8), "titan01", &[0, 1]);
    w.end(&a, AttemptEnd::Exited { code: 1 });
    w.release("titan01");
    set(&mut w, ProjectLimits { gpu_hours: Some(10), ..NONE }).unwrap();
    let restart = |hours: Option<u64>| {
        let (id, from) = (job("a"), RestartFrom::Scratch);
        Command::Job(JobCommand::Restart { id, from, time_limit: hours.map(Millis::hours) })
    };
    let said = w.give(person("ada"), restart(None)).unwrap_err().to_string();
    assert!(said.contains("at most 5h (-t)"), "{said}");
    assert!(w.give(person("ada"), restart(Some(6))).is_err());
    w.give(person("ada"), restart(Some(5))).unwrap();
}

/// A node full of a scavenger that saves each ten minutes, and the job of a higher class for which it leaves.
fn preempting(limits: ProjectLimits) -> (World, AllocationId) {
    let mut w = limited(NONE);
    let spec = JobSpec { class: ClassName::parse("scavenger").unwrap(), ..training() };
    let mut spec = JobSpec { time_limit: Millis::hours(24), ..spec };
    spec.gpus.count = 4;
    let a = w.run("a", spec.clone(), "titan01", &[0, 1, 2, 3]);
    w.run(
        "z",
        JobSpec { checkpoint: None, class: ClassName::normal(), ..spec },
        "titan02",
        &[0, 1, 2, 3],
    );
    for seq in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&a, seq, Millis::ZERO);
    }
    let people = PeopleChange { add_members: [user("bob")].into(), ..PeopleChange::default() };
    let first = ProjectChange { people, limits, ..ProjectChange::default() };
    let name = ProjectName::parse("vision").unwrap();
    w.give(person("root"), Command::Project(ProjectCommand::Create { name, first })).unwrap();
    w.submit("bob", "b", of_vision(2, HOUR)).unwrap();
    lead(&mut w);
    assert!(w.fsm.preemptions().contains_key(&job("b")));
    (w, a)
}

fn of_vision(gpus: u32, time_limit: Millis) -> JobSpec {
    JobSpec { project: ProjectName::parse("vision").unwrap(), time_limit, ..plain(gpus) }
}

#[test]
fn a_short_job_does_not_take_the_room_that_work_leaves_for() {
    let (mut w, _) = preempting(ProjectLimits { gpus: Some(2), ..NONE });
    let z = attempt(&w, "z");
    w.end(&z, AttemptEnd::Exited { code: 0 });
    // Free again, and nobody may have it but the first one.
    w.submit("bob", "c", of_vision(1, Millis::minutes(2))).unwrap();
    lead(&mut w);
    assert_eq!(w.state_of("c"), "queued");
    assert!(w.fsm.preemptions().contains_key(&job("b")), "it has not lost its place");
}

#[test]
fn one_that_work_leaves_for_may_start_elsewhere_first() {
    let limits = ProjectLimits { gpus: Some(2), gpu_hours: Some(2), ..NONE };
    let (mut w, a) = preempting(limits);
    let z = attempt(&w, "z");
    w.end(&z, AttemptEnd::Exited { code: 0 });
    w.release("titan02");
    lead(&mut w);
    assert_eq!(w.state_of("b"), "starting", "its own place does not count against it");
    assert!(!leaves(&w, &a));
}

#[test]
fn limits_have_limits() {
    let mut w = limited(NONE);
    let too_many = [
        (ProjectLimits { gpus: Some(LIMIT_GPUS_MAX + 1), ..NONE }, "limits.gpus"),
        (ProjectLimits { gpus_each: Some(u32::MAX), ..NONE }, "gpus_each"),
        (ProjectLimits { gpu_hours: Some(LIMIT_GPU_HOURS_MAX + 1), ..NONE }, "gpu_hours"),
        (ProjectLimits { gpu_hours_each: Some(u32::MAX), ..NONE }, "gpu_hours_each"),
    ];
    for (limits, field) in too_many {
        assert!(refusal(set(&mut w, limits)).starts_with(field), "{limits}");
    }
    let most =
        ProjectLimits { gpus: Some(LIMIT_GPUS_MAX), gpu_hours: Some(LIMIT_GPU_HOURS_MAX), ..NONE };
    set(&mut w, most).unwrap();
    w.submit("ada", "a", for_hours(4, 24 * 30)).unwrap();
    lead(&mut w);
    assert_eq!(w.state_of("a"), "starting");
}

/// What people do.
#[derive(Debug, Clone)]
enum Step {
    Submit { who: usize, gpus: u32, hours: u64 },
    Reserve { who: usize, gpus: u32, after: u64, hours: u64 },
    Release(usize),
    End(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_usize, 1..4_u32, 1..9_u64)
            .prop_map(|(who, gpus, hours)| Step::Submit { who, gpus, hours }),
        2 => (0..3_usize, 1..4_u32, 0..12_u64, 1..9_u64)
            .prop_map(|(who, gpus, after, hours)| Step::Reserve { who, gpus, after, hours }),
        1 => (0..8_usize).prop_map(Step::Release),
        2 => (0..8_usize).prop_map(Step::End),
        2 => (1..5_u64).prop_map(Step::Pass),
    ]
}

const PEOPLE: [&str; 3] = ["ada", "bob", "cyd"];

fn do_step(w: &mut World, number: usize, step: &Step) {
    match *step {
        Step::Submit { who, gpus, hours } => {
            drop(w.submit(PEOPLE[who], &format!("j{number}"), for_hours(gpus, hours)));
        }
        Step::Reserve { who, gpus, after, hours } => {
            let (after, length) = (Millis::hours(after), Millis::hours(hours));
            drop(w.reserve(PEOPLE[who], &format!("r{number}"), gpus, after, length));
        }
        Step::Release(at) => {
            let open: Vec<_> = w.fsm.open_reservations().map(|r| r.id.clone()).collect();
            if let Some(id) = open.get(at).cloned() {
                let release = ReservationCommand::Release { id };
                drop(w.give(person("root"), Command::Reservation(release)));
            }
        }
        Step::End(at) => {
            let running: Vec<_> = w.fsm.allocations().keys().cloned().collect();
            if let Some(id) = running.get(at).cloned() {
                w.end(&id, AttemptEnd::Exited { code: 0 });
            }
        }
        Step::Pass(hours) => {
            let until = w.now + Millis::hours(hours);
            // Programs end before their time limit.
            let over = w
                .fsm
                .allocations()
                .values()
                .filter(|a| a.stop.is_none() && a.time_limit_at.is_some_and(|at| at <= until));
            for id in over.map(|a| a.id.clone()).collect::<Vec<_>>() {
                w.end(&id, AttemptEnd::Exited { code: 0 });
            }
            w.pass(Millis::hours(hours));
        }
    }
    w.release("titan01");
    w.release("titan02");
    lead(w);
    let placed = w.fsm.allocations().values().filter(|a| a.started_at.is_none());
    for id in placed.map(|a| a.id.clone()).collect::<Vec<_>>() {
        w.start(&id);
    }
}

/// What jobs and reservations have, and until when, read from the state.
fn holds(w: &World) -> Vec<(String, u32, Window)> {
    let mut all = Vec::new();
    for a in w.fsm.allocations().values() {
        let lease = a.lease.as_ref().and_then(|id| w.fsm.lease(id));
        if lease.is_some_and(|lease| lease.parent.is_none()) {
            let window = Window { starts_at: w.now, ends_at: a.time_limit_at.unwrap() };
            all.push((a.owner.to_string(), a.gpus.len() as u32, window));
        }
    }
    let open = w.fsm.open_reservations().filter(|r| r.state != ReservationState::Ending);
    all.extend(open.map(|r| (r.owner.to_string(), r.gpus.len() as u32, r.window)));
    all
}

/// The most GPUs at one time within the window, of one person where one is named.
fn most(holds: &[(String, u32, Window)], of: Option<&str>, within: Window) -> u32 {
    let theirs = || holds.iter().filter(|(who, _, _)| of.is_none_or(|of| of == who));
    let starts = theirs().map(|(_, _, window)| window.starts_at.max(within.starts_at));
    let then = |at: Timestamp| {
        let then = theirs().filter(|(_, _, w)| w.starts_at <= at && at < w.ends_at);
        then.map(|(_, gpus, _)| *gpus).sum()
    };
    starts.filter(|at| *at < within.ends_at).map(then).max().unwrap_or(0)
}

/// Beyond every step of a test.
const FOREVER: Millis = Millis::days(60);

proptest! {
    #[test]
    fn no_limit_is_ever_passed_and_nobody_waits_for_one_that_has_room(
        steps in prop::collection::vec(step(), 1..25)
    ) {
        let limits = ProjectLimits {
            gpus: Some(5),
            gpus_each: Some(3),
            gpu_hours: Some(90),
            gpu_hours_each: Some(40),
        };
        let mut w = limited(limits);
        for (number, step) in steps.iter().enumerate() {
            do_step(&mut w, number, step);
            let holds = holds(&w);
            let ever = Window { starts_at: w.now, ends_at: w.now + FOREVER };
            prop_assert!(most(&holds, None, ever) <= 5, "{holds:?}");
            let all = committed(&w.fsm, &ProjectName::default_project()).unwrap();
            let hours = |of: Option<&str>| all.amount(of.map(user).as_ref()).gpu_millis();
            prop_assert!(hours(None) <= Millis::hours(90).0);
            for who in PEOPLE {
                prop_assert!(most(&holds, Some(who), ever) <= 3, "{who}: {holds:?}");
                prop_assert!(hours(Some(who)) <= Millis::hours(40).0);
            }
            for (id, waiting) in scheduler::plan(&w.fsm).waiting {
                let reason = waiting.reason.to_string();
                if !reason.contains("project default allows") {
                    continue;
                }
                let job = w.fsm.job(&id).unwrap();
                let (who, gpus) = (job.owner.as_str(), job.spec.gpus.count);
                let window = Window { starts_at: w.now, ends_at: w.now + job.spec.time_limit };
                let adds = u64::from(gpus) * job.spec.time_limit.0;
                let fits = most(&holds, None, window) + gpus <= 5
                    && most(&holds, Some(who), window) + gpus <= 3
                    && hours(None) + adds < Millis::hours(90).0
                    && hours(Some(who)) + adds < Millis::hours(40).0;
                prop_assert!(!fits, "{reason}");
            }
        }
    }
}
