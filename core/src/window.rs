//! Windows handed out ahead: what an agent is given of a reservation before it starts, and what it answers.
//!
//! A window in an agent's hands is opened and closed by that agent alone, also with every controller dead.
//! So it counts as given until the agent has said that it holds a newer order for it: no silence and no
//! lapse of time takes it back. The FSM writes these, the agents' link carries them.

use serde::{Deserialize, Serialize};

use crate::id::{LeaseId, ReservationId};
use crate::lease::Epoch;
use crate::name::{GpuUuid, UserName};
use crate::time::{Millis, Timestamp, Window};

/// Cluster version from which on windows are handed out: every member knows the commands and the state then.
pub const AHEAD_SINCE: u32 = 3;
/// Windows that begin within this time are in their agents' hands.
pub const HAND_OUT_AHEAD: Millis = Millis::days(7);
/// Most windows in one agent's hands; those that begin first come first. One that begins is handed out in any
/// case.
pub const WINDOWS_PER_NODE_MAX: usize = 1_000;

/// Why a window is taken back from an agent before its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawal {
    /// Given back before it began.
    Cancelled { by: String },
    /// Its GPUs are not what was promised; others take their place once the agent has let go of it.
    Moving { why: String },
    /// Given back while it was open.
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
}

/// One window as an agent is told it.
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
}

/// What an agent does by itself at the end of a window while no controller answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Ends what runs on into somebody else's time.
    #[default]
    On,
    /// Only says so.
    Warn,
    /// Nothing.
    Off,
}

impl Enforcement {
    /// The word people type and see.
    pub fn word(self) -> &'static str {
        match self {
            Enforcement::On => "on",
            Enforcement::Warn => "warn",
            Enforcement::Off => "off",
        }
    }
}

/// How root set the switch on a node, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcementSwitch {
    pub mode: Enforcement,
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
}
