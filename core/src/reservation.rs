//! Reservations: GPUs promised to an owner for a time window.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ending::{EndPolicy, Usage};
use crate::id::{ImportId, LeaseId, ReservationId, SeriesId};
use crate::name::{GpuUuid, NodeName, ProjectName, UserName};
use crate::risk::{Pair, Risk, STAND_IN_AHEAD};
use crate::time::{Millis, Timestamp, Window};
use crate::window::{HandedOut, Withdrawal};

/// Longest window of one reservation.
pub const RESERVATION_LENGTH_MAX: Millis = Millis::days(60);
/// Shortest window of one reservation.
pub const RESERVATION_LENGTH_MIN: Millis = Millis::secs(1);
/// How far ahead a reservation may start.
pub const RESERVATION_AHEAD_MAX: Millis = Millis::days(365);
/// How long ago a reservation may claim to start (slow links, typing time).
pub const RESERVATION_PAST_MAX: Millis = Millis::minutes(5);
/// Most users that a reservation is shared with.
pub const SHARED_WITH_MAX: usize = 32;
/// Most reservations that have not ended, in the whole fleet. In memory each takes about a kilobyte, on each controller.
pub const RESERVATIONS_OPEN_MAX: usize = 100_000;
/// Most reservations of one series: a year of days.
pub const SERIES_LENGTH_MAX: usize = 366;
/// Most nodes of which one request reserves GPUs at once.
pub const NODES_AT_ONCE_MAX: usize = 64;

/// Which GPUs are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRequest {
    pub count: u32,
    /// Short model, as in `v100`.
    pub model: Option<String>,
    /// Least memory of each GPU.
    pub memory_bytes_min: Option<u64>,
    pub node: Option<NodeName>,
    /// These exact GPUs; `count` is then their number.
    #[serde(default)]
    pub uuids: Vec<GpuUuid>,
}

/// Where a reservation is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// On the waiting list: its owner has to accept the place before then. Its agent does not know of it. All that
    /// changes such a reservation waits until it is accepted.
    Offered {
        until: Timestamp,
    },
    /// Its window has not begun, or the GPUs are not empty yet.
    Scheduled,
    /// It holds a lease.
    Active,
    /// The lease is being taken back.
    Ending,
    Ended,
    Cancelled,
}

impl ReservationState {
    /// Whether it has GPUs from its start on and has not begun.
    pub fn is_ahead(&self) -> bool {
        match self {
            ReservationState::Offered { .. } | ReservationState::Scheduled => true,
            ReservationState::Active
            | ReservationState::Ending
            | ReservationState::Ended
            | ReservationState::Cancelled => false,
        }
    }
}

/// GPUs of one node, promised to an owner for a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub id: ReservationId,
    pub owner: UserName,
    pub project: ProjectName,
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    /// What was asked for: other GPUs that meet it may take the place of broken ones.
    pub wish: GpuRequest,
    pub window: Window,
    pub note: String,
    pub state: ReservationState,
    pub lease: Option<LeaseId>,
    pub created_at: Timestamp,
    /// Why it is not active though its window has begun, or how it ended.
    pub reason: Option<String>,
    /// What of it is in its agent's hands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_out: Option<HandedOut>,
    /// What happens at its end; the fleet's rule where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_end: Option<EndPolicy>,
    #[serde(default, skip_serializing_if = "Usage::is_unknown")]
    pub usage: Usage,
    /// Who else may use its GPUs where people are held to their reservations. Jobs in it are its owner's.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
    /// Of one from a spreadsheet: start and end as they are written there, whatever became of it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Window>,
    /// The import that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportId>,
    /// That import was undone: a later one makes the reservation again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undone: bool,
    /// Raised by each change of what people see of it. An edit names the revision that its author saw.
    #[serde(default)]
    pub revision: u64,
    /// The newest of these changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<LastChange>,
    /// When it was cancelled or released, if that was before the end of its window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// The series that it was made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
    /// The place that it gets once its agent has released the one above. Both places are taken from others until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Box<Place>>,
    /// What is wrong with its place, and why it has it still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Box<Risk>>,
    /// When fleet last moved it for the sake of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_at: Option<Timestamp>,
    /// The other one, while its node or that of the other one is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<Box<Pair>>,
}

/// Why a reservation left the list without a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitOverWhy {
    /// Its latest start has passed.
    TooLate,
    Cancelled {
        by: String,
    },
    /// It would be refused by now, whatever is free: an account was closed, a project removed.
    Refused {
        why: String,
    },
    /// It is above a limit, and somebody who may approve it said no.
    Denied {
        by: String,
        why: String,
    },
    /// It is above a limit, and nobody had approved it by its latest start.
    NotApproved,
    /// None of its offers was accepted.
    NotAccepted {
        offers: u32,
    },
}

/// What the reservations of a series share. Each one carries it, so that a series is there as long as one of them is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    pub id: SeriesId,
    /// The rule that gave the dates, as people read it. Nothing is worked out from it.
    pub rule: String,
}

/// Who changed a reservation last, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastChange {
    pub by: String,
    pub at: Timestamp,
}

/// Where and when a reservation is: what an edit may change as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    pub window: Window,
    /// What the GPUs were chosen for.
    pub wish: GpuRequest,
}

/// A node and GPUs of it.
pub type Spot = (NodeName, Vec<GpuUuid>);

/// What an edit changed: what was, and what is. What it left alone is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<(Window, Window)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<(Spot, Spot)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<(BTreeSet<UserName>, BTreeSet<UserName>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<(String, String)>,
}

impl Edit {
    /// Nothing is other than it was.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Reservation {
    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }

    /// Whether it was cancelled, and its agent has yet to release it.
    pub(crate) fn is_cancelled(&self) -> bool {
        let withdrawn = self.handed_out.as_ref().and_then(|given| given.withdrawn.as_ref());
        matches!(withdrawn, Some(Withdrawal::Cancelled { .. }))
    }

    /// Where and when its owner has it in the end: the next place of one that waits for its node, else the one it has.
    pub fn wanted(&self) -> Place {
        match &self.next {
            Some(next) => (**next).clone(),
            None => Place {
                node: self.node.clone(),
                gpus: self.gpus.clone(),
                window: self.window,
                wish: self.wish.clone(),
            },
        }
    }

    /// Says that it was changed. Called with each change that people see.
    pub(crate) fn mark_changed(&mut self, by: String, at: Timestamp) {
        self.revision += 1;
        self.changed = Some(LastChange { by, at });
    }

    /// Says that it is over before its window is. Only the first time counts.
    pub(crate) fn mark_released(&mut self, by: String, at: Timestamp) {
        if self.released_at.is_none() && at < self.window.ends_at {
            self.released_at = Some(at);
            self.mark_changed(by, at);
        }
    }

    /// The time it takes from others: its window, and whatever its agent may still go by.
    pub fn claim(&self) -> Window {
        let given = self.handed_out.as_ref().filter(|given| !given.taken).map(|g| g.held_until);
        let Window { starts_at, ends_at } = self.window;
        Window { starts_at, ends_at: given.map_or(ends_at, |until| until.max(ends_at)) }
    }

    /// When time alone settles an edit that waits for its node: the node cannot open the old window any more, or
    /// the new one is over.
    pub(crate) fn edit_settles_at(&self) -> Option<Timestamp> {
        let next = self.next.as_ref()?;
        Some(next.window.ends_at.min(self.claim().ends_at))
    }

    /// A change that its agent has not confirmed yet.
    pub fn is_unconfirmed(&self) -> bool {
        self.is_open() && self.handed_out.as_ref().is_some_and(|given| !given.taken)
    }

    /// From when on it wants a stand-in, where its node may stay silent from that time on.
    pub(crate) fn wants_stand_in_at(&self, silent: Timestamp) -> Option<Timestamp> {
        let is_left = self.handed_out.as_ref().is_some_and(|given| given.withdrawn.is_some());
        let waits = self.state == ReservationState::Scheduled && !is_left;
        let is_alone = self.next.is_none() && self.pair.is_none();
        (waits && is_alone).then(|| silent.max(self.window.starts_at - STAND_IN_AHEAD))
    }

    /// Whether it is there only while another one's node is silent: it adds nothing to what its owner has.
    pub(crate) fn stands_in(&self) -> bool {
        matches!(self.pair.as_deref(), Some(Pair::StandsInFor(_)))
    }

    /// Until when its owner may accept it, if it is offered.
    pub fn offered_until(&self) -> Option<Timestamp> {
        match self.state {
            ReservationState::Offered { until } => Some(until),
            ReservationState::Scheduled
            | ReservationState::Active
            | ReservationState::Ending
            | ReservationState::Ended
            | ReservationState::Cancelled => None,
        }
    }

    /// Whether it still claims its GPUs.
    pub fn is_open(&self) -> bool {
        match self.state {
            ReservationState::Offered { .. }
            | ReservationState::Scheduled
            | ReservationState::Active
            | ReservationState::Ending => true,
            ReservationState::Ended | ReservationState::Cancelled => false,
        }
    }
}
