//! Whether a controller answers, and what it says the time is: written by the link, read by the reconcile task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleet_core::time::Timestamp;
use fleet_node::FleetClock;
use fleet_node::clock::Anchor;

use crate::clock;

/// A connection on which nothing was answered for this long may have nobody at its other end. Heartbeats
/// go out every two seconds.
const ALONE_AFTER: Duration = Duration::from_secs(6);

#[derive(Debug)]
struct State {
    clock: FleetClock,
    /// Since when there is a connection, since boot.
    linked: Option<Duration>,
    /// When, since boot, a question was sent that was answered; `None` before the first since the agent started.
    heard: Option<Duration>,
    /// The wall clock at that moment, for display.
    heard_at: Option<Timestamp>,
}

/// Handle on what is known. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Contact(Arc<Mutex<State>>);

impl Contact {
    /// No controller was heard yet; the time continues from what was stored.
    pub fn new(stored: Option<Anchor>, boot_id: &str) -> Self {
        let clock = FleetClock::resume(stored, boot_id);
        Self(Arc::new(Mutex::new(State { clock, linked: None, heard: None, heard_at: None })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A controller took the connection.
    pub fn linked(&self) {
        self.state().linked = Some(clock::since_boot());
    }

    /// The connection is gone.
    pub fn lost(&self) {
        self.state().linked = None;
    }

    /// A controller answered what was sent at `sent`; `fleet` is its time, if it is sure of it.
    pub fn answered(&self, sent: Duration, fleet: Option<Timestamp>) {
        let now = clock::since_boot();
        let mut state = self.state();
        state.heard = Some(state.heard.map_or(sent, |heard| heard.max(sent)));
        state.heard_at = Some(clock::now());
        if let Some(fleet) = fleet {
            state.clock.told(sent, now, fleet);
        }
    }

    /// Whether no controller answers: the calendar is this node's own business.
    pub fn is_alone(&self) -> bool {
        let state = self.state();
        // A new connection gets the time for a first answer.
        let Some(since) = state.linked.max(state.heard.filter(|_| state.linked.is_some())) else {
            return true;
        };
        clock::since_boot().saturating_sub(since) > ALONE_AFTER
    }

    /// The fleet's time; `None` where nobody knows.
    pub fn now(&self) -> Option<Timestamp> {
        let (since_boot, wall) = (clock::since_boot(), clock::now());
        let mut state = self.state();
        if state.linked.is_none() {
            state.clock.look_at_wall(since_boot, wall);
        }
        state.clock.now(since_boot)
    }

    /// What to store of the time.
    pub fn anchor(&self) -> Option<Anchor> {
        self.state().clock.anchor(clock::since_boot())
    }

    /// When a controller was last heard, by this machine's wall clock.
    pub fn heard_at(&self) -> Option<Timestamp> {
        self.state().heard_at
    }
}
