//! The book of reservations: all that are kept, and which of them still count.
//!
//! Every change asks for what is promised, and thousands that are over are kept for those who look back. Used
//! by the state machine only. It decides nothing; it must never lose sight of one that counts, so nobody
//! changes a reservation but through `get_mut`, which looks again when the change is done.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize, Serializer};

use crate::id::ReservationId;
use crate::reservation::{RESERVATIONS_OPEN_MAX, Reservation};

/// All reservations that are kept. Stored as the plain map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<ReservationId, Reservation>")]
pub(super) struct Book {
    all: BTreeMap<ReservationId, Reservation>,
    /// Those that `counts`.
    counting: BTreeSet<ReservationId>,
}

/// Whether it claims GPUs, or its agent has yet to let go of it.
fn counts(r: &Reservation) -> bool {
    let held = |given: &crate::window::HandedOut| given.withdrawn.is_some() && !given.taken;
    r.is_open() || r.handed_out.as_ref().is_some_and(held)
}

impl From<BTreeMap<ReservationId, Reservation>> for Book {
    fn from(all: BTreeMap<ReservationId, Reservation>) -> Self {
        let counting = all.values().filter(|r| counts(r)).map(|r| r.id.clone()).collect();
        Self { all, counting }
    }
}

impl Serialize for Book {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl Book {
    pub(super) fn all(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.all
    }

    /// Those that claim GPUs, and those that an agent has yet to let go of.
    pub(super) fn counting(&self) -> impl Iterator<Item = &Reservation> {
        self.counting.iter().filter_map(|id| self.all.get(id))
    }

    /// Those that have not ended.
    pub(super) fn open(&self) -> impl Iterator<Item = &Reservation> {
        self.counting().filter(|r| r.is_open())
    }

    /// No more fit in.
    pub(super) fn is_full(&self) -> bool {
        self.open().count() >= RESERVATIONS_OPEN_MAX
    }

    pub(super) fn get(&self, id: &ReservationId) -> Option<&Reservation> {
        self.all.get(id)
    }

    pub(super) fn contains_key(&self, id: &ReservationId) -> bool {
        self.all.contains_key(id)
    }

    pub(super) fn get_mut(&mut self, id: &ReservationId) -> Option<Page<'_>> {
        let reservation = self.all.get_mut(id)?;
        Some(Page { reservation, counting: &mut self.counting })
    }

    /// Whether those that count are the ones it knows of.
    pub(super) fn is_in_order(&self) -> bool {
        self.counting.iter().eq(self.all.values().filter(|r| counts(r)).map(|r| &r.id))
    }

    pub(super) fn insert(&mut self, reservation: Reservation) {
        let id = reservation.id.clone();
        self.all.insert(id.clone(), reservation);
        drop(self.get_mut(&id));
    }

    pub(super) fn remove(&mut self, id: &ReservationId) -> Option<Reservation> {
        self.counting.remove(id);
        self.all.remove(id)
    }
}

/// One reservation while it is changed.
pub(super) struct Page<'a> {
    reservation: &'a mut Reservation,
    counting: &'a mut BTreeSet<ReservationId>,
}

impl Deref for Page<'_> {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        self.reservation
    }
}

impl DerefMut for Page<'_> {
    fn deref_mut(&mut self) -> &mut Reservation {
        self.reservation
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        let id = &self.reservation.id;
        match counts(self.reservation) {
            true if !self.counting.contains(id) => drop(self.counting.insert(id.clone())),
            false => drop(self.counting.remove(id)),
            true => {}
        }
    }
}
