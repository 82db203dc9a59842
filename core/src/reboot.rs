//! Reboots that wait until their node is empty: what an admin asks, what the state keeps of it, what the agent gets.
//!
//! The node is drained meanwhile. The agent reboots the machine, at most once for each wish, and only in the boot
//! in which the wish was made: any new boot, no matter who caused it, fulfils the wish.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A reboot that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootWish {
    pub by: String,
    pub reason: String,
    /// Also what tells one wish from the next.
    pub since: Timestamp,
    /// The boot that is to end.
    pub boot_id: String,
    /// The cordon, and the drain, are there for this alone and go with it.
    pub cordoned: bool,
    pub drained: bool,
    /// What the agent answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<RebootAnswer>,
}

/// What an agent made of the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootAnswer {
    /// The machine goes down.
    Begun,
    /// The machine stays up: somebody must fix the problem, or it goes away by itself and the agent says `Begun` then.
    Failed { why: String },
}

impl RebootWish {
    /// Why it was not carried out.
    pub fn problem(&self) -> Option<&str> {
        match &self.answer {
            Some(RebootAnswer::Failed { why }) => Some(why),
            Some(RebootAnswer::Begun) | None => None,
        }
    }
}

/// The order as the controller sends it to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredReboot {
    pub since: Timestamp,
    pub boot_id: String,
}
