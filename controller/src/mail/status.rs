//! How the mails of this controller fare: for metrics, and for people who ask.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use fleet_core::name::UserName;
use fleet_core::time::{Millis, Timestamp};

/// People whose last refusal is remembered.
const REFUSALS_MAX: usize = 1_000;

/// Test mails to one address in an hour.
const TESTS_PER_HOUR_MAX: usize = 10;
/// Addresses whose test mails are counted.
const TESTED_MAX: usize = 1_000;

/// Since when the server takes nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failing {
    pub(crate) since: Timestamp,
    pub(crate) why: String,
}

#[derive(Debug, Default)]
struct Counted {
    sent: u64,
    refused: u64,
    dropped: u64,
    waiting: u64,
    failing: Option<Failing>,
    /// What the server said to the last mail of a person, where it refused that.
    refusals: BTreeMap<UserName, String>,
    /// When test mails went to an address in the last hour.
    tests: BTreeMap<String, VecDeque<Timestamp>>,
}

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct MailStatus(Arc<Mutex<Counted>>);

impl MailStatus {
    fn with<T>(&self, use_it: impl FnOnce(&mut Counted) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn sent(&self, user: &UserName) {
        self.with(|counted| {
            counted.sent += 1;
            counted.refusals.remove(user);
        });
    }

    /// Says whether it is the first refusal of this person's mails.
    pub(crate) fn refused(&self, user: &UserName, why: &str) -> bool {
        self.with(|counted| {
            counted.refused += 1;
            if counted.refusals.len() >= REFUSALS_MAX {
                counted.refusals.clear();
            }
            counted.refusals.insert(user.clone(), why.to_owned()).is_none()
        })
    }

    /// Notices that were too old.
    pub(crate) fn dropped(&self, notices: u64) {
        self.with(|counted| counted.dropped += notices);
    }

    /// Counts one more test mail to this address, so that nobody fills a mailbox with them; says whether it may be sent.
    pub(crate) fn may_test(&self, address: &str, now: Timestamp) -> bool {
        self.with(|counted| {
            for sent in counted.tests.values_mut() {
                sent.retain(|at| now.since(*at) < Millis::hours(1));
            }
            counted.tests.retain(|_, sent| !sent.is_empty());
            let is_known = counted.tests.contains_key(address);
            if !is_known && counted.tests.len() >= TESTED_MAX {
                return false;
            }
            let sent = counted.tests.entry(address.to_owned()).or_default();
            let may = sent.len() < TESTS_PER_HOUR_MAX;
            sent.extend(may.then_some(now));
            may
        })
    }

    /// That test mail never reached the server.
    pub(crate) fn was_no_test(&self, address: &str) {
        self.with(|counted| counted.tests.get_mut(address).and_then(VecDeque::pop_back));
    }

    /// People with a mail that waits.
    pub(crate) fn set_waiting(&self, waiting: usize) {
        self.with(|counted| counted.waiting = waiting as u64);
    }

    /// The server takes nothing; says whether that is new.
    pub(crate) fn fails(&self, since: Timestamp, why: &str) -> bool {
        self.with(|counted| {
            let is_new = counted.failing.is_none();
            let since = counted.failing.as_ref().map_or(since, |failing| failing.since);
            counted.failing = Some(Failing { since, why: why.to_owned() });
            is_new
        })
    }

    /// The server takes mails; says since when it did not, if that is new.
    pub(crate) fn works(&self) -> Option<Failing> {
        self.with(|counted| counted.failing.take())
    }

    /// This controller leads no more: another one knows.
    pub(crate) fn rest(&self) {
        self.with(|counted| {
            counted.waiting = 0;
            counted.failing = None;
            counted.refusals.clear();
        });
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        self.with(|counted| counted.failing.clone())
    }

    pub(crate) fn refusal_of(&self, user: &UserName) -> Option<String> {
        self.with(|counted| counted.refusals.get(user).cloned())
    }

    /// Mails sent and refused, notices dropped, and people who wait.
    pub(crate) fn figures(&self) -> [u64; 4] {
        self.with(|counted| [counted.sent, counted.refused, counted.dropped, counted.waiting])
    }
}
