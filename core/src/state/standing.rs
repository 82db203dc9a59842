//! What one node has to give, as far as only commands change it: the part of a plan that is the same from plan to plan.
//!
//! Derived from the state, never stored; `Fsm::settle_index` brings it up to date behind each command, node by node, so
//! that a plan begins with it and does not count all jobs and reservations of the fleet again. What the time changes
//! is worked out by `capacity`.

use super::Fsm;
use super::share::Share;
use super::wish::{GpuSet, Wish, gpus_of, place_of, plain_model, unfit};
use crate::id::ReservationId;
use crate::node::Node;
use crate::reservation::{Reservation, ReservationState};
use crate::time::Timestamp;

/// GPUs of one node that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    /// As it is compared, see `plain_model`.
    pub(crate) model: String,
    pub(crate) memory_bytes: u64,
    pub(crate) gpus: GpuSet,
}

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) gpus: u32,
    pub(crate) kinds: Vec<Kind>,
    /// GPUs that take new work, held or not.
    pub(crate) healthy: GpuSet,
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
}

impl Standing {
    pub(crate) fn of(fsm: &Fsm, node: &Node) -> Self {
        let mut this = Self::default();
        for (at, gpu) in gpus_of(fsm, node).enumerate() {
            let place: GpuSet = 1 << at;
            this.gpus += 1;
            if unfit(node, gpu).is_none() {
                this.healthy |= place;
                if fsm.hold(&gpu.uuid).is_none() {
                    this.free |= place;
                }
            }
            let (model, memory_bytes) = (plain_model(&gpu.model), gpu.memory_bytes);
            let same = |kind: &&mut Kind| kind.model == model && kind.memory_bytes == memory_bytes;
            match this.kinds.iter_mut().find(same) {
                Some(kind) => kind.gpus |= place,
                None => this.kinds.push(Kind { model, memory_bytes, gpus: place }),
            }
        }
        this.promised = vec![None; this.gpus as usize];
        for reservation in fsm.open_reservations_on(&node.name) {
            match reservation.lease {
                None => this.promise(node, reservation),
                Some(_) if reservation.state == ReservationState::Active => {
                    this.active.push(reservation.id.clone());
                }
                Some(_) => {}
            }
        }
        for a in fsm.allocations_on(&node.name) {
            let gpus = a.gpus.iter().filter_map(|uuid| place_of(node, uuid));
            this.busy |= gpus.fold(0, |set, place| set | place);
            let share = Share { cpu_millis: a.cpu_millis, memory_bytes: a.memory_bytes };
            let taken = match a.gpus.is_empty() {
                true => &mut this.taken_without_gpus,
                false => &mut this.taken_on_gpus,
            };
            *taken = taken.plus(share);
        }
        this
    }

    /// The GPUs that are meant, whatever their state; of a node that the wish is not kept from by name.
    pub(crate) fn meant(&self, node: &Node, wish: &Wish<'_>) -> GpuSet {
        let kinds =
            self.kinds.iter().filter(|kind| wish.means_kind(&kind.model, kind.memory_bytes));
        let meant = kinds.fold(0, |set, kind| set | kind.gpus);
        let named = &wish.request.uuids;
        match named.is_empty() {
            true => meant,
            false => {
                let places = named.iter().filter_map(|uuid| place_of(node, uuid));
                meant & places.fold(0, |set, place| set | place)
            }
        }
    }

    /// Of a reservation that does not hold its GPUs yet.
    pub(crate) fn promise(&mut self, node: &Node, reservation: &Reservation) {
        let from = reservation.window.starts_at;
        let gpus = reservation.gpus.iter().filter_map(|uuid| place_of(node, uuid));
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
