//! Reasons as data: why a node takes no work, why a GPU does not, why a queued job waits.
//!
//! The calendar, the scheduler and the state machine fill them; [`crate::view::text`] makes the sentences. A reason names
//! who and what, and holds no absolute time: the reader's edge knows the zone. Nothing here reads the state.

use crate::fair_share::Amount;
use crate::gpu::GpuName;
use crate::id::{AllocationId, JobId, ReservationId};
use crate::name::{ClassName, NodeName, ProjectName, UserName};
use crate::time::Millis;

/// Why a node takes no work, by somebody's decision or because it is not heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    Suspended {
        why: String,
    },
    /// It has not said what it runs since the controllers were restored from a backup.
    NotCounted,
    Draining,
    Cordoned {
        by: String,
        reason: String,
    },
    Suspect,
    Unreachable,
}

/// Most GPUs or nodes that one reason names.
pub const NAMED_MAX: usize = 3;

/// The first few of a list, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Few<T> {
    pub named: Vec<T>,
    pub more: usize,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { named: Vec::new(), more: 0 }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        let named = items.by_ref().take(NAMED_MAX).collect();
        Self { named, more: items.count() }
    }
}

/// Why a queued job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub reason: WaitReason,
    /// Nodes that would do, but on which it is not tried again: node and cause.
    pub excluded: Few<(NodeName, String)>,
}

/// What a queued job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// It came after the newest plan.
    NotPlanned,
    /// A plan starts a limited number of jobs at a time.
    NextPlan,
    /// The controllers were restored from a backup, and this node may run it.
    MayRunOn(NodeName),
    /// The reservation it names gives nothing now.
    Reservation(ShutReservation),
    /// GPUs are taken: what it wants, and who has them on the node that comes nearest.
    Gpus { wanted: String, obstacle: Obstacle },
    /// What keeps it from the node that comes nearest.
    Node(Obstacle),
    /// All nodes that would do take no work.
    Closed(Few<Obstacle>),
    /// These jobs leave their place on the node for it; none where they have left.
    Preempts { jobs: Few<JobId>, node: NodeName },
    /// Its owner has as many GPUs as the class allows.
    ClassLimit(ClassLimit),
    /// Its project, or its owner in it, has as much as the project allows.
    ProjectLimit(ProjectLimit),
    /// No node of the fleet, as it is built, can run it.
    NeverFits(String),
    /// It is excluded from all nodes that would do; an admin can lift that.
    Excluded,
}

/// As many GPUs as jobs of one person in a class may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassLimit {
    pub class: ClassName,
    pub most: u32,
    pub holds: u32,
    pub wanted: u32,
}

/// As much as a project allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectLimit {
    pub project: ProjectName,
    /// The limit of each person, which this one would pass; otherwise that of all together.
    pub each: Option<UserName>,
    pub over: OverLimit,
}

/// What there would be too much of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverLimit {
    /// GPUs at the same time. `longest`: where others have them only later, the time limit with which the job would not wait.
    Gpus { most: u32, has: u32, wanted: u32, longest: Option<Millis> },
    /// What was used, as it counts now, with what is held or booked to its end.
    GpuHours { most: u32, has: Amount, wanted: Amount },
}

impl ProjectLimit {
    /// Whether it alone wants more than is allowed.
    pub fn is_forever(&self) -> bool {
        match &self.over {
            OverLimit::Gpus { most, wanted, .. } => wanted > most,
            OverLimit::GpuHours { most, wanted, .. } => *wanted > Amount::of_gpu_hours(*most),
        }
    }
}

/// A named reservation that gives nothing now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutReservation {
    pub id: ReservationId,
    pub why: Shut,
}

/// Why a named reservation gives nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shut {
    Gone,
    BelongsTo(UserName),
    Ended,
    Cancelled,
    Ending,
    NotBegun,
    /// Its window has begun, but it cannot start yet.
    Delayed(String),
    /// Its node cannot give its GPUs now.
    NotUsable(NodeName),
}

/// What keeps a job from one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The owner's own reservation would do for a shorter job.
    OwnReservation {
        reservation: ReservationId,
        longest: Millis,
    },
    /// A shorter job would start now.
    TooLong {
        longest: Millis,
        then: KeptFor,
    },
    /// The free GPUs are promised or kept too soon.
    Kept(KeptFor),
    /// Cores, in thousandths. `offer`: a job that wants only the free ones would start now.
    Cpu {
        node: NodeName,
        wanted: u64,
        free: u64,
        of: NodePart,
        offer: bool,
    },
    /// Memory, in bytes.
    Memory {
        node: NodeName,
        wanted: u64,
        free: u64,
        of: NodePart,
    },
    Taken(Few<TakenGpus>),
    Unfit(Few<UnfitGpu>),
    Closed {
        node: NodeName,
        why: NotOpen,
    },
    Excluded {
        node: NodeName,
        why: String,
    },
    /// The node has less than that in all: cores, in thousandths.
    TooFewCores {
        node: NodeName,
        has: u64,
        wanted: u64,
        of: NodePart,
    },
    /// The node has less than that in all: bytes.
    TooLittleMemory {
        node: NodeName,
        has: u64,
        wanted: u64,
        of: NodePart,
    },
    TooFewGpus {
        node: NodeName,
        has: u32,
        wanted: u32,
    },
    Reservation(ShutReservation),
    /// The job names another node, or a reservation of another node.
    BoundElsewhere,
}

/// The part of a node in which a job finds too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePart {
    All,
    /// What jobs without GPUs may have, all together; the rest stays for the node's GPUs.
    WithoutGpus,
}

/// The reservation or job that a free GPU is kept for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptFor {
    Reservation {
        gpu: GpuName,
        owner: UserName,
        id: ReservationId,
    },
    /// A job before it that waits has a place on this node.
    Job {
        job: Option<JobId>,
        node: NodeName,
    },
}

/// GPUs of one node that one holder has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenGpus {
    /// At least one; all of one node.
    pub gpus: Vec<GpuName>,
    pub by: TakenBy,
}

/// Who has a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenBy {
    Job {
        job: JobId,
        owner: UserName,
    },
    Reservation {
        id: ReservationId,
        owner: UserName,
    },
    /// Its time is over, and it is not proven empty.
    Emptying {
        after: Emptying,
        owner: UserName,
    },
    /// An attempt is over, and what it left is still there.
    NotEmpty {
        after: AllocationId,
        owner: UserName,
    },
    /// Nobody knows any more who had it.
    BeingEmptied,
    /// Taken a moment ago, in the same plan.
    EarlierJob,
}

/// What a GPU is being emptied after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emptying {
    Reservation(ReservationId),
    Job(JobId),
    Attempt(AllocationId),
}

/// A GPU that takes no work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfitGpu {
    pub gpu: GpuName,
    pub why: Unfit,
}

/// Why a GPU takes no work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    Lost,
    Silent,
    /// The message of the condition.
    Degraded(String),
    InUse(String),
}

/// Why a node takes no work, its own health included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOpen {
    Closed(Closed),
    /// It lacks what it takes to begin an attempt: the condition's reason.
    Short(String),
    /// The reason of the condition.
    Degraded(String),
}

impl WaitReason {
    /// As the whole reason, with no node excluded.
    pub fn alone(self) -> Wait {
        Wait { reason: self, excluded: Few::default() }
    }
}

impl Wait {
    /// Whether no state of the fleet as it is built ends the wait.
    pub fn is_forever(&self) -> bool {
        match &self.reason {
            WaitReason::NeverFits(_) | WaitReason::Excluded => true,
            WaitReason::Reservation(shut) => shut.is_forever(),
            WaitReason::ClassLimit(limit) => limit.wanted > limit.most,
            WaitReason::ProjectLimit(limit) => limit.is_forever(),
            WaitReason::NotPlanned
            | WaitReason::NextPlan
            | WaitReason::MayRunOn(_)
            | WaitReason::Preempts { .. }
            | WaitReason::Gpus { .. }
            | WaitReason::Node(_)
            | WaitReason::Closed(_) => false,
        }
    }

    /// Whether the fleet as it is built is what it waits for, and not a limit that somebody set.
    pub fn is_for_the_fleet(&self) -> bool {
        !matches!(self.reason, WaitReason::ClassLimit(_) | WaitReason::ProjectLimit(_))
    }

    /// The GPUs that somebody has, as far as they are named.
    pub fn taken(&self) -> &[TakenGpus] {
        match &self.reason {
            WaitReason::Gpus { obstacle: Obstacle::Taken(taken), .. }
            | WaitReason::Node(Obstacle::Taken(taken)) => &taken.named,
            _ => &[],
        }
    }
}

impl ShutReservation {
    /// Whether it will never give anything.
    pub fn is_forever(&self) -> bool {
        match &self.why {
            Shut::Gone | Shut::BelongsTo(_) | Shut::Ended | Shut::Cancelled | Shut::Ending => true,
            Shut::NotBegun | Shut::Delayed(_) | Shut::NotUsable(_) => false,
        }
    }
}
