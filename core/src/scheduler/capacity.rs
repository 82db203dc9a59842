//! What the fleet has to give at one instant, taken once for a plan and used up line by line.
//!
//! Called by the planner and the re-check. Jobs are weighed against numbers and bit sets here, so
//! that a long queue over many nodes stays cheap.

use std::collections::BTreeMap;

use crate::allocation::Allocation;
use crate::calendar::topology::{Picked, Topology};
use crate::calendar::wish::{GpuSet, gpus_of, place_of, plain_model, unfit};
use crate::calendar::{By, Calendar, RELEASE_ALLOWANCE, known_end};
use crate::fsm::Fsm;
use crate::gpu::Gpu;
use crate::health::{Severity, Subject, begins_nothing};
use crate::id::{LeaseId, ReservationId};
use crate::name::{GpuUuid, NodeName};
use crate::node::{EMPTY_SINCE, Node};
use crate::reason::NotOpen;
use crate::reservation::{Reservation, ReservationState};
use crate::time::Timestamp;

/// What takes a part of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A GPU's busy window in the calendar.
    Calendar,
    /// A job, running or foreseen.
    Job,
}

/// Something that takes a part of a node for a while.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) whose: Whose,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
    pub(super) gpus: GpuSet,
    pub(super) cpu_millis: u64,
    pub(super) memory_bytes: u64,
}

/// The GPUs of an active reservation, for the jobs of its owner.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) reservation: &'a Reservation,
    pub(super) lease: &'a LeaseId,
    pub(super) node: usize,
    /// Its GPUs that take new work.
    pub(super) all: GpuSet,
    /// Of these, the ones that no job of its owner has.
    pub(super) free: GpuSet,
}

/// One node, as far as placing needs to know it.
#[derive(Debug)]
pub(super) struct NodeCapacity<'a> {
    pub(super) node: &'a Node,
    pub(super) gpus: Vec<&'a Gpu>,
    /// Why nothing new goes there.
    pub(super) closed: Option<NotOpen>,
    pub(super) cpu_free: u64,
    pub(super) memory_free: u64,
    /// GPUs that take new work, held or not.
    pub(super) healthy: GpuSet,
    /// Healthy GPUs that nobody holds.
    pub(super) free: GpuSet,
    /// From when on each GPU is promised to a reservation that does not hold it yet.
    pub(super) promised: Vec<Option<(Timestamp, &'a Reservation)>>,
    /// The first of these.
    pub(super) first_promise: Timestamp,
    /// GPUs of each model, by the number the fleet's models have in `Capacity`.
    models: Vec<(usize, GpuSet)>,
    /// What is taken when: for looking ahead.
    pub(super) uses: Vec<Use>,
    topology: Option<Topology>,
    /// Sets picked before, by what was eligible and how many were wanted.
    picked: BTreeMap<(GpuSet, u32), Option<Picked>>,
}

/// The whole fleet.
#[derive(Debug)]
pub(super) struct Capacity<'a> {
    pub(super) fsm: &'a Fsm,
    pub(super) calendar: Calendar<'a>,
    pub(super) nodes: Vec<NodeCapacity<'a>>,
    pub(super) pools: Vec<Pool<'a>>,
    /// Models as they are compared.
    models: Vec<String>,
}

impl<'a> Capacity<'a> {
    pub(super) fn of(fsm: &'a Fsm) -> Self {
        let mut capacity = Self::over(fsm, fsm.nodes().values(), Calendar::of(fsm));
        fsm.allocations().values().for_each(|a| capacity.take_allocation(a));
        fsm.open_reservations().for_each(|r| capacity.add_pool(r));
        capacity
    }

    /// Only one node: enough to check one line.
    pub(super) fn of_node(fsm: &'a Fsm, node: &'a Node) -> Self {
        let calendar = Calendar::of_nodes(fsm, [&node.name]);
        let mut capacity = Self::over(fsm, std::iter::once(node), calendar);
        fsm.allocations_on(&node.name).for_each(|a| capacity.take_allocation(a));
        fsm.open_reservations_on(&node.name).for_each(|r| capacity.add_pool(r));
        capacity
    }

    /// Without jobs and reservations.
    fn over(fsm: &'a Fsm, nodes: impl Iterator<Item = &'a Node>, calendar: Calendar<'a>) -> Self {
        let mut models: Vec<String> = Vec::new();
        let mut number = |model: &str| {
            let model = plain_model(model);
            models.iter().position(|known| *known == model).unwrap_or_else(|| {
                models.push(model);
                models.len() - 1
            })
        };
        let nodes: Vec<NodeCapacity<'a>> =
            nodes.map(|node| NodeCapacity::new(fsm, node, &calendar, &mut number)).collect();
        Self { fsm, calendar, nodes, pools: Vec::new(), models }
    }

    fn take_allocation(&mut self, a: &Allocation) {
        let Some(at) = self.position(&a.node) else { return };
        let now = self.fsm.now();
        let end = known_end(self.fsm, a);
        let until = if end > now { end } else { now + RELEASE_ALLOWANCE };
        let node = &mut self.nodes[at];
        node.cpu_free = node.cpu_free.saturating_sub(a.cpu_millis);
        node.memory_free = node.memory_free.saturating_sub(a.memory_bytes);
        let gpus = a.gpus.iter().filter_map(|uuid| place_of(node.node, uuid));
        node.uses.push(Use {
            whose: Whose::Job,
            from: a.placed_at,
            until,
            gpus: gpus.fold(0, |set, place| set | place),
            cpu_millis: a.cpu_millis,
            memory_bytes: a.memory_bytes,
        });
    }

    fn add_pool(&mut self, reservation: &'a Reservation) {
        let Some(at) = self.position(&reservation.node) else { return };
        let Some(lease) = usable_lease(self.fsm, reservation) else { return };
        let node = &self.nodes[at];
        let (mut all, mut free) = (0, 0);
        for uuid in &reservation.gpus {
            let place = place_of(node.node, uuid).unwrap_or(0) & node.healthy;
            all |= place;
            let hold = self.fsm.hold(uuid);
            if hold.is_some_and(|hold| hold.lease == *lease && hold.child.is_none()) {
                free |= place;
            }
        }
        self.pools.push(Pool { reservation, lease, node: at, all, free });
    }

    /// The node's place in `nodes`, which are in name order.
    pub(super) fn position(&self, name: &NodeName) -> Option<usize> {
        self.nodes.binary_search_by(|n| n.node.name.cmp(name)).ok()
    }

    pub(super) fn pool(&self, id: &ReservationId) -> Option<usize> {
        self.pools.iter().position(|pool| pool.reservation.id == *id)
    }

    /// The number of a model, if the fleet has it.
    pub(super) fn model(&self, model: &str) -> Option<usize> {
        let model = plain_model(model);
        self.models.iter().position(|known| *known == model)
    }

    /// Puts back what an attempt holds, as if it had left; its GPUs only where they are healthy.
    pub(super) fn lift(&mut self, a: &Allocation) {
        let Some(at) = self.position(&a.node) else { return };
        let node = &mut self.nodes[at];
        node.cpu_free += a.cpu_millis;
        node.memory_free += a.memory_bytes;
        let gpus = a.gpus.iter().filter_map(|uuid| place_of(node.node, uuid));
        let gpus = gpus.fold(0, |set, place| set | place) & node.healthy;
        let parent = a.lease.as_ref().and_then(|id| self.fsm.lease(id)?.parent.as_ref());
        match parent {
            None => node.free |= gpus,
            Some(parent) => {
                if let Some(pool) = self.pools.iter_mut().find(|pool| pool.lease == parent) {
                    pool.free |= gpus;
                }
            }
        }
    }
}

/// The lease of a reservation under which jobs may start now.
fn usable_lease<'a>(fsm: &'a Fsm, reservation: &'a Reservation) -> Option<&'a LeaseId> {
    if reservation.state != ReservationState::Active || reservation.window.ends_at <= fsm.now() {
        return None;
    }
    let lease = fsm.lease(reservation.lease.as_ref()?)?;
    lease.ending_since.is_none().then_some(&lease.id)
}

/// Why a node takes nothing new, its own conditions included.
fn closed(fsm: &Fsm, node: &Node) -> Option<NotOpen> {
    let short = || {
        let known = fsm.cluster_version() >= EMPTY_SINCE;
        let lacks = node.conditions.iter().find(|c| known && begins_nothing(c))?;
        Some(NotOpen::Short(lacks.reason.clone()))
    };
    node.closed().map(NotOpen::Closed).or_else(short).or_else(|| {
        let condition = node.conditions.iter().find(|c| {
            c.is_active() && c.severity >= Severity::Degraded && c.subject == Subject::Node
        })?;
        Some(NotOpen::Degraded(condition.reason.clone()))
    })
}

impl<'a> NodeCapacity<'a> {
    fn new(
        fsm: &'a Fsm,
        node: &'a Node,
        calendar: &Calendar<'a>,
        number: &mut impl FnMut(&str) -> usize,
    ) -> Self {
        let gpus: Vec<&Gpu> = gpus_of(fsm, node).collect();
        let mut this = Self {
            node,
            closed: closed(fsm, node),
            cpu_free: node.facts.cpu_millis,
            memory_free: node.facts.memory_bytes,
            healthy: 0,
            free: 0,
            promised: vec![None; gpus.len()],
            first_promise: Timestamp(u64::MAX),
            models: Vec::new(),
            uses: Vec::new(),
            topology: None,
            picked: BTreeMap::new(),
            gpus,
        };
        for at in 0..this.gpus.len() {
            this.look_at_gpu(fsm, at, calendar, number);
        }
        this
    }

    /// Whether some of its GPUs are broken: it will be reset or rebooted before long, so new work goes
    /// there only when nothing else fits.
    pub(super) fn is_ailing(&self) -> bool {
        self.healthy.count_ones() as usize != self.gpus.len()
    }

    fn look_at_gpu(
        &mut self,
        fsm: &Fsm,
        at: usize,
        calendar: &Calendar<'a>,
        number: &mut impl FnMut(&str) -> usize,
    ) {
        let gpu = self.gpus[at];
        let place: GpuSet = 1 << at;
        if unfit(self.node, gpu).is_none() {
            self.healthy |= place;
            if fsm.hold(&gpu.uuid).is_none() {
                self.free |= place;
            }
        }
        let model = number(&gpu.model);
        match self.models.iter_mut().find(|(known, _)| *known == model) {
            Some((_, set)) => *set |= place,
            None => self.models.push((model, place)),
        }
        for busy in calendar.on(&gpu.uuid) {
            let (from, until) = (busy.window.starts_at, busy.window.ends_at);
            self.uses.push(Use {
                whose: Whose::Calendar,
                from,
                until,
                gpus: place,
                cpu_millis: 0,
                memory_bytes: 0,
            });
            if let By::Reservation(r) = busy.by
                && r.lease.is_none()
                && self.promised[at].is_none_or(|(first, _)| from < first)
            {
                self.promised[at] = Some((from, r));
                self.first_promise = self.first_promise.min(from);
            }
        }
    }

    /// The GPUs of a model.
    pub(super) fn of_model(&self, model: usize) -> GpuSet {
        self.models.iter().find(|(known, _)| *known == model).map_or(0, |(_, set)| *set)
    }

    /// The GPUs that are not promised to anybody before `until`.
    pub(super) fn unpromised(&self, until: Timestamp) -> GpuSet {
        if until <= self.first_promise {
            return GpuSet::MAX;
        }
        let kept = |(at, promise): (usize, &Option<(Timestamp, &Reservation)>)| match promise {
            Some((from, _)) if *from < until => 0,
            Some(_) | None => 1 << at,
        };
        self.promised.iter().enumerate().map(kept).fold(0, |set, place: GpuSet| set | place)
    }

    pub(super) fn pick(&mut self, fsm: &Fsm, eligible: GpuSet, count: u32) -> Option<Picked> {
        if eligible.count_ones() < count {
            return None;
        }
        let topology = self.topology.get_or_insert_with(|| Topology::of(fsm, self.node));
        *self.picked.entry((eligible, count)).or_insert_with(|| topology.pick(eligible, count))
    }

    pub(super) fn uuids(&self, set: GpuSet) -> Vec<GpuUuid> {
        crate::calendar::wish::uuids_of(self.node, set)
    }
}
