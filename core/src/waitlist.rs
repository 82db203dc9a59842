//! The waiting list for reservations: who asked for GPUs that were not free in time, in the order in which they asked.
//!
//! A reservation on the list either has no place yet, or has one that begins later than its owner could use it. Both are
//! served by `fsm/waitlist.rs` whenever something comes free: the first gets a place, the second one that begins earlier.
//! A third kind is above a limit: it waits until somebody approves it, and is served from then on.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::approval::Approval;
use crate::command::CreateReservation;
use crate::id::ReservationId;
use crate::name::UserName;
use crate::offer::OfferTerms;
use crate::reservation::WaitOverWhy;
use crate::time::{Millis, Timestamp};

/// Most reservations on the list. Each of them is tried whenever a node changes.
pub const WAITLIST_MAX: usize = 256;
/// Most of one owner that have no place yet.
pub const WAITING_EACH_MAX: usize = 16;
/// How long after its earliest start a reservation may begin at the latest.
pub const WAIT_MAX: Millis = Millis::days(60);
/// How often all of them are tried on all nodes, in whole steps of the fleet's time.
const TRIED_EVERY: Millis = Millis::minutes(1);
/// Of those that got nothing, so many are kept to be shown.
const OVER_KEPT: usize = 256;

/// A reservation on the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// What is wanted. Its window begins at the earliest start and has the whole length.
    pub wish: CreateReservation,
    /// It begins by then, or not at all.
    pub latest_start: Timestamp,
    pub since: Timestamp,
    /// Who put it on the list: that one's limits count.
    pub by: Actor,
    /// The start of the place that it has by now. A reservation that begins at another time was moved by somebody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<Timestamp>,
    /// It is above a limit: somebody has to approve it before it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Box<Approval>>,
    /// Its places are offered. With a place, that is an open offer: once it is accepted there are no terms any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Box<OfferTerms>>,
}

impl Waiter {
    /// It waits for approval. Until then it is not served, and holds nothing.
    pub fn asks(&self) -> bool {
        self.approval.as_ref().is_some_and(|approval| approval.given_by.is_none())
    }

    /// Its place is offered. Until somebody answers, it is not served.
    pub fn has_open_offer(&self) -> bool {
        self.offer.is_some() && self.placed.is_some()
    }

    /// Whether jobs of lower classes may leave for it. None leaves for what its owner may decline.
    pub(crate) fn makes_jobs_leave(&self) -> bool {
        !self.asks() && self.offer.is_none()
    }

    /// Why it has got no place, once its latest start has passed.
    pub(crate) fn too_late(&self) -> WaitOverWhy {
        let declined = self.offer.as_ref().map_or(0, |terms| terms.declined());
        match (self.asks(), declined) {
            (true, _) => WaitOverWhy::NotApproved,
            (false, 0) => WaitOverWhy::TooLate,
            (false, offers) => WaitOverWhy::NotAccepted { offers },
        }
    }

    /// Whose limits count: nobody's for one that was approved.
    pub(crate) fn limited_as(&self) -> Option<&Actor> {
        self.approval.is_none().then_some(&self.by)
    }

    pub fn length(&self) -> Millis {
        self.wish.window.ends_at.since(self.wish.window.starts_at)
    }

    pub fn earliest_start(&self) -> Timestamp {
        self.wish.window.starts_at
    }
}

/// One that left the list without a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitOver {
    pub waiter: Waiter,
    pub at: Timestamp,
    pub why: WaitOverWhy,
}

/// See the module's doc.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waitlist {
    /// By the index of the entry that put them there, which is their order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waiters: BTreeMap<u64, Waiter>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    over: VecDeque<WaitOver>,
    /// When all of them were tried on all nodes last.
    #[serde(default)]
    tried_at: Timestamp,
}

impl Waitlist {
    /// Nobody waits, and nobody did.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.waiters.len() >= WAITLIST_MAX
    }

    /// All on the list, with their order; the first is served first.
    pub fn all(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.waiters.iter().map(|(order, waiter)| (*order, waiter))
    }

    /// Those that have no place yet, also those that wait for approval.
    pub fn without_place(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.values().filter(|waiter| waiter.placed.is_none())
    }

    /// Those of which the place is offered.
    pub(crate) fn offered(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.all().filter(|(_, waiter)| waiter.has_open_offer())
    }

    /// Whether nobody is served, because nobody is on the list or all of them wait for approval.
    fn serves_nobody(&self) -> bool {
        self.waiters.values().all(Waiter::asks)
    }

    /// Those that left the list without a place, as far as they are kept; the oldest first.
    pub fn over(&self) -> impl Iterator<Item = &WaitOver> {
        self.over.iter()
    }

    pub fn get(&self, id: &ReservationId) -> Option<&Waiter> {
        self.find(id).map(|(_, waiter)| waiter)
    }

    /// Whether it waits and has no place: there is no reservation of that id then.
    pub fn waits(&self, id: &ReservationId) -> Option<&Waiter> {
        self.get(id).filter(|waiter| waiter.placed.is_none())
    }

    pub fn was_over(&self, id: &ReservationId) -> Option<&WaitOver> {
        self.over.iter().find(|over| over.waiter.wish.id == *id)
    }

    /// Its place in the list, from 1. One that waits for approval has none.
    pub fn place(&self, id: &ReservationId) -> Option<usize> {
        let mut served = self.waiters.values().filter(|waiter| !waiter.asks());
        served.position(|waiter| waiter.wish.id == *id).map(|at| at + 1)
    }

    /// When the first of them has waited for too long.
    pub(crate) fn first_over(&self) -> Option<Timestamp> {
        self.without_place().map(|waiter| waiter.latest_start + Millis(1)).min()
    }

    pub(crate) fn find(&self, id: &ReservationId) -> Option<(u64, &Waiter)> {
        self.all().find(|(_, waiter)| waiter.wish.id == *id)
    }

    pub(crate) fn of_order(&self, order: u64) -> Option<&Waiter> {
        self.waiters.get(&order)
    }

    /// Whether all are to be tried on all nodes: once a minute.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        !self.serves_nobody() && minute(self.tried_at) != minute(now)
    }

    /// When time alone changes something: the next try on all nodes, or the end of a wait.
    pub(crate) fn due_at(&self, now: Timestamp) -> Option<Timestamp> {
        let next = match self.is_due(now) {
            true => now,
            false => Timestamp((minute(now) + 1) * TRIED_EVERY.0),
        };
        (!self.serves_nobody()).then_some(next).into_iter().chain(self.first_over()).min()
    }

    pub(crate) fn was_tried(&mut self, now: Timestamp) {
        self.tried_at = now;
    }

    pub(crate) fn add(&mut self, order: u64, waiter: Waiter, now: Timestamp) {
        if self.serves_nobody() {
            self.tried_at = now;
        }
        self.waiters.insert(order, waiter);
    }

    /// It is served from now on.
    pub(crate) fn approve(&mut self, order: u64, by: String, now: Timestamp) {
        if self.serves_nobody() {
            self.tried_at = now;
        }
        if let Some(approval) = self.waiters.get_mut(&order).and_then(|w| w.approval.as_mut()) {
            approval.given_by = Some(by);
        }
    }

    pub(crate) fn set_placed(&mut self, order: u64, start: Timestamp) {
        if let Some(waiter) = self.waiters.get_mut(&order) {
            waiter.placed = Some(start);
        }
    }

    /// Its offer was accepted: the place that it has is its own.
    pub(crate) fn accept(&mut self, order: u64) {
        if let Some(waiter) = self.waiters.get_mut(&order) {
            waiter.offer = None;
        }
    }

    /// Its offer ended and it has no place any more; with the time where that counts. Says how many were not accepted.
    pub(crate) fn end_offer(&mut self, order: u64, counts_at: Option<Timestamp>) -> u32 {
        let Some(waiter) = self.waiters.get_mut(&order) else { return 0 };
        waiter.placed = None;
        let Some(terms) = &mut waiter.offer else { return 0 };
        if let Some(at) = counts_at {
            terms.was_not_accepted(at);
        }
        terms.declined()
    }

    /// `by` gives it to somebody else, and stands for it from now on.
    pub(crate) fn set_owner(&mut self, order: u64, to: &UserName, by: &Actor) {
        if let Some(waiter) = self.waiters.get_mut(&order) {
            waiter.by = by.clone();
            waiter.wish.owner = to.clone();
            waiter.wish.with.remove(to);
        }
    }

    pub(crate) fn unshare(&mut self, order: u64, user: &UserName) {
        if let Some(waiter) = self.waiters.get_mut(&order) {
            waiter.wish.with.remove(user);
        }
    }

    /// It has what it waited for, or is somebody's business now.
    pub(crate) fn remove(&mut self, order: u64) -> Option<Waiter> {
        self.waiters.remove(&order)
    }

    /// What waits under that id, or did.
    pub(crate) fn take(&mut self, id: &ReservationId) -> Option<Waiter> {
        if let Some((order, _)) = self.find(id) {
            return self.waiters.remove(&order);
        }
        let at = self.over.iter().position(|over| over.waiter.wish.id == *id)?;
        self.over.remove(at).map(|over| over.waiter)
    }

    /// It got nothing.
    pub(crate) fn end(&mut self, order: u64, at: Timestamp, why: WaitOverWhy) {
        let Some(waiter) = self.waiters.remove(&order) else { return };
        self.over.push_back(WaitOver { waiter, at, why });
        if self.over.len() > OVER_KEPT {
            self.over.pop_front();
        }
    }
}

/// The beginning of the next such step, or of this one where it is just there.
pub(crate) fn next_minute(at: Timestamp) -> Timestamp {
    Timestamp(at.0.div_ceil(TRIED_EVERY.0).saturating_mul(TRIED_EVERY.0))
}

/// The step of the fleet's time that it is in.
pub(crate) fn minute(at: Timestamp) -> u64 {
    at.0 / TRIED_EVERY.0
}
