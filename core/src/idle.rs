//! Idle reservations: from when on the GPUs of an open window count as idle, and when fleet releases the window for it.
//!
//! The fleet's rules and a node's word; set and kept by `fsm/idle.rs`. The node decides from samples, in the crate
//! `fleet-node`. What is not known never counts as idle.

use serde::{Deserialize, Serialize};

use crate::id::ReservationId;
use crate::name::{NodeName, UserName};
use crate::time::{Millis, Timestamp};

/// How long GPUs compute nothing before their reservation is called idle, unless an admin set another time.
pub const IDLE_AFTER_DEFAULT: Millis = Millis::hours(1);
/// Shortest such time that people may set. Programs take minutes to begin.
pub const IDLE_AFTER_MIN: Millis = Millis::minutes(15);
/// Longest such time, and longest time before a release.
pub const IDLE_MAX: Millis = Millis::days(7);
/// Below this utilisation in percent a GPU is idle, unless an admin set another: above zero is busy.
pub const IDLE_BELOW_DEFAULT: u32 = 1;
/// Highest such utilisation: 100 is the driver's word for a GPU that was busy all the time.
pub const IDLE_BELOW_MAX: u32 = 100;
/// How long before a release its users read of it.
pub const IDLE_NOTICE: Millis = Millis::minutes(15);

/// The fleet's rules for idle reservations, as an admin set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleRules {
    /// A reservation whose GPUs compute nothing for this time is idle; zero: none ever is.
    pub after: Millis,
    /// A GPU whose utilisation is below this many percent computes nothing.
    pub below_percent: u32,
    /// Fleet releases a reservation that was idle for this time; zero: never.
    pub release: Millis,
}

impl Default for IdleRules {
    fn default() -> Self {
        Self { after: IDLE_AFTER_DEFAULT, below_percent: IDLE_BELOW_DEFAULT, release: Millis::ZERO }
    }
}

impl IdleRules {
    /// Whether reservations are watched at all.
    pub fn watches(&self) -> bool {
        self.after > Millis::ZERO
    }

    /// Whether fleet releases any.
    pub fn releases(&self) -> bool {
        self.watches() && self.release > Millis::ZERO
    }

    /// How long after a program came to its GPUs a reservation is not called idle.
    pub fn quiet(&self) -> Millis {
        self.after.min(IDLE_AFTER_MIN)
    }

    /// How long a reservation is idle by the word of its node before fleet may release it: its users read of it before.
    pub fn notice(&self) -> Millis {
        self.release.saturating_sub(self.after).min(IDLE_NOTICE)
    }
}

impl std::fmt::Display for IdleRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { after, below_percent, release } = self;
        if !self.watches() {
            return write!(f, "never called idle");
        }
        write!(f, "idle after {after} below {below_percent} %, ")?;
        match *release {
            Millis::ZERO => write!(f, "never released for it"),
            release => write!(f, "released if idle for {release}"),
        }
    }
}

/// Other rules; what is not said stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleChange {
    pub after: Option<Millis>,
    pub below_percent: Option<u32>,
    pub release: Option<Millis>,
}

impl IdleChange {
    /// The rules after it.
    pub fn of(self, before: IdleRules) -> IdleRules {
        IdleRules {
            after: self.after.unwrap_or(before.after),
            below_percent: self.below_percent.unwrap_or(before.below_percent),
            release: self.release.unwrap_or(before.release),
        }
    }
}

/// What a node measures on the GPUs of an open window. It speaks when this changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleSeen {
    /// None of them computed anything, for this long on the node's own clock. It measured all this time.
    Idle { for_ms: Millis },
    /// One of them computes.
    Busy,
    /// It is not idle any more as far as anybody knows: the driver gave no samples, or a job is being prepared.
    Unknown,
}

/// A reservation that is idle by its node's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub since: Timestamp,
    /// When fleet releases it, if it is idle until then; `None`: not for that.
    pub release_at: Option<Timestamp>,
    /// That time has come, and its node was asked to say once more that it is idle.
    pub asked: bool,
}

impl Idle {
    /// How it is with it now: `idle for 2h, released in 40m if it stays idle`.
    pub fn told(&self, now: Timestamp) -> String {
        let idle = format!("idle for {}", now.since(self.since));
        match self.release_at {
            Some(at) if at > now => {
                format!("{idle}, released in {} if it stays idle", at.since(now))
            }
            Some(_) => format!("{idle}, released as soon as its node confirms that"),
            None => idle,
        }
    }
}

/// What an agent hears of an idle reservation on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredIdle {
    /// When fleet releases it, if it is idle until then.
    pub release_at: Timestamp,
    /// The agent says once more whether it is idle: the release waits for that.
    pub confirm: bool,
}

/// What happened to a reservation because its GPUs compute nothing, or do again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleEvent {
    /// It is called idle.
    Began { reservation: ReservationId, node: NodeName, owner: UserName, since: Timestamp },
    /// One of its GPUs computes again.
    Ended { reservation: ReservationId, node: NodeName },
    /// Released: it was idle for the time that the rules say.
    Released {
        reservation: ReservationId,
        node: NodeName,
        owner: UserName,
        since: Timestamp,
        after: Millis,
    },
}

impl IdleEvent {
    /// The reservation and the node that the event is about.
    pub fn about(&self) -> (&ReservationId, &NodeName) {
        match self {
            IdleEvent::Began { reservation, node, .. }
            | IdleEvent::Ended { reservation, node }
            | IdleEvent::Released { reservation, node, .. } => (reservation, node),
        }
    }

    /// The sentence in a story, for something that happened then.
    pub fn told(&self, then: Timestamp) -> String {
        match self {
            IdleEvent::Began { since, .. } => format!("{self} for {}", then.since(*since)),
            IdleEvent::Ended { .. } | IdleEvent::Released { .. } => self.to_string(),
        }
    }
}

impl std::fmt::Display for IdleEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IdleEvent::Began { node, owner, .. } => {
                write!(f, "reservation of {owner} is idle: its GPUs on {node} computed nothing")
            }
            IdleEvent::Ended { node, .. } => write!(f, "its GPUs on {node} compute again"),
            IdleEvent::Released { node, after, .. } => {
                write!(f, "released: its GPUs on {node} computed nothing for {after}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_since_when_and_until_when() {
        let hour = |n| Timestamp(0) + Millis::hours(n);
        let told = |release_at: Option<u64>| {
            let release_at = release_at.map(hour);
            Idle { since: hour(1), release_at, asked: false }.told(hour(3))
        };
        assert_eq!(told(None), "idle for 2h");
        assert_eq!(told(Some(5)), "idle for 2h, released in 2h if it stays idle");
        assert_eq!(told(Some(3)), "idle for 2h, released as soon as its node confirms that");
    }

    #[test]
    fn users_have_time_between_the_warning_and_a_release() {
        let rules = |after, release| IdleRules { after, release, ..IdleRules::default() };
        let hours = Millis::hours;
        assert_eq!(rules(hours(1), hours(4)).notice(), IDLE_NOTICE);
        assert_eq!(rules(Millis::secs(2), Millis::secs(5)).notice(), Millis::secs(3));
        assert_eq!(rules(hours(1), hours(4)).quiet(), IDLE_AFTER_MIN);
        assert!(!rules(Millis::ZERO, hours(4)).releases());
        assert!(!IdleRules::default().releases() && IdleRules::default().watches());
    }
}
