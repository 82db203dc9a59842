//! Health: the words for what is wrong with a node or a GPU, and the policy that finds it.
//!
//! The agent turns what it measures into [`Signal`]s and folds them into a [`HealthTracker`], whose
//! [`Condition`]s it reports; the controller acts on those and on nothing else. Policy is data where it
//! can be: [`xid`] has one row per XID, [`limits`] every threshold by name. Nothing here reads a
//! clock or a device. Missing telemetry is `Unknown`, which is never healthy.

use serde::{Deserialize, Serialize};

use crate::name::GpuUuid;
use crate::time::Timestamp;
use crate::word::words;

pub mod limits;
mod readings;
mod shortage;
mod signal;
pub mod throttle;
mod tracker;
pub mod xid;

pub use shortage::{Shortage, begins_nothing};
pub use signal::{Known, Reading, Signal};
pub use tracker::{HealthTracker, NOT_ANSWERING};

/// Most conditions a node may report at once.
pub const CONDITIONS_PER_NODE_MAX: usize = 512;

/// Whether a program that dies on a GPU with this condition most likely died of it: off the bus, a driver that does not
/// answer, memory errors, some XIDs. Not heat, a narrow link, rising corrected errors.
pub fn can_end_a_program(kind: &str) -> bool {
    let xid = kind.strip_prefix("xid_").and_then(|code| code.parse().ok());
    xid.is_some_and(xid::ends_programs) || tracker::ENDS_PROGRAMS.contains(&kind)
}

/// How bad a condition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Notice,
    /// Must leave, work still good.
    Degraded,
    /// Work already lost.
    Fatal,
}

words!(Severity {
    Notice => "notice",
    Degraded => "degraded",
    Fatal => "fatal",
});

/// What a condition is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    Node,
    Gpu(GpuUuid),
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionStatus {
    True,
    False,
    /// Nobody can tell; its severity is what it would be if it held.
    Unknown,
}

words!(ConditionStatus {
    True => "true",
    False => "false",
    Unknown => "unknown",
});

/// One health fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub subject: Subject,
    /// Stable snake_case code.
    pub kind: String,
    pub status: ConditionStatus,
    pub severity: Severity,
    /// Short: what was seen.
    pub reason: String,
    /// For people: what it means and what helps.
    pub message: String,
    /// When status or severity became what they are.
    pub since: Timestamp,
    /// It does not go away by itself: somebody clears it, or the GPU is reset, or the machine boots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sticky: bool,
}

impl Condition {
    /// Whether it holds now.
    pub fn is_active(&self) -> bool {
        self.status == ConditionStatus::True
    }

    /// Whether it is known from one event of the driver: no sample lifts it, so an admin may clear it.
    pub fn is_told(&self) -> bool {
        self.is_active() && (self.sticky || self.kind.starts_with("xid_"))
    }
}

/// How well a GPU is, by its own conditions and its node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    Ok,
    Notice,
    Degraded,
    Fatal,
    /// Nobody can tell; never counted as well.
    Unknown,
}

words!(Health {
    Ok => "ok",
    Notice => "notice",
    Degraded => "degraded",
    Fatal => "fatal",
    Unknown => "unknown",
});

impl Health {
    /// The worst that holds. A fault that may be there but cannot be measured, and a GPU that nobody sees, give
    /// [`Health::Unknown`].
    pub fn of<'a>(
        conditions: impl Iterator<Item = &'a Condition> + Clone,
        presence: crate::gpu::Presence,
    ) -> Self {
        let holds = conditions.clone().filter(|c| c.is_active()).map(|c| c.severity).max();
        let doubted =
            |c: &Condition| c.status != ConditionStatus::False && c.severity >= Severity::Degraded;
        match holds {
            Some(Severity::Fatal) => Self::Fatal,
            Some(Severity::Degraded) => Self::Degraded,
            Some(Severity::Notice) | None
                if conditions.clone().any(doubted) || presence == crate::gpu::Presence::Unknown =>
            {
                Self::Unknown
            }
            Some(Severity::Notice) => Self::Notice,
            None => Self::Ok,
        }
    }
}
