//! The book of reservations: all that are kept, and which of them still count.
//!
//! Every change asks for what is promised, and thousands that are over are kept for those who look back. Used
//! by the state machine only. It decides nothing; it must never lose sight of one that counts, so nobody
//! changes a reservation but through `get_mut`, which looks again when the change is done.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize, Serializer};

use super::by_time::ByTime;
use crate::id::ReservationId;
use crate::name::{NodeName, UserName};
use crate::reservation::{Place, Reservation, ReservationState};
use crate::risk::Pair;
use crate::time::Window;

/// All reservations that are kept. Stored as one map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<ReservationId, Reservation>")]
pub(crate) struct ReservationBook {
    /// Those that `counts`.
    counting: BTreeMap<ReservationId, Reservation>,
    over: BTreeMap<ReservationId, Reservation>,
    /// Those that count, of each node.
    by_node: BTreeMap<NodeName, BTreeSet<ReservationId>>,
    /// The same, to be found by their time.
    by_time: BTreeMap<NodeName, ByTime>,
    /// The same, of each owner.
    by_owner: BTreeMap<UserName, BTreeSet<ReservationId>>,
    /// Those that wait to get a place on that node, see `Reservation::next`.
    coming: BTreeMap<NodeName, BTreeSet<ReservationId>>,
    /// Those that are reviewed each minute: they have a bad place or a stand-in.
    to_move: BTreeSet<ReservationId>,
    /// Nodes of which one came, went or may have changed since the last [`Self::take_touched`].
    touched: BTreeSet<NodeName>,
}

/// Whether it claims GPUs, or its agent has yet to release it.
fn counts(r: &Reservation) -> bool {
    let held = |given: &crate::window::HandedOut| given.withdrawn.is_some() && !given.taken;
    r.is_open() || r.handed_out.as_ref().is_some_and(held)
}

fn is_to_move(r: &Reservation) -> bool {
    let has_stand_in = matches!(r.pair.as_deref(), Some(Pair::HasStandIn(_)));
    let waits = r.state == ReservationState::Scheduled;
    let is_tried = r.risk.as_ref().is_some_and(|risk| risk.keeps.is_tried_again());
    r.is_open() && has_stand_in || waits && is_tried
}

impl From<BTreeMap<ReservationId, Reservation>> for ReservationBook {
    fn from(all: BTreeMap<ReservationId, Reservation>) -> Self {
        let (counting, over): (BTreeMap<_, _>, _) = all.into_iter().partition(|(_, r)| counts(r));
        let mut by_node: BTreeMap<NodeName, BTreeSet<ReservationId>> = BTreeMap::new();
        let mut by_time: BTreeMap<NodeName, ByTime> = BTreeMap::new();
        let mut by_owner: BTreeMap<UserName, BTreeSet<ReservationId>> = BTreeMap::new();
        let mut coming: BTreeMap<NodeName, BTreeSet<ReservationId>> = BTreeMap::new();
        for r in counting.values() {
            if let Some(next) = &r.next {
                coming.entry(next.node.clone()).or_default().insert(r.id.clone());
            }
            by_node.entry(r.node.clone()).or_default().insert(r.id.clone());
            by_time.entry(r.node.clone()).or_default().insert(r);
            by_owner.entry(r.owner.clone()).or_default().insert(r.id.clone());
        }
        let to_move = counting.values().filter(|r| is_to_move(r)).map(|r| r.id.clone()).collect();
        let touched = by_node.keys().chain(coming.keys()).cloned().collect();
        Self { counting, over, by_node, by_time, by_owner, coming, to_move, touched }
    }
}

impl Serialize for ReservationBook {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.all().map(|r| (&r.id, r)))
    }
}

impl ReservationBook {
    /// All of them, by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Reservation> {
        let mut counting = self.counting.values().peekable();
        let mut over = self.over.values().peekable();
        std::iter::from_fn(move || match (counting.peek(), over.peek()) {
            (Some(one), Some(other)) if other.id < one.id => over.next(),
            (None, _) => over.next(),
            (Some(_), _) => counting.next(),
        })
    }

    /// Those that claim GPUs, and those that an agent has yet to release.
    pub(crate) fn counting(&self) -> impl Iterator<Item = &Reservation> {
        self.counting.values()
    }

    /// Those of one node that claim GPUs, and those that its agent has not given up yet, by id.
    pub(crate) fn counting_on(&self, node: &NodeName) -> impl Iterator<Item = &Reservation> {
        let ids = self.by_node.get(node).into_iter().flatten();
        ids.filter_map(|id| self.counting.get(id))
    }

    /// Those of one node that have not ended, by id.
    pub(crate) fn open_on(&self, node: &NodeName) -> impl Iterator<Item = &Reservation> {
        self.counting_on(node).filter(|r| r.is_open())
    }

    /// Those of one node that have not ended, without those that cannot be in the way of the window; in no order.
    pub(crate) fn open_near(
        &self,
        node: &NodeName,
        window: &Window,
    ) -> impl Iterator<Item = &Reservation> {
        let ids = self.by_time.get(node).into_iter().flat_map(|by_time| by_time.near(window));
        ids.filter_map(|id| self.counting.get(id)).filter(|r| r.is_open())
    }

    /// Those that wait to get a place on the node, by id, with that place.
    pub(crate) fn coming_to(
        &self,
        node: &NodeName,
    ) -> impl Iterator<Item = (&Reservation, &Place)> {
        let ids = self.coming.get(node).into_iter().flatten();
        ids.filter_map(|id| self.counting.get(id)).filter_map(|r| Some((r, r.next.as_deref()?)))
    }

    /// All that wait to get a place somewhere, with that place.
    pub(crate) fn coming(&self) -> impl Iterator<Item = (&Reservation, &Place)> {
        self.coming.keys().flat_map(|node| self.coming_to(node))
    }

    /// Those of one owner that have not ended, by id.
    pub(crate) fn open_of(&self, owner: &UserName) -> impl Iterator<Item = &Reservation> {
        let ids = self.by_owner.get(owner).into_iter().flatten();
        ids.filter_map(|id| self.counting.get(id)).filter(|r| r.is_open())
    }

    /// Those that are reviewed each minute, by id: another place is searched for them, or they have a stand-in.
    pub(crate) fn to_move(&self) -> &BTreeSet<ReservationId> {
        &self.to_move
    }

    pub(crate) fn touched(&self) -> &BTreeSet<NodeName> {
        &self.touched
    }

    /// What is derived from it is to be worked out again.
    pub(crate) fn touch(&mut self, id: &ReservationId) {
        let Some(r) = self.counting.get(id) else { return };
        for node in std::iter::once(&r.node).chain(r.next.as_ref().map(|next| &next.node)) {
            if !self.touched.contains(node) {
                self.touched.insert(node.clone());
            }
        }
    }

    /// One of the node was taken out and put back: nothing changed.
    pub(crate) fn as_it_was(&mut self, node: &NodeName) {
        self.touched.remove(node);
    }

    pub(crate) fn take_touched(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.touched)
    }

    /// Those that have not ended.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Reservation> {
        self.counting().filter(|r| r.is_open())
    }

    /// No more fit in.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.counting.len() >= most && self.open().count() >= most
    }

    pub(crate) fn get(&self, id: &ReservationId) -> Option<&Reservation> {
        self.counting.get(id).or_else(|| self.over.get(id))
    }

    pub(crate) fn contains_key(&self, id: &ReservationId) -> bool {
        self.get(id).is_some()
    }

    pub(crate) fn get_mut(&mut self, id: &ReservationId) -> Option<Page<'_>> {
        let reservation = self.remove(id)?;
        Some(Page { reservation: Some(reservation), book: self })
    }

    /// Whether each is where it belongs.
    pub(crate) fn is_in_order(&self) -> bool {
        let on_nodes: usize = self.by_node.values().map(BTreeSet::len).sum();
        let by_time: usize = self.by_time.values().map(ByTime::len).sum();
        let of_owners: usize = self.by_owner.values().map(BTreeSet::len).sum();
        let coming: usize = self.coming.values().map(BTreeSet::len).sum();
        let waiting = self.counting.values().filter(|r| r.next.is_some()).count();
        let to_move = self.counting.values().filter(|r| is_to_move(r)).count();
        let there = |r: &Reservation| {
            self.by_node.get(&r.node).is_some_and(|on| on.contains(&r.id))
                && self.by_time.get(&r.node).is_some_and(|on| on.contains(r))
                && self.by_owner.get(&r.owner).is_some_and(|of| of.contains(&r.id))
                && r.next.as_ref().is_none_or(|next| {
                    self.coming.get(&next.node).is_some_and(|to| to.contains(&r.id))
                })
        };
        self.counting.values().all(|r| counts(r) && there(r))
            && on_nodes == self.counting.len()
            && by_time == self.counting.len()
            && of_owners == self.counting.len()
            && coming == waiting
            && self.to_move.len() == to_move
            && self.to_move.iter().all(|id| self.counting.get(id).is_some_and(is_to_move))
            && !self.over.values().any(counts)
    }

    pub(crate) fn insert(&mut self, reservation: Reservation) {
        // One that counts may have been there as one that does not.
        self.remove(&reservation.id);
        if !counts(&reservation) {
            self.over.insert(reservation.id.clone(), reservation);
            return;
        }
        let of_node = self.by_node.entry(reservation.node.clone()).or_default();
        of_node.insert(reservation.id.clone());
        self.by_time.entry(reservation.node.clone()).or_default().insert(&reservation);
        let of_owner = self.by_owner.entry(reservation.owner.clone()).or_default();
        of_owner.insert(reservation.id.clone());
        self.touched.insert(reservation.node.clone());
        if let Some(next) = &reservation.next {
            self.coming.entry(next.node.clone()).or_default().insert(reservation.id.clone());
            self.touched.insert(next.node.clone());
        }
        if is_to_move(&reservation) {
            self.to_move.insert(reservation.id.clone());
        }
        self.counting.insert(reservation.id.clone(), reservation);
    }

    pub(crate) fn remove(&mut self, id: &ReservationId) -> Option<Reservation> {
        let Some(r) = self.counting.remove(id) else { return self.over.remove(id) };
        strike(&mut self.by_node, &r.node, id);
        if let Some(by_time) = self.by_time.get_mut(&r.node) {
            by_time.remove(&r);
            if by_time.is_empty() {
                self.by_time.remove(&r.node);
            }
        }
        strike(&mut self.by_owner, &r.owner, id);
        if let Some(next) = &r.next {
            strike(&mut self.coming, &next.node, id);
            self.touched.insert(next.node.clone());
        }
        self.to_move.remove(id);
        self.touched.insert(r.node.clone());
        Some(r)
    }
}

/// The list no longer has the reservation under that key.
fn strike<K: Ord>(lists: &mut BTreeMap<K, BTreeSet<ReservationId>>, key: &K, id: &ReservationId) {
    let Some(list) = lists.get_mut(key) else { return };
    list.remove(id);
    if list.is_empty() {
        lists.remove(key);
    }
}

/// One reservation while it is changed: out of the book, and put back where it belongs then.
pub(crate) struct Page<'a> {
    /// Missing only while it is put back.
    reservation: Option<Reservation>,
    book: &'a mut ReservationBook,
}

const OUT: &str = "a page has its reservation until it is dropped";

impl Deref for Page<'_> {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        self.reservation.as_ref().expect(OUT)
    }
}

impl DerefMut for Page<'_> {
    fn deref_mut(&mut self) -> &mut Reservation {
        self.reservation.as_mut().expect(OUT)
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.book.insert(reservation);
        }
    }
}
