//! Finds a place for a wish among all nodes by the index: it excludes nodes that cannot fit before it checks any node.
//!
//! Called by [`super::choose`]. The rule: of the nodes that fit, the one with the fewest GPUs that nobody claims in its
//! fullest hour of the window; of the first [`CLOSEST_OF`] of these by name, the one with the closest GPUs. Nodes that
//! were not asked since a restore come last. A wish is refused only if no node fits, and the next slot is the earliest.

use std::collections::BTreeSet;

use super::HeldPlace;
use super::{Calendar, Candidate, HOLDINGS_MAX, Releasing, Unleased, sorted};
use crate::name::{GpuUuid, NodeName};
use crate::rejection::{Holding, Slot};
use crate::state::Fsm;
use crate::state::bits::{Bits, Block};
use crate::state::built::Built;
use crate::state::contents::Contents;
use crate::state::index::{Entry, FEW};
use crate::state::topology::Spread;
use crate::state::wish::{GpuSet, Wish, has, has_any, place_of, uuids_of};
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
        for name in changed.iter().copied().chain(wish.apart_from) {
            if let Some(slot) = index.slot(name) {
                possible.set(slot, false);
            }
        }
        changed.retain(|name| !wish.apart_from.contains(name));
        let mut uncertain = index.uncertain(&possible, fsm.now());
        let held_on = held.iter().filter_map(|place| index.slot(&place.node));
        for slot in held_on.filter(|slot| possible.contains(*slot)) {
            uncertain.set(slot, true);
        }
        Self { fsm, wish, window, unleased, held, possible, changed, uncertain }
    }

    fn candidate(&self, name: &NodeName) -> Option<Candidate<'a>> {
        self.candidate_by(name, Calendar::of_nodes(self.fsm, [name]))
    }

    /// The same, of which only what is in the way of the window counts.
    fn candidate_within(&self, name: &NodeName, window: &Window) -> Option<Candidate<'a>> {
        self.candidate_by(name, Calendar::of_node_within(self.fsm, name, window))
    }

    fn candidate_by(&self, name: &NodeName, calendar: Calendar<'a>) -> Option<Candidate<'a>> {
        let calendar = calendar.with_held(self.fsm, self.held);
        Candidate::of(self.fsm, self.wish, self.unleased, &calendar, self.fsm.node(name)?)
    }

    /// What the node has for the whole window, if that is enough.
    fn pick(
        &self,
        candidate: &Candidate<'a>,
        window: Window,
        releasing: Releasing,
    ) -> Option<(Spread, GpuSet)> {
        let eligible = candidate.free(window, releasing) & candidate.meant;
        self.closest(&self.fsm.built(candidate.node), eligible)
    }

    fn closest(&self, built: &Built, eligible: GpuSet) -> Option<(Spread, GpuSet)> {
        let picked = built.topology.pick(eligible, self.wish.request.count)?;
        Some((picked.spread, picked.set))
    }

    /// The same of a node at its place in the index, without a look at all that is taken of it where the claims say
    /// it all: there every GPU takes work, and nothing is just being emptied.
    fn pick_at(&self, slot: usize, window: Window) -> Option<(Spread, GpuSet)> {
        let index = self.fsm.index();
        if self.uncertain.contains(slot) {
            let candidate = self.candidate_within(index.name(slot), &window)?;
            return self.pick(&candidate, window, Releasing::Taken);
        }
        self.closest(index.built(slot), index.unclaimed(slot, &window) & self.meant_at(slot))
    }

    /// The GPUs that are meant of a node at its place in the index.
    fn meant_at(&self, slot: usize) -> GpuSet {
        let index = self.fsm.index();
        let meant = index.built(slot).of_kinds(self.wish);
        let named = &self.wish.request.uuids;
        if named.is_empty() {
            return meant;
        }
        let Some(node) = self.fsm.node(index.name(slot)) else { return 0 };
        let places = named.iter().filter_map(|uuid| place_of(node, uuid));
        meant & places.fold(0, |set, place| set | place)
    }

    /// Whether what was picked of the node was picked by claims alone.
    fn is_by_claims(&self, slot: Option<usize>, releasing: Releasing) -> bool {
        releasing == Releasing::Taken && slot.is_some_and(|slot| !self.uncertain.contains(slot))
    }

    /// Whether nobody has these GPUs in the window, by all that is taken of the node. The claims should say it, but
    /// nobody may be promised what another has because of a fault in the index.
    fn is_free(&self, name: &NodeName, gpus: GpuSet) -> bool {
        let candidate = self.candidate_within(name, &self.window);
        candidate.is_some_and(|c| gpus & !c.free(self.window, Releasing::Taken) == 0)
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
        let mut unasked = possible.clone();
        unasked.keep(index.unasked());
        let mut asked = possible;
        asked.take_away(index.unasked());
        let entry = |name: &&'a NodeName| {
            let node = self.fsm.node(name)?;
            let contents = Contents::with(self.fsm, node, self.fsm.built(node));
            Some((*name, Entry::with(self.fsm, &contents)))
        };
        let changed: Vec<(&NodeName, Entry)> = self.changed.iter().filter_map(entry).collect();
        let changed_of = |unasked: bool| {
            let of_pass = changed.iter().filter(move |(_, entry)| entry.unasked == unasked);
            of_pass.map(|(name, entry)| (entry.left_at_worst(&self.window), *name, None)).collect()
        };
        self.fullest(&asked, changed_of(false), releasing)
            .or_else(|| self.fullest(&unasked, changed_of(true), releasing))
    }

    /// The best of the nodes of `among` and of `apart`. These come with what is left in their fullest hour, and with
    /// their place in the index where it knows them as they are.
    fn fullest(
        &self,
        among: &Bits,
        mut apart: Vec<(u32, &'a NodeName, Option<usize>)>,
        releasing: Releasing,
    ) -> Option<(NodeName, Vec<GpuUuid>)> {
        let index = self.fsm.index();
        let few = among.is_few(FEW);
        if few {
            let left = |slot| index.left_at_worst_on(slot, &self.window);
            apart.extend(among.iter().map(|slot| (left(slot), index.name(slot), Some(slot))));
        }
        apart.sort_unstable();
        let most = apart.last().map_or(0, |(left, _, _)| *left);
        let most = if few { most } else { most.max(index.gpus_most()) };
        let span = index.span(&self.window);
        let blocks = if few { 0 } else { index.len().div_ceil(Block::NUMBERS) };
        // The nodes of each block that was asked for and that have more left.
        let mut rest: Vec<Block> = Vec::with_capacity(blocks);
        for left in 0..=most {
            let equal = (0..blocks).flat_map(|at| {
                if rest.len() == at {
                    let mut block = among.block(at);
                    block.take_away(&span.without(self.wish.request.count, at));
                    rest.push(block);
                }
                let (mut equal, up_to) = (rest[at], span.left_at_worst(left, at));
                equal.keep(&up_to);
                rest[at].take_away(&up_to);
                equal.numbers(at)
            });
            let mut known = equal.map(|slot| (index.name(slot), Some(slot))).peekable();
            let apart = apart.iter().filter(|(l, _, _)| *l == left);
            let mut apart = apart.map(|(_, name, slot)| (*name, *slot)).peekable();
            let names = std::iter::from_fn(|| match (known.peek(), apart.peek()) {
                (Some((one, _)), Some((other, _))) if other < one => apart.next(),
                (None, _) => apart.next(),
                (Some(_), _) => known.next(),
            });
            let may_fit = |slot: Option<usize>| slot.is_none_or(|s| self.may_fit(s, &self.window));
            let fits = names.filter(|(_, slot)| may_fit(*slot)).filter_map(|(name, slot)| {
                let (spread, gpus) = match slot.filter(|_| releasing == Releasing::Taken) {
                    Some(slot) => self.pick_at(slot, self.window)?,
                    None => {
                        let candidate = self.candidate_within(name, &self.window)?;
                        self.pick(&candidate, self.window, releasing)?
                    }
                };
                Some((spread, name, gpus, slot))
            });
            // Of equals the first is taken.
            let closest = fits.take(CLOSEST_OF).min_by_key(|(spread, ..)| *spread);
            if let Some((_, name, gpus, slot)) = closest
                && (!self.is_by_claims(slot, releasing) || self.is_free(name, gpus))
            {
                return Some((name.clone(), uuids_of(self.fsm.node(name)?, gpus)));
            }
        }
        None
    }

    /// When claims on the nodes that have such GPUs end, where the claims say it all: first first, then in name order.
    fn ends(&self) -> Box<dyn Iterator<Item = (Timestamp, usize)> + '_> {
        let index = self.fsm.index();
        let counts = |slot: &usize| !self.uncertain.contains(*slot);
        let from = self.window.starts_at;
        if self.possible.is_few(index.len() / FEW) {
            // Fewer than all the ends of a large fleet, most of them of other nodes.
            let ends = self.possible.iter().filter(counts);
            let ends = ends.flat_map(|slot| index.ends_on(slot).map(move |at| (at, slot)));
            return Box::new(
                ends.filter(|(at, _)| *at > from).collect::<BTreeSet<_>>().into_iter(),
            );
        }
        let possible = |slot: &usize| self.possible.contains(*slot);
        Box::new(index.ends_after(from).filter(move |(_, slot)| possible(slot) && counts(slot)))
    }

    /// The earliest window of the same length that begins by `last`, where none of the nodes fits now.
    pub(super) fn next_slot(&self, last: Timestamp) -> Option<Slot> {
        let length = self.window.ends_at.since(self.window.starts_at);
        let index = self.fsm.index();
        let at = |starts_at: Timestamp| Window { starts_at, ends_at: starts_at + length };
        let slot_of = |starts_at, name: &NodeName, gpus| {
            let gpus = self.fsm.node(name).map(|node| uuids_of(node, gpus)).unwrap_or_default();
            Slot { starts_at, node: name.clone(), gpus }
        };
        let mut best: Option<Slot> = None;
        // Where the claims say it all, a node has more to give only when one of them ends.
        for (starts_at, slot) in self.ends().take_while(|(at, _)| *at <= last) {
            if !self.may_fit(slot, &at(starts_at)) {
                continue;
            }
            if let Some((_, gpus)) = self.pick_at(slot, at(starts_at)) {
                best = Some(slot_of(starts_at, index.name(slot), gpus));
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
                    best = Some(slot_of(starts_at, name, gpus));
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
        // What is named comes in the order of the ends, and of the nodes' names, which is that of their places.
        let mut named = 0;
        for (until, slot) in self.ends() {
            if named >= HOLDINGS_MAX {
                break;
            }
            let held = index.ends_within(slot, until, &self.window) & self.meant_at(slot);
            if held != 0 {
                named += held.count_ones() as usize;
                known.insert(slot);
            }
        }
        nodes.extend(known.into_iter().map(|slot| index.name(slot)));
        let mut holdings = Vec::new();
        let candidates =
            nodes.into_iter().filter_map(|name| self.candidate_within(name, &self.window));
        for candidate in candidates {
            holdings.extend(candidate.holdings(self.fsm, &self.window));
        }
        sorted(holdings)
    }

    /// The nodes that something besides claims keeps from being taken, in name order.
    pub(super) fn obstructed(&self) -> impl Iterator<Item = &'a NodeName> {
        let index = self.fsm.index();
        // A node that has too few of such GPUs is named as well.
        let mut such = Bits::default();
        let shapes = index.shapes().filter(|(shape, _)| has_any(shape, self.wish));
        shapes.for_each(|(_, nodes)| such.add(nodes));
        such.keep(index.obstructed());
        let known: Vec<&NodeName> = such.iter().map(|slot| index.name(slot)).collect();
        let names: BTreeSet<&NodeName> = known.into_iter().chain(self.fsm.unsettled()).collect();
        names.into_iter()
    }
}
