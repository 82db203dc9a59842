//! Projects and shares: shown to everybody, set by admins.

use fleet_core::command::{Command, ProjectCommand};
use fleet_core::fair_share::Amount;
use fleet_core::name::{ProjectName, UserName};
use fleet_core::project::{ProjectChange, ProjectLimits};
use fleet_core::time::Millis;
use fleet_core::view::share::{self, ProjectShare, Share};
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::people::{Named, change_of, refused, texts};
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
        self.refuse_unknown_people(&change.people, request.new_users, &caller, &key).await?;
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
                    limits: Some(limits(&set.limits)),
                }
            });
            let half_life_ms = fsm.fair_share().half_life.0;
            v1::ListProjectsResponse { items: items.collect(), half_life_ms }
        })
    }
}

/// What is asked for, with the field's name in its errors.
fn change(request: &v1::SetProjectRequest) -> Result<ProjectChange, Status> {
    let people = change_of(Named {
        add_members: &request.add_members,
        remove_members: &request.remove_members,
        add_groups: &request.add_groups,
        remove_groups: &request.remove_groups,
    })?;
    let v1::ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each } =
        request.limits.unwrap_or_default();
    let limits = ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each };
    Ok(ProjectChange { people, weight: request.weight, limits })
}

fn limits(limits: &ProjectLimits) -> v1::ProjectLimits {
    let ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each } = *limits;
    v1::ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each }
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
        committed_gpu_ms: share.committed.map(Amount::gpu_millis),
    }
}
