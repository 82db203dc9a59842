//! Users who were kept out of a GPU, or seen on one without a lease, until their terminals hear of it.
//!
//! The gate adds users that it denied; the inventory adds users that it sees where there is no gate. `crate::terminals`
//! takes them out and decides which of them get a message. Nothing here waits, and a flood of users fills no more than
//! a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most users whose denials wait for a message.
const USERS_MAX: usize = 1_000;

/// What became of somebody who has no lease on a GPU, and opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    KeptOut,
    LetThrough,
    /// They are at work on it. `ended`: not for long.
    Seen {
        ended: bool,
    },
}

/// The GPUs that one user has no lease on, and what became of them at the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    pub minors: BTreeSet<u32>,
    pub outcome: Outcome,
}

/// By uid. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct DeniedUsers(Arc<Mutex<BTreeMap<u32, Denied>>>);

impl DeniedUsers {
    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, Denied>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user opened a GPU without a lease.
    pub fn add(&self, uid: u32, minor: u32, outcome: Outcome) {
        let mut users = self.users();
        if users.len() < USERS_MAX || users.contains_key(&uid) {
            let new = || Denied { minors: BTreeSet::new(), outcome };
            let denied = users.entry(uid).or_insert_with(new);
            denied.minors.insert(minor);
            denied.outcome = outcome;
        }
    }

    /// Users who were denied a GPU since the last call.
    pub(crate) fn take(&self) -> BTreeMap<u32, Denied> {
        std::mem::take(&mut *self.users())
    }
}
