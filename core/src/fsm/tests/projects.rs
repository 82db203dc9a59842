//! Projects: who makes them, who is in them, what may name them.

use super::world::{World, person, plain, user};
use crate::actor::{Actor, Who};
use crate::command::{Command, CreateReservation, ProjectCommand, ReservationCommand};
use crate::job::JobSpec;
use crate::name::{GroupName, ProjectName};
use crate::people::PeopleChange;
use crate::project::{PROJECTS_MAX, ProjectChange, WEIGHT_MAX};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::GpuRequest;
use crate::time::{Millis, Window};

fn name(text: &str) -> ProjectName {
    ProjectName::parse(text).unwrap()
}

fn members(of: &[&str]) -> ProjectChange {
    let add_members = of.iter().map(|name| user(name)).collect();
    let people = PeopleChange { add_members, ..PeopleChange::default() };
    ProjectChange { people, ..ProjectChange::default() }
}

fn give(w: &mut World, command: ProjectCommand) -> Result<Reply, Rejection> {
    w.give(person("root"), Command::Project(command))
}

fn world() -> World {
    let mut w = World::with(&["titan01"]);
    let mut first = members(&["ada"]);
    first.people.add_groups = [GroupName::parse("visionlab").unwrap()].into();
    give(&mut w, ProjectCommand::Create { name: name("vision"), first }).unwrap();
    w
}

fn of(project: &str) -> JobSpec {
    JobSpec { project: name(project), ..plain(0) }
}

fn refusal(answer: Result<Reply, Rejection>) -> String {
    answer.unwrap_err().to_string()
}

#[test]
fn only_its_members_may_name_a_project_and_everybody_the_default() {
    let mut w = world();
    w.submit("ada", "a", of("vision")).unwrap();
    w.submit("bob", "b", of("default")).unwrap();
    let said = refusal(w.submit("bob", "c", of("vision")));
    assert_eq!(
        said,
        "permission denied: only a member of project vision (fleet project show vision) may do this"
    );
    assert_eq!(refusal(w.submit("ada", "c", of("speech"))), "there is no project \"speech\"");
    w.submit("root", "d", of("vision")).unwrap();
}

#[test]
fn a_member_of_its_group_is_in_it() {
    let mut w = world();
    let groups = [GroupName::parse("visionlab").unwrap()].into();
    let bob = Actor { who: Who::User { name: user("bob"), admin: false, groups }, ..person("bob") };
    let window = Window { starts_at: w.now, ends_at: w.now + Millis::hours(1) };
    let gpus = GpuRequest { count: 1, ..GpuRequest::default() };
    let wish = CreateReservation {
        project: name("vision"),
        ..CreateReservation::plain(super::world::res("r"), user("bob"), gpus, window)
    };
    let create = || Command::Reservation(ReservationCommand::Create(wish.clone()));
    assert!(matches!(w.give(person("bob"), create()), Err(Rejection::Denied { .. })));
    w.give(bob, create()).unwrap();
}

#[test]
fn a_project_is_changed_as_a_whole_or_not_at_all() {
    let mut w = world();
    let set = |change| ProjectCommand::Set { name: name("vision"), change };
    let mut change = ProjectChange { weight: Some(3), ..members(&["bob", "cyd"]) };
    change.people.remove_members = [user("ada")].into();
    give(&mut w, set(change)).unwrap();
    assert_eq!(
        w.said(),
        ["project vision changed by root: members bob, cyd; groups visionlab; weight 3; it was: \
          members ada; groups visionlab; weight by its people"]
    );
    let before = w.fsm.projects().clone();
    let mut gone = members(&["dan"]);
    gone.people.remove_members = [user("ada")].into();
    for (bad, said) in [
        (ProjectChange { weight: Some(WEIGHT_MAX + 1), ..members(&["dan"]) }, "between 1 and"),
        (gone, "no member"),
    ] {
        let refused = refusal(give(&mut w, set(bad)));
        assert!(refused.contains(said), "{refused}");
    }
    let unknown = ProjectCommand::Set { name: name("speech"), change: members(&["dan"]) };
    assert!(refusal(give(&mut w, unknown)).contains("no project"));
    let again = ProjectCommand::Create { name: name("vision"), first: members(&[]) };
    assert!(refusal(give(&mut w, again)).contains("there is a project vision already"));
    let default = ProjectCommand::Set { name: name("default"), change: members(&["dan"]) };
    assert!(refusal(give(&mut w, default)).contains("everybody is in default"));
    assert_eq!(*w.fsm.projects(), before);
    let weight = ProjectChange { weight: Some(2), ..ProjectChange::default() };
    give(&mut w, ProjectCommand::Set { name: name("default"), change: weight }).unwrap();
}

#[test]
fn a_project_that_something_open_counts_for_is_not_removed() {
    let mut w = world();
    for at in 0..7 {
        w.submit("ada", &format!("a{at}"), of("vision")).unwrap();
    }
    let remove = || ProjectCommand::Remove { name: name("vision") };
    assert_eq!(
        refusal(give(&mut w, remove())),
        "project vision is in use: job-a0, job-a1, job-a2, job-a3, job-a4, more"
    );
    for at in 0..7 {
        let cancel =
            crate::command::JobCommand::Cancel { id: super::world::job(&format!("a{at}")) };
        w.give(person("ada"), Command::Job(cancel)).unwrap();
    }
    give(&mut w, remove()).unwrap();
    assert_eq!(refusal(give(&mut w, remove())), "there is no project \"vision\"");
    let default = ProjectCommand::Remove { name: name("default") };
    assert!(refusal(give(&mut w, default)).contains("default stays"));
}

#[test]
fn nobody_but_admins_makes_projects_and_there_are_not_too_many() {
    let mut w = World::with(&["titan01"]);
    let create = |at: usize| ProjectCommand::Create {
        name: name(&format!("p{at}")),
        first: ProjectChange::default(),
    };
    assert!(w.give(person("ada"), Command::Project(create(0))).is_err());
    for at in 0..PROJECTS_MAX {
        give(&mut w, create(at)).unwrap();
    }
    assert_eq!(refusal(give(&mut w, create(PROJECTS_MAX))), "projects: at most 1000");
}
