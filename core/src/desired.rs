//! What should be on one node: the state as the controller sends it to the agent.
//!
//! Built by the leader's link for each agent whenever the state changed, taken by the agent as a
//! level. Only explicit entries mean anything: an allocation that is not named here is left alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::checkpoint::ResumeOrder;
use crate::ending::{NoLonger, ReservationRules};
use crate::id::{AllocationId, JobId, LeaseId, ReservationId};
use crate::idle::DesiredIdle;
use crate::job::{Job, JobSpec};
use crate::lease::{Epoch, LeaseHolder};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::ClearOrder;
use crate::reboot::DesiredReboot;
use crate::time::{Millis, Timestamp};
use crate::window::{DesiredWindow, Enforcement};

/// Version of the document that this build writes.
pub const DESIRED_VERSION: u32 = 1;

/// Everything the leader wants of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredNode {
    pub v: u32,
    pub node: NodeName,
    pub allocations: Vec<DesiredAllocation>,
    pub leases: Vec<DesiredLease>,
    /// Records of attempts whose end is in the log; the agent need not report them any more.
    pub forget: Vec<AllocationId>,
    /// After a restore: say what you hold, and what ended since then, before anything else is ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recount: Option<Timestamp>,
    /// Conditions that do not count any more, by an admin's decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clear: Vec<ClearOrder>,
    /// The calendar of the coming days, which the agent keeps by itself. One that is not named is left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<DesiredWindow>,
    /// How the node holds people to their reservations; where it is not said, as it did before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<Enforcement>,
    /// How windows end; where it is not said, by their time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<ReservationRules>,
    /// The open windows that end although the rules would extend them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub no_longer: BTreeMap<ReservationId, NoLonger>,
    /// The idle reservations that fleet releases, and when.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub idle: BTreeMap<ReservationId, DesiredIdle>,
    /// The machine is to reboot, now that nothing is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<DesiredReboot>,
    /// The node is drained: once nothing is on it, the agent releases the GPU driver, so that it can be exchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release_driver: bool,
    /// Jobs that must leave other nodes: can they continue here?
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
    /// Jobs that ended, of which the node is to remove what fleet wrote beside their checkpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<JobDir>,
    /// The numbers in the names of its GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<GpuUuid, u32>,
    /// Lost cards that an admin forgot: the node need not report them any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub forgotten: BTreeSet<GpuUuid>,
}

/// What to do with one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredAllocation {
    pub id: AllocationId,
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    pub order: Order,
    /// Take deferral order of this number: answer with the current checkpoint number.
    pub defer: Option<u32>,
    /// By when it is to be over; for the agent alone only where somebody else was promised the GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// The reservation under whose lease it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ReservationId>,
    /// Ask the program for a checkpoint: the number of the newest request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<u32>,
}

/// The order for one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start it if it does not run and its epoch is new.
    Start(Box<StartOrder>),
    /// It was reported as running: nothing to do.
    Keep,
    /// The stop signal now, SIGKILL after `grace`.
    Stop { grace: Millis, why: String },
}

/// Everything that is needed to start one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    pub job: JobId,
    pub attempt: u32,
    pub restarts_used: u32,
    pub owner: UserName,
    pub spec: JobSpec,
    pub gpus: Vec<GpuUuid>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub resume_from: Option<String>,
    /// Text of the marker beside the checkpoints.
    pub marker: String,
    /// What it may resume from; absent where it begins with nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeOrder>,
}

/// A lease on this node that is not over, or is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredLease {
    pub id: LeaseId,
    pub epoch: Epoch,
    pub gpus: Vec<GpuUuid>,
    pub owner: UserName,
    pub holder: LeaseHolder,
    /// Prove the GPUs empty and report the release.
    pub ending: bool,
    /// Who else may use them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
}

impl DesiredLease {
    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }
}

/// Asks a node whether a job that must leave another one could continue there: whether it sees the directory in which the job
/// saves, with the marker that the first attempt left in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The attempt that must leave.
    pub allocation: AllocationId,
    pub place: JobDir,
}

/// The directory in which a job saves, as a node finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDir {
    pub job: JobId,
    pub owner: UserName,
    /// Its checkpoint directory and its mounts; without its command line and its environment.
    pub spec: Box<JobSpec>,
    pub marker: String,
}

impl JobDir {
    pub(crate) fn of(job: &Job) -> Self {
        let spec = JobSpec { argv: Vec::new(), env: Default::default(), ..job.spec.clone() };
        let (id, owner, marker) = (job.id.clone(), job.owner.clone(), job.marker.clone());
        Self { job: id, owner, spec: Box::new(spec), marker }
    }
}
