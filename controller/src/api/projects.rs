//! Projects and shares: shown to everybody, set by admins.

use std::collections::BTreeSet;

use fleet_core::Rejection;
use fleet_core::command::{Command, ProjectCommand};
use fleet_core::name::{GroupName, ProjectName, UserName};
use fleet_core::people::{GROUPS_MAX, PeopleChange};
use fleet_core::project::ProjectChange;
use fleet_core::time::Millis;
use fleet_core::view::share::{self, ProjectShare, Share};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::names::refuse_unknown_group;
use super::propose::request_key;

impl Context {
    pub(super) async fn set_project(
        &self,
        request: Request<v1::SetProjectRequest>,
    ) -> Result<v1::ListProjectsResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let name = ProjectName::parse(&request.name).map_err(|e| refused("project.name", e))?;
        let change = change(&request)?;
        // It is the leader's machine that knows.
        self.newest().await?;
        self.callers.require_admin(&caller, "set_project")?;
        if !request.new_users {
            self.refuse_unknown(change.people.add_members.iter().cloned(), &caller, &key).await?;
        }
        for group in change.people.add_groups.iter().take(GROUPS_MAX) {
            refuse_unknown_group("add_groups", group).await?;
        }
        let command = match (request.remove, request.create) {
            (true, _) => ProjectCommand::Remove { name: name.clone() },
            (false, true) => ProjectCommand::Create { name: name.clone(), first: change },
            (false, false) => ProjectCommand::Set { name: name.clone(), change },
        };
        self.change(&caller.actor, Some(key), Command::Project(command)).await?;
        Ok(self.projects(&[name.to_string()]))
    }

    pub(super) async fn set_half_life(
        &self,
        request: Request<v1::SetHalfLifeRequest>,
    ) -> Result<v1::ListProjectsResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let command = ProjectCommand::SetHalfLife { half_life: Millis(request.half_life_ms) };
        self.change(&caller.actor, Some(key), Command::Project(command)).await?;
        Ok(self.projects(&[]))
    }

    /// Those of these names; all where none is named.
    pub(super) fn projects(&self, names: &[String]) -> v1::ListProjectsResponse {
        self.raft.read(|fsm| {
            let plan = self.plan.of(fsm);
            let named = |project: &ProjectShare| {
                names.is_empty() || names.iter().any(|name| name == project.name.as_str())
            };
            let items = share::shares(fsm, &plan).into_iter().filter(named).map(|project| {
                let set = fsm.projects().get(&project.name).cloned().unwrap_or_default();
                v1::Project {
                    name: project.name.to_string(),
                    members: texts(&set.people.members),
                    groups: texts(&set.people.groups),
                    weight: u32::try_from(project.weight).unwrap_or(u32::MAX),
                    weight_is_set: set.weight.is_some(),
                    share: Some(view(&project.share)),
                    people: people(&project),
                }
            });
            let half_life_ms = fsm.fair_share().half_life.0;
            v1::ListProjectsResponse { items: items.collect(), half_life_ms }
        })
    }
}

fn refused(field: &str, problem: impl ToString) -> Status {
    to_status(&Rejection::field(field, problem.to_string()))
}

/// What is asked for, with the field's name in its errors.
fn change(request: &v1::SetProjectRequest) -> Result<ProjectChange, Status> {
    fn all<T: Ord, E: ToString>(
        field: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<BTreeSet<T>, Status> {
        texts.iter().map(|text| parse(text).map_err(|e| refused(field, e))).collect()
    }
    let people = PeopleChange {
        add_members: all("add_members", &request.add_members, UserName::parse)?,
        remove_members: all("remove_members", &request.remove_members, UserName::parse)?,
        add_groups: all("add_groups", &request.add_groups, GroupName::parse)?,
        remove_groups: all("remove_groups", &request.remove_groups, GroupName::parse)?,
    };
    Ok(ProjectChange { people, weight: request.weight })
}

fn texts<T: ToString>(names: &BTreeSet<T>) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn people(project: &ProjectShare) -> Vec<v1::ProjectPerson> {
    let person = |(user, share): &(UserName, Share)| v1::ProjectPerson {
        user: user.to_string(),
        share: Some(view(share)),
    };
    project.people.iter().map(person).collect()
}

fn view(share: &Share) -> v1::Share {
    v1::Share {
        due_per_mille: share.due,
        used_gpu_ms: share.had.used.gpu_millis(),
        ahead_gpu_ms: share.had.ahead.gpu_millis(),
        holds_gpu_millis: share.had.holds,
        waiting: share.waiting,
        first_place: share.first_place,
    }
}
