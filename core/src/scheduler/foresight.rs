//! When and where a waiting job could start, by the ends that are known: time limits, stop graces
//! and reservations. A guess on the safe side: jobs that end early make it come sooner.
//!
//! Called by the planner for the first jobs that wait.

use super::ask::{Ask, Source};
use super::capacity::{Capacity, NodeCapacity, Pool, Use, Whose};
use super::shares::Room;
use crate::state::Fsm;
use crate::state::share::Share;
use crate::state::wish::GpuSet;
use crate::time::{Timestamp, Window};

/// Most instants of one node that are tried.
pub const INSTANTS_MAX: usize = 1_024;

/// A start that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Foreseen {
    pub(super) starts_at: Timestamp,
    pub(super) node: usize,
    pub(super) gpus: GpuSet,
    /// What it would get there.
    pub(super) share: Share,
    /// What it cannot do without: a place that is held for it holds this much, so that another plan, after others took
    /// the rest, finds the same place.
    pub(super) least: Share,
    /// What it leaves of the node from then on.
    pub(super) left: Room,
}

/// What a node has for the whole of a window.
struct Rest {
    gpus: GpuSet,
    room: Room,
}

impl Rest {
    /// What the job leaves.
    fn left(&self, ask: &Ask<'_>, least: Share) -> Room {
        let mut left = self.room;
        left.take(ask.count(), least);
        left
    }
}

fn rest(node: &NodeCapacity<'_>, window: Window, counts: impl Fn(&Use) -> bool) -> Rest {
    let mut rest = Rest { gpus: node.healthy, room: node.division.room() };
    let within = |u: &&Use| u.from < window.ends_at && window.starts_at < u.until && counts(u);
    for taken in node.uses().filter(within) {
        rest.gpus &= !taken.gpus;
        rest.room.take(taken.gpus.count_ones(), taken.share);
    }
    rest
}

/// The earliest start of the job, on any node that takes it.
pub(super) fn foresee(capacity: &mut Capacity<'_>, ask: &Ask<'_>) -> Option<Foreseen> {
    match ask.source {
        Source::Shut(_) => None,
        Source::Pool(pool) => in_pool(capacity, ask, pool),
        Source::Anywhere => (0..capacity.nodes.len())
            .fold(None, |best, at| on_node(capacity, ask, at, best).or(best)),
    }
}

/// The job's start on one node, if that is before `best`.
fn on_node(
    capacity: &mut Capacity<'_>,
    ask: &Ask<'_>,
    at: usize,
    best: Option<Foreseen>,
) -> Option<Foreseen> {
    let (now, fsm) = (capacity.fsm.now(), capacity.fsm);
    let node = &capacity.nodes[at];
    let meant = ask.meant(node);
    if node.closed.is_some()
        || !ask.admits(node)
        || (node.healthy & meant).count_ones() < ask.count()
        || !ask.least(node).fits_in(node.division.room().of(ask.count()))
    {
        return None;
    }
    let length = ask.length + ask.spec.stop_grace;
    if let Some(best) = best {
        let from = capacity.nodes[at].earliest(fsm, at).start(meant, ask.count(), length);
        let node = &capacity.nodes[at];
        let may_be_free = || may_be_free_before(fsm, ask, node, at, meant, best.starts_at);
        // Most nodes of a large fleet end here.
        if from.is_none_or(|from| from >= best.starts_at) {
            debug_assert!(!may_be_free(), "{}: {from:?}, {best:?}", node.node.name);
            return None;
        }
        if !may_be_free() {
            return None;
        }
    }
    capacity.nodes[at].look_ahead(fsm, at);
    let node = &capacity.nodes[at];
    for starts_at in instants(node, now, best.map(|b| b.starts_at)) {
        let window = Window { starts_at, ends_at: starts_at + length };
        let found = start_in(capacity, ask, at, window, meant, |_| true);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The job's start with that window on one node, on GPUs of `meant`, where what `counts` leaves enough for all of it.
fn start_in(
    capacity: &mut Capacity<'_>,
    ask: &Ask<'_>,
    at: usize,
    window: Window,
    meant: GpuSet,
    counts: impl Fn(&Use) -> bool,
) -> Option<Foreseen> {
    let node = &mut capacity.nodes[at];
    let rest = rest(node, window, counts);
    let (least, share) = (ask.least(node), ask.granted(node, &rest.room, rest.gpus)?);
    let gpus = match ask.count() {
        0 => 0,
        count => node.pick(rest.gpus & meant, count)?.set,
    };
    let (starts_at, left) = (window.starts_at, rest.left(ask, least));
    Some(Foreseen { starts_at, node: at, gpus, share, least, left })
}

/// Cheaper than looking at all that is taken, and true wherever that finds a start before `best`: whether the claims on
/// the node's GPUs alone leave enough of them.
fn may_be_free_before(
    fsm: &Fsm,
    ask: &Ask<'_>,
    node: &NodeCapacity<'_>,
    at: usize,
    meant: GpuSet,
    best: Timestamp,
) -> bool {
    let Some(claims) = fsm.certain_claims(&node.node.name, at) else { return fsm.now() < best };
    let length = ask.length + ask.spec.stop_grace;
    let ends = claims.iter().map(|claim| claim.until);
    let mut starts = ends.chain([fsm.now()]).filter(|at| *at < best);
    starts.any(|starts_at| {
        let window = Window { starts_at, ends_at: starts_at + length };
        let taken = claims.iter().filter(|claim| claim.overlaps(&window));
        let left = taken.fold(node.healthy & meant, |left, claim| left & !claim.gpus);
        left.count_ones() >= ask.count()
    })
}

/// Now, and each instant at which the node gets something back.
fn instants(node: &NodeCapacity<'_>, now: Timestamp, before: Option<Timestamp>) -> Vec<Timestamp> {
    let useful = |at: &Timestamp| *at > now && before.is_none_or(|best| *at < best);
    let mut instants: Vec<Timestamp> = node.uses().map(|u| u.until).filter(useful).collect();
    if before.is_none_or(|best| now < best) {
        instants.push(now);
    }
    instants.sort_unstable();
    instants.dedup();
    instants.truncate(INSTANTS_MAX);
    instants
}

/// In its reservation a job waits only for other jobs of that reservation.
fn in_pool(capacity: &mut Capacity<'_>, ask: &Ask<'_>, pool: usize) -> Option<Foreseen> {
    let (now, fsm) = (capacity.fsm.now(), capacity.fsm);
    let Pool { node: at, reservation, all, .. } = capacity.pools[pool];
    let node = &capacity.nodes[at];
    let own = all & ask.meant(node);
    if node.closed.is_some() || !ask.admits(node) {
        return None;
    }
    let ends_at = reservation.window.ends_at;
    capacity.nodes[at].look_ahead(fsm, at);
    let node = &capacity.nodes[at];
    for starts_at in instants(node, now, Some(ends_at)) {
        // What ends within the reservation is out of the way of one that starts after it.
        let window = Window { starts_at, ends_at };
        let found = start_in(capacity, ask, at, window, own, |u| u.whose == Whose::Job);
        if found.is_some() {
            return found;
        }
    }
    None
}
