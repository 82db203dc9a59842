//! Projects: created, changed and removed by admins; checked where a job or a reservation names one.

use super::{Fsm, Turn};
use crate::actor::Actor;
use crate::event::Event;
use crate::name::{GroupName, ProjectName, UserName};
use crate::people::{GROUPS_MAX, People};
use crate::project::{
    LIMIT_GPU_HOURS_MAX, LIMIT_GPUS_MAX, PROJECTS_MAX, Project, ProjectChange, ProjectLimits,
    WEIGHT_MAX,
};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Fsm {
    pub(super) fn create_project(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ProjectName,
        first: &ProjectChange,
    ) -> Result<Reply, Rejection> {
        if self.is_project(name) {
            return Err(Rejection::field(
                "project.name",
                format!("there is a project {name} already"),
            ));
        }
        if self.projects.len() >= PROJECTS_MAX {
            let what = "projects".to_owned();
            return Err(Rejection::LimitReached { what, limit: PROJECTS_MAX as u64 });
        }
        let project = changed(&Project::default(), first)?;
        self.check_groups(&People::default(), &project.people)?;
        self.keep_project(turn, name, Some(project), None);
        Ok(Reply::Done)
    }

    pub(super) fn set_project(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ProjectName,
        change: &ProjectChange,
    ) -> Result<Reply, Rejection> {
        let before = self.project(name)?;
        let project = changed(&before, change)?;
        if *name == ProjectName::default_project() && !project.people.is_empty() {
            let problem = format!("everybody is in {name}; create a project for some of them");
            return Err(Rejection::field("members", problem));
        }
        self.check_groups(&before.people, &project.people)?;
        if project != before {
            self.keep_project(turn, name, Some(project), Some(before));
        }
        Ok(Reply::Done)
    }

    pub(super) fn remove_project(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ProjectName,
    ) -> Result<Reply, Rejection> {
        if *name == ProjectName::default_project() {
            let problem = format!("{name} stays: it is the project of all that names none");
            return Err(Rejection::field("project.name", problem));
        }
        let before = self.project(name)?;
        let jobs = self.jobs.values().filter(|job| !job.state.is_final());
        let jobs = jobs.filter(|job| job.spec.project == *name).map(|job| job.id.to_string());
        let reservations = self.open_reservations().filter(|r| r.project == *name);
        Rejection::if_in_use(
            format!("project {name}"),
            jobs.chain(reservations.map(|r| r.id.to_string())),
        )?;
        self.keep_project(turn, name, None, Some(before));
        Ok(Reply::Done)
    }

    /// Whether there may be that many groups, where `before` becomes `now`.
    pub(super) fn check_groups(&self, before: &People, now: &People) -> Result<(), Rejection> {
        let others = self.all_people().map(|people| people.groups.len()).sum::<usize>();
        if others.saturating_sub(before.groups.len()) + now.groups.len() > GROUPS_MAX {
            let what = "groups of all projects and classes".to_owned();
            return Err(Rejection::LimitReached { what, limit: GROUPS_MAX as u64 });
        }
        Ok(())
    }

    fn all_people(&self) -> impl Iterator<Item = &People> {
        let of_classes = self.classes.values().map(|class| &class.people);
        let of_projects = self.projects.values().map(|project| &project.people);
        of_projects.chain(of_classes).chain([&self.approvers])
    }

    fn keep_project(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ProjectName,
        now: Option<Project>,
        before: Option<Project>,
    ) {
        match now.clone() {
            Some(project) => self.projects.insert(name.clone(), project),
            None => self.projects.remove(name),
        };
        let (project, by) = (name.clone(), turn.actor.display_name());
        turn.say(Event::ProjectSet { project, now, before, by });
    }

    /// The groups that limits or projects name: those of an actor that matter.
    pub fn groups_that_count(&self) -> impl Iterator<Item = &GroupName> {
        let named = self.all_people().flat_map(|people| &people.groups);
        self.limits.keys().chain(named)
    }

    pub(super) fn is_project(&self, name: &ProjectName) -> bool {
        *name == ProjectName::default_project() || self.projects.contains_key(name)
    }

    /// As it is now; the default one is there also where nothing is set of it.
    fn project(&self, name: &ProjectName) -> Result<Project, Rejection> {
        match self.projects.get(name) {
            Some(project) => Ok(project.clone()),
            None if self.is_project(name) => Ok(Project::default()),
            None => Err(Rejection::not_found("project", name)),
        }
    }

    /// Whether something of that user may count for the project. An admin may name any project that is there, also for
    /// somebody else: the groups of others are not known here.
    pub(super) fn check_project(
        &self,
        actor: &Actor,
        owner: &UserName,
        name: &ProjectName,
    ) -> Result<(), Rejection> {
        if *name == ProjectName::default_project() {
            return Ok(());
        }
        let project = self.projects.get(name);
        let project = project.ok_or_else(|| Rejection::not_found("project", name))?;
        let is_admin = actor.is_admin();
        match is_admin || project.people.has(owner, actor) {
            true => Ok(()),
            false => {
                let needs = format!("a member of project {name} (fleet project show {name})");
                Err(Rejection::Denied { needs })
            }
        }
    }
}

/// The project with the change, or what is wrong with it.
fn changed(before: &Project, change: &ProjectChange) -> Result<Project, Rejection> {
    let people = before.people.changed(&change.people, "project")?;
    let mut project = Project { people, ..before.clone() };
    match change.weight {
        None => {}
        Some(0) => project.weight = None,
        Some(weight) if weight <= WEIGHT_MAX => project.weight = Some(weight),
        Some(weight) => {
            let problem = format!("{weight} is not between 1 and {WEIGHT_MAX}");
            return Err(Rejection::field("weight", problem));
        }
    }
    let (now, to) = (&mut project.limits, &change.limits);
    let ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each } = now;
    set_limit(gpus, to.gpus, ("limits.gpus", LIMIT_GPUS_MAX))?;
    set_limit(gpus_each, to.gpus_each, ("gpus_each", LIMIT_GPUS_MAX))?;
    set_limit(gpu_hours, to.gpu_hours, ("gpu_hours", LIMIT_GPU_HOURS_MAX))?;
    set_limit(gpu_hours_each, to.gpu_hours_each, ("gpu_hours_each", LIMIT_GPU_HOURS_MAX))?;
    Ok(project)
}

fn set_limit(
    limit: &mut Option<u32>,
    to: Option<u32>,
    (field, max): (&str, u32),
) -> Result<(), Rejection> {
    match to {
        None => {}
        Some(0) => *limit = None,
        Some(most) if most <= max => *limit = Some(most),
        Some(most) => return Err(Rejection::field(field, format!("{most} is more than {max}"))),
    }
    Ok(())
}
