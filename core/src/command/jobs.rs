//! Commands about jobs: what their owners ask, where the scheduler places them.

use serde::{Deserialize, Serialize};

use crate::checkpoint::RestartFrom;
use crate::id::JobId;
use crate::job::SubmitJob;
use crate::name::{GpuUuid, NodeName};
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

/// The job whose place is kept, and when it was expected there first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstPlace {
    pub job: JobId,
    pub starts_at: Timestamp,
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
    /// A job that waits or runs gets another time limit.
    SetTimeLimit {
        id: JobId,
        time_limit: Millis,
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
    /// The place of that job is kept from now on, or of none.
    KeepPlace {
        first: Option<FirstPlace>,
    },
    /// Defaults for jobs that say nothing themselves; a value that is absent stays.
    SetDefaults {
        /// Zero: never.
        stop_after: Option<Millis>,
        without_gpus_percent: Option<u8>,
    },
}

impl JobCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            JobCommand::Submit(_) => "submit_job",
            JobCommand::Cancel { .. } => "cancel_job",
            JobCommand::Restart { .. } => "restart_job",
            JobCommand::SetTimeLimit { .. } => "set_job_time_limit",
            JobCommand::Remove { .. } => "remove_job",
            JobCommand::AskCheckpoint { .. } => "ask_checkpoint",
            JobCommand::Place { .. } => "place_jobs",
            JobCommand::KeepPlace { .. } => "keep_place",
            JobCommand::SetDefaults { .. } => "set_job_defaults",
        }
    }
}
