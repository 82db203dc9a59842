//! The reservations of one node that count, found by their time: a node may have thousands, and a window is near a few.
//!
//! Part of the reservation book, which tells it of each change.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::ReservationId;
use crate::reservation::Reservation;
use crate::time::{Millis, Timestamp, Window};

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ByTime {
    /// Those that have not begun, by their start; and when their claim ends.
    by_start: BTreeMap<Timestamp, BTreeMap<ReservationId, Timestamp>>,
    /// How many of them have each length: one that begins earlier than the longest before a window is not in its way.
    lengths: BTreeMap<Millis, usize>,
    /// All others: their end may depend on the time.
    begun: BTreeSet<ReservationId>,
}

fn has_begun(r: &Reservation) -> bool {
    !r.state.is_ahead()
}

impl ByTime {
    pub(super) fn insert(&mut self, r: &Reservation) {
        if has_begun(r) {
            self.begun.insert(r.id.clone());
            return;
        }
        let Window { starts_at, ends_at } = r.claim();
        *self.lengths.entry(ends_at.since(starts_at)).or_default() += 1;
        self.by_start.entry(starts_at).or_default().insert(r.id.clone(), ends_at);
    }

    /// It must be as it was when it was inserted.
    pub(super) fn remove(&mut self, r: &Reservation) {
        if has_begun(r) {
            self.begun.remove(&r.id);
            return;
        }
        let Window { starts_at, ends_at } = r.claim();
        let length = ends_at.since(starts_at);
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        if let Some(ids) = self.by_start.get_mut(&starts_at) {
            ids.remove(&r.id);
            if ids.is_empty() {
                self.by_start.remove(&starts_at);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty() && self.begun.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_start.values().map(BTreeMap::len).sum::<usize>() + self.begun.len()
    }

    pub(super) fn contains(&self, r: &Reservation) -> bool {
        match has_begun(r) {
            true => self.begun.contains(&r.id),
            false => self
                .by_start
                .get(&r.window.starts_at)
                .is_some_and(|ids| ids.get(&r.id) == Some(&r.claim().ends_at)),
        }
    }

    /// Those that are in the way of the window, and all that have begun.
    pub(super) fn near(&self, window: &Window) -> impl Iterator<Item = &ReservationId> {
        let Window { starts_at, ends_at } = *window;
        let longest = self.lengths.keys().next_back().copied().unwrap_or_default();
        let from = starts_at - longest;
        // The later of the two: a window without a length must not be a range that ends before it begins.
        let near = self.by_start.range(from..ends_at.max(from)).flat_map(|(_, ids)| ids);
        let near = near.filter(move |(_, claim_ends)| **claim_ends > starts_at);
        near.map(|(id, _)| id).chain(&self.begun)
    }
}
