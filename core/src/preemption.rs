//! Preemptions: running work that leaves so that a job of a higher class gets its GPUs.
//!
//! One that was ordered is kept in the state until the job has its place or does not want it any more
//! (`fsm/preemption.rs`); the scheduler chooses whose work leaves (`scheduler/preemption.rs`) and holds what gets free.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocation::Allocation;
use crate::class::{Class, Preemptible};
use crate::id::{AllocationId, JobId, ReservationId};
use crate::job::Job;
use crate::name::{ClassName, GpuUuid, NodeName, UserName};
use crate::time::{Millis, Timestamp};

/// Most preemptions at once, in the whole fleet.
pub const PREEMPTIONS_MAX: usize = 16;
/// How often one job may be preempted within [`PREEMPTIONS_WITHIN`].
pub const PREEMPTIONS_OF_A_JOB_MAX: usize = 3;
pub const PREEMPTIONS_WITHIN: Millis = Millis::hours(24);
/// An attempt that has saved nothing of its own yet is left alone for this long, whatever its class guarantees.
pub const UNSAVED_MAX: Millis = Millis::hours(24);
/// A place is held for this long after all that leave should be gone, with their graces.
pub const HELD_FREE_MAX: Millis = Millis::minutes(10);

/// Work that leaves for one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    pub node: NodeName,
    /// The place: GPUs that are free already, and those that get free.
    pub gpus: Vec<GpuUuid>,
    pub since: Timestamp,
    /// By when all of them have left, if each saves when it is expected to.
    pub starts_at: Timestamp,
    /// Until when the place is held for the job.
    pub held_until: Timestamp,
    /// Who leaves, and until when each is waited for to save.
    pub victims: BTreeMap<AllocationId, Timestamp>,
}

/// By the job that gets the place.
pub type Preemptions = BTreeMap<JobId, Preemption>;

/// From when on the place of an attempt may be taken by a job of a class that preempts it; `None` before it has begun.
pub(crate) fn guaranteed_until(a: &Allocation, job: &Job, class: &Class) -> Option<Timestamp> {
    let began = a.started_at?;
    let saved = |job: &Job| job.checkpoints().any(|c| c.allocation == a.id && !c.is_torn());
    let least = began + class.min_run;
    match job.spec.checkpoint.is_none() || saved(job) {
        true => Some(least),
        // Else one that saves rarely would be stopped before each of its checkpoints, for ever.
        false => Some(least.max(began + UNSAVED_MAX)),
    }
}

/// Whether nobody said how long the job runs, so that it leaves for jobs of its own class too.
pub(crate) fn is_open(class: &Class, job: &Job) -> bool {
    !job.spec.time_limit_given && class.preemptible != Preemptible::Never
}

/// Whether it leaves for that job of its own class or of a higher one that takes places: it named no time limit, and the
/// other is somebody else's. Who has less is another question.
pub(crate) fn leaves_as_open(job: &Job, mine: &Class, of: &Job, its: &Class) -> bool {
    let above = mine.preempts && mine.priority > its.priority;
    let above = above || job.spec.class == of.spec.class;
    above && job.owner != of.owner && is_open(its, of)
}

/// Whether jobs of that class leave for others by their class, if they are like this one.
pub(crate) fn has_a_way(class: &Class, job: &Job) -> bool {
    match class.preemptible {
        Preemptible::Never => false,
        Preemptible::Checkpoint => job.spec.checkpoint.is_some(),
        Preemptible::Always => true,
    }
}

/// Whether a job was preempted so often lately that it is left alone.
pub(crate) fn was_preempted_enough(job: &Job, now: Timestamp) -> bool {
    let lately = job.preempted_at.iter().filter(|at| now.since(**at) < PREEMPTIONS_WITHIN);
    lately.count() >= PREEMPTIONS_OF_A_JOB_MAX
}

/// What changed about classes and preemptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptionEvent {
    /// Created where there was none before; removed where there is none now.
    ClassSet {
        class: ClassName,
        now: Option<Class>,
        before: Option<Class>,
        by: String,
    },
    JobClassSet {
        job: JobId,
        now: ClassName,
        before: ClassName,
        by: String,
    },
    /// These jobs leave `node` for `job`.
    Ordered {
        job: JobId,
        owner: UserName,
        class: ClassName,
        node: NodeName,
        victims: Vec<JobId>,
        starts_at: Timestamp,
    },
    /// These jobs leave `node` for a reservation that begins in that time.
    Reserved {
        reservation: ReservationId,
        owner: UserName,
        node: NodeName,
        jobs: Vec<JobId>,
        within: Millis,
    },
    /// No reservation ends it before its own limit any more.
    Stays {
        job: JobId,
    },
    /// Before the job had its place: it does not want it any more, or cannot have it.
    GivenUp {
        job: JobId,
        why: String,
    },
}

impl PreemptionEvent {
    /// Ids and names of what the event is about.
    pub fn objects(&self) -> Vec<String> {
        match self {
            PreemptionEvent::ClassSet { class, .. } => vec![class.to_string()],
            PreemptionEvent::JobClassSet { job, .. }
            | PreemptionEvent::Stays { job }
            | PreemptionEvent::GivenUp { job, .. } => vec![job.to_string()],
            PreemptionEvent::Reserved { reservation, node, jobs, .. } => {
                let mut objects = vec![reservation.to_string(), node.to_string()];
                objects.extend(jobs.iter().map(ToString::to_string));
                objects
            }
            PreemptionEvent::Ordered { job, node, victims, .. } => {
                let mut objects = vec![job.to_string(), node.to_string()];
                objects.extend(victims.iter().map(ToString::to_string));
                objects
            }
        }
    }
}

impl std::fmt::Display for PreemptionEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PreemptionEvent::ClassSet { class, now: Some(now), before: None, by } => {
                write!(f, "class {class} created by {by}: {now}")
            }
            PreemptionEvent::ClassSet { class, now: Some(now), before: Some(before), by } => {
                write!(f, "class {class} changed by {by}: {now}; it was: {before}")
            }
            PreemptionEvent::ClassSet { class, now: None, by, .. } => {
                write!(f, "class {class} removed by {by}")
            }
            PreemptionEvent::JobClassSet { job, now, before, by } => {
                write!(f, "{job} is of class {now} by {by}'s word; it was of class {before}")
            }
            PreemptionEvent::Ordered { job, owner, class, node, victims, .. } => {
                write!(f, "{} {node} for {job} of {owner} (class {class})", leave(victims))
            }
            PreemptionEvent::Reserved { reservation, owner, node, jobs, within } => {
                let leave = leave(jobs);
                write!(f, "{leave} {node} within {within}: then {reservation} of {owner} begins")
            }
            PreemptionEvent::Stays { job } => {
                write!(f, "no reservation ends {job} before its time limit any more")
            }
            PreemptionEvent::GivenUp { job, why } => {
                write!(f, "nothing leaves for {job} any more: {why}")
            }
        }
    }
}

/// `job-a, job-b leave`.
fn leave(jobs: &[JobId]) -> String {
    let names = jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("{names} {}", if jobs.len() == 1 { "leaves" } else { "leave" })
}
