//! Places for reservations on GPUs where jobs of lower classes run: those leave before the reservation begins.
//!
//! Called by [`super::choose`] where no node fits otherwise. A reservation ranks as a job that names no class. A job's GPUs
//! count as free only from the instant at which it has left for certain: after what its class guarantees, with the time
//! for a save, its grace and the release. Nobody leaves by that alone: `fsm/giving_way.rs` shortens the time of the jobs
//! whose GPUs were promised, in the command that promises them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::busy::known_end;
use super::{Calendar, Candidate, HeldPlace, RELEASE_ALLOWANCE, Releasing, Unleased};
use crate::allocation::Allocation;
use crate::class::Class;
use crate::id::AllocationId;
use crate::job::Job;
use crate::name::{ClassName, GpuUuid, NodeName};
use crate::node::Liveness;
use crate::preemption::{guaranteed_until, has_a_way, is_open, was_preempted_enough};
use crate::rejection::Slot;
use crate::state::Fsm;
use crate::state::wish::{GpuSet, Wish, place_of, uuids_of};
use crate::time::{Millis, Timestamp, Window};

/// Who reads the next slot in a refusal needs time to ask for it, while the time to leave moves with the clock.
const TO_ASK: Millis = Millis::minutes(2);
/// Such a slot is named in whole steps.
const SLOT_STEP: Millis = Millis::minutes(5);

fn rounded(by: Timestamp) -> Timestamp {
    Timestamp((by + TO_ASK).0.div_ceil(SLOT_STEP.0).saturating_mul(SLOT_STEP.0))
}

/// The class of a job that leaves for reservations, where it is one: they rank as jobs that name no class. A job that is
/// not above them and named no time limit leaves for them too.
pub(crate) fn class_below<'a>(fsm: &'a Fsm, job: &Job) -> Option<Cow<'a, Class>> {
    let (its, theirs) = (fsm.class(&job.spec.class)?, fsm.class(&ClassName::normal())?);
    let below = theirs.preempts && its.priority < theirs.priority && has_a_way(&its, job);
    let open = theirs.preempts && its.priority <= theirs.priority && is_open(&its, job);
    (below || open).then_some(its)
}

/// When a reservation may have the GPUs of that attempt; `None` where it does not leave for one.
fn leaves_by(fsm: &Fsm, a: &Allocation) -> Option<Timestamp> {
    let (job, node) = (fsm.job(&a.job)?, fsm.node(&a.node)?);
    let class = class_below(fsm, job)?;
    let lease = a.lease.as_ref().and_then(|id| fsm.lease(id))?;
    // A node that is not heard would not hear of it.
    let heard = node.liveness == Liveness::Ready && node.closed().is_none();
    let leaves = a.stop.is_some() || !a.causes.is_empty() || job.cancel_requested;
    if !heard
        || leaves
        || lease.parent.is_some()
        || a.epoch.incarnation < fsm.incarnation()
        || was_preempted_enough(job, fsm.now())
    {
        return None;
    }
    let until = guaranteed_until(a, job, &class)?.max(fsm.now());
    let waited_for = job.spec.checkpoint.is_some() || !has_a_way(&class, job);
    let to_save = if waited_for { class.save_limit } else { Millis::ZERO };
    Some(until + to_save + job.spec.stop_grace + RELEASE_ALLOWANCE)
}

/// Work that could leave.
struct Leaver<'a> {
    allocation: &'a Allocation,
    gpus: GpuSet,
    by: Timestamp,
}

impl Leaver<'_> {
    /// What is lost of its GPUs' time if it leaves at that time. One that saves leaves at a checkpoint.
    fn lost(&self, fsm: &Fsm, at: Timestamp) -> u64 {
        let saves = fsm.job(&self.allocation.job).is_some_and(|job| job.spec.checkpoint.is_some());
        match self.allocation.started_at.filter(|_| !saves) {
            Some(began) => at.since(began).0.saturating_mul(u64::from(self.gpus.count_ones())),
            None => 0,
        }
    }
}

/// The nodes that a wish may get by preemption.
pub(super) struct Preempting<'a, 'w> {
    fsm: &'a Fsm,
    wish: &'w Wish<'a>,
    window: Window,
    held: &'a [HeldPlace],
    nodes: BTreeMap<&'a NodeName, Vec<Leaver<'a>>>,
}

impl<'a, 'w> Preempting<'a, 'w> {
    pub(super) fn new(
        fsm: &'a Fsm,
        wish: &'w Wish<'a>,
        window: Window,
        held: &'a [HeldPlace],
    ) -> Self {
        let mut nodes: BTreeMap<&NodeName, Vec<Leaver<'_>>> = BTreeMap::new();
        // Under the storm brake nothing is asked to leave.
        let might = fsm.evictions_frozen().is_none()
            && (fsm.has_open_jobs() || !fsm.classes_below(&ClassName::normal()).is_empty());
        let of_uuids = wish.request.uuids.first().and_then(|uuid| fsm.gpu(uuid));
        let only = wish.request.node.as_ref().or(of_uuids.map(|gpu| &gpu.node));
        for a in fsm.allocations().values().filter(|_| might) {
            let is_other = only.is_some_and(|only| *only != a.node);
            if a.gpus.is_empty() || is_other || wish.apart_from.contains(&a.node) {
                continue;
            }
            let Some(by) = leaves_by(fsm, a) else { continue };
            let Some(node) = fsm.node(&a.node) else { continue };
            let places = a.gpus.iter().filter_map(|uuid| place_of(node, uuid));
            let gpus = places.fold(0, |set, place| set | place);
            nodes.entry(&a.node).or_default().push(Leaver { allocation: a, gpus, by });
        }
        Self { fsm, wish, window, held, nodes }
    }

    /// The place on which least is lost, if enough leaves in time.
    pub(super) fn best(&self) -> Option<(NodeName, Vec<GpuUuid>)> {
        let all = self.nodes.iter().filter_map(|(name, leavers)| {
            let (lost, freed, gpus) = self.place_on(name, leavers)?;
            Some((lost, freed, *name, gpus))
        });
        let (_, _, name, gpus) = all.min_by_key(|(lost, freed, name, _)| (*lost, *freed, *name))?;
        Some((name.clone(), uuids_of(self.fsm.node(name)?, gpus)))
    }

    /// The GPUs of the node that it gets, what is lost by it, and how many GPUs are freed.
    fn place_on(&self, name: &NodeName, leavers: &[Leaver<'a>]) -> Option<(u64, u32, GpuSet)> {
        let starts_at = self.window.starts_at;
        // What is over before that by itself is no loss.
        let matters =
            |l: &&Leaver<'_>| l.by <= starts_at && known_end(self.fsm, l.allocation) > starts_at;
        let mut leavers: Vec<&Leaver<'_>> = leavers.iter().filter(matters).collect();
        let calendar = Calendar::of_node_within(self.fsm, name, &self.window);
        let candidate = self.candidate(name, calendar, &leavers, |by| by)?;
        let good = candidate.free(self.window, Releasing::Taken) & candidate.meant;
        let theirs = leavers.iter().fold(0, |set, leaver| set | leaver.gpus);
        let count = self.wish.request.count;
        leavers.sort_by_cached_key(|leaver| {
            let fit = leaver.gpus.count_ones().abs_diff(count);
            (leaver.lost(self.fsm, starts_at), fit, &leaver.allocation.id)
        });
        let mut set = good & !theirs;
        for leaver in &leavers {
            if set.count_ones() >= count {
                break;
            }
            set |= leaver.gpus & good;
        }
        let gpus = self.fsm.built(candidate.node).topology.pick(set, count)?.set;
        let leaving = leavers.iter().filter(|leaver| leaver.gpus & gpus != 0);
        let (lost, freed) = leaving.fold((0_u64, 0), |(lost, freed), leaver| {
            let more = leaver.lost(self.fsm, starts_at);
            (lost.saturating_add(more), freed + leaver.gpus.count_ones())
        });
        Some((lost, freed, gpus))
    }

    /// The earliest window of the same length that it could get and that begins by `last`, where it gets none now.
    pub(super) fn next_slot(&self, last: Timestamp) -> Option<Slot> {
        let length = self.window.ends_at.since(self.window.starts_at);
        let mut best: Option<Slot> = None;
        for (name, leavers) in &self.nodes {
            let calendar = Calendar::of_nodes(self.fsm, [*name]);
            let leavers: Vec<&Leaver<'_>> = leavers.iter().collect();
            let candidate = self.candidate(name, calendar, &leavers, rounded);
            let Some(candidate) = candidate else { continue };
            for starts_at in candidate.instants(self.window.starts_at) {
                let earlier = best.as_ref().is_none_or(|slot| starts_at < slot.starts_at);
                if !earlier || starts_at > last {
                    break;
                }
                let window = Window { starts_at, ends_at: starts_at + length };
                let free = candidate.free(window, Releasing::Taken) & candidate.meant;
                let topology = &self.fsm.built(candidate.node).topology;
                if let Some(picked) = topology.pick(free, self.wish.request.count) {
                    let gpus = uuids_of(candidate.node, picked.set);
                    best = Some(Slot { starts_at, node: (*name).clone(), gpus });
                    break;
                }
            }
        }
        best
    }

    /// The node as it is where those have left.
    fn candidate(
        &self,
        name: &NodeName,
        calendar: Calendar<'a>,
        leavers: &[&Leaver<'_>],
        when: impl Fn(Timestamp) -> Timestamp,
    ) -> Option<Candidate<'a>> {
        let by: BTreeMap<&AllocationId, Timestamp> =
            leavers.iter().map(|leaver| (&leaver.allocation.id, when(leaver.by))).collect();
        let calendar = calendar.without_those_that_leave(&by).with_held(self.fsm, self.held);
        let node = self.fsm.node(name)?;
        Candidate::of(self.fsm, self.wish, Unleased::Blocks, &calendar, node)
    }
}
