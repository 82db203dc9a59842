//! What the calendar needs to find a place among many nodes: claims by node, by hour and by their ends.
//!
//! Derived from the state, never stored; `Fsm::settle_index` brings it up to date after each command, node by node. It
//! holds only what commands change. Where something depends on the time or on who is heard, the node is marked as
//! uncertain and the caller checks the node itself. No answer depends on the order in which things came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Fsm;
use super::bits::{Bits, Block};
use super::built::Built;
use super::claims::{Claim, Claims, Taken, hours};
use super::contents::Contents;
use super::wish::{GpuSet, place_of};
use crate::ending::EXTEND_LEAD;
use crate::lease::{Lease, LeaseHolder};
use crate::name::{GpuUuid, NodeName};
use crate::node::{Liveness, Node};
use crate::reservation::ReservationState;
use crate::time::{Millis, Timestamp, Window};
use crate::window::HAND_OUT_AHEAD;

/// So many nodes are checked one by one: that is cheaper than to exclude nodes by what the whole fleet has in each hour.
pub(crate) const FEW: usize = 16;

/// How many GPUs of each model and memory a node has.
pub(crate) type Shape = Vec<(String, u64, u32)>;

/// What the index knows of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) built: Arc<Built>,
    claims: Claims,
    /// Some window of it depends on the time or on whether the node is heard.
    uncertain: bool,
    /// It is closed or silent, or one of its GPUs takes no work.
    obstructed: bool,
    /// Since a restore its agent has not said what it holds.
    pub(crate) unasked: bool,
    /// A job on it must leave and waits for its checkpoint.
    deferring: bool,
    /// Before this time alone changes nothing on it.
    due: Option<Timestamp>,
}

/// Nodes by what is left: those with at most this many GPUs.
#[derive(Debug, Clone, Default)]
struct Levels(Vec<Bits>);

impl PartialEq for Levels {
    fn eq(&self, other: &Self) -> bool {
        let (none, most) = (Bits::default(), self.0.len().max(other.0.len()));
        (0..most).all(|at| self.0.get(at).unwrap_or(&none) == other.0.get(at).unwrap_or(&none))
    }
}

impl Eq for Levels {}

impl Levels {
    fn at_most(&self, left: u32) -> Option<&Bits> {
        self.0.get(left as usize)
    }

    /// The node at `slot` has `after` left of `gpus` instead of `before`.
    fn change(&mut self, slot: usize, before: u32, after: u32) {
        for left in before.min(after)..before.max(after) {
            let left = left as usize;
            if self.0.len() <= left {
                self.0.resize(left + 1, Bits::default());
            }
            self.0[left].set(slot, after < before);
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Hour {
    whole: Levels,
    any: Levels,
    /// Nodes with a claim in it.
    nodes: u32,
}

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// All nodes, in name order; a node's place here is its slot.
    names: Vec<NodeName>,
    entries: Vec<Entry>,
    shapes: BTreeMap<Shape, Bits>,
    /// Nodes by how many GPUs they have.
    sizes: BTreeMap<u32, Bits>,
    /// Hours since 1970 in which something is claimed.
    hours: BTreeMap<u64, Hour>,
    /// When claims end, and on which node.
    ends: BTreeSet<(Timestamp, usize)>,
    /// The nodes where time alone changes something, by the earliest that this can be.
    due: BTreeSet<(Timestamp, usize)>,
    uncertain: Bits,
    obstructed: Bits,
    unasked: Bits,
    deferring: Bits,
}

impl Entry {
    /// Everything worked out from the state.
    pub(crate) fn of(fsm: &Fsm, node: &Node) -> Self {
        Self::with(fsm, &Contents::of(fsm, node))
    }

    pub(crate) fn with(fsm: &Fsm, contents: &Contents<'_>) -> Self {
        let (node, built) = (contents.node, Arc::clone(&contents.built));
        let obstructed = node.closed().is_some()
            || node.liveness != Liveness::Ready
            || built.healthy != built.all();
        let mut entry = Self {
            built,
            obstructed,
            unasked: node.uncounted,
            deferring: contents.attempts.iter().any(|a| a.deferral.is_some()),
            due: due_at_least(contents),
            ..Self::default()
        };
        let mut claims = Vec::with_capacity(contents.reservations.len());
        for r in &contents.reservations {
            match r.state {
                ReservationState::Offered { .. }
                | ReservationState::Scheduled
                | ReservationState::Active => {
                    claims.push(claim_of(node, &r.gpus, r.window));
                    // What its agent may still go by counts, or does not, by the time.
                    entry.uncertain |= r.claim() != r.window;
                }
                ReservationState::Ending
                | ReservationState::Ended
                | ReservationState::Cancelled => entry.uncertain = true,
            }
        }
        for (_, next) in fsm.reservations_coming_to(&node.name) {
            claims.push(claim_of(node, &next.gpus, next.window));
        }
        for lease in fsm.leases_on(&node.name).filter(|lease| lease.parent.is_none()) {
            match (&lease.holder, end_of(fsm, lease)) {
                (LeaseHolder::Reservation(_), _) => {}
                (LeaseHolder::Allocation(_), Some(ends_at)) => {
                    let window = Window { starts_at: lease.granted_at, ends_at };
                    claims.push(claim_of(node, &lease.gpus, window));
                }
                (LeaseHolder::Allocation(_), None) => entry.uncertain = true,
            }
        }
        entry.claims = claims.into_iter().collect();
        entry
    }

    /// The GPUs that nobody claims in the window, by what is stored.
    fn unclaimed(&self, window: &Window) -> GpuSet {
        self.built.all() & !self.claims.taken(*window)
    }

    /// How many GPUs nobody claims in the fullest hour that the window touches.
    pub(crate) fn left_at_worst(&self, window: &Window) -> u32 {
        self.built.gpus.saturating_sub(self.claims.most_taken(window))
    }

    /// Whether the claims do not say all that is taken at this time.
    fn is_uncertain(&self, now: Timestamp) -> bool {
        self.uncertain || self.obstructed || self.claims.any_ended(now)
    }
}

fn claim_of(node: &Node, gpus: &[GpuUuid], window: Window) -> Claim {
    let places = gpus.iter().filter_map(|uuid| place_of(node, uuid));
    let (from, until) = (window.starts_at, window.ends_at);
    Claim { from, until, gpus: places.fold(0, |set, place| set | place) }
}

/// The earliest at which time alone can change something on the node, as long as nothing on the node changes.
fn due_at_least(contents: &Contents<'_>) -> Option<Timestamp> {
    let silent = contents.node.may_stay_silent_at();
    let reservations = contents.reservations.iter().filter_map(|r| match r.state {
        ReservationState::Offered { until } => Some(until),
        ReservationState::Scheduled => match (&r.next, &r.handed_out) {
            (Some(_), _) => r.edit_settles_at(),
            (None, None) => Some(r.window.starts_at - HAND_OUT_AHEAD),
            // Of a silent node it may get a stand-in before.
            (None, Some(_)) => {
                let wants = silent.and_then(|at| r.wants_stand_in_at(at));
                let wants = wants.filter(|_| r.risk.is_none());
                Some(wants.map_or(r.window.starts_at, |at| at.min(r.window.starts_at)))
            }
        },
        // Its window is put into its agent's hands at the next occasion.
        ReservationState::Active if r.handed_out.is_none() => Some(Timestamp(0)),
        ReservationState::Active => {
            let nobody = r.usage.nobody_since.filter(|_| !r.usage.came);
            let look = r.window.ends_at - EXTEND_LEAD;
            let idle = r.usage.idle.filter(|idle| !idle.asked).and_then(|idle| idle.release_at);
            Some(nobody.into_iter().chain(idle).fold(look, Timestamp::min))
        }
        ReservationState::Ending | ReservationState::Ended | ReservationState::Cancelled => None,
    });
    let allocations = contents.attempts.iter().filter_map(|a| {
        // An attempt that waits for a checkpoint or for a silent node has several instants, which depend on each
        // other. An attempt that gives way to a reservation has those of the reservation.
        let gives_way = a.is_cut() || a.started_at.is_none();
        let is_silent = contents.node.liveness == Liveness::Unreachable;
        let many = a.deferral.is_some() || gives_way || is_silent;
        let limit = a.time_limit_at.filter(|_| a.stop.is_none());
        if many { Some(Timestamp(0)) } else { limit }
    });
    reservations.chain(allocations).min()
}

/// The node at `slot` is no longer of the one kind but of the other.
fn regroup<K: Ord + Clone>(kinds: &mut BTreeMap<K, Bits>, slot: usize, before: &K, after: &K) {
    if before == after {
        return;
    }
    if let Some(nodes) = kinds.get_mut(before) {
        nodes.set(slot, false);
        if nodes.is_empty() {
            kinds.remove(before);
        }
    }
    kinds.entry(after.clone()).or_default().set(slot, true);
}

/// When a job's lease ends, where that is stored.
fn end_of(fsm: &Fsm, lease: &Lease) -> Option<Timestamp> {
    let LeaseHolder::Allocation(id) = &lease.holder else { return None };
    let allocation = fsm.allocation(id)?;
    match &allocation.stop {
        Some(stop) => Some(stop.at + stop.grace),
        None => Some(allocation.time_limit_at? + fsm.job(&allocation.job)?.spec.stop_grace),
    }
}

/// Making it, and bringing it up to date.
impl Index {
    /// The node is as `entry` says, or gone.
    pub(crate) fn set(&mut self, name: &NodeName, entry: Option<Entry>) {
        match (self.names.binary_search(name), entry) {
            (Ok(slot), Some(entry)) => self.replace(slot, entry),
            (Ok(slot), None) => {
                self.replace(slot, Entry::default());
                self.each_set(|bits| bits.close_gap(slot));
                self.names.remove(slot);
                self.entries.remove(slot);
                self.shift_ends(|at| if at > slot { at - 1 } else { at });
                self.shapes.retain(|_, nodes| !nodes.is_empty());
                self.sizes.retain(|_, nodes| !nodes.is_empty());
            }
            (Err(slot), Some(entry)) => {
                self.each_set(|bits| bits.insert_gap(slot));
                self.names.insert(slot, name.clone());
                self.entries.insert(slot, Entry::default());
                self.shift_ends(|at| if at >= slot { at + 1 } else { at });
                self.shapes.entry(Shape::new()).or_default().set(slot, true);
                self.sizes.entry(0).or_default().set(slot, true);
                self.replace(slot, entry);
            }
            (Err(_), None) => {}
        }
    }

    /// The node has one more reservation and is as it was otherwise.
    pub(crate) fn add(&mut self, node: &Node, gpus: &[GpuUuid], window: Window) {
        let Some(slot) = self.slot(&node.name) else { return };
        let Self { entries, hours, ends, .. } = self;
        let entry = &mut entries[slot];
        let claim = claim_of(node, gpus, window);
        let before: Vec<Taken> = claim.hours().map(|hour| entry.claims.taken_in(hour)).collect();
        entry.claims.insert(claim);
        ends.insert((claim.until, slot));
        for (hour, was) in claim.hours().zip(before) {
            count(hours, slot, hour, entry.built.gpus, (was, entry.claims.taken_in(hour)));
        }
    }

    /// Of a whole state at once: node by node, each new one would move all behind it.
    pub(crate) fn of(fsm: &Fsm) -> Self {
        Self::with(fsm.nodes().values().map(|node| (&node.name, Entry::of(fsm, node))))
    }

    /// Of all nodes of a fleet, in name order.
    pub(crate) fn with<'a>(nodes: impl Iterator<Item = (&'a NodeName, Entry)>) -> Self {
        let (names, entries): (Vec<NodeName>, Vec<Entry>) =
            nodes.map(|(name, entry)| (name.clone(), entry)).unzip();
        let mut index = Self { entries: vec![Entry::default(); names.len()], ..Self::default() };
        for slot in 0..names.len() {
            index.shapes.entry(Shape::new()).or_default().set(slot, true);
            index.sizes.entry(0).or_default().set(slot, true);
        }
        index.names = names;
        for (slot, entry) in entries.into_iter().enumerate() {
            index.replace(slot, entry);
        }
        index
    }

    fn each_set(&mut self, mut change: impl FnMut(&mut Bits)) {
        let levels = self.hours.values_mut().flat_map(|hour| [&mut hour.whole, &mut hour.any]);
        let levels = levels.flat_map(|levels| levels.0.iter_mut());
        let kinds = self.shapes.values_mut().chain(self.sizes.values_mut());
        let flags =
            [&mut self.uncertain, &mut self.obstructed, &mut self.unasked, &mut self.deferring];
        levels.chain(kinds).chain(flags).for_each(&mut change);
    }

    fn shift_ends(&mut self, to: impl Fn(usize) -> usize) {
        for times in [&mut self.ends, &mut self.due] {
            *times = std::mem::take(times).into_iter().map(|(at, n)| (at, to(n))).collect();
        }
    }

    fn replace(&mut self, slot: usize, entry: Entry) {
        if self.entries[slot] == entry {
            return;
        }
        let before = std::mem::replace(&mut self.entries[slot], entry);
        let Self { entries, hours, ends, .. } = self;
        let entry = &entries[slot];
        regroup(&mut self.shapes, slot, &before.built.shape, &entry.built.shape);
        regroup(&mut self.sizes, slot, &before.built.gpus, &entry.built.gpus);
        self.uncertain.set(slot, entry.uncertain);
        self.obstructed.set(slot, entry.obstructed);
        self.unasked.set(slot, entry.unasked);
        self.deferring.set(slot, entry.deferring);
        if before.due != entry.due {
            if let Some(due) = before.due {
                self.due.remove(&(due, slot));
            }
            self.due.extend(entry.due.map(|due| (due, slot)));
        }
        if before.built.gpus != entry.built.gpus {
            // What is left is counted from what there is.
            let bare = |built: &Arc<Built>| Entry { built: Arc::clone(built), ..Entry::default() };
            recount(hours, ends, slot, &before, &bare(&before.built));
            recount(hours, ends, slot, &bare(&entry.built), entry);
        } else if before.claims != entry.claims {
            recount(hours, ends, slot, &before, entry);
        }
    }
}

/// Counts again the hours in which the claims of the two differ.
fn recount(
    hours: &mut BTreeMap<u64, Hour>,
    ends: &mut BTreeSet<(Timestamp, usize)>,
    slot: usize,
    before: &Entry,
    after: &Entry,
) {
    let (gone, new) = before.claims.differences(&after.claims);
    for claim in &gone {
        // Another one may end then.
        if !after.claims.as_slice().iter().any(|other| other.until == claim.until) {
            ends.remove(&(claim.until, slot));
        }
    }
    ends.extend(new.iter().map(|claim| (claim.until, slot)));
    let changed: BTreeSet<u64> = gone.into_iter().chain(new).flat_map(Claim::hours).collect();
    for hour in changed {
        let taken = (before.claims.taken_in(hour), after.claims.taken_in(hour));
        count(hours, slot, hour, after.built.gpus, taken);
    }
}

/// What is taken of a node with so many GPUs in one hour is the second, and no longer the first.
fn count(
    hours: &mut BTreeMap<u64, Hour>,
    slot: usize,
    at: u64,
    gpus: u32,
    (was, is): (Taken, Taken),
) {
    if was == is {
        return;
    }
    let hour = hours.entry(at).or_default();
    let left = |taken: u32| gpus.saturating_sub(taken);
    hour.whole.change(slot, left(was.whole), left(is.whole));
    hour.any.change(slot, left(was.any), left(is.any));
    hour.nodes += u32::from(was.any == 0 && is.any > 0);
    hour.nodes -= u32::from(was.any > 0 && is.any == 0);
    if hour.nodes == 0 {
        hours.remove(&at);
    }
}

/// Asking it.
impl Index {
    /// The nodes with a job that must leave and waits for its checkpoint.
    pub(crate) fn deferring(&self) -> impl Iterator<Item = &NodeName> {
        self.deferring.iter().map(|slot| &self.names[slot])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The nodes where time alone changes something, and the earliest that this can be; earliest first.
    pub(crate) fn due(&self) -> impl Iterator<Item = (Timestamp, &NodeName)> {
        self.due.iter().map(|(at, slot)| (*at, &self.names[*slot]))
    }

    pub(crate) fn name(&self, slot: usize) -> &NodeName {
        &self.names[slot]
    }

    pub(crate) fn slot(&self, name: &NodeName) -> Option<usize> {
        self.names.binary_search(name).ok()
    }

    /// The shapes that there are, and the nodes of each.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&Shape, &Bits)> {
        self.shapes.iter()
    }

    /// The most GPUs that a node has.
    pub(crate) fn gpus_most(&self) -> u32 {
        self.sizes.keys().next_back().copied().unwrap_or(0)
    }

    /// The index as far as it concerns a window.
    pub(crate) fn span(&self, window: &Window) -> Span<'_> {
        let hours = self.hours.range(hours(window)).map(|(_, hour)| hour).collect();
        Span { sizes: &self.sizes, hours }
    }

    /// What a node is made of.
    pub(crate) fn built(&self, slot: usize) -> &Built {
        &self.entries[slot].built
    }

    /// See [`Entry::left_at_worst`].
    pub(crate) fn left_at_worst_on(&self, slot: usize, window: &Window) -> u32 {
        self.entries[slot].left_at_worst(window)
    }

    /// The GPUs of a node that nobody claims in the window, by what is stored; less may be free.
    pub(crate) fn unclaimed(&self, slot: usize, window: &Window) -> GpuSet {
        self.entries[slot].unclaimed(window)
    }

    /// The claims on a node, where they say all that is taken of it at this time. It is looked for at the place `near`
    /// first: a caller that goes through all nodes in name order finds each one there.
    pub(crate) fn certain_claims(
        &self,
        name: &NodeName,
        near: usize,
        now: Timestamp,
    ) -> Option<&[Claim]> {
        let is_near = self.names.get(near) == Some(name);
        let entry = &self.entries[if is_near { near } else { self.slot(name)? }];
        let is_certain = !entry.uncertain && !entry.claims.any_ended(now);
        is_certain.then_some(entry.claims.as_slice())
    }

    /// The GPUs of the node of which a claim ends then that is in the window's way.
    pub(crate) fn ends_within(&self, slot: usize, until: Timestamp, window: &Window) -> GpuSet {
        let in_the_way = self.entries[slot].claims.in_the_way(*window);
        let ends = in_the_way.filter(|claim| claim.until == until);
        ends.fold(0, |set, claim| set | claim.gpus)
    }

    /// When claims on the node end, in no order.
    pub(crate) fn ends_on(&self, slot: usize) -> impl Iterator<Item = Timestamp> {
        self.entries[slot].claims.as_slice().iter().map(|claim| claim.until)
    }

    /// When claims end after `from`, and on which nodes: first first, in name order.
    pub(crate) fn ends_after(&self, from: Timestamp) -> impl Iterator<Item = (Timestamp, usize)> {
        self.ends.range((from + Millis(1), 0)..).copied()
    }

    /// Those of the nodes of which the claims do not say it all at this time.
    pub(crate) fn uncertain(&self, among: &Bits, now: Timestamp) -> Bits {
        let mut nodes = Bits::default();
        if among.is_few(FEW) {
            let uncertain = among.iter().filter(|slot| self.entries[*slot].is_uncertain(now));
            uncertain.for_each(|slot| nodes.set(slot, true));
            return nodes;
        }
        nodes.add(&self.uncertain);
        nodes.add(&self.obstructed);
        for (_, slot) in self.ends.range(..(now + Millis(1), 0)) {
            nodes.set(*slot, true);
        }
        nodes.keep(among);
        nodes
    }

    /// Nodes that are closed or silent, or of which a GPU takes no work.
    pub(crate) fn obstructed(&self) -> &Bits {
        &self.obstructed
    }

    pub(crate) fn unasked(&self) -> &Bits {
        &self.unasked
    }
}

/// What is left on nodes in the hours of a window; asked for a block of nodes at a time, because the first nodes that fit
/// are mostly found in the first block or two.
pub(crate) struct Span<'a> {
    sizes: &'a BTreeMap<u32, Bits>,
    /// Hours that the window touches in which something is claimed.
    hours: Vec<&'a Hour>,
}

impl Span<'_> {
    /// Nodes with at most this many GPUs that nobody claims, in some hour that the window touches: all claims count, or
    /// only those that cover the hour whole.
    fn with_at_most(&self, left: u32, block: usize, of: fn(&Hour) -> &Levels) -> Block {
        let mut nodes = Block::default();
        self.sizes.range(..=left).for_each(|(_, small)| nodes.add(&small.block(block)));
        for more in self.hours.iter().filter_map(|hour| of(hour).at_most(left)) {
            nodes.add(&more.block(block));
        }
        nodes
    }

    /// Nodes that cannot have `count` GPUs for the whole window.
    pub(crate) fn without(&self, count: u32, block: usize) -> Block {
        match count.checked_sub(1) {
            Some(left) => self.with_at_most(left, block, |hour| &hour.whole),
            None => Block::default(),
        }
    }

    /// Nodes that have at most this many GPUs left in the fullest hour, see [`Entry::left_at_worst`].
    pub(crate) fn left_at_worst(&self, left: u32, block: usize) -> Block {
        self.with_at_most(left, block, |hour| &hour.any)
    }
}
