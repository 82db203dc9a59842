//! How windows end: what is done at the end, what becomes of those nobody came for, and how long who holds a GPU past
//! the end is given.
//!
//! The fleet's rules and each reservation's own policy, set by `fsm/ending.rs`; whose processes are ended is decided by
//! [`fate`], for the agents, with a controller and without. Nothing here knows of processes.

use serde::{Deserialize, Serialize};

use crate::idle::{Idle, IdleRules};
use crate::name::GpuUuid;
use crate::time::{Millis, Timestamp};
use crate::word::words;

/// How much longer a window in use is made at a time.
pub const EXTEND_STEP: Millis = Millis::minutes(15);
/// How long before the end of a window fleet first checks whether it is extended: its node is to know in time.
pub const EXTEND_LEAD: Millis = Millis::minutes(1);
/// How long a window waits for somebody to come, unless an admin set another time.
pub const NO_SHOW_DEFAULT: Millis = Millis::minutes(30);
/// Longest such time.
pub const NO_SHOW_MAX: Millis = Millis::days(7);
/// How long a user who is asked to release a GPU may take, unless an admin set another time.
pub const GRACE_DEFAULT: Millis = Millis::minutes(1);
/// Longest such time: somebody else waits.
pub const GRACE_MAX: Millis = Millis::hours(1);

/// What happens at the end of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndPolicy {
    /// While it is in use and nobody else reserved its GPUs, it is extended.
    #[default]
    ExtendIfFree,
    /// It ends, and what is left on its GPUs is ended.
    Stop,
    /// It ends; what is left on its GPUs is left alone until somebody else's window begins.
    Warn,
}

words!(EndPolicy {
    ExtendIfFree => "extend-if-free",
    Stop => "stop",
    Warn => "warn",
});

/// The fleet's rules, as an admin set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRules {
    /// For reservations that say nothing themselves.
    pub at_end: EndPolicy,
    /// Fleet releases a window that nobody came for after this time; zero: never.
    pub no_show: Millis,
    /// Between asking a process to end and ending it.
    pub grace: Millis,
    pub idle: IdleRules,
}

impl Default for ReservationRules {
    fn default() -> Self {
        let at_end = EndPolicy::default();
        let idle = IdleRules::default();
        Self { at_end, no_show: NO_SHOW_DEFAULT, grace: GRACE_DEFAULT, idle }
    }
}

impl ReservationRules {
    /// Whether nobody ever set them.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for ReservationRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { at_end, no_show, grace, idle } = self;
        write!(f, "at the end {}, grace {grace}, ", at_end.word())?;
        match *no_show {
            Millis::ZERO => write!(f, "unused reservations are never released"),
            no_show => write!(f, "released if nobody uses it for {no_show}"),
        }?;
        write!(f, ", {idle}")
    }
}

/// What a node sees on the GPUs of an open window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowUse {
    /// A process of its owner, which is no job's.
    Used,
    /// Somebody, but no such process.
    Others,
    /// Nobody, for this long on the node's own clock. The node watched all this time.
    Nobody { since_ms: Millis },
    /// The driver does not say.
    Unclear,
}

/// What is known of the use of a reservation's window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Somebody was there, once.
    #[serde(default)]
    pub came: bool,
    /// A process of its owner was there, by the node's last word.
    #[serde(default)]
    pub used: bool,
    /// Nobody is there since then, by the word of a node that is heard.
    #[serde(default)]
    pub nobody_since: Option<Timestamp>,
    /// Its GPUs compute nothing, by the word of a node that is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// The record says so: of idle and of busy again, each follows on the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idle_said: bool,
}

impl Usage {
    /// Whether nothing was ever said.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Most holders that are named at a time.
pub const HOLDERS_MAX: usize = 16;

/// A process that holds a GPU, as its node saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHolder {
    pub gpu: GpuUuid,
    pub pid: u32,
    pub uid: u32,
    /// As the node's name service has it; the number where it does not.
    pub user: String,
    /// The program's name, never its arguments: they may hold secrets.
    pub command: String,
}

impl std::fmt::Display for GpuHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {}) of {}", self.command, self.pid, self.user)
    }
}

/// What a node does about those who use a GPU that nobody leased to them, where it holds people to their reservations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignUse {
    /// Says so.
    #[default]
    Warn,
    /// Ends them, after a grace.
    Stop,
}

words!(ForeignUse {
    Warn => "warn",
    Stop => "stop",
});

/// What was done about holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderStep {
    /// Named, and left alone.
    Left,
    Asked,
    Killed,
}

/// What becomes of the processes that are left on the GPUs of a window that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They are named, and left alone.
    Left,
    /// They are asked to end, and ended.
    Ended,
}

/// Whether what is left after a window is ended: by its policy, because it was released, or because somebody else's
/// window has begun.
pub fn fate(at_end: EndPolicy, given_back: bool, wanted: bool) -> Fate {
    match at_end {
        _ if wanted => Fate::Ended,
        EndPolicy::Stop => Fate::Ended,
        EndPolicy::ExtendIfFree if given_back => Fate::Ended,
        EndPolicy::ExtendIfFree | EndPolicy::Warn => Fate::Left,
    }
}

/// Why a window ends that its policy would extend, no matter who works in it and how free its GPUs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoLonger {
    /// Its owner's account is closed.
    AccountClosed,
    /// It has the greatest length that one may have.
    Longest,
    /// Groups have limits, and what its owner reserved next begins: the two would count together.
    OwnNext,
}

/// When a window that was to end then ends after one more step, as somebody still works in it: after `now`, however late
/// that is noticed.
pub fn one_step_more(ends_at: Timestamp, now: Timestamp) -> Timestamp {
    let late = now.since(ends_at).0;
    let steps = late / EXTEND_STEP.0 + 1;
    ends_at + Millis(steps.saturating_mul(EXTEND_STEP.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ended_is_decided_by_policy_and_by_who_waits() {
        for policy in EndPolicy::ALL.iter().copied() {
            assert_eq!(fate(policy, false, true), Fate::Ended, "somebody else's window begins");
            assert_eq!(EndPolicy::from_word(policy.word()), Some(policy));
        }
        assert_eq!(fate(EndPolicy::Stop, false, false), Fate::Ended);
        assert_eq!(fate(EndPolicy::ExtendIfFree, true, false), Fate::Ended);
        assert_eq!(fate(EndPolicy::ExtendIfFree, false, false), Fate::Left);
        assert_eq!(fate(EndPolicy::Warn, true, false), Fate::Left);
    }

    #[test]
    fn a_step_ends_after_now() {
        let end = Timestamp(1_000_000);
        assert_eq!(one_step_more(end, end - EXTEND_LEAD), end + EXTEND_STEP);
        assert_eq!(one_step_more(end, end), end + EXTEND_STEP);
        let late = end + Millis::hours(5);
        let then = one_step_more(end, late);
        assert!(then > late && then.since(late) <= EXTEND_STEP, "{then:?}");
    }
}
