//! What people who are logged in read on their terminals: that a reservation of theirs ends soon, and whose the GPU is that
//! they were kept out of.
//!
//! - [`due`]: pure, what the owners of windows are to be told now, once each. [`denials`]: pure, who is told of a denial, and
//!   how often. [`free_gpus`]: what they could have instead, by a controller's word. [`words`]: pure, the texts. `tty`: the terminals of a user; `mail`: their mail. [`task`]: all of it together.
//!
//! The reconcile task says which windows run and who holds what ([`Handle::know`]), the gate whom it denied, and the
//! inventory whom it sees where there is no gate ([`Handle::denied`]). It works from what this node knows, with controllers and without, and it is words only: nothing
//! here decides anything, and nothing waits for it.

pub mod denials;
pub mod due;
pub mod free_gpus;
mod mail;
pub mod task;
mod tty;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::free_gpus::FreeGpus;
use crate::ahead::Running;
use crate::grant::Grant;

/// Users whose denials wait to be told.
const DENIED_USERS_MAX: usize = 1_000;

/// What the reconcile task knows.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub running: Vec<Running>,
    /// Who may use what now.
    pub grants: BTreeSet<Grant>,
}

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

#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    denied: BTreeMap<u32, Denied>,
}

/// What others hold of it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    state: Arc<Mutex<State>>,
    elsewhere: FreeGpus,
}

impl Handle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is so now.
    pub fn know(&self, known: Known) {
        self.state().known = Some(known);
    }

    /// The windows that run, as the reconcile task said last.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        self.state().known.iter().flat_map(|known| known.running.clone()).collect()
    }

    /// A user opened a GPU without a lease.
    pub fn denied(&self, uid: u32, minor: u32, outcome: Outcome) {
        let denied = &mut self.state().denied;
        if denied.len() < DENIED_USERS_MAX || denied.contains_key(&uid) {
            let new = || Denied { minors: BTreeSet::new(), outcome };
            let denied = denied.entry(uid).or_insert_with(new);
            denied.minors.insert(minor);
            denied.outcome = outcome;
        }
    }

    /// For the link, which asks.
    #[must_use]
    pub fn elsewhere(&self) -> &FreeGpus {
        &self.elsewhere
    }

    /// What is known, and who was denied something since this was asked last. Nothing before the first word.
    fn take(&self) -> Option<(Known, BTreeMap<u32, Denied>)> {
        let mut state = self.state();
        let known = state.known.clone()?;
        Some((known, std::mem::take(&mut state.denied)))
    }
}
