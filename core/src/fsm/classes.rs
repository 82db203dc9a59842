//! Classes of jobs: created, changed and removed by admins; checked where a job names one.

use super::{Fsm, Turn};
use crate::actor::Actor;
use crate::class::{
    CLASSES_MAX, Class, ClassChange, GPUS_EACH_MAX, MIN_RUN_MAX, PRIORITY_MAX, SAVE_LIMIT_MAX,
    SAVE_LIMIT_MIN,
};
use crate::event::Event;
use crate::id::JobId;
use crate::job::JobSpec;
use crate::name::{ClassName, UserName};
use crate::people::People;
use crate::preemption::PreemptionEvent;
use crate::reason::WaitReason;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler::class_limit;
use crate::state::charged::is_within_a_reservation;

impl Fsm {
    pub(super) fn create_class(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ClassName,
        first: &ClassChange,
    ) -> Result<Reply, Rejection> {
        if self.class(name).is_some() {
            let problem = format!("there is a class {name} already");
            return Err(Rejection::field("class.name", problem));
        }
        if self.class_names().len() >= CLASSES_MAX {
            let what = "classes".to_owned();
            return Err(Rejection::LimitReached { what, limit: CLASSES_MAX as u64 });
        }
        let class = changed(&Class::new(), first)?;
        self.check_groups(&People::default(), &class.people)?;
        self.keep_class(turn, name, Some(class), None);
        Ok(Reply::Done)
    }

    pub(super) fn set_class(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ClassName,
        change: &ClassChange,
    ) -> Result<Reply, Rejection> {
        let before = self.class(name).ok_or_else(|| Rejection::not_found("class", name))?;
        let before = before.into_owned();
        let class = changed(&before, change)?;
        self.check_groups(&before.people, &class.people)?;
        if *name == ClassName::normal() && !class.everybody {
            let problem =
                format!("everybody may use {name}: it is the class of all that name none");
            return Err(Rejection::field("everybody", problem));
        }
        if class != before {
            self.keep_class(turn, name, Some(class), Some(before));
        }
        Ok(Reply::Done)
    }

    pub(super) fn remove_class(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ClassName,
    ) -> Result<Reply, Rejection> {
        if Class::built_in(name).is_some() {
            let problem = format!("{name} stays: it is there in every fleet");
            return Err(Rejection::field("class.name", problem));
        }
        let before = self.class(name).ok_or_else(|| Rejection::not_found("class", name))?;
        let before = before.into_owned();
        let open = self.jobs_of_class(name).filter(|job| !job.state.is_final());
        Rejection::if_in_use(format!("class {name}"), open.map(|job| job.id.to_string()))?;
        self.keep_class(turn, name, None, Some(before));
        Ok(Reply::Done)
    }

    fn keep_class(
        &mut self,
        turn: &mut Turn<'_>,
        name: &ClassName,
        now: Option<Class>,
        before: Option<Class>,
    ) {
        match now.clone() {
            Some(class) => self.classes.insert(name.clone(), class),
            None => self.classes.remove(name),
        };
        let (class, by) = (name.clone(), turn.actor.display_name());
        let set = PreemptionEvent::ClassSet { class, now, before, by };
        turn.say(Event::Preemption(Box::new(set)));
    }

    /// Whether a job of that user may be of the class. An admin may use any that is there.
    pub(super) fn check_class(
        &self,
        actor: &Actor,
        owner: &UserName,
        name: &ClassName,
    ) -> Result<(), Rejection> {
        let class = self.class(name).ok_or_else(|| Rejection::not_found("class", name))?;
        let is_admin = actor.is_admin();
        match class.everybody || is_admin || class.people.has(owner, actor) {
            true => Ok(()),
            false => {
                let needs = format!("somebody who may use class {name} (fleet class show {name})");
                Err(Rejection::Denied { needs })
            }
        }
    }

    /// A job that waits or runs is of another class from now on.
    pub(super) fn set_job_class(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
        name: &ClassName,
    ) -> Result<Reply, Rejection> {
        let job = self.cancellable(id)?;
        self.check_class(turn.actor, &job.owner, name)?;
        let before = job.spec.class.clone();
        if before == *name {
            return Ok(Reply::Done);
        }
        let spec = JobSpec { class: name.clone(), ..job.spec.clone() };
        class_limit::check(self, &spec)?;
        // One that waits then waits for the limit. One that runs would hold more than the class allows.
        let attempt = job.allocation().and_then(|id| self.allocations.get(id));
        let runs = attempt.is_some_and(|attempt| !is_within_a_reservation(self, attempt));
        let is_admin = turn.actor.is_admin();
        if let Some(limit) = class_limit::reached(self, &job.owner, &spec)
            && runs
            && !is_admin
        {
            let problem = WaitReason::ClassLimit(limit).alone().to_string();
            return Err(Rejection::field("class", problem));
        }
        self.unbind_job(id);
        if let Some(job) = self.jobs.get_mut(id) {
            job.spec.class = name.clone();
            let job = job.clone();
            self.bind_job(&job);
        }
        let by = turn.actor.display_name();
        let set = PreemptionEvent::JobClassSet { job: id.clone(), now: name.clone(), before, by };
        turn.say(Event::Preemption(Box::new(set)));
        Ok(Reply::Done)
    }
}

/// The class with the change, or what is wrong with it.
fn changed(before: &Class, change: &ClassChange) -> Result<Class, Rejection> {
    let people = before.people.changed(&change.people, "class")?;
    let class = Class {
        priority: change.priority.unwrap_or(before.priority),
        everybody: change.everybody.unwrap_or(before.everybody),
        people,
        preempts: change.preempts.unwrap_or(before.preempts),
        preemptible: change.preemptible.unwrap_or(before.preemptible),
        min_run: change.min_run.unwrap_or(before.min_run),
        save_limit: change.save_limit.unwrap_or(before.save_limit),
        gpus_each: match change.gpus_each {
            None => before.gpus_each,
            Some(0) => None,
            Some(most) => Some(most),
        },
    };
    let refused = |field: &str, problem: String| Err(Rejection::field(field, problem));
    if class.priority > PRIORITY_MAX {
        return refused("priority", format!("{} is more than {PRIORITY_MAX}", class.priority));
    }
    if class.min_run > MIN_RUN_MAX {
        return refused("min_run", format!("{} is more than {MIN_RUN_MAX}", class.min_run));
    }
    if !(SAVE_LIMIT_MIN..=SAVE_LIMIT_MAX).contains(&class.save_limit) {
        let limit = class.save_limit;
        let problem = format!("{limit} is not between {SAVE_LIMIT_MIN} and {SAVE_LIMIT_MAX}");
        return refused("save_limit", problem);
    }
    if let Some(most) = class.gpus_each.filter(|most| *most > GPUS_EACH_MAX) {
        return refused("gpus_each", format!("{most} is more than {GPUS_EACH_MAX}"));
    }
    Ok(class)
}
