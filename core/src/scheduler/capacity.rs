//! What the fleet has to give at one instant, taken once for a plan and used up line by line.
//!
//! Called by the planner and the re-check. Jobs are weighed against numbers and bit sets here, so
//! that a long queue over many nodes stays cheap. What only commands change comes from the index of
//! [`Standing`]s; what is taken when is gathered for the nodes that are looked ahead on, and for no other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::earliest::Earliest;
use super::shares::{Division, Room};
use crate::allocation::Allocation;
use crate::calendar::{Calendar, RELEASE_ALLOWANCE, known_end};
use crate::health::{Severity, Subject, begins_nothing};
use crate::id::{LeaseId, ReservationId};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::Node;
use crate::reason::NotOpen;
use crate::reservation::{Reservation, ReservationState};
use crate::state::Fsm;
use crate::state::share::Share;
use crate::state::standing::Standing;
use crate::state::topology::Picked;
use crate::state::wish::{GpuSet, place_of, plain_model};
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
    pub(super) share: Share,
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
    standing: Cow<'a, Standing>,
    /// Why nothing new goes there.
    pub(super) closed: Option<NotOpen>,
    pub(super) division: Division,
    pub(super) room: Room,
    /// GPUs that take new work, held or not.
    pub(super) healthy: GpuSet,
    /// Healthy GPUs that nobody holds.
    pub(super) free: GpuSet,
    /// Healthy GPUs that no job has; a reservation may hold them.
    pub(super) idle: GpuSet,
    /// The first time at which a GPU is promised.
    first_promise: Timestamp,
    /// The number that the model of each of its kinds has in `Capacity`.
    models: Vec<usize>,
    /// What is taken when, by the state: gathered when somebody looks ahead.
    known: Option<Vec<Use>>,
    /// By the claims on it: noted when somebody looks ahead.
    earliest: Option<Earliest>,
    /// What the plan adds to it.
    planned: Vec<Use>,
    /// Sets picked before, by what was eligible and how many were wanted.
    picked: BTreeMap<(GpuSet, u32), Option<Picked>>,
}

/// The whole fleet.
#[derive(Debug)]
pub(super) struct Capacity<'a> {
    pub(super) fsm: &'a Fsm,
    pub(super) nodes: Vec<NodeCapacity<'a>>,
    /// By the reservation's id.
    pub(super) pools: Vec<Pool<'a>>,
    /// The pools of each user, by their place in `pools`.
    pools_of: BTreeMap<&'a UserName, Vec<usize>>,
    /// Models as they are compared.
    models: Vec<String>,
}

impl<'a> Capacity<'a> {
    pub(super) fn of(fsm: &'a Fsm) -> Self {
        Self::over(fsm, fsm.all_standings())
    }

    /// Only one node: enough to check one line. It is worked out from the state, so a fault in an index makes a plan
    /// worse but gives no GPU to two jobs.
    pub(super) fn of_node(fsm: &'a Fsm, node: &'a Node) -> Self {
        Self::over(fsm, std::iter::once((node, Cow::Owned(Standing::of(fsm, node)))))
    }

    fn over(fsm: &'a Fsm, nodes: impl Iterator<Item = (&'a Node, Cow<'a, Standing>)>) -> Self {
        let mut this = Self {
            fsm,
            nodes: Vec::new(),
            pools: Vec::new(),
            pools_of: BTreeMap::new(),
            models: Vec::new(),
        };
        for (node, standing) in nodes {
            let models = standing.built.kinds.iter().map(|kind| this.number(&kind.model)).collect();
            let capacity = NodeCapacity::new(fsm, node, standing, models);
            this.nodes.push(capacity);
            this.add_pools(this.nodes.len() - 1);
        }
        this.pools.sort_by_key(|pool| &pool.reservation.id);
        for (at, pool) in this.pools.iter().enumerate() {
            this.pools_of.entry(&pool.reservation.owner).or_default().push(at);
        }
        this
    }

    fn number(&mut self, model: &str) -> usize {
        self.models.iter().position(|known| known == model).unwrap_or_else(|| {
            self.models.push(model.to_owned());
            self.models.len() - 1
        })
    }

    fn add_pools(&mut self, at: usize) {
        let node = &self.nodes[at];
        for id in &node.standing.active {
            let Some(reservation) = self.fsm.reservation(id) else { continue };
            let Some(lease) = usable_lease(self.fsm, reservation) else { continue };
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
    }

    /// The pools of a user, by their place in `pools`.
    pub(super) fn pools_of(&self, owner: &UserName) -> &[usize] {
        self.pools_of.get(owner).map_or(&[], Vec::as_slice)
    }

    /// The node's place in `nodes`, which are in name order.
    pub(super) fn position(&self, name: &NodeName) -> Option<usize> {
        self.nodes.binary_search_by(|n| n.node.name.cmp(name)).ok()
    }

    pub(super) fn pool(&self, id: &ReservationId) -> Option<usize> {
        self.pools.binary_search_by(|pool| pool.reservation.id.cmp(id)).ok()
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
        let share = Share { cpu_millis: a.cpu_millis, memory_bytes: a.memory_bytes };
        node.room.give_back(a.gpus.len() as u32, share);
        let gpus = a.gpus.iter().filter_map(|uuid| place_of(node.node, uuid));
        let gpus = gpus.fold(0, |set, place| set | place) & node.healthy;
        node.idle |= gpus;
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
pub(super) fn closed(node: &Node) -> Option<NotOpen> {
    let short = || {
        let lacks = node.conditions.iter().find(|c| begins_nothing(c))?;
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
    fn new(fsm: &Fsm, node: &'a Node, standing: Cow<'a, Standing>, models: Vec<usize>) -> Self {
        let division = Division::of(fsm, node);
        let mut room = division.room();
        room.take(1, standing.taken_on_gpus);
        room.take(0, standing.taken_without_gpus);
        Self {
            node,
            closed: closed(node),
            division,
            room,
            healthy: standing.built.healthy,
            free: standing.free,
            idle: standing.built.healthy & !standing.busy,
            first_promise: standing.first_promise.unwrap_or(Timestamp(u64::MAX)),
            standing,
            models,
            known: None,
            earliest: None,
            planned: Vec::new(),
            picked: BTreeMap::new(),
        }
    }

    /// How many GPUs it has, whatever their state.
    pub(super) fn gpus(&self) -> u32 {
        self.standing.built.gpus
    }

    /// Whether some of its GPUs are broken: it will be reset or rebooted before long, so new work goes
    /// there only when nothing else fits.
    pub(super) fn is_ailing(&self) -> bool {
        self.healthy.count_ones() != self.gpus()
    }

    /// The GPUs of a model.
    pub(super) fn of_model(&self, model: usize) -> GpuSet {
        let kinds = self.models.iter().zip(&self.standing.built.kinds);
        let of_it = kinds.filter(|(number, _)| **number == model);
        of_it.fold(0, |set, (_, kind)| set | kind.gpus)
    }

    /// The GPUs with less memory.
    pub(super) fn smaller_than(&self, memory_bytes: u64) -> GpuSet {
        let smaller =
            self.standing.built.kinds.iter().filter(|kind| kind.memory_bytes < memory_bytes);
        smaller.fold(0, |set, kind| set | kind.gpus)
    }

    /// From when on the GPU at that place is promised to a reservation that does not hold it yet.
    pub(super) fn promised(&self, place: usize) -> Option<Timestamp> {
        self.standing.promised.get(place).copied().flatten()
    }

    /// The GPUs that are not promised to anybody before `until`.
    pub(super) fn unpromised(&self, until: Timestamp) -> GpuSet {
        if until <= self.first_promise {
            return GpuSet::MAX;
        }
        let places = self.standing.promised.iter().enumerate();
        let kept = places.filter(|(_, promise)| promise.is_none_or(|from| from >= until));
        kept.fold(0, |set, (at, _)| set | 1 << at)
    }

    pub(super) fn pick(&mut self, eligible: GpuSet, count: u32) -> Option<Picked> {
        if eligible.count_ones() < count {
            return None;
        }
        let topology = &self.standing.built.topology;
        *self.picked.entry((eligible, count)).or_insert_with(|| topology.pick(eligible, count))
    }

    pub(super) fn uuids(&self, set: GpuSet) -> Vec<GpuUuid> {
        crate::state::wish::uuids_of(self.node, set)
    }

    /// The plan takes this as well.
    pub(super) fn plan(&mut self, planned: Use) {
        self.planned.push(planned);
    }

    /// Gathers what is taken when, before somebody asks for [`Self::uses`].
    /// `at` is the node's place among all.
    pub(super) fn look_ahead(&mut self, fsm: &Fsm, at: usize) {
        self.known.get_or_insert_with(|| uses(fsm, self.node, at));
    }

    /// Before which time no job starts on it, by the claims on its GPUs; what the plan adds only makes it later. `at` is the
    /// node's place among all.
    pub(super) fn earliest(&mut self, fsm: &Fsm, at: usize) -> &Earliest {
        self.earliest.get_or_insert_with(|| {
            // Where the claims do not say it all, everything may be free now.
            let claims = fsm.certain_claims(&self.node.name, at).unwrap_or_default();
            Earliest::of(claims, self.healthy, fsm.now())
        })
    }

    /// What is taken when, by the state and by the plan so far.
    pub(super) fn uses(&self) -> impl Iterator<Item = &Use> {
        self.known.iter().flatten().chain(&self.planned)
    }
}

/// What of the node is taken when: GPUs by the calendar, and CPU and memory by jobs.
fn uses(fsm: &Fsm, node: &Node, at: usize) -> Vec<Use> {
    let taken = |from, until, gpus| Use {
        whose: Whose::Calendar,
        from,
        until,
        gpus,
        share: Share::default(),
    };
    let now = fsm.now();
    let mut uses: Vec<Use> = match fsm.certain_claims(&node.name, at) {
        Some(claims) => claims.iter().map(|c| taken(c.from, c.until, c.gpus)).collect(),
        None => {
            let calendar = Calendar::of_nodes(fsm, [&node.name]);
            let places = node.gpus.iter().filter_map(|uuid| Some((place_of(node, uuid)?, uuid)));
            let busy = places.flat_map(|(place, uuid)| {
                calendar.on(uuid).iter().map(move |busy| (busy.window, place))
            });
            busy.map(|(window, place)| taken(window.starts_at, window.ends_at, place)).collect()
        }
    };
    uses.extend(fsm.allocations_on(&node.name).map(|a| {
        let end = known_end(fsm, a);
        let gpus = a.gpus.iter().filter_map(|uuid| place_of(node, uuid));
        Use {
            whose: Whose::Job,
            from: a.placed_at,
            until: if end > now { end } else { now + RELEASE_ALLOWANCE },
            gpus: gpus.fold(0, |set, place| set | place),
            share: Share { cpu_millis: a.cpu_millis, memory_bytes: a.memory_bytes },
        }
    }));
    uses
}
