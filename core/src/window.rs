//! Windows handed out ahead: what an agent is given of a reservation before it starts, and what it answers.
//!
//! A window in an agent's hands is opened and closed by that agent alone, also with every controller dead.
//! So it counts as given until the agent has said that it holds a newer order for it: no silence and no
//! lapse of time takes it back. The FSM writes these, the agents' link carries them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ending::{EndPolicy, ForeignUse};
use crate::id::{LeaseId, ReservationId};
use crate::lease::Epoch;
use crate::name::{GpuUuid, UserName};
use crate::time::{Millis, Timestamp, Window};
use crate::word::words;

/// Windows that begin within this time are in their agents' hands.
pub const HAND_OUT_AHEAD: Millis = Millis::days(7);
/// Most windows in one agent's hands; those that begin first come first. One that begins is handed out in any
/// case.
pub const WINDOWS_PER_NODE_MAX: usize = 1_000;

/// Why a window is taken back from an agent before its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawal {
    /// Released before it began.
    Cancelled { by: String },
    /// Its GPUs are not what was promised; others take their place once the agent has released it.
    Moving { why: String },
    /// Its owner wants it at another time or on other GPUs; see `Reservation::next`.
    Edited { by: String },
    /// Released while it was open.
    Ended,
}

/// What of a reservation is in its agent's hands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOut {
    /// The lease under which it opens, fixed when it was first given.
    pub lease: LeaseId,
    pub epoch: Epoch,
    /// Of the newest order. A higher one replaces a lower one, on the agent's disk too.
    pub revision: Epoch,
    /// The agent has the newest order on its disk.
    pub taken: bool,
    /// The latest end that the agent may still go by.
    pub held_until: Timestamp,
    pub withdrawn: Option<Withdrawal>,
    /// When the agent opened and closed it on its own, by its word.
    pub opened_at: Option<Timestamp>,
    pub closed_at: Option<Timestamp>,
    /// The reservation had its lease and is over: all that the agent opened is a part of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
}

/// One window as the controller sends it to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredWindow {
    pub reservation: ReservationId,
    pub revision: Epoch,
    pub lease: LeaseId,
    pub epoch: Epoch,
    pub owner: UserName,
    pub gpus: Vec<GpuUuid>,
    pub window: Window,
    /// It is not to be opened, or to be closed now.
    pub withdrawn: bool,
    /// What happens at its end, where the reservation says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_end: Option<EndPolicy>,
    /// Who else may use its GPUs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
}

/// Root's own grant on a node without controllers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeGrant {
    pub by: String,
    pub reason: String,
}

/// What an agent says of one window: which order it has on its disk, and what it did on its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowReport {
    pub reservation: ReservationId,
    pub revision: Epoch,
    pub owner: UserName,
    pub gpus: Vec<GpuUuid>,
    pub window: Window,
    pub withdrawn: bool,
    /// Set only where no controller answered at that moment.
    pub opened_at: Option<Timestamp>,
    pub closed_at: Option<Timestamp>,
    /// It was made on the node.
    pub granted: Option<NodeGrant>,
    /// Who else may use its GPUs, by the order it has.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
}

/// How a node holds people to reservations. Ordered per node by an admin, whose silence means `Off`; root's
/// switch on the node, which is `On` unless root touches it, only ever lowers that, and also says what the node
/// does by itself at the end of a window while no controller answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Ends what runs on into somebody else's time; the kernel keeps those out who hold no lease.
    #[default]
    On,
    /// Only says so.
    Warn,
    /// Nothing.
    Off,
}

words!(Enforcement {
    On => "on",
    Warn => "warn",
    Off => "off",
});

impl Enforcement {
    /// The laxer of two.
    #[must_use]
    pub fn at_most(self, ceiling: Self) -> Self {
        match (self, ceiling) {
            (Enforcement::Off, _) | (_, Enforcement::Off) => Enforcement::Off,
            (Enforcement::Warn, _) | (_, Enforcement::Warn) => Enforcement::Warn,
            (Enforcement::On, Enforcement::On) => Enforcement::On,
        }
    }
}

/// An admin's order for a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcementOrder {
    pub mode: Enforcement,
    pub by: String,
    pub since: Timestamp,
}

/// What a node does in the place of an order that its kernel cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// For `warn`: the node warns a user who is seen on a GPU without a lease.
    Warn,
    /// For `on`: the same, and the node ends, by signals alone, the processes of a user who stays on a GPU past the end
    /// of a window. Those of a user who never had a lease, only where the node's configuration says so.
    WarnAndStop,
}

impl Fallback {
    /// In the place of this; none where nobody is held to anything.
    pub fn of(wanted: Enforcement) -> Option<Self> {
        match wanted {
            Enforcement::Off => None,
            Enforcement::Warn => Some(Fallback::Warn),
            Enforcement::On => Some(Fallback::WarnAndStop),
        }
    }

    /// What was ordered.
    pub fn in_the_place_of(self) -> Enforcement {
        match self {
            Fallback::Warn => Enforcement::Warn,
            Fallback::WarnAndStop => Enforcement::On,
        }
    }

    /// What people see.
    pub fn word(self) -> &'static str {
        match self {
            Fallback::Warn => "warn who is seen",
            Fallback::WarnAndStop => "warn and stop",
        }
    }
}

/// What a node says it does, which may be less than an admin ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    pub mode: Enforcement,
    /// Why it is not what was ordered, or not sure to be in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What it does about those who use a GPU without a lease, by its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignUse>,
    /// What it does instead, where the kernel does not take what was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// How root set the switch on a node, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcementSwitch {
    pub mode: Enforcement,
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
}
