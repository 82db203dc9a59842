//! What one node has to give, as far as only commands change it: the part of a plan that is the same from plan to plan.
//!
//! Derived from the state, never stored; `Fsm::settle_index` brings it up to date behind each command, node by node, so
//! that a plan begins with it and does not count all jobs and reservations of the fleet again. What the time changes
//! is worked out by `capacity`.

use std::sync::Arc;

use super::Fsm;
use super::built::Built;
use super::charged::Charged;
use super::contents::Contents;
use super::share::Share;
use super::wish::{GpuSet, place_of};
use crate::id::ReservationId;
use crate::name::GpuUuid;
use crate::node::Node;
use crate::reservation::ReservationState;
use crate::time::Timestamp;

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) built: Arc<Built>,
    /// Healthy GPUs that nobody holds.
    pub(crate) free: GpuSet,
    /// GPUs that an attempt has.
    pub(crate) busy: GpuSet,
    /// What attempts on GPUs have of the node, and what attempts without GPUs have; it can be more than there is.
    pub(crate) taken_on_gpus: Share,
    pub(crate) taken_without_gpus: Share,
    /// From when on each GPU is promised to a reservation that does not hold it yet.
    pub(crate) promised: Vec<Option<Timestamp>>,
    /// The first of these.
    pub(crate) first_promise: Option<Timestamp>,
    /// Reservations that hold their GPUs, by id.
    pub(crate) active: Vec<ReservationId>,
    /// Attempts that their owner's share counts, by id.
    pub(crate) charged: Vec<Charged>,
}

impl Standing {
    /// Everything worked out from the state.
    pub(crate) fn of(fsm: &Fsm, node: &Node) -> Self {
        Self::with(fsm, &Contents::of(fsm, node))
    }

    pub(crate) fn with(fsm: &Fsm, contents: &Contents<'_>) -> Self {
        let (node, built) = (contents.node, Arc::clone(&contents.built));
        let promised = vec![None; built.gpus as usize];
        let mut this = Self { built, promised, ..Self::default() };
        for (at, uuid) in node.gpus.iter().take(this.built.gpus as usize).enumerate() {
            let place: GpuSet = 1 << at;
            if this.built.healthy & place != 0 && fsm.hold(uuid).is_none() {
                this.free |= place;
            }
        }
        for reservation in &contents.reservations {
            match reservation.lease {
                None => this.promise(node, &reservation.gpus, reservation.window.starts_at),
                Some(_) if reservation.state == ReservationState::Active => {
                    this.active.push(reservation.id.clone());
                }
                Some(_) => {}
            }
        }
        for (_, next) in fsm.reservations_coming_to(&node.name) {
            this.promise(node, &next.gpus, next.window.starts_at);
        }
        for a in &contents.attempts {
            let gpus = a.gpus.iter().filter_map(|uuid| place_of(node, uuid));
            this.busy |= gpus.fold(0, |set, place| set | place);
            let share = Share { cpu_millis: a.cpu_millis, memory_bytes: a.memory_bytes };
            let taken = match a.gpus.is_empty() {
                true => &mut this.taken_without_gpus,
                false => &mut this.taken_on_gpus,
            };
            *taken = taken.plus(share);
            this.charged.extend(Charged::of(fsm, a));
        }
        this
    }

    /// Of a reservation that does not hold its GPUs yet, which begins at `from`.
    pub(crate) fn promise(&mut self, node: &Node, gpus: &[GpuUuid], from: Timestamp) {
        let gpus = gpus.iter().filter_map(|uuid| place_of(node, uuid));
        let gpus = gpus.fold(0, |set: GpuSet, place| set | place);
        let places = self.promised.iter_mut().enumerate();
        for (_, promised) in places.filter(|(at, _)| gpus >> at & 1 == 1) {
            *promised = Some(promised.map_or(from, |first| first.min(from)));
        }
        if gpus != 0 {
            self.first_promise = Some(self.first_promise.map_or(from, |first| first.min(from)));
        }
    }
}
