//! Reservations whose place is bad: a GPU of it is dead, or their node is drained.
//!
//! Fleet gives them another place before they begin (`fsm/moving.rs`). What is here is said of those that stay where they
//! are, and of what became of them.

use serde::{Deserialize, Serialize};

use crate::id::ReservationId;
use crate::name::{GpuUuid, NodeName};
use crate::time::{Millis, Timestamp};
use crate::window::HAND_OUT_AHEAD;

/// Reservations that begin within this time leave a bad place at once. Those that begin later leave it when they come so
/// near: by then most drains are over.
pub const MOVE_AHEAD: Millis = HAND_OUT_AHEAD;
/// Fleet moves a reservation for the sake of its GPUs at most once in this time. At its start it moves all the same.
pub const MOVED_APART: Millis = Millis::hours(1);
/// A node that is silent for this long may not come back in time: its reservations get a stand-in.
pub const SILENT_MIN: Millis = Millis::minutes(10);
/// Only those that begin within this time: of the others the node may be back by then.
pub const STAND_IN_AHEAD: Millis = Millis::hours(24);
/// A node that answers again is heard for this long before one of the two is released. By then it has said what it did alone.
pub const HEARD_MIN: Millis = Millis::minutes(2);

/// Two reservations for one: the node of the first is silent, and it may open it all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pair {
    /// The other one is there in case that the node stays silent.
    HasStandIn(ReservationId),
    StandsInFor(ReservationId),
    /// Its owner released the stand-in: it gets no other one.
    HadStandIn,
}

/// A place that is bad, of a reservation that has it still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Risk {
    pub since: Timestamp,
    /// What is wrong with the GPUs or their node.
    pub what: String,
    pub keeps: Keeps,
}

/// Why a reservation keeps a bad place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeps {
    /// Its owner named these GPUs or this node.
    Named,
    /// No other GPUs are free for it.
    NothingFree,
    /// It was moved less than [`MOVED_APART`] ago.
    MovedLately,
    /// Others came first; it follows within minutes.
    Queued,
    /// Too many nodes went bad at once, so nothing is moved for the sake of its health.
    Frozen,
    /// It has begun, and its owner's programs may be there.
    Begun,
}

impl Keeps {
    /// Whether fleet tries again without being asked.
    pub fn is_tried_again(self) -> bool {
        match self {
            Self::NothingFree | Self::MovedLately | Self::Queued | Self::Frozen => true,
            Self::Named | Self::Begun => false,
        }
    }
}

/// What happened to a reservation whose place is or was bad.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RiskEvent {
    /// Its place is bad, and it stays there.
    Stays {
        reservation: ReservationId,
        what: String,
        keeps: Keeps,
        /// Other GPUs that were free for it then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        others: Option<(NodeName, Vec<GpuUuid>)>,
    },
    /// Its place is good again, or it has another one.
    Over { reservation: ReservationId },
    /// Its node is silent, so it has a stand-in on another one.
    StandsIn { reservation: ReservationId, stand_in: ReservationId, node: NodeName },
    /// Of a reservation and its stand-in this one is released, since the other one is kept.
    Superseded { reservation: ReservationId, kept: ReservationId },
}

impl RiskEvent {
    /// The reservations and nodes that it is about.
    pub fn about(&self) -> Vec<String> {
        match self {
            Self::Stays { reservation, .. } | Self::Over { reservation } => {
                vec![reservation.to_string()]
            }
            Self::StandsIn { reservation, stand_in, node } => {
                vec![reservation.to_string(), stand_in.to_string(), node.to_string()]
            }
            Self::Superseded { reservation, kept } => {
                vec![reservation.to_string(), kept.to_string()]
            }
        }
    }
}
