//! Finds a place for a wish among all nodes by the index: it excludes nodes that cannot fit before it checks any node.
//!
//! Called by [`super::choose`]. The rule: of the nodes that fit, the one with the fewest GPUs that nobody claims in its
//! fullest hour of the window; of the first [`CLOSEST_OF`] of these by name, the one with the closest GPUs. Nodes that
//! were not asked since a restore come last. A wish is refused only if no node fits, and the next slot is the earliest.

use std::collections::BTreeSet;

use super::HeldPlace;
use super::topology::{Spread, Topology};
use super::{Calendar, Candidate, HOLDINGS_MAX, Releasing, Unleased, sorted};
use crate::name::{GpuUuid, NodeName};
use crate::node::Node;
use crate::rejection::{Holding, Slot};
use crate::reservation::RESERVATION_AHEAD_MAX;
use crate::state::Fsm;
use crate::state::bits::Bits;
use crate::state::index::Entry;
use crate::state::wish::{GpuSet, Wish, has, place_of, uuids_of};
use crate::time::{Timestamp, Window};

/// Of this many nodes that are equally full, the one with the closest GPUs is taken.
pub(crate) const CLOSEST_OF: usize = 8;

pub(super) struct Places<'a, 'w> {
    fsm: &'a Fsm,
    wish: &'w Wish<'a>,
    window: Window,
    unleased: Unleased,
    held: &'a [HeldPlace],
    /// Nodes that have such GPUs, and that the index knows as they are.
    possible: Bits,
    /// Nodes that have such GPUs, or may have: the search must check each of these nodes itself.
    changed: BTreeSet<&'a NodeName>,
    /// Of the possible nodes, those with windows that the index does not know.
    uncertain: Bits,
}

impl<'a, 'w> Places<'a, 'w> {
    pub(super) fn new(
        fsm: &'a Fsm,
        wish: &'w Wish<'a>,
        window: Window,
        unleased: Unleased,
        held: &'a [HeldPlace],
    ) -> Self {
        let index = fsm.index();
        let of_uuids = wish.request.uuids.first().and_then(|uuid| fsm.gpu(uuid));
        let only = wish.request.node.as_ref().or(of_uuids.map(|gpu| &gpu.node));
        let mut changed = fsm.unsettled();
        let mut possible = Bits::default();
        match only {
            Some(node) => {
                changed.retain(|name| *name == node);
                if let Some(slot) = index.slot(node) {
                    possible.set(slot, true);
                }
            }
            None => {
                let shapes = index.shapes().filter(|(shape, _)| has(shape, wish));
                shapes.for_each(|(_, nodes)| possible.add(nodes));
            }
        }
        for name in &changed {
            if let Some(slot) = index.slot(name) {
                possible.set(slot, false);
            }
        }
        let mut uncertain = index.uncertain(fsm.now());
        for slot in held.iter().filter_map(|place| index.slot(&place.node)) {
            uncertain.set(slot, true);
        }
        uncertain.keep(&possible);
        Self { fsm, wish, window, unleased, held, possible, changed, uncertain }
    }

    fn candidate(&self, name: &NodeName) -> Option<Candidate<'a>> {
        let node = self.fsm.node(name)?;
        let calendar = Calendar::of_nodes(self.fsm, [name]).with_held(self.fsm, self.held);
        Candidate::of(self.fsm, self.wish, self.unleased, &calendar, node)
    }

    /// What the node has for the whole window, if that is enough.
    fn pick(
        &self,
        candidate: &Candidate<'a>,
        window: Window,
        releasing: Releasing,
    ) -> Option<(Spread, Vec<GpuUuid>)> {
        self.closest(candidate.node, candidate.free(window, releasing) & candidate.meant)
    }

    fn closest(&self, node: &Node, eligible: GpuSet) -> Option<(Spread, Vec<GpuUuid>)> {
        let count = self.wish.request.count;
        if eligible.count_ones() < count {
            return None;
        }
        let picked = Topology::of(self.fsm, node).pick(eligible, count)?;
        Some((picked.spread, uuids_of(node, picked.set)))
    }

    /// The same of a node at its place in the index, without a look at all that is taken of it where the claims say
    /// it all: there every GPU takes work, and nothing is just being emptied.
    fn pick_at(&self, slot: usize, window: Window) -> Option<(Spread, Vec<GpuUuid>)> {
        let index = self.fsm.index();
        if self.uncertain.contains(slot) {
            return self.pick(&self.candidate(index.name(slot))?, window, Releasing::Taken);
        }
        let node = self.fsm.node(index.name(slot))?;
        let meant = self.fsm.standing(node).meant(node, self.wish);
        self.closest(node, index.unclaimed(slot, &window) & meant)
    }

    /// Whether nobody has these GPUs in the window, by all that is taken of the node. The index should know, but nobody
    /// may be promised what another has because of a fault in it.
    fn is_free(&self, name: &NodeName, gpus: &[GpuUuid], releasing: Releasing) -> bool {
        let calendar = Calendar::of_node_within(self.fsm, name, &self.window);
        let calendar = calendar.with_held(self.fsm, self.held);
        let node = self.fsm.node(name);
        let candidate = node
            .and_then(|node| Candidate::of(self.fsm, self.wish, self.unleased, &calendar, node));
        candidate.is_some_and(|candidate| {
            let free = candidate.free(self.window, releasing);
            let places = gpus.iter().map(|uuid| place_of(candidate.node, uuid).unwrap_or(0));
            places.fold(0, |set: GpuSet, place| set | place) & !free == 0
        })
    }

    /// Cheaper than [`Self::pick`], and true wherever that finds something.
    fn may_fit(&self, slot: usize, window: &Window) -> bool {
        let unclaimed = self.fsm.index().unclaimed(slot, window);
        unclaimed.count_ones() >= self.wish.request.count
    }

    /// The place that the rule names, if any node fits.
    pub(super) fn best(&self, releasing: Releasing) -> Option<(NodeName, Vec<GpuUuid>)> {
        let index = self.fsm.index();
        let mut possible = self.possible.clone();
        if releasing == Releasing::Free {
            // On all others nothing is just being emptied.
            possible.keep(&self.uncertain);
        }
        possible.take_away(&index.without(self.wish.request.count, &self.window));
        let mut unasked = possible.clone();
        unasked.keep(index.unasked());
        let mut asked = possible;
        asked.take_away(index.unasked());
        let changed: Vec<(&NodeName, Entry)> = self
            .changed
            .iter()
            .filter_map(|name| Some((*name, Entry::of(self.fsm, self.fsm.node(name)?))))
            .collect();
        let changed_of = |unasked: bool| {
            let of_pass = changed.iter().filter(move |(_, entry)| entry.unasked == unasked);
            of_pass.map(|(name, entry)| (*name, entry.left_at_worst(&self.window))).collect()
        };
        self.fullest(&asked, changed_of(false), releasing)
            .or_else(|| self.fullest(&unasked, changed_of(true), releasing))
    }

    /// The best of the nodes of `among` and of `changed`, which come with what is left in their fullest hour.
    fn fullest(
        &self,
        among: &Bits,
        changed: Vec<(&'a NodeName, u32)>,
        releasing: Releasing,
    ) -> Option<(NodeName, Vec<GpuUuid>)> {
        if among.is_empty() && changed.is_empty() {
            return None;
        }
        let index = self.fsm.index();
        let mut fuller = Bits::default();
        for left in 0..=index.gpus_most().max(changed.iter().map(|(_, l)| *l).max().unwrap_or(0)) {
            let up_to = index.left_at_worst(left, &self.window);
            let mut equal = among.clone();
            equal.keep(&up_to);
            equal.take_away(&fuller);
            fuller = up_to;
            let known = equal.iter().filter(|slot| self.may_fit(*slot, &self.window));
            let mut known = known.map(|slot| (index.name(slot), Some(slot))).peekable();
            let new = changed.iter().filter(|(_, l)| *l == left);
            let mut new = new.map(|(name, _)| (*name, None)).peekable();
            let names = std::iter::from_fn(|| match (known.peek(), new.peek()) {
                (Some((one, _)), Some((other, _))) if other < one => new.next(),
                (None, _) => new.next(),
                (Some(_), _) => known.next(),
            });
            let fits = names.filter_map(|(name, slot)| {
                let (spread, gpus) = match slot.filter(|_| releasing == Releasing::Taken) {
                    Some(slot) => self.pick_at(slot, self.window)?,
                    None => self.pick(&self.candidate(name)?, self.window, releasing)?,
                };
                Some((spread, name, gpus))
            });
            // Of equals the first is taken.
            let closest = fits.take(CLOSEST_OF).min_by_key(|(spread, _, _)| *spread);
            if let Some((_, name, gpus)) = closest
                && self.is_free(name, &gpus, releasing)
            {
                return Some((name.clone(), gpus));
            }
        }
        None
    }

    /// The earliest window of the same length, where none of the nodes fits now.
    pub(super) fn next_slot(&self) -> Option<Slot> {
        let length = self.window.ends_at.since(self.window.starts_at);
        let index = self.fsm.index();
        let at = |starts_at: Timestamp| Window { starts_at, ends_at: starts_at + length };
        let last = self.fsm.now() + RESERVATION_AHEAD_MAX;
        let mut best: Option<Slot> = None;
        // Where the claims say it all, a node has more to give only when one of them ends.
        for (starts_at, slot) in index.ends_after(self.window.starts_at) {
            if starts_at > last {
                break;
            }
            let counts = self.possible.contains(slot) && !self.uncertain.contains(slot);
            if !counts || !self.may_fit(slot, &at(starts_at)) {
                continue;
            }
            if let Some((_, gpus)) = self.pick_at(slot, at(starts_at)) {
                best = Some(Slot { starts_at, node: index.name(slot).clone(), gpus });
                break;
            }
        }
        let unknown = self.uncertain.iter().map(|slot| index.name(slot));
        for name in unknown.chain(self.changed.iter().copied()) {
            let Some(candidate) = self.candidate(name) else { continue };
            for starts_at in candidate.instants(self.window.starts_at) {
                let is_earlier = best
                    .as_ref()
                    .is_none_or(|slot| (starts_at, name) < (slot.starts_at, &slot.node));
                if !is_earlier {
                    break;
                }
                if let Some((_, gpus)) = self.pick(&candidate, at(starts_at), Releasing::Taken) {
                    best = Some(Slot { starts_at, node: name.clone(), gpus });
                    break;
                }
            }
        }
        best.filter(|slot| slot.starts_at <= last)
    }

    /// Who holds what is wished for, first what ends first.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let index = self.fsm.index();
        let mut nodes: BTreeSet<&NodeName> = self.changed.clone();
        nodes.extend(self.uncertain.iter().map(|slot| index.name(slot)));
        let mut known = BTreeSet::new();
        let mut latest = None;
        for (until, slot) in index.ends_after(self.window.starts_at) {
            if known.len() >= HOLDINGS_MAX && latest.is_some_and(|latest| until > latest) {
                break;
            }
            let counts = self.possible.contains(slot) && !self.uncertain.contains(slot);
            if counts && index.ends_within(slot, until, &self.window) {
                known.insert(slot);
                latest = Some(until);
            }
        }
        nodes.extend(known.into_iter().map(|slot| index.name(slot)));
        let mut holdings = Vec::new();
        for candidate in nodes.into_iter().filter_map(|name| self.candidate(name)) {
            holdings.extend(candidate.holdings(self.fsm, &self.window));
        }
        sorted(holdings)
    }

    /// The nodes that something besides claims keeps from being taken, in name order.
    pub(super) fn obstructed(&self) -> impl Iterator<Item = &'a NodeName> {
        let index = self.fsm.index();
        let known = index.obstructed().iter().map(|slot| index.name(slot));
        let names: BTreeSet<&NodeName> = known.chain(self.fsm.unsettled()).collect();
        names.into_iter()
    }
}
