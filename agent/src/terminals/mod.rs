//! What people who are logged in read on their terminals: that a reservation of theirs ends soon or is idle, and whose the
//! GPU is that they were kept out of.
//!
//! - [`fleet_node::due`], [`fleet_node::idle_due`]: pure, which warnings the users of windows get now, once each. [`denials`]: pure, which users get
//!   a message about a denial, and how often. [`free_gpus`]: what they could have instead, by a controller's word.
//!   [`words`]: pure, the texts. `tty`: the terminals of a user; `mail`: their mail. [`task`]: all of it together.
//!
//! The reconcile task says which windows run and who holds what ([`Handle::know`]). The gate says which users it
//! denied, and the inventory which users it sees where there is no gate ([`crate::denied`]). This works from what this
//! node knows, with controllers and without. It only writes words: nothing here decides anything, and nothing waits for
//! it.

pub mod denials;
pub mod free_gpus;
mod mail;
pub mod task;
mod tty;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::free_gpus::FreeGpus;
use crate::denied::{Denied, DeniedUsers};
use crate::idle::IdleNow;
use fleet_node::{Grant, Running};

/// What the reconcile task knows.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub running: Vec<Running>,
    /// Who may use what now.
    pub grants: BTreeSet<Grant>,
}

/// What others hold of it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    /// None before the reconcile task's first word.
    known: Arc<Mutex<Option<Known>>>,
    denied: DeniedUsers,
    idle: IdleNow,
    elsewhere: FreeGpus,
}

impl Handle {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is so now.
    pub fn know(&self, known: Known) {
        *self.known() = Some(known);
    }

    /// The windows that run, as the reconcile task said last.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        self.known().iter().flat_map(|known| known.running.clone()).collect()
    }

    /// Where the gate and the inventory put users who were denied a GPU.
    #[must_use]
    pub fn denied(&self) -> &DeniedUsers {
        &self.denied
    }

    /// Where it is said which windows are idle.
    #[must_use]
    pub fn idle(&self) -> &IdleNow {
        &self.idle
    }

    /// For the link, which asks.
    #[must_use]
    pub fn elsewhere(&self) -> &FreeGpus {
        &self.elsewhere
    }

    /// What is known, and who was denied something since this was asked last. Nothing before the first word.
    fn take(&self) -> Option<(Known, BTreeMap<u32, Denied>)> {
        let known = self.known().clone()?;
        Some((known, self.denied.take()))
    }
}
