//! What keeps a job from GPUs although they are free: the limits of its class and of its project.

use super::class_limit::{self, ClassLimits};
use super::project_limit::{self, OfProjects};
use crate::fair_share::{Amount, Rate};
use crate::id::JobId;
use crate::job::{Job, JobSpec};
use crate::name::UserName;
use crate::reason::WaitReason;
use crate::rejection::Rejection;
use crate::state::Fsm;
use crate::time::{Millis, Timestamp};

/// Whether GPUs that are freed for jobs which wait count as theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// For a plan, which gives no more away.
    Counts,
    /// For the re-check of one of these jobs among others.
    CountsNot,
}

/// A job that would start now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newcomer<'a> {
    /// Of one that is submitted.
    pub(super) id: Option<&'a JobId>,
    pub(super) owner: &'a UserName,
    pub(super) spec: &'a JobSpec,
    /// For how long it may run, and what of its time limit it has used.
    pub(super) length: Millis,
    pub(super) time_used: Millis,
}

impl<'a> Newcomer<'a> {
    pub(crate) fn of_job(job: &'a Job) -> Self {
        let (length, time_used) = (job.time_left(), job.time_used);
        Self { id: Some(&job.id), owner: &job.owner, spec: &job.spec, length, time_used }
    }

    pub(super) fn of_spec(owner: &'a UserName, spec: &'a JobSpec) -> Self {
        Self { id: None, owner, spec, length: spec.time_limit, time_used: Millis::ZERO }
    }

    /// What it may use.
    pub(super) fn amount(&self) -> Amount {
        Rate::of(self.spec.gpus.count as usize, 0).times(self.length)
    }
}

/// What a plan or a command counts while it gives places.
#[derive(Debug)]
pub(crate) struct JobLimits {
    classes: ClassLimits,
    projects: OfProjects,
}

impl JobLimits {
    pub(crate) fn new(awaited: Awaited) -> Self {
        Self { classes: ClassLimits::new(awaited), projects: OfProjects::new(awaited) }
    }

    /// The limit that keeps it from free GPUs, if one does.
    pub(crate) fn reached(&mut self, fsm: &Fsm, new: Newcomer<'_>) -> Option<WaitReason> {
        let of_class = self.classes.reached(fsm, &new).map(WaitReason::ClassLimit);
        of_class.or_else(|| self.projects.reached(fsm, &new).map(WaitReason::ProjectLimit))
    }

    /// The same, with the time at which it could start as far as that limit goes, where that is known. Asked in the order of
    /// the queue: each job counts for those behind it.
    pub(super) fn foresee(
        &mut self,
        fsm: &Fsm,
        new: Newcomer<'_>,
    ) -> Option<(WaitReason, Option<Timestamp>)> {
        let reason = self.reached(fsm, new)?;
        let at = match &reason {
            WaitReason::ProjectLimit(limit) => self.projects.foresee(fsm, &new, limit),
            _ => None,
        };
        Some((reason, at))
    }

    /// When the first of those that waited for a limit could start, if nothing happens until then.
    pub(super) fn look_at(&self, fsm: &Fsm) -> Option<Timestamp> {
        self.projects.look_at(fsm)
    }

    /// The job starts now.
    pub(crate) fn count(&mut self, fsm: &Fsm, job: &Job) {
        self.classes.count(fsm, job);
        self.projects.count(fsm, job);
    }
}

/// A job that alone wants more than its class or its project allows would never start.
pub(crate) fn check(fsm: &Fsm, spec: &JobSpec) -> Result<(), Rejection> {
    class_limit::check(fsm, spec)?;
    project_limit::check(fsm, spec)
}
