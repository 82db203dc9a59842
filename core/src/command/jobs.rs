//! Commands about jobs: what their owners ask, where the scheduler places them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::RestartFrom;
use crate::id::{AllocationId, JobId};
use crate::job::SubmitJob;
use crate::name::{ClassName, GpuUuid, NodeName};
use crate::time::{Millis, Timestamp};

/// One line of a scheduler's plan; the FSM checks it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub job: JobId,
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
}

/// A job whose place is kept, and when it was expected there first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPlace {
    pub job: JobId,
    pub starts_at: Timestamp,
}

/// Work that is to leave one node, so that a job of a higher class can run there; the FSM checks it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preempt {
    pub job: JobId,
    pub node: NodeName,
    /// What the job gets: GPUs that are free already, and those that get free.
    pub gpus: Vec<GpuUuid>,
    /// By when all of them have left, if each saves when it is expected to.
    pub starts_at: Timestamp,
    /// The attempts that leave, and until when each is waited for to save.
    pub victims: BTreeMap<AllocationId, Timestamp>,
}

/// What changes of the [defaults](crate::job::JobDefaults).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDefaultsChange {
    /// Zero: never.
    pub stop_after: Option<Millis>,
    pub without_gpus_percent: Option<u8>,
    pub places_kept: Option<u32>,
}

/// About jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobCommand {
    Submit(Box<SubmitJob>),
    Cancel {
        id: JobId,
    },
    /// An ended job, or one that asks its owner, is queued again.
    Restart {
        id: JobId,
        from: RestartFrom,
        /// A new limit; as long as the old one where it is not said.
        time_limit: Option<Millis>,
    },
    /// A job that waits is not placed until it is released.
    Hold {
        id: JobId,
    },
    /// A held job may be placed again.
    ReleaseHold {
        id: JobId,
    },
    /// A job that waits or runs gets another time limit.
    SetTimeLimit {
        id: JobId,
        time_limit: Millis,
    },
    /// A job that waits or runs is of another class.
    SetClass {
        id: JobId,
        class: ClassName,
    },
    /// Removes an ended job, and what fleet wrote beside its checkpoints.
    Remove {
        id: JobId,
    },
    /// Asks the running attempt of a job for a checkpoint.
    AskCheckpoint {
        id: JobId,
    },
    /// The scheduler's plan; each line is checked again.
    Place {
        placements: Vec<Placement>,
    },
    /// The places of these jobs are kept from now on, and are served in this order.
    KeepPlaces {
        kept: Vec<KeptPlace>,
        /// When the queue is looked through again although nothing happens: somebody's place may be taken then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        look_at: Option<Timestamp>,
    },
    /// Work leaves for a job of a higher class.
    Preempt(Preempt),
    /// Defaults for jobs that say nothing themselves; a value that is absent stays.
    SetDefaults(JobDefaultsChange),
}

impl JobCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            JobCommand::Submit(_) => "submit_job",
            JobCommand::Cancel { .. } => "cancel_job",
            JobCommand::Restart { .. } => "restart_job",
            JobCommand::Hold { .. } => "hold_job",
            JobCommand::ReleaseHold { .. } => "release_job",
            JobCommand::SetTimeLimit { .. } => "set_job_time_limit",
            JobCommand::SetClass { .. } => "set_job_class",
            JobCommand::Remove { .. } => "remove_job",
            JobCommand::AskCheckpoint { .. } => "ask_checkpoint",
            JobCommand::Place { .. } => "place_jobs",
            JobCommand::KeepPlaces { .. } => "keep_places",
            JobCommand::Preempt(_) => "preempt",
            JobCommand::SetDefaults(_) => "set_job_defaults",
        }
    }
}
