//! Whose work leaves so that a job of a higher class can run, and what is held for that job meanwhile.
//!
//! Called by `next` for the first jobs that found no place, by the FSM for the re-check, and by each plan for what is
//! held. It chooses the work that loses least: what is expected to save soon loses nothing.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::ask::{Ask, Source};
use super::capacity::{Use, Whose, closed};
use super::claims::next_save;
use super::class_limit;
use super::foresight::{Foreseen, foresee};
use super::limits::{JobLimits, Newcomer};
use super::planner::Planner;
use super::shadow::Shadow;
use crate::allocation::Allocation;
use crate::calendar::RELEASE_ALLOWANCE;
use crate::class::Class;
use crate::command::Preempt;
use crate::id::{AllocationId, JobId};
use crate::job::{DEFERRAL_DEFAULT, DEFERRAL_MAX, Job, RANK_NEW};
use crate::name::{ClassName, GpuUuid, NodeName, UserName};
use crate::preemption::{
    PREEMPTIONS_MAX, Preemption, guaranteed_until, has_a_way, is_open, leaves_as_open,
    was_preempted_enough,
};
use crate::reason::Unfit;
use crate::state::Fsm;
use crate::state::charged::is_within_a_reservation;
use crate::state::share::Share;
use crate::state::wish::{GpuSet, place_of, unfit};
use crate::time::{Millis, Timestamp};

/// For how many jobs that found no place a plan looks for work that could leave.
pub(super) const LOOKED_FOR_MAX: usize = 4;
/// While what could leave may not be asked yet, it is looked through again this often, in whole steps of the fleet's time.
const LOOK_AGAIN: Millis = Millis::minutes(1);

/// Why work stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spared {
    /// As long as it and the other job are of these classes, and it is where it is.
    Always,
    /// It has not begun to run.
    NotBegun,
}

/// Whether work may leave for the job, by what it is. One that lost its own place to another does not take a third one's.
pub(super) fn wants_a_place(job: &Job) -> bool {
    let was_preempted = job.queue.rank < RANK_NEW && !job.preempted_at.is_empty();
    job.spec.gpus.count > 0 && job.spec.reservation.is_none() && !was_preempted
}

/// What runs and may have to leave, read once for a plan or a re-check.
pub(crate) struct Running<'a> {
    fsm: &'a Fsm,
    may_leave: Vec<(&'a Allocation, &'a Job)>,
    /// GPUs that jobs of a class and a person hold and do not leave.
    keep: BTreeMap<(&'a ClassName, &'a UserName), u32>,
    /// Of each class, the people with jobs that named no time limit.
    open: BTreeMap<&'a ClassName, BTreeSet<&'a UserName>>,
}

impl<'a> Running<'a> {
    pub(crate) fn of(fsm: &'a Fsm) -> Self {
        let mut this =
            Self { fsm, may_leave: Vec::new(), keep: BTreeMap::new(), open: BTreeMap::new() };
        let mut classes: BTreeMap<&ClassName, Option<Cow<'_, Class>>> = BTreeMap::new();
        for a in fsm.allocations().values() {
            let Some(job) = fsm.job(&a.job) else { continue };
            if a.gpus.is_empty() || a.stop.is_some() || is_within_a_reservation(fsm, a) {
                continue;
            }
            let name = &job.spec.class;
            let class = classes.entry(name).or_insert_with(|| fsm.class(name));
            let Some(class) = class.as_deref() else { continue };
            if !a.leaves_by_class() {
                *this.keep.entry((name, &job.owner)).or_default() += a.gpus.len() as u32;
                if is_open(class, job) {
                    this.open.entry(name).or_default().insert(&job.owner);
                }
            }
            if has_a_way(class, job) || is_open(class, job) {
                this.may_leave.push((a, job));
            }
        }
        this
    }

    /// Whether the owner of `job` would have no more than the owner of `of`, whose job named no time limit, has now: GPUs
    /// that jobs of their class hold. Between classes the class decides.
    pub(crate) fn has_less(&self, job: &Job, of: &Job) -> bool {
        job.spec.class != of.spec.class || self.has_less_than(job, &of.owner)
    }

    fn has_less_than(&self, job: &Job, other: &UserName) -> bool {
        let class = &job.spec.class;
        let keeps = |owner| self.keep.get(&(class, owner)).copied().unwrap_or(0);
        let mine = keeps(&job.owner) + class_limit::awaits(self.fsm, class, &job.owner);
        mine + job.spec.gpus.count <= keeps(other)
    }

    /// Whether somebody's job of the same class may leave for it, because it named no time limit.
    pub(super) fn has_open_ones_for(&self, job: &Job) -> bool {
        let mut people = self.open.get(&job.spec.class).into_iter().flatten();
        people.any(|other| **other != job.owner && self.has_less_than(job, other))
    }
}

/// From when on `job` may take the place of that attempt; of a job of its own class, if its owner [has less](Running::has_less).
pub(crate) fn may_preempt(fsm: &Fsm, job: &Job, a: &Allocation) -> Result<Timestamp, Spared> {
    let of = fsm.job(&a.job).ok_or(Spared::Always)?;
    let (Some(mine), Some(its)) = (fsm.class(&job.spec.class), fsm.class(&of.spec.class)) else {
        return Err(Spared::Always);
    };
    // What leaves for another reason is nobody's to take.
    let leaves = a.stop.is_some() || !a.causes.is_empty() || of.cancel_requested;
    let there = fsm.node(&a.node).is_some_and(|node| closed(node).is_none());
    let by_class = mine.preempts && mine.priority > its.priority && has_a_way(&its, of);
    if !(by_class || leaves_as_open(job, &mine, of, &its))
        || !wants_a_place(job)
        || leaves
        || !there
        || a.gpus.is_empty()
        || is_within_a_reservation(fsm, a)
        || was_preempted_enough(of, fsm.now())
    {
        return Err(Spared::Always);
    }
    guaranteed_until(a, of, &its).ok_or(Spared::NotBegun)
}

/// Why a preemption is over, if it is: with words where the job did not get its place.
#[expect(clippy::option_option, reason = "over with and without words")]
pub(crate) fn is_over(
    fsm: &Fsm,
    id: &JobId,
    preemption: &Preemption,
    limits: &mut JobLimits,
) -> Option<Option<String>> {
    let Some(job) = fsm.job(id).filter(|job| !job.state.is_final()) else { return Some(None) };
    if job.allocation().is_some() {
        return Some(None);
    }
    let said = |why: &str| Some(Some(why.to_owned()));
    if !fsm.is_in_queue(job) {
        return said("it does not wait in the queue");
    }
    if fsm.node(&preemption.node).is_none_or(|node| closed(node).is_some()) {
        return Some(Some(format!("{} takes no work", preemption.node)));
    }
    if let Some(why) = spoilt(fsm, job, preemption) {
        return said(why);
    }
    if limits.reached(fsm, Newcomer::of_job(job)).is_some() {
        return said("a limit of its class or project keeps it from free GPUs");
    }
    let may_leave = |id: &AllocationId| {
        let attempt = fsm.allocation(id).filter(|a| a.stop.is_none());
        let Some((a, of)) = attempt.and_then(|a| Some((a, fsm.job(&a.job)?))) else { return true };
        let class = |job: &Job| fsm.class(&job.spec.class);
        class(job).zip(class(of)).is_some_and(|(mine, its)| {
            let guaranteed = guaranteed_until(a, of, &its).is_none_or(|until| until > fsm.now());
            let by_class = mine.preempts && mine.priority > its.priority && has_a_way(&its, of);
            (by_class || leaves_as_open(job, &mine, of, &its)) && !guaranteed
        })
    };
    if !preemption.victims.keys().all(may_leave) {
        return said("by their classes the others do not leave for it any more");
    }
    if fsm.now() >= preemption.held_until {
        return said("it did not start on the place that was freed");
    }
    None
}

/// Why the job cannot start on the place whatever leaves it.
fn spoilt(fsm: &Fsm, job: &Job, place: &Preemption) -> Option<&'static str> {
    let node = fsm.node(&place.node)?;
    let broken = place.gpus.iter().any(|uuid| match fsm.gpu(uuid) {
        None => true,
        Some(gpu) => unfit(node, gpu).is_some_and(|unfit| !matches!(unfit.why, Unfit::InUse(_))),
    });
    if broken {
        return Some("a GPU of its place takes no work");
    }
    let until = place.starts_at.max(fsm.now()) + job.time_left() + job.spec.stop_grace;
    let hits = |from: Timestamp, gpus: &[GpuUuid]| {
        from < until && gpus.iter().any(|uuid| place.gpus.contains(uuid))
    };
    let mut there = fsm.open_reservations_on(&place.node);
    let mut coming = fsm.reservations_coming_to(&place.node);
    let promised = there.any(|r| hits(r.window.starts_at, &r.gpus))
        || coming.any(|(_, next)| hits(next.window.starts_at, &next.gpus));
    promised.then_some("a GPU of its place is reserved before its end")
}

/// Work that could leave.
struct Victim<'a> {
    allocation: &'a Allocation,
    gpus: GpuSet,
    share: Share,
    /// What is lost of its GPUs' time if it leaves.
    lost: Millis,
    /// Until when it is waited for to save.
    limit: Timestamp,
    /// When it has left, if all is as expected.
    left: Timestamp,
    times: usize,
}

impl<'a> Victim<'a> {
    fn new(fsm: &'a Fsm, allocation: &'a Allocation) -> Option<Self> {
        let (now, job) = (fsm.now(), fsm.job(&allocation.job)?);
        let class = fsm.class(&job.spec.class)?;
        let node = fsm.node(&allocation.node)?;
        let gpus = allocation.gpus.iter().filter_map(|uuid| place_of(node, uuid));
        let last = job.newest_saved().filter(|saved| saved.allocation == allocation.id);
        let since = last.map(|saved| saved.completed_at).or(allocation.started_at)?;
        let saves = job.spec.checkpoint.is_some();
        // Its time is over then, and its owner may still name a limit.
        let is_given_notice = !saves && !has_a_way(&class, job);
        // As long as its deferral has time at all.
        let budget = job.spec.max_deferral.unwrap_or(DEFERRAL_DEFAULT).min(DEFERRAL_MAX);
        let own = budget.saturating_sub(allocation.deferral_spent).min(class.save_limit);
        let limit = if saves || is_given_notice { now + own } else { now };
        let expected = next_save(job, now).map(|(_, latest)| latest).filter(|at| *at <= limit);
        let lost = match expected {
            Some(_) => Millis::ZERO,
            None => limit.since(since),
        };
        Some(Self {
            allocation,
            gpus: gpus.fold(0, |set, place| set | place),
            share: Share {
                cpu_millis: allocation.cpu_millis,
                memory_bytes: allocation.memory_bytes,
            },
            lost,
            limit,
            left: expected.unwrap_or(limit) + job.spec.stop_grace + RELEASE_ALLOWANCE,
            times: job.preempted_at.len(),
        })
    }

    fn count(&self) -> u32 {
        self.gpus.count_ones()
    }

    /// What loses least comes first, then what frees least beside what is needed.
    fn key(&self, needed: u32) -> (u64, u32, Timestamp, usize, Reverse<Option<Timestamp>>) {
        let lost = self.lost.0.saturating_mul(u64::from(self.count()));
        let surplus = self.count().saturating_sub(needed);
        (lost, surplus, self.left, self.times, Reverse(self.allocation.started_at))
    }
}

/// What a plan says of preemption.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) order: Option<Preempt>,
    /// When it may come out differently although nothing happens.
    pub(super) look_at: Option<Timestamp>,
}

/// For the first of these jobs, none of which found a place, for which something can leave.
pub(super) fn choose<'a>(
    planner: &mut Planner<'a>,
    fsm: &'a Fsm,
    running: Option<&Running<'a>>,
    blocked: &[&'a Job],
) -> Choice {
    let mut choice = Choice::default();
    let Some(running) = running else { return choice };
    if fsm.preemptions().len() >= PREEMPTIONS_MAX || fsm.evictions_frozen().is_some() {
        return choice;
    }
    for job in blocked.iter().filter(|job| !fsm.preemptions().contains_key(&job.id)) {
        let ask = Ask::of_job(&planner.capacity, job);
        if ask.source != Source::Anywhere || ask.count() == 0 {
            continue;
        }
        let (by_node, look_at) = victims(fsm, running, job);
        choice.look_at = choice.look_at.into_iter().chain(look_at).min();
        choice.order = cheapest(planner, &ask, job, by_node);
        if choice.order.is_some() {
            break;
        }
    }
    choice
}

type ByNode<'a> = BTreeMap<&'a NodeName, Vec<Victim<'a>>>;

/// What may leave now for the job, and when that changes by time alone.
fn victims<'a>(fsm: &'a Fsm, running: &Running<'a>, job: &Job) -> (ByNode<'a>, Option<Timestamp>) {
    let (now, mut by_node, mut look_at) = (fsm.now(), ByNode::new(), None::<Timestamp>);
    // In whole steps, so that it stays what it is while plans follow each other.
    let next_look = Timestamp((now.0 / LOOK_AGAIN.0 + 1) * LOOK_AGAIN.0);
    let running = running.may_leave.iter().filter(|(_, of)| running.has_less(job, of));
    for (allocation, _) in running {
        let again = match may_preempt(fsm, job, allocation) {
            Ok(from) if from <= now => {
                let victim = Victim::new(fsm, allocation);
                by_node.entry(&allocation.node).or_default().extend(victim);
                continue;
            }
            // It may save before that.
            Ok(from) => from.min(next_look),
            Err(Spared::NotBegun) => next_look,
            Err(Spared::Always) => continue,
        };
        look_at = Some(look_at.map_or(again, |at| at.min(again)));
    }
    (by_node, look_at)
}

/// Of all nodes, where least is lost.
fn cheapest(
    planner: &mut Planner<'_>,
    ask: &Ask<'_>,
    job: &Job,
    by_node: ByNode<'_>,
) -> Option<Preempt> {
    let mut best: Option<(_, Preempt)> = None;
    for (name, victims) in by_node {
        let Some(at) = planner.capacity.position(name) else { continue };
        let Some(leaving) = leaving(planner, ask, at, victims) else { continue };
        let Leaving { gpus, victims } = leaving;
        let lost: u64 = victims.iter().map(|v| v.lost.0.saturating_mul(u64::from(v.count()))).sum();
        let freed: u32 = victims.iter().map(Victim::count).sum();
        let starts_at = victims.iter().map(|v| v.left).max()?;
        let rank = (lost, freed, victims.len(), starts_at);
        if best.as_ref().is_some_and(|(least, _)| *least <= rank) {
            continue;
        }
        let node = &planner.capacity.nodes[at];
        let order = Preempt {
            job: job.id.clone(),
            node: name.clone(),
            gpus: node.uuids(gpus),
            starts_at,
            victims: victims.iter().map(|v| (v.allocation.id.clone(), v.limit)).collect(),
        };
        best = Some((rank, order));
    }
    let (_, order) = best?;
    // What starts as soon by itself needs nobody's place.
    let known = planner.expected(&job.id).copied();
    let by_itself = known.or_else(|| foresee(&mut planner.capacity, ask));
    by_itself.is_none_or(|foreseen| foreseen.starts_at > order.starts_at).then_some(order)
}

/// What leaves a node so that the job fits there, and the GPUs that it gets then.
struct Leaving<'a> {
    gpus: GpuSet,
    victims: Vec<Victim<'a>>,
}

fn leaving<'v>(
    planner: &mut Planner<'_>,
    ask: &Ask<'_>,
    at: usize,
    mut victims: Vec<Victim<'v>>,
) -> Option<Leaving<'v>> {
    let node = &planner.capacity.nodes[at];
    if node.closed.is_some() || !ask.admits(node) {
        return None;
    }
    // The limit is the latest start that can come of it.
    let latest = victims.iter().map(|v| v.limit.max(v.left)).max()?;
    let until = latest + ask.length + ask.spec.stop_grace;
    let kept = planner.kept_until(ask, until, at).fold(0, |set, kept| set | kept.gpus);
    let good = ask.meant(node) & node.healthy & node.unpromised(until) & !kept;
    let free = good & node.free;
    victims.retain(|victim| victim.gpus & good != 0);
    let needed = ask.count().saturating_sub(free.count_ones());
    victims.sort_by_key(|victim| victim.key(needed));
    let (mut set, mut chosen) = (free, Vec::new());
    for victim in victims {
        if set.count_ones() >= ask.count() {
            break;
        }
        set |= victim.gpus & good;
        chosen.push(victim);
    }
    // What loses most stays, if the others free enough.
    for place in (0..chosen.len()).rev() {
        let without = chosen.iter().enumerate().filter(|(other, _)| *other != place);
        let without = without.fold(free, |set, (_, victim)| set | victim.gpus & good);
        if without.count_ones() >= ask.count() {
            chosen.remove(place);
            set = without;
        }
    }
    let gpus = planner.capacity.nodes[at].pick(set, ask.count())?.set;
    chosen.retain(|victim| victim.gpus & gpus != 0);
    let node = &planner.capacity.nodes[at];
    let mut room = node.room;
    let freed = chosen.iter().fold(0, |set, victim| set | victim.gpus);
    for victim in &chosen {
        room.give_back(victim.count(), victim.share);
    }
    ask.granted(node, &room, node.idle | freed)?;
    (!chosen.is_empty()).then_some(Leaving { gpus, victims: chosen })
}

/// The node and the GPUs that are freed for the job.
pub(super) fn place_of_job(planner: &Planner<'_>, fsm: &Fsm, job: &Job) -> Option<(usize, GpuSet)> {
    let place = fsm.preemptions().get(&job.id)?;
    let at = planner.capacity.position(&place.node)?;
    let node = planner.capacity.nodes[at].node;
    let gpus = place.gpus.iter().filter_map(|uuid| place_of(node, uuid));
    Some((at, gpus.fold(0, |set, place| set | place)))
}

/// Holds what was freed, or will be, for the jobs that it is freed for: others may run there if they end before.
pub(super) fn hold_places<'a>(planner: &mut Planner<'a>, fsm: &'a Fsm) {
    for (id, preemption) in fsm.preemptions() {
        let Some(job) = fsm.job(id) else { continue };
        let Some((at, gpus)) = place_of_job(planner, fsm, job) else { continue };
        let ask = Ask::of_job(&planner.capacity, job);
        let node = &planner.capacity.nodes[at];
        let least = ask.least(node);
        let mut left = node.room;
        for victim in preemption.victims.keys().filter_map(|id| fsm.allocation(id)) {
            let share = Share { cpu_millis: victim.cpu_millis, memory_bytes: victim.memory_bytes };
            left.give_back(victim.gpus.len() as u32, share);
        }
        left.take(ask.count(), least);
        let starts_at = preemption.starts_at.max(fsm.now());
        let until = starts_at + ask.length + ask.spec.stop_grace;
        planner.claims.add(Shadow { job: Some(id.clone()), node: at, starts_at, gpus, left });
        let held = Use { whose: Whose::Job, from: starts_at, until, gpus, share: least };
        planner.capacity.nodes[at].plan(held);
        let foreseen = Foreseen { starts_at, node: at, gpus, share: least, least, left };
        planner.expect(id, foreseen);
    }
}

/// The jobs that something leaves for, the earliest first.
pub(super) fn waiting(fsm: &Fsm) -> Vec<&Job> {
    let mut all: Vec<(Timestamp, &Job)> = fsm
        .preemptions()
        .iter()
        .filter_map(|(id, preemption)| Some((preemption.since, fsm.job(id)?)))
        .filter(|(_, job)| fsm.is_in_queue(job))
        .collect();
    all.sort_by_key(|(since, job)| (*since, job.queue.submitted));
    all.into_iter().map(|(_, job)| job).collect()
}

/// The jobs whose attempts leave.
pub(super) fn leaving_jobs(fsm: &Fsm, preemption: &Preemption) -> Vec<JobId> {
    let all = preemption.victims.keys().filter_map(|id| fsm.allocation(id));
    all.map(|a| a.job.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}
