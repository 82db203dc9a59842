//! What one job asks for, in terms of the capacity: made once, weighed against every node.
//!
//! Called by the planner, the re-check and the explanations.

use std::collections::BTreeMap;

use super::capacity::{Capacity, NodeCapacity};
use super::shares::Room;
use crate::id::{JobId, ReservationId};
use crate::job::{Job, JobSpec};
use crate::name::{NodeName, UserName};
use crate::reason::{Shut as ShutBecause, ShutReservation};
use crate::reservation::{GpuRequest, ReservationState};
use crate::state::share::Share;
use crate::state::wish::{GpuSet, Wish, place_of};
use crate::time::{Millis, Timestamp};

/// The model a job asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Model {
    Any,
    Number(usize),
    /// No GPU of the fleet is one.
    Unknown,
}

/// Where a job may take its GPUs from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// Free ones, or its owner's reservations where its whole time fits.
    Anywhere,
    /// Only the reservation it names; its place in the capacity's pools.
    Pool(usize),
    /// The reservation it names gives nothing now.
    Shut(Shut),
}

/// Why a named reservation gives nothing, and from when it may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shut {
    pub(super) reservation: ShutReservation,
    pub(super) node: Option<NodeName>,
    pub(super) opens_at: Option<Timestamp>,
}

/// A job's demand.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) job: Option<&'a JobId>,
    pub(super) owner: &'a UserName,
    pub(super) spec: &'a JobSpec,
    pub(super) excluded: Option<&'a BTreeMap<NodeName, String>>,
    pub(super) wish: Wish<'a>,
    pub(super) source: Source,
    /// How long it may run.
    pub(super) length: Millis,
    /// When it is gone for sure if it starts now.
    pub(super) until: Timestamp,
    model: Model,
    /// Whether the owner has a reservation's GPUs to run in.
    has_pool: bool,
}

/// What makes two asks equal to the planner: where one is refused, so is the other.
pub(super) type Shape<'a> = (
    (u32, &'a Option<String>, Option<u64>, &'a Option<NodeName>, Vec<&'a str>),
    (Option<u64>, Option<u64>, Millis, bool, Millis),
    (&'a Option<ReservationId>, Option<&'a UserName>, Option<&'a BTreeMap<NodeName, String>>),
);

impl<'a> Ask<'a> {
    pub(super) fn of_job(capacity: &Capacity<'_>, job: &'a Job) -> Self {
        let excluded = Some(&job.excluded_nodes).filter(|nodes| !nodes.is_empty());
        let ask = Self::new(capacity, &job.owner, &job.spec);
        let length = job.time_left();
        let until = capacity.fsm.now() + length + job.spec.stop_grace;
        Self { job: Some(&job.id), excluded, length, until, ..ask }
    }

    pub(super) fn new(capacity: &Capacity<'_>, owner: &'a UserName, spec: &'a JobSpec) -> Self {
        let model = match &spec.gpus.model {
            None => Model::Any,
            Some(model) => capacity.model(model).map_or(Model::Unknown, Model::Number),
        };
        Self {
            job: None,
            owner,
            spec,
            excluded: None,
            wish: Wish::new(&spec.gpus),
            source: source(capacity, owner, spec),
            length: spec.time_limit,
            until: capacity.fsm.now() + spec.time_limit + spec.stop_grace,
            model,
            has_pool: !capacity.pools_of(owner).is_empty(),
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.spec.gpus.count
    }

    pub(super) fn shape(&self) -> Shape<'a> {
        let GpuRequest { count, model, memory_bytes_min, node, uuids } = &self.spec.gpus;
        let uuids = uuids.iter().map(|uuid| uuid.as_str()).collect();
        let spec = self.spec;
        (
            (*count, model, *memory_bytes_min, node, uuids),
            (
                spec.cpu_millis,
                spec.memory_bytes,
                self.length,
                spec.time_limit_given,
                spec.stop_grace,
            ),
            // Whose job it is matters only where reservations are involved.
            (
                &spec.reservation,
                (self.has_pool || spec.reservation.is_some()).then_some(self.owner),
                self.excluded,
            ),
        )
    }

    /// The same for all lengths: what differs is how long it would stay.
    pub(super) fn shape_of_any_length(&self) -> Shape<'a> {
        let (gpus, (cpu, memory, _, given, _), whose) = self.shape();
        (gpus, (cpu, memory, Millis::ZERO, given, Millis::ZERO), whose)
    }

    /// What it cannot do without on that node.
    pub(super) fn least(&self, node: &NodeCapacity<'_>) -> Share {
        node.division.least(self.spec)
    }

    /// What it gets of the room on that node, of whose GPUs these are idle.
    pub(super) fn granted(
        &self,
        node: &NodeCapacity<'_>,
        room: &Room,
        idle: GpuSet,
    ) -> Option<Share> {
        let others = idle.count_ones().saturating_sub(self.count());
        node.division.granted(self.spec, room.of(self.count()), others)
    }

    /// The GPUs of the node that are meant, whatever their state.
    pub(super) fn meant(&self, node: &NodeCapacity<'_>) -> GpuSet {
        let request = &self.spec.gpus;
        let mut meant = match self.model {
            Model::Any => GpuSet::MAX,
            Model::Number(number) => node.of_model(number),
            Model::Unknown => 0,
        };
        if !request.uuids.is_empty() {
            let named = request.uuids.iter().filter_map(|uuid| place_of(node.node, uuid));
            meant &= named.fold(0, |set, place| set | place);
        }
        if let Some(least) = request.memory_bytes_min {
            meant &= !node.smaller_than(least);
        }
        meant
    }

    /// Whether the job may be put on this node at all, by its own wish.
    pub(super) fn admits(&self, node: &NodeCapacity<'_>) -> bool {
        self.spec.gpus.node.as_ref().is_none_or(|name| *name == node.node.name)
            && self.excluded.is_none_or(|nodes| !nodes.contains_key(&node.node.name))
    }
}

/// Looks up the reservation a job names, if it names one.
fn source(capacity: &Capacity<'_>, owner: &UserName, spec: &JobSpec) -> Source {
    let Some(id) = &spec.reservation else { return Source::Anywhere };
    let shut = |why, node: Option<&NodeName>, opens_at| {
        let reservation = ShutReservation { id: id.clone(), why };
        Source::Shut(Shut { reservation, node: node.cloned(), opens_at })
    };
    let (fsm, now) = (capacity.fsm, capacity.fsm.now());
    let Some(reservation) = fsm.reservation(id) else {
        return shut(ShutBecause::Gone, None, None);
    };
    let node = Some(&reservation.node);
    if reservation.owner != *owner {
        return shut(ShutBecause::BelongsTo(reservation.owner.clone()), node, None);
    }
    match reservation.state {
        ReservationState::Ended => shut(ShutBecause::Ended, node, None),
        ReservationState::Cancelled => shut(ShutBecause::Cancelled, node, None),
        ReservationState::Ending => shut(ShutBecause::Ending, node, None),
        // No job can name it yet.
        ReservationState::Offered { .. } => shut(ShutBecause::NotBegun, node, None),
        ReservationState::Scheduled => {
            let why = match &reservation.reason {
                Some(why) => ShutBecause::Delayed(why.clone()),
                None => ShutBecause::NotBegun,
            };
            shut(why, node, Some(reservation.window.starts_at.max(now)))
        }
        ReservationState::Active => match capacity.pool(id) {
            Some(pool) => Source::Pool(pool),
            None if reservation.window.ends_at <= now => shut(ShutBecause::Ending, node, None),
            None => shut(ShutBecause::NotUsable(reservation.node.clone()), node, None),
        },
    }
}
