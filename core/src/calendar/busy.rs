//! Who has which GPU when: reservations by their windows, jobs by their known ends, and leases that
//! are being taken back.
//!
//! Called by the calendar and the scheduler. It reads; it never decides.

use std::collections::BTreeMap;

use super::HeldPlace;
use crate::allocation::Allocation;
use crate::id::{AllocationId, LeaseId, ReservationId};
use crate::lease::{Lease, LeaseHolder};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::Liveness;
use crate::reservation::{Place, Reservation, ReservationState};
use crate::state::Fsm;
use crate::time::{Millis, Timestamp, Window};

/// How long a lease whose end has come is thought to need until its GPUs are proven empty.
pub const RELEASE_ALLOWANCE: Millis = Millis::minutes(2);
/// A window that starts sooner than this needs a node that is heard and GPUs that are not stuck.
pub const NEAR: Millis = Millis::minutes(10);

/// Whose a busy window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By<'a> {
    Reservation(&'a Reservation),
    /// A job outside any reservation.
    Job(&'a Allocation),
    /// An attempt that is over, whose GPUs are not proven empty.
    Emptying(&'a AllocationId, &'a UserName),
}

/// A time in which a GPU is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy<'a> {
    pub window: Window,
    pub by: By<'a>,
    /// Its end has come and the GPU is being emptied: `window.ends_at` is a guess.
    pub releasing: bool,
}

impl By<'_> {
    pub fn owner(&self) -> &UserName {
        match self {
            By::Reservation(r) => &r.owner,
            By::Job(a) => &a.owner,
            By::Emptying(_, owner) => owner,
        }
    }

    /// The reservation or job, by its id.
    pub fn holder(&self) -> String {
        match self {
            By::Reservation(r) => r.id.to_string(),
            By::Job(a) => a.job.to_string(),
            By::Emptying(allocation, _) => allocation.to_string(),
        }
    }

    fn key(&self) -> (u8, &str) {
        match self {
            By::Reservation(r) => (0, r.id.as_str()),
            By::Job(a) => (1, a.id.as_str()),
            By::Emptying(allocation, _) => (2, allocation.as_str()),
        }
    }

    pub(crate) fn is_reservation(&self, id: &ReservationId) -> bool {
        matches!(self, By::Reservation(r) if r.id == *id)
    }
}

/// When an attempt is over by what is known now, stop grace included; it may lie in the past.
pub(crate) fn known_end(fsm: &Fsm, a: &Allocation) -> Timestamp {
    if let Some(stop) = &a.stop {
        return stop.at + stop.grace;
    }
    let Some(job) = fsm.job(&a.job) else { return a.time_limit_at.unwrap_or(fsm.now()) };
    let limit = a.time_limit_at.unwrap_or(fsm.now() + job.time_left());
    // A reservation's end stops what runs under its lease.
    let parent = a.lease.as_ref().and_then(|id| fsm.lease(id)?.parent.as_ref());
    let reservation = parent.and_then(|id| match &fsm.lease(id)?.holder {
        LeaseHolder::Reservation(id) => fsm.reservation(id),
        LeaseHolder::Allocation(_) => None,
    });
    reservation.map_or(limit, |r| limit.min(r.window.ends_at)) + job.spec.stop_grace
}

/// All busy windows of the fleet, in time order for each GPU.
#[derive(Debug, Default)]
pub struct Calendar<'a> {
    windows: BTreeMap<&'a GpuUuid, Vec<Busy<'a>>>,
}

impl<'a> Calendar<'a> {
    pub fn of(fsm: &'a Fsm) -> Self {
        let all = (fsm.open_reservations(), fsm.reservations_coming());
        Self::gathered(fsm, all, fsm.leases().values(), None)
    }

    /// Only for the nodes that are named, each once.
    pub(crate) fn of_nodes<'n>(
        fsm: &'a Fsm,
        nodes: impl IntoIterator<Item = &'n NodeName>,
    ) -> Self {
        let mut calendar = Self::default();
        for node in nodes {
            let here = (fsm.open_reservations_on(node), fsm.reservations_coming_to(node));
            let mut windows = Self::gathered(fsm, here, fsm.leases_on(node), None).windows;
            calendar.windows.append(&mut windows);
        }
        calendar
    }

    /// Only for one node, and only what is in the way of that window.
    pub(crate) fn of_node_within(fsm: &'a Fsm, node: &NodeName, window: &Window) -> Self {
        let near = (fsm.open_reservations_near(node, window), fsm.reservations_coming_to(node));
        Self::gathered(fsm, near, fsm.leases_on(node), Some(window))
    }

    /// Only what stands in the way of that window. It is asked for at every reservation, and thousands may lie
    /// before and behind.
    pub(crate) fn within(fsm: &'a Fsm, window: &Window) -> Self {
        let all = (fsm.open_reservations(), fsm.reservations_coming());
        Self::gathered(fsm, all, fsm.leases().values(), Some(window))
    }

    /// The reservations are those that have a place, and those that wait for one. An edit that waits for its node takes
    /// both, because an agent that is cut off still opens the old window.
    fn gathered(
        fsm: &'a Fsm,
        (reservations, coming): (
            impl Iterator<Item = &'a Reservation>,
            impl Iterator<Item = (&'a Reservation, &'a Place)>,
        ),
        leases: impl Iterator<Item = &'a Lease>,
        within: Option<&Window>,
    ) -> Self {
        let matters = |busy: &Busy<'_>| within.is_none_or(|window| busy.window.overlaps(window));
        let mut calendar = Self::default();
        for r in reservations {
            if let Some(busy) = reservation_window(fsm, r).filter(matters) {
                calendar.add(&r.gpus, busy);
            }
        }
        for (r, next) in coming {
            let busy = Busy { window: next.window, by: By::Reservation(r), releasing: false };
            if matters(&busy) {
                calendar.add(&next.gpus, busy);
            }
        }
        for lease in leases {
            // Under a reservation's lease the reservation's own window says it all.
            if lease.parent.is_none()
                && let Some(busy) = lease_window(fsm, lease).filter(matters)
            {
                calendar.add(&lease.gpus, busy);
            }
        }
        calendar.sort();
        calendar
    }

    /// With the places that are held for jobs that must leave, in the name of those.
    pub(crate) fn with_held(mut self, fsm: &'a Fsm, held: &'a [HeldPlace]) -> Self {
        for place in held {
            let Some(allocation) = fsm.allocation(&place.allocation) else { continue };
            let (window, by) = (place.window, By::Job(allocation));
            self.add(&place.gpus, Busy { window, by, releasing: false });
        }
        self.sort();
        self
    }

    /// With the jobs gone that are named, from those instants on.
    pub(super) fn without_those_that_leave(
        mut self,
        by: &BTreeMap<&AllocationId, Timestamp>,
    ) -> Self {
        for busy in self.windows.values_mut().flatten() {
            if let By::Job(a) = busy.by
                && let Some(by) = by.get(&a.id)
            {
                busy.window.ends_at = busy.window.ends_at.min(*by);
            }
        }
        self.sort();
        self
    }

    fn sort(&mut self) {
        for list in self.windows.values_mut() {
            // Two may have the same window: one is released but not proven empty. They have one order, however they were found.
            list.sort_by(|a, b| {
                let window = |busy: &Busy<'_>| (busy.window.starts_at, busy.window.ends_at);
                window(a).cmp(&window(b)).then_with(|| a.by.key().cmp(&b.by.key()))
            });
        }
    }

    fn add(&mut self, gpus: &'a [GpuUuid], busy: Busy<'a>) {
        for gpu in gpus {
            self.windows.entry(gpu).or_default().push(busy);
        }
    }

    /// The busy windows of one GPU, first first.
    pub fn on(&self, gpu: &GpuUuid) -> &[Busy<'a>] {
        self.windows.get(gpu).map_or(&[], Vec::as_slice)
    }
}

/// A lease that outlived its end is either about to go, or stuck.
fn overdue(fsm: &Fsm, since: Timestamp) -> (Timestamp, bool) {
    let now = fsm.now();
    let stuck = now.since(since) > RELEASE_ALLOWANCE;
    (now + if stuck { NEAR } else { RELEASE_ALLOWANCE }, !stuck)
}

fn is_silent(fsm: &Fsm, node: &NodeName) -> bool {
    fsm.node(node).is_none_or(|node| node.liveness != Liveness::Ready)
}

fn reservation_window<'a>(fsm: &Fsm, r: &'a Reservation) -> Option<Busy<'a>> {
    let ending = r.lease.as_ref().and_then(|l: &LeaseId| fsm.lease(l)?.ending_since);
    let (ends_at, releasing) = match r.state {
        ReservationState::Offered { .. } | ReservationState::Scheduled => {
            (r.claim().ends_at, false)
        }
        ReservationState::Active if fsm.now() < r.window.ends_at => (r.claim().ends_at, false),
        ReservationState::Active => overdue(fsm, r.window.ends_at),
        // A silent node goes by what it was given; one that is heard is about to answer.
        ReservationState::Ending if r.claim().ends_at > fsm.now() && is_silent(fsm, &r.node) => {
            (r.claim().ends_at, false)
        }
        ReservationState::Ending => overdue(fsm, ending.unwrap_or(fsm.now())),
        ReservationState::Ended | ReservationState::Cancelled => return None,
    };
    let window = Window { starts_at: r.window.starts_at, ends_at };
    Some(Busy { window, by: By::Reservation(r), releasing })
}

fn lease_window<'a>(fsm: &'a Fsm, lease: &'a Lease) -> Option<Busy<'a>> {
    let LeaseHolder::Allocation(id) = &lease.holder else { return None };
    let (by, (ends_at, releasing)) = match fsm.allocation(id) {
        Some(a) => {
            let end = known_end(fsm, a);
            let open = end > fsm.now();
            (By::Job(a), if open { (end, false) } else { overdue(fsm, end) })
        }
        None => {
            let since = lease.ending_since.unwrap_or(fsm.now());
            (By::Emptying(id, &lease.owner), overdue(fsm, since))
        }
    };
    let window = Window { starts_at: lease.granted_at, ends_at };
    Some(Busy { window, by, releasing })
}
