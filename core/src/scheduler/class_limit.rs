//! How many GPUs jobs of one person may hold in a class, where an admin set that.
//!
//! Called by each plan at a job's turn, and by the FSM for the re-check. Jobs within reservations do not count.

use std::collections::BTreeMap;

use super::limits::{Awaited, Newcomer};
use crate::job::{Job, JobSpec};
use crate::name::{ClassName, UserName};
use crate::reason::ClassLimit;
use crate::rejection::Rejection;
use crate::state::Fsm;
use crate::state::charged::is_within_a_reservation;

/// GPUs that jobs of that class and owner hold now.
fn holds(fsm: &Fsm, class: &ClassName, owner: &UserName) -> u32 {
    let own = fsm.jobs_of_class(class).filter(|job| job.owner == *owner);
    let attempts = own.filter_map(|job| fsm.allocation(job.allocation()?));
    let outside = attempts.filter(|a| !is_within_a_reservation(fsm, a));
    outside.map(|a| a.gpus.len() as u32).sum()
}

/// GPUs that are freed for jobs of that class and owner.
pub(super) fn awaits(fsm: &Fsm, class: &ClassName, owner: &UserName) -> u32 {
    let own = fsm.preemptions().iter().filter(|(job, _)| {
        fsm.job(job).is_some_and(|job| job.spec.class == *class && job.owner == *owner)
    });
    own.map(|(_, place)| place.gpus.len() as u32).sum()
}

fn limit(fsm: &Fsm, spec: &JobSpec) -> Option<u32> {
    // In a reservation its owner's limits for reservations hold.
    let outside = spec.reservation.is_none() && spec.gpus.count > 0;
    fsm.gpus_each_in(&spec.class).filter(|_| outside)
}

/// The limit, if a job of somebody who holds that many would pass it. `holds` is asked for only where there is a limit.
fn passed(fsm: &Fsm, spec: &JobSpec, holds: impl FnOnce() -> u32) -> Option<ClassLimit> {
    let most = limit(fsm, spec)?;
    let (holds, wanted) = (holds(), spec.gpus.count);
    let class = spec.class.clone();
    (holds + wanted > most).then_some(ClassLimit { class, most, holds, wanted })
}

/// The limit that keeps a job from free GPUs by what runs now, if one does.
pub(crate) fn reached(fsm: &Fsm, owner: &UserName, spec: &JobSpec) -> Option<ClassLimit> {
    passed(fsm, spec, || holds(fsm, &spec.class, owner))
}

/// A job that alone wants more than its class allows would never start.
pub(crate) fn check(fsm: &Fsm, spec: &JobSpec) -> Result<(), Rejection> {
    let most = fsm.gpus_each_in(&spec.class);
    match most.filter(|most| spec.reservation.is_none() && spec.gpus.count > *most) {
        None => Ok(()),
        Some(most) => {
            let (class, wanted) = (&spec.class, spec.gpus.count);
            let problem = format!("{wanted} is more than class {class} allows a person: {most}");
            Err(Rejection::field("gpus", problem))
        }
    }
}

/// What a plan or a command counts while it gives places.
#[derive(Debug)]
pub(super) struct ClassLimits {
    awaited: Awaited,
    /// What they hold.
    holds: BTreeMap<(ClassName, UserName), u32>,
}

impl ClassLimits {
    pub(super) fn new(awaited: Awaited) -> Self {
        Self { awaited, holds: BTreeMap::new() }
    }

    fn known(&mut self, fsm: &Fsm, class: &ClassName, owner: &UserName) -> &mut u32 {
        let all = || match self.awaited {
            Awaited::Counts => holds(fsm, class, owner) + awaits(fsm, class, owner),
            Awaited::CountsNot => holds(fsm, class, owner),
        };
        self.holds.entry((class.clone(), owner.clone())).or_insert_with(all)
    }

    /// The limit that keeps it from free GPUs, if one does.
    pub(super) fn reached(&mut self, fsm: &Fsm, new: &Newcomer<'_>) -> Option<ClassLimit> {
        // What is freed for it does not count against it.
        let own = new.id.and_then(|id| fsm.preemptions().get(id));
        let own = own.filter(|_| self.awaited == Awaited::Counts);
        let own = own.map_or(0, |place| place.gpus.len() as u32);
        passed(fsm, new.spec, || self.known(fsm, &new.spec.class, new.owner).saturating_sub(own))
    }

    pub(super) fn count(&mut self, fsm: &Fsm, job: &Job) {
        if limit(fsm, &job.spec).is_some() {
            *self.known(fsm, &job.spec.class, &job.owner) += job.spec.gpus.count;
        }
    }
}
