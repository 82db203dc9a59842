//! Classes of jobs: shown to everybody, set by admins.

use fleet_core::Rejection;
use fleet_core::class::{Class, ClassChange, Preemptible};
use fleet_core::command::{ClassCommand, Command};
use fleet_core::job::JobState;
use fleet_core::name::ClassName;
use fleet_core::time::Millis;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::people::{Named, change_of, refused, texts};
use super::propose::request_key;

impl Context {
    pub(super) async fn set_class(
        &self,
        request: Request<v1::SetClassRequest>,
    ) -> Result<v1::ListClassesResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let name = ClassName::parse(&request.name).map_err(|e| refused("class.name", e))?;
        let change = change(&request)?;
        // It is the leader's machine that knows.
        self.newest().await?;
        self.callers.require_admin(&caller, "set_class")?;
        self.refuse_unknown_people(&change.people, request.new_users, &caller, &key).await?;
        let change = Box::new(change);
        let command = match (request.remove, request.create) {
            (true, _) => ClassCommand::Remove { name: name.clone() },
            (false, true) => ClassCommand::Create { name: name.clone(), first: change },
            (false, false) => ClassCommand::Set { name: name.clone(), change },
        };
        self.change(&caller.actor, Some(key), Command::Class(command)).await?;
        Ok(self.classes(&[name.to_string()]))
    }

    /// Those of these names; all where none is named. The highest first.
    pub(super) fn classes(&self, names: &[String]) -> v1::ListClassesResponse {
        self.raft.read(|fsm| {
            let named = |name: &ClassName| {
                names.is_empty() || names.iter().any(|wanted| wanted == name.as_str())
            };
            let classes = fsm.class_names().into_iter().filter(named);
            let items = classes.filter_map(|name| {
                let class = fsm.class(&name)?;
                let mut item = view(&name, &class);
                for job in fsm.jobs_of_class(&name).filter(|job| !job.state.is_final()) {
                    match job.state {
                        JobState::Queued => item.waiting += 1,
                        _ => item.running += 1,
                    }
                }
                Some(item)
            });
            v1::ListClassesResponse { items: items.collect() }
        })
    }
}

/// What is asked for, with the field's name in its errors.
fn change(request: &v1::SetClassRequest) -> Result<ClassChange, Status> {
    let preemptible = request.preemptible.as_deref().map(|word| {
        Preemptible::from_word(word).ok_or_else(|| {
            let words: Vec<&str> = Preemptible::ALL.iter().map(|one| one.word()).collect();
            let problem = format!("{word:?} is none of {}", words.join(", "));
            to_status(&Rejection::field("preemptible", problem))
        })
    });
    let people = change_of(Named {
        add_members: &request.add_members,
        remove_members: &request.remove_members,
        add_groups: &request.add_groups,
        remove_groups: &request.remove_groups,
    })?;
    Ok(ClassChange {
        people,
        priority: request.priority,
        everybody: request.everybody,
        preempts: request.preempts,
        preemptible: preemptible.transpose()?,
        min_run: request.min_run_ms.map(Millis),
        save_limit: request.save_limit_ms.map(Millis),
        gpus_each: request.gpus_each,
    })
}

fn view(name: &ClassName, class: &Class) -> v1::Class {
    v1::Class {
        name: name.to_string(),
        priority: class.priority,
        everybody: class.everybody,
        members: texts(&class.people.members),
        groups: texts(&class.people.groups),
        preempts: class.preempts,
        preemptible: class.preemptible.word().to_owned(),
        min_run_ms: class.min_run.0,
        save_limit_ms: class.save_limit.0,
        gpus_each: class.gpus_each,
        running: 0,
        waiting: 0,
    }
}
