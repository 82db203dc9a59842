//! Holds: a queued job that is not placed until somebody releases it.
//!
//! `fsm/holds.rs` makes and lifts them. A held job is not in the queue: it has no place there, nothing is kept or freed for
//! it, and it keeps no other job waiting.

use serde::{Deserialize, Serialize};

use crate::id::JobId;
use crate::time::{Millis, Timestamp};

/// A job that is held, and what it returns to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHold {
    /// The user that holds it.
    pub by: String,
    /// An admin holds the job of another user: only an admin may release it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
    pub since: Timestamp,
    /// How long it had waited before. The time of the hold does not count as waiting.
    pub waited: Millis,
    /// Until when it would not be in the queue anyway: its `--begin`, or the time of its next try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
}

/// What changed about holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldEvent {
    Held {
        job: JobId,
        by: String,
        /// Only an admin may release it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        admin: bool,
    },
    Released {
        job: JobId,
        by: String,
    },
}

impl HoldEvent {
    /// The job that the event is about.
    pub fn job(&self) -> &JobId {
        match self {
            HoldEvent::Held { job, .. } | HoldEvent::Released { job, .. } => job,
        }
    }
}

impl std::fmt::Display for HoldEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HoldEvent::Held { by, admin: false, .. } => {
                write!(f, "{by} holds the job: it does not start until it is released")
            }
            HoldEvent::Held { by, admin: true, .. } => {
                write!(f, "{by} holds the job: it does not start until an admin releases it")
            }
            HoldEvent::Released { by, .. } => {
                write!(f, "{by} released the job: it can start again")
            }
        }
    }
}
