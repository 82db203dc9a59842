//! The calendar: which GPUs are promised or held when, and the next window that fits a wish.
//!
//! The FSM asks it when a reservation is made or extended; the scheduler asks it who has what. It
//! only reads the state.

use std::collections::BTreeSet;

use crate::gpu::Gpu;
use crate::name::{GpuUuid, NodeName};
use crate::node::{Liveness, Node};
use crate::rejection::{Holding, Rejection, Slot};
use crate::reservation::{GpuRequest, RESERVATION_AHEAD_MAX, Reservation};
use crate::state::Fsm;
use crate::time::{Millis, Timestamp, Window};

mod busy;
mod held;
mod preempting;
mod search;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::state::wish::same_model;
use crate::state::wish::{GpuSet, Wish, broken, gpus_of, plain_model, said, unfit};
pub(crate) use busy::known_end;
pub use busy::{Busy, By, Calendar, NEAR, RELEASE_ALLOWANCE};
pub use held::HeldPlace;
use preempting::Preempting;
use search::Places;

/// Most holdings one refusal names.
pub const HOLDINGS_MAX: usize = 64;
/// Most instants of one node that are tried when the next slot is searched.
pub const SLOT_INSTANTS_MAX: usize = 4_096;
/// Most closed nodes and broken GPUs a refusal names.
const OBSTACLES_MAX: usize = 3;

/// The windows in which the GPU is taken, first first.
pub fn busy<'a>(fsm: &'a Fsm, gpu: &GpuUuid) -> Vec<Busy<'a>> {
    let Some(node) = fsm.gpu(gpu).map(|gpu| &gpu.node) else { return Vec::new() };
    Calendar::of_nodes(fsm, [node]).on(gpu).to_vec()
}

/// GPUs that nobody else was promised in that window, of those that `is_free` calls free: of a model that `near` has
/// first, then its own, then by name.
pub fn free_near<'a>(
    fsm: &'a Fsm,
    near: &NodeName,
    window: Window,
    is_free: impl Fn(&Gpu) -> bool,
) -> Vec<&'a Gpu> {
    let models: BTreeSet<String> = fsm.gpus_of(near).map(|gpu| plain_model(&gpu.model)).collect();
    // The whole fleet: only to name what is free to a user who was kept out of a GPU.
    let calendar = Calendar::within(fsm, &window);
    let free = |gpu: &&Gpu| is_free(gpu) && calendar.on(&gpu.uuid).is_empty();
    let mut found: Vec<&Gpu> = fsm.gpus().values().filter(free).collect();
    found.sort_by_cached_key(|gpu| {
        let of_model = models.contains(&plain_model(&gpu.model));
        (!of_model, gpu.node != *near, gpu.node.clone(), gpu.index)
    });
    found
}

/// Whether those who use a GPU without a lease stand in the way of a window that starts soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unleased {
    Blocks,
    /// They are those who get it.
    Adopted,
}

/// Picks GPUs of one node that are free for the whole window, or that jobs of lower classes leave before it; else says who
/// holds what until when, and the next slot of that length. The places that are `held` for jobs that must leave count as taken.
pub fn choose(
    fsm: &Fsm,
    request: &GpuRequest,
    window: Window,
    unleased: Unleased,
    held: &[HeldPlace],
) -> Result<(NodeName, Vec<GpuUuid>), Rejection> {
    choose_for(fsm, &Wish::new(request), window, unleased, held)
}

/// The same for one of `nodes` reservations at once, on none of the nodes that the others have.
pub(crate) fn choose_apart(
    fsm: &Fsm,
    request: &GpuRequest,
    window: Window,
    held: &[HeldPlace],
    (nodes, apart_from): (usize, &[NodeName]),
) -> Result<(NodeName, Vec<GpuUuid>), Rejection> {
    let wish = Wish::apart(request, nodes, apart_from);
    choose_for(fsm, &wish, window, Unleased::Blocks, held)
}

fn choose_for(
    fsm: &Fsm,
    wish: &Wish<'_>,
    window: Window,
    unleased: Unleased,
    held: &[HeldPlace],
) -> Result<(NodeName, Vec<GpuUuid>), Rejection> {
    if wish.request.count == 0 {
        return Err(Rejection::field("gpus.count", "must be at least 1"));
    }
    wish.is_built(fsm)?;
    let places = Places::new(fsm, wish, window, unleased, held);
    if let Some(best) = first_of(&places) {
        return Ok(best);
    }
    let preempting =
        (unleased == Unleased::Blocks).then(|| Preempting::new(fsm, wish, window, held));
    if let Some(best) = preempting.as_ref().and_then(Preempting::best) {
        return Ok(best);
    }
    let nodes = places.obstructed().filter_map(|name| fsm.node(name));
    let wanted = with_obstacles(wish, obstacles(fsm, wish, window, unleased, nodes));
    let next = next_slot(&places, preempting.as_ref(), fsm.now() + RESERVATION_AHEAD_MAX);
    Err(Rejection::GpusHeld { wanted, holdings: places.holdings(), next })
}

fn next_slot(
    places: &Places<'_, '_>,
    preempting: Option<&Preempting<'_, '_>>,
    last: Timestamp,
) -> Option<Slot> {
    let left = preempting.and_then(|preempting| preempting.next_slot(last));
    // Of equals the one for which nobody has to leave.
    places.next_slot(last).into_iter().chain(left).min_by_key(|slot| slot.starts_at)
}

/// Whether jobs of lower classes may have to leave for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Jobs,
    Nobody,
}

/// The earliest place for a window of this length that begins no earlier than it does and no later than `last`; found as
/// [`choose`] finds it, without the words for a refusal.
pub(crate) fn earliest(
    fsm: &Fsm,
    request: &GpuRequest,
    (window, last): (Window, Timestamp),
    leaving: Leaving,
    held: &[HeldPlace],
) -> Option<Slot> {
    let wish = Wish::new(request);
    if request.count == 0 || last < window.starts_at || wish.is_built(fsm).is_err() {
        return None;
    }
    let slot = |(node, gpus)| Slot { starts_at: window.starts_at, node, gpus };
    let places = Places::new(fsm, &wish, window, Unleased::Blocks, held);
    if let Some(best) = first_of(&places) {
        return Some(slot(best));
    }
    let preempting = (leaving == Leaving::Jobs).then(|| Preempting::new(fsm, &wish, window, held));
    let now = preempting.as_ref().and_then(Preempting::best).map(slot);
    now.or_else(|| next_slot(&places, preempting.as_ref(), last)).filter(|s| s.starts_at <= last)
}

/// GPUs of a node that answers for exactly that window, found as [`choose`] finds them; `None` where there are none.
pub(crate) fn choose_heard(
    fsm: &Fsm,
    request: &GpuRequest,
    window: Window,
    leaving: Leaving,
    held: &[HeldPlace],
) -> Option<(NodeName, Vec<GpuUuid>)> {
    let wish = Wish::of_heard(request);
    if request.count == 0 || wish.is_built(fsm).is_err() {
        return None;
    }
    match leaving {
        Leaving::Nobody => first_of(&Places::new(fsm, &wish, window, Unleased::Blocks, held)),
        Leaving::Jobs => Preempting::new(fsm, &wish, window, held).best(),
    }
}

/// Whether the fleet as it is built could ever meet the wish.
///
/// # Errors
/// `NeverFits` or `NotFound`, with what is missing.
pub(crate) fn is_built(fsm: &Fsm, request: &GpuRequest) -> Result<(), Rejection> {
    Wish::new(request).is_built(fsm)
}

/// What [`choose`] picks where nobody has to leave for it.
pub(crate) fn choose_free(
    fsm: &Fsm,
    request: &GpuRequest,
    window: Window,
    held: &[HeldPlace],
) -> Option<(NodeName, Vec<GpuUuid>)> {
    let wish = Wish::new(request);
    let may_be = request.count > 0 && wish.is_built(fsm).is_ok();
    may_be.then(|| first_of(&Places::new(fsm, &wish, window, Unleased::Blocks, held)))?
}

fn first_of(places: &Places<'_, '_>) -> Option<(NodeName, Vec<GpuUuid>)> {
    [Releasing::Taken, Releasing::Free].into_iter().find_map(|r| places.best(r))
}

/// Whether nobody has any of these GPUs of the node in the window.
pub(crate) fn are_free(fsm: &Fsm, node: &NodeName, gpus: &[GpuUuid], window: Window) -> bool {
    let calendar = Calendar::of_node_within(fsm, node, &window);
    gpus.iter().all(|gpu| calendar.on(gpu).is_empty())
}

/// Whether the reservation's own GPUs are free until `ends_at` beyond its window.
pub fn extension(
    fsm: &Fsm,
    reservation: &Reservation,
    ends_at: Timestamp,
) -> Result<(), Rejection> {
    let from = reservation.window.ends_at.max(fsm.now());
    if ends_at <= from {
        return Ok(());
    }
    let added = Window { starts_at: from, ends_at };
    let calendar = Calendar::of_nodes(fsm, [&reservation.node]);
    let mut holdings = Vec::new();
    let mut latest = ends_at;
    let mut blocked = Vec::new();
    for gpu in reservation.gpus.iter().filter_map(|uuid| fsm.gpu(uuid)) {
        let others = calendar
            .on(&gpu.uuid)
            .iter()
            .filter(|b| b.window.overlaps(&added) && !b.by.is_reservation(&reservation.id));
        for other in others {
            latest = latest.min(other.window.starts_at.max(from));
            blocked.push(said(gpu));
            holdings.push(holding(gpu, other));
        }
    }
    if holdings.is_empty() {
        return Ok(());
    }
    blocked.dedup();
    let most = latest.since(reservation.window.ends_at);
    let most = match most {
        Millis(0) => "it cannot be extended at all".to_owned(),
        most => format!("at most {most} longer"),
    };
    let longer = ends_at.since(reservation.window.ends_at);
    let wanted = format!("{} for {longer} longer ({most})", blocked.join(", "));
    Err(Rejection::GpusHeld { wanted, holdings: sorted(holdings), next: None })
}

/// Whether a GPU that is just being emptied counts as free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Releasing {
    Taken,
    Free,
}

/// A node that has what the wish asks for, no matter who holds it.
struct Candidate<'a> {
    node: &'a Node,
    /// GPUs that take new work now, or once the processes that use them without a lease are gone.
    healthy: GpuSet,
    /// Of these, the GPUs that are meant.
    meant: GpuSet,
    /// The GPUs that somebody uses without a lease now, and from when on that says nothing.
    dirty: GpuSet,
    clean_from: Timestamp,
    /// From when on the node takes reservations.
    open_from: Timestamp,
    /// The busy windows of each GPU, by place.
    busy: Vec<Vec<Busy<'a>>>,
}

/// What else stands in the way: closed nodes and broken GPUs that would have been meant.
fn obstacles<'a>(
    fsm: &Fsm,
    wish: &Wish<'_>,
    window: Window,
    unleased: Unleased,
    nodes: impl Iterator<Item = &'a Node>,
) -> Vec<String> {
    let near = window.starts_at < fsm.now() + NEAR;
    let mut said = Vec::new();
    for node in nodes {
        let meant: Vec<_> = gpus_of(fsm, node).filter(|gpu| wish.means(gpu)).collect();
        if meant.is_empty() {
            continue;
        }
        match node.closed().filter(|_| near || closed_for_good(node)) {
            Some(why) => said.push(format!("{} is {why}", node.name)),
            None => {
                let why = if near && unleased == Unleased::Blocks { unfit } else { broken };
                let unfit = meant.iter().filter_map(|gpu| why(node, gpu));
                said.extend(unfit.map(|unfit| unfit.to_string()));
            }
        }
    }
    let more = said.len().saturating_sub(OBSTACLES_MAX);
    said.truncate(OBSTACLES_MAX);
    if more > 0 {
        said.push(format!("{more} more"));
    }
    said
}

fn with_obstacles(wish: &Wish<'_>, obstacles: Vec<String>) -> String {
    match obstacles.is_empty() {
        true => wish.text(),
        false => format!("{} ({})", wish.text(), obstacles.join("; ")),
    }
}

impl<'a> Candidate<'a> {
    fn of(
        fsm: &'a Fsm,
        wish: &Wish<'_>,
        unleased: Unleased,
        calendar: &Calendar<'a>,
        node: &'a Node,
    ) -> Option<Self> {
        if closed_for_good(node) || (wish.heard && node.liveness != Liveness::Ready) {
            return None;
        }
        let (mut healthy, mut meant, mut dirty) = (0, 0, 0);
        for (at, gpu) in gpus_of(fsm, node).enumerate() {
            if broken(node, gpu).is_none() {
                healthy |= 1 << at;
                let in_use = gpu.dirty.is_some() && unleased == Unleased::Blocks;
                dirty |= GpuSet::from(in_use) << at;
                meant |= GpuSet::from(wish.means(gpu)) << at;
            }
        }
        if meant.count_ones() < wish.request.count {
            return None;
        }
        let open_from = match node.liveness {
            Liveness::Ready => Timestamp(0),
            Liveness::Suspect | Liveness::Unreachable => fsm.now() + NEAR,
        };
        let busy = gpus_of(fsm, node).map(|gpu| calendar.on(&gpu.uuid).to_vec()).collect();
        Some(Self { node, healthy, meant, dirty, clean_from: fsm.now() + NEAR, open_from, busy })
    }

    /// The healthy GPUs, meant or not, that nobody has in the window.
    fn free(&self, window: Window, releasing: Releasing) -> GpuSet {
        if window.starts_at < self.open_from {
            return 0;
        }
        let mut free = self.healthy;
        if window.starts_at < self.clean_from {
            free &= !self.dirty;
        }
        for (at, busy) in self.busy.iter().enumerate() {
            let taken = busy.iter().any(|b| {
                b.window.overlaps(&window) && !(b.releasing && releasing == Releasing::Free)
            });
            if taken {
                free &= !(1 << at);
            }
        }
        free
    }

    /// Who has the GPUs that are meant in the window.
    fn holdings(&self, fsm: &'a Fsm, window: &Window) -> Vec<Holding> {
        let gpus = gpus_of(fsm, self.node).zip(&self.busy).enumerate();
        let meant = gpus.filter(|(at, _)| self.meant >> at & 1 == 1).map(|(_, of)| of);
        let overlap = meant.flat_map(|(gpu, busy)| {
            let busy = busy.iter().filter(|b| b.window.overlaps(window));
            busy.map(|b| holding(gpu, b))
        });
        overlap.collect()
    }

    /// The instants from `first` on at which the node may have more to give.
    fn instants(&self, first: Timestamp) -> Vec<Timestamp> {
        let ends = self.busy.iter().flat_map(|busy| busy.iter().map(|b| b.window.ends_at));
        let clean = (self.dirty != 0).then_some(self.clean_from);
        let mut instants: Vec<Timestamp> =
            ends.chain([first, self.open_from]).chain(clean).filter(|at| *at >= first).collect();
        instants.sort();
        instants.dedup();
        instants.truncate(SLOT_INSTANTS_MAX);
        instants
    }
}

/// Somebody's decision closes a node for any window; silence only for one that starts soon.
fn closed_for_good(node: &Node) -> bool {
    node.suspended.is_some() || node.drain.is_some() || node.cordon.is_some()
}

fn holding(gpu: &Gpu, busy: &Busy<'_>) -> Holding {
    Holding {
        gpu: gpu.uuid.clone(),
        node: gpu.node.clone(),
        index: gpu.index,
        owner: busy.by.owner().clone(),
        holder: busy.by.holder(),
        // Nobody knows when a GPU that is being emptied will be.
        until: (!busy.releasing).then_some(busy.window.ends_at),
    }
}

/// Those that end first come first; those of which nobody knows, last.
fn sorted(mut holdings: Vec<Holding>) -> Vec<Holding> {
    holdings.sort_by(|a, b| {
        let key = |h: &Holding| (h.until.is_none(), h.until, h.node.clone(), h.index);
        key(a).cmp(&key(b))
    });
    holdings.truncate(HOLDINGS_MAX);
    holdings
}
