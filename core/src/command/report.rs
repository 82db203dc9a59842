//! What an agent reports of its node.

use serde::{Deserialize, Serialize};

use crate::allocation::{EndReport, StopWhy};
use crate::checkpoint::{CheckpointNote, Content, Facts, Presence, Resumed};
use crate::ending::{GpuHolder, HolderStep, WindowUse};
use crate::gpu_use::NodeUse;
use crate::health::Condition;
use crate::holdings::{FoundAttempt, HeldReservation};
use crate::id::{AllocationId, JobId, LeaseId, ReservationId};
use crate::idle::IdleSeen;
use crate::image::ImageUsed;
use crate::lease::Epoch;
use crate::node::NodeFacts;
use crate::stored::is_default;
use crate::time::{Millis, Timestamp};
use crate::window::{EnforcementSwitch, WindowReport};

/// One fact an agent reports. Reports may arrive again and in any order between allocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Started {
        allocation: AllocationId,
        epoch: Epoch,
        at: Timestamp,
        /// What the name of its image in a registry meant; none for other images.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<ImageUsed>,
    },
    /// The agent took deferral order `order` when its checkpoint number was `checkpoint_seq`.
    DeferralTaken {
        allocation: AllocationId,
        order: u32,
        checkpoint_seq: u64,
    },
    Checkpoint {
        allocation: AllocationId,
        seq: u64,
        path: String,
        size_bytes: u64,
        completed_at: Timestamp,
        /// Time since it was found complete and checked, on the agent's own clock, so that no clocks are compared.
        age: Millis,
        #[serde(default, skip_serializing_if = "is_default")]
        facts: Facts,
    },
    /// A checkpoint that was reported is gone, or was found to be something else.
    CheckpointChanged {
        allocation: AllocationId,
        seq: u64,
        /// The earlier attempt of the job whose checkpoint it is; absent: the allocation's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Content>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        presence: Option<Presence>,
    },
    /// Something that the owner should know about the job's checkpoints.
    CheckpointNoted {
        allocation: AllocationId,
        note: CheckpointNote,
    },
    /// What the attempt resumes from, said before it starts.
    Resumed {
        allocation: AllocationId,
        epoch: Epoch,
        resumed: Resumed,
    },
    /// Whether an attempt that must leave another node could continue here, by the directory in which it saves.
    Probed {
        allocation: AllocationId,
        /// Why not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// What fleet wrote beside a job's checkpoints is gone.
    FilesRemoved {
        job: JobId,
        /// Why some of it is left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    Ended {
        allocation: AllocationId,
        epoch: Epoch,
        report: EndReport,
    },
    /// The GPUs of a lease are proven empty.
    Released {
        lease: LeaseId,
        epoch: Epoch,
    },
    /// All conditions of the node, each time.
    Conditions {
        conditions: Vec<Condition>,
    },
    /// The inventory changed after registration.
    Facts {
        facts: NodeFacts,
    },
    /// An attempt the node has a record of: said only when asked, after a restore.
    Found(Box<FoundAttempt>),
    /// The node has reported all attempts it has a record of; the reservations that controllers sent it.
    Holdings {
        allocations: Vec<AllocationId>,
        reservations: Vec<HeldReservation>,
    },
    /// Which order the node has for a window, and what it did with it on its own.
    Window(Box<WindowReport>),
    /// While no controller answered, the node kept a promise to somebody else.
    StoppedAlone {
        allocation: AllocationId,
        epoch: Epoch,
        why: StopWhy,
        at: Timestamp,
    },
    /// Root set the node's emergency switch.
    Enforcement(EnforcementSwitch),
    /// What is seen on the GPUs of an open window.
    Use {
        reservation: ReservationId,
        seen: WindowUse,
        /// Somebody was there at any time.
        came: bool,
    },
    /// Whether the GPUs of an open window compute: said when that changes, and when the controllers ask.
    Idle {
        reservation: ReservationId,
        seen: IdleSeen,
    },
    /// What the node measured of its GPUs in a part of an hour.
    GpuUse(Box<NodeUse>),
    /// Who holds GPUs that are not theirs, or not any more, and what was done about it.
    Holders {
        /// Whose time is over; none where nobody leased the GPU to them.
        reservation: Option<ReservationId>,
        step: HolderStep,
        holders: Vec<GpuHolder>,
    },
    /// What became of the order to reboot that was given with the wish of `since`.
    Reboot {
        since: Timestamp,
        /// Why the machine does not go down.
        problem: Option<String>,
    },
}
