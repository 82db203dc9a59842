//! The order of the queue: shares of people and of projects.

use std::collections::BTreeMap;

use super::story::{BEGINNING, Story, length, spec};
use crate::allocation::AttemptEnd;
use crate::checkpoint::RestartFrom;
use crate::command::{Command, JobCommand, KeptPlace, ProjectCommand};
use crate::fair_share::{Rate, UseOf};
use crate::id::{JobId, ReservationId};
use crate::job::JobSpec;
use crate::name::{ProjectName, UserName};
use crate::people::PeopleChange;
use crate::project::ProjectChange;
use crate::reservation::GpuRequest;
use crate::scheduler::{WAITS_MAX, explain, next, plan};
use crate::time::{Millis, Timestamp};

fn on(count: u32, hours: u64) -> JobSpec {
    let gpus = GpuRequest { count, ..GpuRequest::default() };
    spec(gpus, Millis::hours(hours))
}

fn of(project: &str, spec: JobSpec) -> JobSpec {
    JobSpec { project: ProjectName::parse(project).unwrap(), ..spec }
}

fn fleet(nodes: u32, gpus: u32) -> Story {
    let mut story = Story::new();
    for at in 0..nodes {
        let gpus = format!("titan-x*{gpus}");
        story.join(&format!("titan{at:02}"), &[&gpus, "cores=64", "gib=512"]);
    }
    story
}

impl Story {
    fn send(&mut self, owner: &str, from: u32, number: u32, spec: &JobSpec) {
        for at in from..from + number {
            self.submit(&format!("job-{owner}{at:02}"), owner, spec.clone()).unwrap();
        }
    }

    fn used(&mut self, (project, owner): (&str, &str), hours: u64) {
        let (project, owner) =
            (ProjectName::parse(project).unwrap(), UserName::parse(owner).unwrap());
        let now = self.fsm.now();
        let use_of = UseOf { rate: Rate(1_000), from: now - Millis::hours(hours), to: now };
        self.fsm.fair_share.charge((&project, &owner), use_of, now);
    }

    fn pass(&mut self, time: Millis) {
        self.tell(&format!(
            "at +{}h",
            (self.fsm.now() + time).since(BEGINNING).0.div_ceil(3_600_000)
        ));
    }

    fn project(&mut self, name: &str, members: &[&str], weight: u32) {
        let add_members = members.iter().map(|name| UserName::parse(name).unwrap()).collect();
        let weight = (weight > 0).then_some(weight);
        let people = PeopleChange { add_members, ..PeopleChange::default() };
        let first = ProjectChange { people, weight, ..ProjectChange::default() };
        let name = ProjectName::parse(name).unwrap();
        self.admin(Command::Project(ProjectCommand::Create { name, first })).unwrap();
    }

    /// How many jobs of each person run once the queue was served.
    fn placed(&mut self) -> BTreeMap<String, usize> {
        self.place();
        let mut placed = BTreeMap::new();
        for allocation in self.fsm.allocations().values() {
            *placed.entry(allocation.owner.to_string()).or_default() += 1;
        }
        placed
    }
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(who, number)| ((*who).to_owned(), *number)).collect()
}

#[test]
fn two_people_who_start_with_nothing_get_half_each_however_many_jobs_they_send() {
    let mut story = fleet(2, 8);
    story.send("ada", 0, 30, &on(1, 24));
    story.send("bob", 0, 10, &on(1, 24));
    assert_eq!(story.placed(), counts(&[("ada", 8), ("bob", 8)]));
}

#[test]
fn the_first_job_of_another_person_is_next_whoever_sent_thirty_before() {
    let mut story = fleet(1, 4);
    story.send("ada", 0, 30, &on(1, 2));
    assert_eq!(story.placed(), counts(&[("ada", 4)]));
    story.send("bob", 0, 1, &on(1, 2));
    let waiting = plan(&story.fsm).waiting;
    let places: Vec<(u32, &str)> =
        waiting.iter().map(|(job, waiting)| (waiting.place, job.as_str())).collect();
    assert!(places.contains(&(1, "job-bob00")) && places.contains(&(2, "job-ada04")), "{places:?}");
    let told = explain(&story.fsm, waiting.keys().last().unwrap()).unwrap();
    assert_eq!((told.place, told.earliest), (1, Some(BEGINNING + length("2h") + length("30s"))));
}

#[test]
fn who_used_less_lately_comes_first_and_use_is_forgotten() {
    for (weeks, first) in [(0, "bob"), (6, "ada")] {
        let mut story = fleet(1, 1);
        story.used(("default", "ada"), 100);
        story.pass(Millis::days(7 * weeks));
        story.used(("default", "bob"), 10);
        story.send("ada", 0, 1, &on(1, 1));
        story.send("bob", 0, 1, &on(1, 1));
        assert_eq!(story.placed(), counts(&[(first, 1)]), "after {weeks} weeks");
    }
}

#[test]
fn a_project_gets_its_weight_however_many_people_it_has() {
    let mut story = fleet(2, 6);
    story.project("vision", &["ada", "bob", "cyd"], 1);
    story.project("speech", &["dan"], 2);
    for who in ["ada", "bob", "cyd"] {
        story.send(who, 0, 10, &of("vision", on(1, 24)));
    }
    story.send("dan", 0, 20, &of("speech", on(1, 24)));
    let placed = story.placed();
    assert_eq!(placed["dan"], 8, "{placed:?}");
    assert_eq!([placed["ada"], placed["bob"], placed["cyd"]].iter().sum::<usize>(), 4);
    assert!(placed.values().all(|number| *number > 0), "{placed:?}");
}

#[test]
fn without_a_weight_a_project_counts_for_its_people() {
    let mut story = fleet(1, 8);
    story.project("vision", &["ada", "bob", "cyd"], 0);
    story.project("speech", &["dan"], 0);
    for who in ["ada", "bob", "cyd"] {
        story.send(who, 0, 10, &of("vision", on(1, 24)));
    }
    story.send("dan", 0, 20, &of("speech", on(1, 24)));
    assert_eq!(story.placed(), counts(&[("ada", 2), ("bob", 2), ("cyd", 2), ("dan", 2)]));
}

#[test]
fn what_one_project_does_not_want_goes_to_the_others() {
    let mut story = fleet(1, 8);
    story.project("vision", &["ada", "bob"], 3);
    story.project("speech", &["dan"], 1);
    // Bob wants nothing: his part is ada's. Ada wants five: the rest is dan's.
    story.send("ada", 0, 5, &of("vision", on(1, 24)));
    story.send("dan", 0, 20, &of("speech", on(1, 24)));
    assert_eq!(story.placed(), counts(&[("ada", 5), ("dan", 3)]));
}

#[test]
fn what_has_waited_too_long_comes_first_whatever_its_owner_had() {
    let mut story = fleet(1, 1);
    story.send("cyd", 0, 1, &on(1, 24 * 8));
    story.place();
    story.used(("default", "ada"), 1_000);
    story.send("ada", 0, 1, &on(1, 1));
    story.send("bob", 0, 1, &on(1, 1));
    let first = |story: &Story| {
        let waiting = plan(&story.fsm).waiting;
        waiting.into_iter().min_by_key(|(_, waiting)| waiting.place).unwrap().0.to_string()
    };
    assert_eq!(first(&story), "job-bob00");
    story.pass(WAITS_MAX + Millis(1));
    assert_eq!(first(&story), "job-ada00");
}

fn kept(story: &Story) -> Vec<KeptPlace> {
    story.fsm.kept_places().cloned().collect()
}

#[test]
fn a_large_job_keeps_its_place_while_people_with_little_use_send_small_ones() {
    let mut story = fleet(1, 4);
    story.send("ada", 0, 1, &on(1, 10));
    assert_eq!(story.placed(), counts(&[("ada", 1)]));
    story.send("bob", 0, 1, &on(4, 10));
    story.place();
    let before = kept(&story);
    assert_eq!(before[0].job.as_str(), "job-bob00");
    story.used(("default", "bob"), 1_000);
    // They had nothing, and their jobs would end after the start that bob was promised.
    for who in ["cyd", "dan", "eve"] {
        story.send(who, 0, 1, &on(1, 20));
        story.place();
    }
    assert_eq!(story.fsm.allocations().len(), 1);
    assert_eq!(next(&story.fsm).kept[0], before[0]);
    // What ends before may run there.
    story.send("fay", 0, 1, &on(1, 5));
    assert_eq!(story.placed(), counts(&[("ada", 1), ("fay", 1)]));
}

#[test]
fn a_job_keeps_its_place_while_an_interrupted_one_of_the_same_user_comes_before_it() {
    let mut story = fleet(1, 6);
    story.send("ada", 0, 1, &on(3, 10));
    story.send("bob", 0, 1, &on(2, 2));
    assert_eq!(story.placed(), counts(&[("ada", 1), ("bob", 1)]));
    story.send("bob", 1, 1, &on(4, 10));
    story.place();
    let before = kept(&story);
    assert_eq!(before[0].job.as_str(), "job-bob01");
    story.end("job-bob00", AttemptEnd::NodeFault { message: "GPU lost".to_owned() });
    story.place();
    assert_eq!(kept(&story), before);
    // Two places for one user: no third, for a job that had none.
    story.send("bob", 2, 1, &on(2, 10));
    story.place();
    assert_eq!(kept(&story), before);
}

#[test]
fn a_kept_place_that_slips_is_given_by_the_shares_again() {
    let mut story = fleet(1, 2);
    story.send("ada", 0, 1, &on(1, 10));
    story.place();
    story.send("bob", 0, 1, &on(2, 10));
    story.place();
    story.used(("default", "bob"), 1_000);
    story.send("cyd", 0, 1, &on(2, 1));
    story.place();
    assert_eq!(kept(&story)[0].job.as_str(), "job-bob00");
    // Ada's job runs for longer: the start that bob was promised comes ten hours later.
    let (id, time_limit) = (JobId::parse("job-ada00").unwrap(), Millis::hours(20));
    story.admin(Command::Job(JobCommand::SetTimeLimit { id, time_limit })).unwrap();
    story.place();
    assert!(kept(&story).iter().all(|kept| kept.job.as_str() != "job-bob00"));
    story.place();
    assert_eq!(kept(&story)[0].job.as_str(), "job-cyd00");
}

#[test]
fn what_runs_in_a_reservation_was_paid_for_by_it() {
    let mut story = fleet(1, 4);
    story.tell("reserve res-x ada 2 +0h +10h");
    let bound = ReservationId::parse("res-x").unwrap();
    story.send("ada", 0, 2, &JobSpec { reservation: Some(bound), ..on(1, 5) });
    story.send("bob", 0, 2, &on(1, 10));
    assert_eq!(story.placed(), counts(&[("ada", 2), ("bob", 2)]));
    let tally = crate::scheduler::tally::Tally::of(&story.fsm);
    let had = &tally.projects[&ProjectName::default_project()];
    let holds = |who: &str| had[&UserName::parse(who).unwrap()].holds;
    assert_eq!((holds("ada"), holds("bob")), (2_000, 2_000));
}

#[test]
fn jobs_of_one_person_stay_in_their_order() {
    let mut story = fleet(1, 1);
    story.send("ada", 0, 5, &on(1, 1));
    let waiting = plan(&story.fsm).waiting;
    let mut places: Vec<(u32, &str)> =
        waiting.iter().map(|(job, waiting)| (waiting.place, job.as_str())).collect();
    places.sort_unstable();
    assert_eq!(places, [(2, "job-ada01"), (3, "job-ada02"), (4, "job-ada03"), (5, "job-ada04")]);
    assert!(BEGINNING <= story.fsm.now() && story.fsm.now() < Timestamp::MAX_ACCEPTED);
}

#[test]
fn a_full_fleet_does_not_forget_whose_place_is_kept() {
    let mut story = fleet(1, 4);
    story.send("ada", 0, 1, &on(1, 10));
    story.place();
    story.send("bob", 0, 1, &on(4, 10));
    story.place();
    let before = kept(&story);
    // Jobs that end before may use all that is free, and then nothing is.
    for who in ["cyd", "dan", "eve"] {
        story.send(who, 0, 1, &on(1, 5));
    }
    story.place();
    assert_eq!(story.fsm.allocations().len(), 4);
    assert_eq!(next(&story.fsm).kept, before);
    story.used(("default", "bob"), 1_000);
    story.end("job-cyd00", AttemptEnd::Exited { code: 0 });
    story.freed("titan00");
    story.send("fay", 0, 1, &on(1, 20));
    story.place();
    assert_eq!(story.fsm.allocations().len(), 3, "fay's job would delay bob's");
    assert_eq!(kept(&story)[0], before[0]);
}

#[test]
fn of_one_person_one_job_at_a_time_comes_first_for_having_waited() {
    let mut story = fleet(1, 2);
    story.send("cyd", 0, 1, &on(2, 24 * 9));
    story.place();
    story.send("ada", 0, 20, &on(1, 1));
    story.pass(WAITS_MAX + Millis::hours(1));
    story.send("bob", 0, 1, &on(1, 1));
    let waiting = plan(&story.fsm).waiting;
    let place = |name: &str| waiting[&JobId::parse(name).unwrap()].place;
    assert_eq!((place("job-ada00"), place("job-bob00"), place("job-ada01")), (1, 2, 3));
}

#[test]
fn an_old_job_that_is_restarted_begins_to_wait_again() {
    let mut story = fleet(1, 1);
    story.send("ada", 0, 1, &on(1, 1));
    story.place();
    story.end("job-ada00", AttemptEnd::Exited { code: 1 });
    story.freed("titan00");
    story.pass(WAITS_MAX + Millis::hours(1));
    story.send("cyd", 0, 1, &on(1, 1));
    story.place();
    story.used(("default", "ada"), 100);
    let (id, from) = (JobId::parse("job-ada00").unwrap(), RestartFrom::Scratch);
    let restart = JobCommand::Restart { id, from, time_limit: None };
    story.admin(Command::Job(restart)).unwrap();
    story.send("bob", 0, 1, &on(1, 1));
    let waiting = plan(&story.fsm).waiting;
    let place = |name: &str| waiting[&JobId::parse(name).unwrap()].place;
    assert_eq!((place("job-bob00"), place("job-ada00")), (1, 2));
}

#[test]
fn while_a_place_is_kept_the_queue_is_looked_through_each_minute() {
    let mut story = fleet(1, 2);
    story.send("ada", 0, 1, &on(1, 10));
    story.place();
    let quiet = story.fsm.next_deadline();
    story.send("bob", 0, 1, &on(2, 10));
    assert_eq!(story.fsm.next_deadline(), quiet, "nothing starts by the passing of time");
    story.place();
    let next = story.fsm.next_deadline().unwrap();
    assert!(next > story.fsm.now() && next.since(story.fsm.now()) <= Millis::minutes(1));
}
