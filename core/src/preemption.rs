//! Preemptions: running work that leaves so that a job of a higher class gets its GPUs.
//!
//! One that was ordered is kept in the state until the job has its place or does not want it any more
//! (`fsm/preemption.rs`); the scheduler chooses whose work leaves (`scheduler/preemption.rs`) and holds what gets free.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::id::{AllocationId, JobId};
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
            PreemptionEvent::JobClassSet { job, .. } | PreemptionEvent::GivenUp { job, .. } => {
                vec![job.to_string()]
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
                let names = victims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let leave = if victims.len() == 1 { "leaves" } else { "leave" };
                write!(f, "{names} {leave} {node} for {job} of {owner} (class {class})")
            }
            PreemptionEvent::GivenUp { job, why } => {
                write!(f, "nothing leaves for {job} any more: {why}")
            }
        }
    }
}
