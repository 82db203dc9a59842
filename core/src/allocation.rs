//! Allocations: one attempt of a job on given GPUs of one node, from placement to proven end.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointId;
use crate::health::Severity;
use crate::id::{AllocationId, JobId, LeaseId, ReservationId};
use crate::lease::Epoch;
use crate::name::{GpuUuid, NodeName, UserName};
use crate::time::{Millis, Timestamp};

/// Least time between the request for a checkpoint and the end of an attempt that gives way to a reservation. The attempt
/// leaves at its first checkpoint in this time, so a longer time would cost it work that it could still do here.
pub const GIVES_WAY_LEAD: Millis = Millis::minutes(5);

/// Where an attempt is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The order was given; the agent has not said that it runs.
    Placed,
    Running,
    /// A stop was ordered.
    Stopping,
}

/// Why an attempt got the order to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopWhy {
    Cancelled {
        by: String,
    },
    TimeLimit,
    /// It named no time limit, has had the time that its class guarantees, and others wait for its GPUs.
    NoLimitNamed {
        causes: Vec<String>,
    },
    ReservationEnded,
    /// Its causes were met by a checkpoint, or the limit of the deferral passed.
    Evicted {
        causes: Vec<String>,
        after_checkpoint: bool,
        /// Its class says that it leaves for others, so it pays nothing. Kept here: the causes may go away in its grace.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_class: bool,
    },
    /// The fault already destroyed the work.
    NodeFault {
        cause: String,
    },
}

/// The order to stop an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    pub why: StopWhy,
    pub at: Timestamp,
    /// Between the stop signal and SIGKILL.
    pub grace: Millis,
}

/// Names one reason for which an attempt must leave its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CauseKey {
    /// A condition: its subject (`node` or a GPU's UUID) and its kind.
    Condition {
        subject: String,
        kind: String,
    },
    Drain,
    /// Its owner's account is closed.
    Owner,
    /// A reservation begins on its GPUs.
    Reservation,
    /// A job of a higher class gets its GPUs.
    Preemption,
}

/// One reason for which an attempt must leave its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    pub severity: Severity,
    pub since: Timestamp,
    pub text: String,
    /// The attempt is stopped at this instant, checkpoint or not.
    pub deadline: Option<Timestamp>,
}

/// An eviction that waits for the next checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferral {
    /// Counted within the allocation, so that an answer to an earlier order is not taken for one to this.
    pub order: u32,
    pub since: Timestamp,
    /// The agent's checkpoint number when it took the order: only a later one triggers.
    pub baseline: Option<u64>,
    /// When the wait is over, from the budget and the causes' own deadlines.
    pub deadline: Option<Timestamp>,
    /// A checkpoint came but there was no other place to run.
    pub held_back: Option<String>,
    /// Nodes that are asked whether it could continue there, and have not answered.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asks: BTreeSet<NodeName>,
}

/// How an attempt ended, as its node saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// The program ended by itself or after the stop signal.
    Exited {
        code: i32,
    },
    Signaled {
        signal: i32,
    },
    OutOfMemory,
    /// The user's part of the start went wrong: no such program, no such directory.
    CannotStart {
        message: String,
    },
    /// This node cannot read the checkpoint the attempt should resume from.
    CannotResume {
        message: String,
    },
    /// No checkpoint that was named is there and good: what was tried. Says nothing against the node.
    NothingToResume {
        tried: Vec<String>,
    },
    /// The node's part went wrong: shim lost, runtime broken, disk full.
    NodeFault {
        message: String,
    },
    /// The node rebooted, or was declared lost.
    Lost {
        message: String,
    },
}

/// What the agent says when an attempt has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReport {
    pub end: AttemptEnd,
    /// The job sent `DONE=1`: its exit is a completion even after a stop signal.
    pub done: bool,
    /// A fault of one of its GPUs that can end a program, seen within moments of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The kernel killed a process of it for lack of memory, and not the one whose end is its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_kill: bool,
    /// It has not begun: its registry does not answer for now. Beside [`AttemptEnd::NodeFault`], for controllers that do
    /// not know this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_image: bool,
    /// Why its output file is not whole: `/home/ada/x.log: no space left on device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_problem: Option<String>,
    /// The stop signal had been sent before it ended.
    pub stopped: bool,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub cpu_usec: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
}

/// One attempt of a job that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    pub id: AllocationId,
    pub job: JobId,
    pub attempt: u32,
    pub node: NodeName,
    /// The boot of the node it was placed on.
    pub boot_id: String,
    pub gpus: Vec<GpuUuid>,
    pub lease: Option<LeaseId>,
    pub epoch: Epoch,
    pub owner: UserName,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub phase: Phase,
    pub placed_at: Timestamp,
    pub started_at: Option<Timestamp>,
    /// When the time limit ends it; set when it starts.
    pub time_limit_at: Option<Timestamp>,
    /// When its own time limit would end it. Set when it starts, if a reservation of its GPUs begins before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_limit_at: Option<Timestamp>,
    /// Its time was shortened while it ran: its GPUs were reserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserved_over: bool,
    /// It must be over by then whatever its time limit: somebody else was promised its GPUs, or its
    /// reservation ends.
    pub ends_by: Option<Timestamp>,
    pub stop: Option<StopOrder>,
    pub causes: BTreeMap<CauseKey, Cause>,
    pub deferral: Option<Deferral>,
    /// The number of the last order to defer; zero: none was given.
    pub deferral_orders: u32,
    /// Time spent in deferrals that were cancelled; flapping does not renew the budget.
    pub deferral_spent: Millis,
    /// Highest checkpoint number reported.
    pub checkpoint_seq: u64,
    /// Checkpoint path this attempt resumes from.
    pub resume_from: Option<String>,
    /// The checkpoint that its node took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<CheckpointId>,
    /// The newest request for a checkpoint by a person or by the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<CheckpointAsked>,
}

/// A request for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointAsked {
    /// Counted within the allocation.
    pub order: u32,
    pub at: Timestamp,
    pub by: String,
}

impl Allocation {
    /// Somebody decided that it leaves; not only faults, which may be one false alarm.
    pub fn must_leave_by_decision(&self) -> bool {
        let decisions = [CauseKey::Drain, CauseKey::Owner, CauseKey::Reservation];
        decisions.iter().any(|decision| self.causes.contains_key(decision))
    }

    /// Its time ends before its own limit, because a reservation begins on its GPUs.
    pub fn is_cut(&self) -> bool {
        self.own_limit_at.is_some_and(|own| self.time_limit_at.is_some_and(|at| at < own))
    }
}

impl From<CauseKey> for String {
    fn from(key: CauseKey) -> String {
        match key {
            CauseKey::Condition { subject, kind } => format!("condition:{subject}:{kind}"),
            CauseKey::Drain => "drain".to_owned(),
            CauseKey::Owner => "owner".to_owned(),
            CauseKey::Reservation => "reservation".to_owned(),
            CauseKey::Preemption => "preemption".to_owned(),
        }
    }
}

impl TryFrom<String> for CauseKey {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        if text == "drain" {
            return Ok(CauseKey::Drain);
        }
        if text == "owner" {
            return Ok(CauseKey::Owner);
        }
        if text == "reservation" {
            return Ok(CauseKey::Reservation);
        }
        if text == "preemption" {
            return Ok(CauseKey::Preemption);
        }
        let rest =
            text.strip_prefix("condition:").ok_or_else(|| format!("unknown cause {text:?}"))?;
        let (subject, kind) =
            rest.rsplit_once(':').ok_or_else(|| format!("cause {text:?} has no kind"))?;
        Ok(CauseKey::Condition { subject: subject.to_owned(), kind: kind.to_owned() })
    }
}

impl std::fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttemptEnd::Exited { code } => write!(f, "exit code {code}"),
            AttemptEnd::Signaled { signal } => write!(f, "killed by signal {signal}"),
            AttemptEnd::OutOfMemory => write!(f, "killed: it used more than its host memory"),
            AttemptEnd::CannotStart { message } => write!(f, "could not start: {message}"),
            AttemptEnd::CannotResume { message } => {
                write!(f, "could not continue from its checkpoint: {message}")
            }
            AttemptEnd::NothingToResume { tried } => {
                write!(f, "no usable checkpoint: {}", tried.join("; "))
            }
            AttemptEnd::NodeFault { message } => write!(f, "fault of the node: {message}"),
            AttemptEnd::Lost { message } => write!(f, "lost: {message}"),
        }
    }
}

impl StopWhy {
    /// Why, for the job's log. `reservation`: the one whose end this is, where that is known.
    pub fn said(&self, reservation: Option<&ReservationId>) -> String {
        match (self, reservation) {
            (StopWhy::ReservationEnded, Some(id)) => format!("its reservation {id} ended"),
            _ => self.to_string(),
        }
    }
}

impl std::fmt::Display for StopWhy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StopWhy::Cancelled { by } => write!(f, "cancelled by {by}"),
            StopWhy::TimeLimit => write!(f, "its time limit"),
            StopWhy::NoLimitNamed { causes } => {
                write!(f, "its time was over ({}); fleet run -t names a limit", causes.join(", "))
            }
            StopWhy::ReservationEnded => write!(f, "its reservation ended"),
            StopWhy::Evicted { causes, .. } => write!(f, "evicted ({})", causes.join(", ")),
            StopWhy::NodeFault { cause } => write!(f, "the work is already lost ({cause})"),
        }
    }
}
