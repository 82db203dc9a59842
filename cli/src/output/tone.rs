//! The colour of a state on a terminal. A colour only repeats what the word says.

use comfy_table::Color;
use fleet_core::health::Health;
use fleet_core::job::JobState;
use fleet_core::view::{GpuState, NodeState, ReservationShown, UserState};
use fleet_core::word::Word;
use fleet_proto::json::values::Stated;

use super::doctor::Level;

/// How a state strikes the eye.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// What one hopes for, or looks for.
    Good,
    /// What passes, or wants attention some day.
    Passing,
    /// What somebody has to mend.
    Bad,
    Plain,
}

impl Tone {
    pub(super) fn colour(self) -> Option<Color> {
        match self {
            Tone::Good => Some(Color::Green),
            Tone::Passing => Some(Color::Yellow),
            Tone::Bad => Some(Color::Red),
            Tone::Plain => None,
        }
    }

    /// Of a state that came over the network; plain for one of a newer version.
    pub(super) fn of<T: Word + Into<Tone>>(stated: &Stated<T>) -> Self {
        stated.known().map_or(Tone::Plain, Into::into)
    }
}

impl From<GpuState> for Tone {
    fn from(state: GpuState) -> Self {
        match state {
            // A free GPU is what people look for in the list.
            GpuState::Free => Tone::Good,
            GpuState::Reserved | GpuState::Running => Tone::Plain,
            GpuState::Releasing | GpuState::Unknown | GpuState::Closed => Tone::Passing,
            GpuState::Dirty | GpuState::Lost | GpuState::Unhealthy => Tone::Bad,
        }
    }
}

impl From<NodeState> for Tone {
    fn from(state: NodeState) -> Self {
        match state {
            NodeState::Ready => Tone::Good,
            NodeState::Suspect
            | NodeState::Cordoned
            | NodeState::Draining
            | NodeState::Drained
            | NodeState::Suspended => Tone::Passing,
            NodeState::Unreachable => Tone::Bad,
        }
    }
}

impl From<JobState> for Tone {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Running | JobState::Completed => Tone::Good,
            JobState::Queued | JobState::Starting | JobState::Stopping => Tone::Passing,
            JobState::Failed | JobState::TimedOut => Tone::Bad,
            JobState::Cancelled => Tone::Plain,
        }
    }
}

impl From<ReservationShown> for Tone {
    fn from(state: ReservationShown) -> Self {
        match state {
            ReservationShown::Active => Tone::Good,
            ReservationShown::Cancelling | ReservationShown::Ending => Tone::Passing,
            ReservationShown::Requested
            | ReservationShown::Waiting
            | ReservationShown::Offered
            | ReservationShown::Scheduled
            | ReservationShown::Ended
            | ReservationShown::Cancelled => Tone::Plain,
        }
    }
}

impl From<UserState> for Tone {
    fn from(state: UserState) -> Self {
        match state {
            UserState::Active => Tone::Good,
            UserState::Disabled => Tone::Passing,
        }
    }
}

impl From<Health> for Tone {
    fn from(health: Health) -> Self {
        match health {
            Health::Ok => Tone::Good,
            Health::Notice => Tone::Plain,
            Health::Degraded | Health::Unknown => Tone::Passing,
            Health::Fatal => Tone::Bad,
        }
    }
}

impl From<Level> for Tone {
    fn from(level: Level) -> Self {
        match level {
            Level::Problem => Tone::Bad,
            Level::Warning => Tone::Passing,
            Level::Unseen => Tone::Plain,
            Level::Ok => Tone::Good,
        }
    }
}
