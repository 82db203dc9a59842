//! What nobody may remove from the store: images that are being made, or were handed out and are not mounted yet.
//!
//! What is mounted says so in its attempt's own folder ([`crate::rootfs`]), which outlives the agent; pins are for
//! the time before. A caller that removes something keeps [`Pins::lock`] from its first check to its last rename, so
//! that nothing is handed out in between. Never drop a [`Pin`] with that lock in hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Layers of an image, and the image itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Digest of the configuration, in hex.
    pub(crate) image: String,
    pub(crate) layers: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    next: u64,
    claims: BTreeMap<u64, Claim>,
}

/// All pins of one store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Arc<Mutex<Table>>);

/// Keeps an image from being removed until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    table: Arc<Mutex<Table>>,
    number: u64,
    pub(crate) claim: Claim,
}

impl PartialEq for Pin {
    /// Two pins of one thing are alike.
    fn eq(&self, other: &Self) -> bool {
        self.claim == other.claim
    }
}

impl Eq for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).claims.remove(&self.number);
    }
}

/// The right to hand out and to remove.
pub(crate) struct Locked<'a> {
    pins: &'a Pins,
    table: MutexGuard<'a, Table>,
}

impl Pins {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { pins: self, table: self.0.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    pub(crate) fn pin(&self, claim: Claim) -> Pin {
        self.lock().pin(claim)
    }
}

impl Locked<'_> {
    pub(crate) fn pin(&mut self, claim: Claim) -> Pin {
        let number = self.table.next;
        self.table.next += 1;
        self.table.claims.insert(number, claim.clone());
        Pin { table: Arc::clone(&self.pins.0), number, claim }
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.table.claims.values()
    }
}
