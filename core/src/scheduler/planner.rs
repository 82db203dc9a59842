//! Serves the queue: places what fits, and keeps the places of the first jobs that wait free for them (backfill).
//!
//! Called by `plan`, `explain`, `could_start_now` and `elsewhere`. Within one plan capacity only
//! shrinks, so what was refused once is refused again without looking.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::ask::{Ask, Shape, Source};
use super::capacity::{Capacity, Use, Whose};
use super::foresight::{Foreseen, foresee};
use super::reasons;
use super::shadow::{Shadow, Shadows};
use crate::command::Placement;
use crate::id::JobId;
use crate::name::UserName;
use crate::reason::{Wait, WaitReason};
use crate::state::share::Share;
use crate::state::topology::Spread;
use crate::state::wish::GpuSet;
use crate::time::{Millis, Timestamp};

/// Of how many waiting jobs a plan says when they could start; `explain` says it of any.
pub const FORESEEN_JOBS_MAX: u32 = 64;
/// Most lines of one plan: they become one log entry. What is left comes with the next plan.
pub const PLACEMENTS_MAX: usize = 2_000;

/// Where a job goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    pub(super) node: usize,
    pub(super) gpus: GpuSet,
    /// The reservation's pool its GPUs come from.
    pub(super) pool: Option<usize>,
    pub(super) share: Share,
}

/// What became of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Served {
    Placed(Fit),
    Waits { reason: Wait, earliest: Option<Timestamp> },
}

enum Decision<'a> {
    Placed(Fit),
    Refused { shape: Shape<'a>, foreseen: Option<Foreseen> },
}

/// Whether somebody wants to know why jobs wait whose places are kept. What starts is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasons {
    Wanted,
    Unwanted,
}

#[derive(Debug)]
pub(super) struct Planner<'a> {
    pub(super) capacity: Capacity<'a>,
    /// The places of the first jobs that wait, in their order.
    pub(super) kept: Shadows,
    /// Whose jobs those are.
    kept_for: BTreeSet<&'a UserName>,
    /// Jobs whose places were kept before.
    known: BTreeSet<&'a JobId>,
    /// What was foreseen of jobs while the queue was served: their places are noted already.
    expected: BTreeMap<&'a JobId, Foreseen>,
    /// Places that are held for running jobs that must leave theirs.
    pub(super) claims: Shadows,
    refused: BTreeMap<Shape<'a>, Wait>,
    /// Shapes for which no start is known: nothing that is given away makes one known.
    unforeseen: BTreeSet<Shape<'a>>,
    /// Of asks that differ only in their length, the shortest that was refused: its length and when it would be gone.
    too_long: BTreeMap<Shape<'a>, (Millis, Timestamp)>,
    foreseen: u32,
    placed: usize,
    /// For how many jobs places are kept.
    pub(super) kept_max: usize,
    reasons: Reasons,
}

impl<'a> Planner<'a> {
    pub(super) fn new(capacity: Capacity<'a>, reasons: Reasons) -> Self {
        let fsm = capacity.fsm;
        let kept_max = fsm.job_defaults().places_kept as usize;
        Self {
            capacity,
            kept: Shadows::default(),
            kept_for: BTreeSet::new(),
            known: fsm.kept_places().map(|kept| &kept.job).collect(),
            unforeseen: BTreeSet::new(),
            expected: BTreeMap::new(),
            claims: Shadows::default(),
            refused: BTreeMap::new(),
            too_long: BTreeMap::new(),
            foreseen: 0,
            placed: 0,
            kept_max,
            reasons,
        }
    }

    /// Places the job if it can start now, and says why not otherwise.
    pub(super) fn serve(&mut self, ask: &Ask<'a>) -> Served {
        if let Source::Shut(shut) = &ask.source {
            let reason = WaitReason::Reservation(shut.reservation.clone()).alone();
            return Served::Waits { reason, earliest: shut.opens_at };
        }
        if self.placed >= PLACEMENTS_MAX {
            return Served::Waits { reason: WaitReason::NextPlan.alone(), earliest: None };
        }
        match self.decide(ask, FORESEEN_JOBS_MAX) {
            Decision::Placed(fit) => Served::Placed(fit),
            Decision::Refused { shape, foreseen } => {
                let reason = self.refused.get(&shape).cloned();
                let reason = reason.unwrap_or_else(|| WaitReason::NextPlan.alone());
                Served::Waits { reason, earliest: foreseen.map(|f| f.starts_at) }
            }
        }
    }

    /// As `serve` for those who only start what fits: of the jobs that wait it looks ahead for those
    /// whose places are kept, and for no other. Callers stop when it [`Self::is_spent`].
    pub(super) fn start(&mut self, ask: &Ask<'a>) -> Option<Fit> {
        if matches!(ask.source, Source::Shut(_)) {
            return None;
        }
        match self.decide(ask, 0) {
            Decision::Placed(fit) => Some(fit),
            Decision::Refused { .. } => None,
        }
    }

    /// On exactly these GPUs of a node, if they are free for it. What was refused to others of its shape says nothing of a
    /// job that has a place of its own.
    pub(super) fn start_at_its_place(
        &mut self,
        ask: &Ask<'a>,
        at: usize,
        gpus: GpuSet,
    ) -> Option<Fit> {
        let node = &self.capacity.nodes[at];
        let free = gpus & !(self.usable(ask, at) & ask.meant(node)) == 0;
        let fits = free && gpus.count_ones() == ask.count();
        if !fits || node.closed.is_some() || !ask.admits(node) {
            return None;
        }
        let fit = Fit { node: at, gpus, pool: None, share: self.share_on(ask, at, None)? };
        self.take(ask, &fit);
        Some(fit)
    }

    /// When a job is expected to start, where the plan has looked for that.
    pub(super) fn expected(&self, job: &JobId) -> Option<&Foreseen> {
        self.expected.get(job)
    }

    /// As `start`, on what the owner has reserved and on no other GPU.
    pub(super) fn start_in_own_pool(&mut self, ask: &Ask<'a>) -> Option<Fit> {
        let free = ask.source == Source::Anywhere && ask.count() > 0;
        let fit = free.then(|| self.in_own_pools(ask))??;
        self.take(ask, &fit);
        Some(fit)
    }

    /// No job of any kind can be placed any more.
    pub(super) fn is_spent(&self) -> bool {
        self.placed >= PLACEMENTS_MAX
            || self.capacity.nodes.iter().all(|n| n.closed.is_some() || n.room.all.cpu_millis == 0)
    }

    fn decide(&mut self, ask: &Ask<'a>, foreseen_max: u32) -> Decision<'a> {
        let shape = ask.shape();
        let never = self.refused.get(&shape).map(Wait::is_forever);
        if never.is_none() && !self.is_too_long(ask) {
            if let Some(fit) = self.find(ask) {
                self.take(ask, &fit);
                return Decision::Placed(fit);
            }
            self.too_long.insert(ask.shape_of_any_length(), (ask.length, ask.until));
        }
        // Nobody asks why or when, and no place is kept for it.
        if foreseen_max == 0 && !self.may_keep(ask) {
            return Decision::Refused { shape, foreseen: None };
        }
        let foreseen = self.look_ahead(ask, &shape, never == Some(true), foreseen_max);
        if never.is_none() && self.reasons == Reasons::Wanted {
            let wait = reasons::wait(self, ask, foreseen.as_ref());
            self.refused.insert(shape.clone(), wait);
        }
        if let Some(foreseen) = &foreseen {
            self.keep_place(ask, foreseen);
        }
        Decision::Refused { shape, foreseen }
    }

    /// Whether the same was refused for a shorter time: within one plan nothing comes back.
    fn is_too_long(&self, ask: &Ask<'a>) -> bool {
        let shorter =
            |(length, until): &(Millis, Timestamp)| *length <= ask.length && *until <= ask.until;
        self.too_long.get(&ask.shape_of_any_length()).is_some_and(shorter)
    }

    /// Why a job waits that was refused before, and when it could start.
    pub(super) fn wait(&mut self, ask: &Ask<'a>) -> (Wait, Option<Timestamp>) {
        match self.serve(ask) {
            Served::Placed(_) => (WaitReason::NextPlan.alone(), Some(self.capacity.fsm.now())),
            Served::Waits { reason, earliest } => (reason, earliest),
        }
    }

    /// As `wait`, with the estimate of its start even where the plan would leave it out.
    pub(super) fn wait_in_full(&mut self, ask: &Ask<'a>) -> (Wait, Option<Timestamp>) {
        self.foreseen = 0;
        self.wait(ask)
    }

    /// The line of the plan that a fit stands for.
    pub(super) fn placement(&self, job: &JobId, fit: &Fit) -> Placement {
        let node = &self.capacity.nodes[fit.node];
        Placement {
            job: job.clone(),
            node: node.node.name.clone(),
            gpus: node.uuids(fit.gpus),
            cpu_millis: fit.share.cpu_millis,
            memory_bytes: fit.share.memory_bytes,
        }
    }

    /// The best place for the job now, if there is one.
    pub(super) fn find(&mut self, ask: &Ask<'_>) -> Option<Fit> {
        match ask.source {
            Source::Shut(_) => None,
            Source::Pool(pool) if ask.count() == 0 => {
                self.beside(ask, self.capacity.pools[pool].node, Some(pool))
            }
            Source::Pool(pool) => self.in_pool(ask, pool).map(|(_, fit)| fit),
            Source::Anywhere if ask.count() == 0 => self.without_gpu(ask),
            Source::Anywhere => self.in_own_pools(ask).or_else(|| self.on_free_gpus(ask)),
        }
    }

    /// The job's share of the node, if that is free and the kept place stays untouched. A
    /// reservation is a promise already: what runs within it waits for nobody's place.
    fn share_on(&self, ask: &Ask<'_>, at: usize, within: Option<usize>) -> Option<Share> {
        let node = &self.capacity.nodes[at];
        let kept = self.kept(ask, at).filter(|_| within.is_none());
        let room = kept.fold(node.room, |room, kept| room.min(&kept.left));
        ask.granted(node, &room, node.idle)
    }

    /// GPUs of the node that the job could hold from now to its end.
    pub(super) fn usable(&self, ask: &Ask<'_>, at: usize) -> GpuSet {
        let node = &self.capacity.nodes[at];
        let usable = node.free & node.unpromised(ask.until);
        self.kept(ask, at).fold(usable, |usable, kept| usable & !kept.gpus)
    }

    /// The places on the node that are kept for others and would be in this job's way.
    fn kept(&self, ask: &Ask<'_>, at: usize) -> impl Iterator<Item = &Shadow> {
        self.kept_until(ask, ask.until, at)
    }

    /// The same for a job that ends by `until`.
    pub(super) fn kept_until<'s>(
        &'s self,
        ask: &Ask<'_>,
        until: Timestamp,
        at: usize,
    ) -> impl Iterator<Item = &'s Shadow> {
        let on_it = |shadows: &'s Shadows| shadows.any_on(at).then(|| shadows.iter());
        let kept = on_it(&self.kept).into_iter().chain(on_it(&self.claims)).flatten();
        kept.filter(move |kept| kept.is_in_the_way(ask.job, until, at))
    }

    /// The places of other waiting jobs on the node that would be in this job's way, with their numbers in `kept`.
    pub(super) fn places_in_the_way(
        &self,
        ask: &Ask<'_>,
        at: usize,
    ) -> impl Iterator<Item = (usize, &Shadow)> {
        let kept = self.kept.iter().enumerate();
        kept.filter(move |(_, kept)| kept.is_in_the_way(ask.job, ask.until, at))
    }

    /// The start of a job is known without looking ahead.
    pub(super) fn expect(&mut self, job: &'a JobId, foreseen: Foreseen) {
        self.expected.insert(job, foreseen);
    }

    fn on_free_gpus(&mut self, ask: &Ask<'_>) -> Option<Fit> {
        let count = ask.count();
        let mut best: Option<((bool, u32, Spread), Fit)> = None;
        for at in 0..self.capacity.nodes.len() {
            let node = &self.capacity.nodes[at];
            if node.free.count_ones() < count || node.closed.is_some() || !ask.admits(node) {
                continue;
            }
            let usable = self.usable(ask, at);
            let Some(left) = usable.count_ones().checked_sub(count) else { continue };
            let ailing = node.is_ailing();
            if best.as_ref().is_some_and(|((ails, least, _), _)| (ailing, left) > (*ails, *least)) {
                continue;
            }
            let eligible = usable & ask.meant(node);
            let Some(share) = self.share_on(ask, at, None) else { continue };
            let Some(picked) = self.capacity.nodes[at].pick(eligible, count) else { continue };
            let rank = (ailing, left, picked.spread);
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, Fit { node: at, gpus: picked.set, pool: None, share }));
            }
        }
        best.map(|(_, fit)| fit)
    }

    /// The owner's own reservations come first where the job fits before their end; a job that names no
    /// time limit lives as long as the reservation.
    fn in_own_pools(&mut self, ask: &Ask<'_>) -> Option<Fit> {
        let now = self.capacity.fsm.now();
        let fits_in_time = |at: &usize| {
            !ask.spec.time_limit_given
                || now + ask.length <= self.capacity.pools[*at].reservation.window.ends_at
        };
        let own = self.capacity.pools_of(ask.owner).iter().copied();
        let pools: Vec<usize> = own.filter(fits_in_time).collect();
        let fits = pools.into_iter().filter_map(|pool| self.in_pool(ask, pool));
        fits.min_by_key(|(rank, _)| *rank).map(|(_, fit)| fit)
    }

    fn in_pool(&mut self, ask: &Ask<'_>, at: usize) -> Option<((u32, Timestamp, Spread), Fit)> {
        let pool = &self.capacity.pools[at];
        let node = &self.capacity.nodes[pool.node];
        if node.closed.is_some() || !ask.admits(node) {
            return None;
        }
        let share = self.share_on(ask, pool.node, Some(at))?;
        let eligible = pool.free & ask.meant(node);
        let left = pool.free.count_ones().checked_sub(ask.count())?;
        let (node, ends_at) = (pool.node, pool.reservation.window.ends_at);
        let picked = self.capacity.nodes[node].pick(eligible, ask.count())?;
        let fit = Fit { node, gpus: picked.set, pool: Some(at), share };
        Some(((left, ends_at, picked.spread), fit))
    }

    fn beside(&self, ask: &Ask<'_>, at: usize, within: Option<usize>) -> Option<Fit> {
        let node = &self.capacity.nodes[at];
        if node.closed.is_some() || !ask.admits(node) {
            return None;
        }
        let share = self.share_on(ask, at, within)?;
        Some(Fit { node: at, gpus: 0, pool: None, share })
    }

    /// Away from the GPUs: nodes without any first, then those with the fewest free, then the
    /// fullest.
    fn without_gpu(&self, ask: &Ask<'_>) -> Option<Fit> {
        (0..self.capacity.nodes.len()).filter_map(|at| self.beside(ask, at, None)).min_by_key(
            |fit| {
                let node = &self.capacity.nodes[fit.node];
                (
                    node.is_ailing(),
                    node.gpus() > 0,
                    node.free.count_ones(),
                    node.room.all.cpu_millis,
                )
            },
        )
    }

    /// Uses up what a job got.
    fn take(&mut self, ask: &Ask<'_>, fit: &Fit) {
        self.placed += 1;
        let now = self.capacity.fsm.now();
        match fit.pool {
            Some(pool) => self.capacity.pools[pool].free &= !fit.gpus,
            None => self.capacity.nodes[fit.node].free &= !fit.gpus,
        }
        let (count, gpus, share) = (ask.count(), fit.gpus, fit.share);
        let node = &mut self.capacity.nodes[fit.node];
        node.room.take(count, share);
        node.idle &= !gpus;
        let whose = Whose::Job;
        // A reservation's end stops what runs in it.
        let ends_at = fit.pool.map(|pool| self.capacity.pools[pool].reservation.window.ends_at);
        let until = ends_at.map_or(ask.until, |end| ask.until.min(end + ask.spec.stop_grace));
        node.plan(Use { whose, from: now, until, gpus, share });
        for kept in self.kept.iter_mut().chain(self.claims.iter_mut()) {
            if kept.node == fit.node && ask.until > kept.starts_at {
                kept.left.take(count, share);
            }
        }
    }

    /// Holds the first place that fits for a running job that must leave, from when it is free and the job is expected
    /// to save: others may run there if they end before.
    pub(super) fn claim(&mut self, ask: &Ask<'a>, from: Timestamp) -> Option<&Shadow> {
        let foreseen = foresee(&mut self.capacity, ask)?;
        let starts_at = foreseen.starts_at.max(from);
        self.claims.add(Shadow {
            job: ask.job.cloned(),
            node: foreseen.node,
            starts_at,
            gpus: foreseen.gpus,
            left: foreseen.left,
        });
        // The start that others see foreseen for their jobs takes this place into account.
        self.capacity.nodes[foreseen.node].plan(Use {
            whose: Whose::Job,
            from: starts_at,
            until: starts_at + ask.length + ask.spec.stop_grace,
            gpus: foreseen.gpus,
            share: foreseen.least,
        });
        self.claims.last()
    }

    /// Whether a place is kept for the job if its start can be foreseen. One of each person: else the long list of one
    /// would keep all places. Who has a place keeps it also when another job of theirs comes before it, as one that was
    /// interrupted does.
    fn may_keep(&self, ask: &Ask<'_>) -> bool {
        let is_their_first = || {
            !self.kept_for.contains(ask.owner)
                || ask.job.is_some_and(|job| self.known.contains(job))
        };
        ask.source == Source::Anywhere && !self.keeps_enough() && is_their_first()
    }

    /// Places are kept for as many jobs as the fleet keeps them for.
    pub(super) fn keeps_enough(&self) -> bool {
        self.kept.len() >= self.kept_max
    }

    fn look_ahead(
        &mut self,
        ask: &Ask<'a>,
        shape: &Shape<'a>,
        never: bool,
        max: u32,
    ) -> Option<Foreseen> {
        if let Some(known) = ask.job.and_then(|job| self.expected.get(job)) {
            return Some(*known);
        }
        let spent = self.foreseen >= max && !self.may_keep(ask);
        if never || spent || self.unforeseen.contains(shape) {
            return None;
        }
        self.foreseen += 1;
        let foreseen = foresee(&mut self.capacity, ask);
        if foreseen.is_none() {
            self.unforeseen.insert(shape.clone());
        }
        foreseen
    }

    /// Notes where the job is expected, for the estimates of later ones; the first ones' places are kept for them.
    fn keep_place(&mut self, ask: &Ask<'a>, foreseen: &Foreseen) {
        if let Some(job) = ask.job
            && self.expected.insert(job, *foreseen).is_some()
        {
            return;
        }
        if self.may_keep(ask) {
            self.kept_for.insert(ask.owner);
            self.kept.add(Shadow {
                job: ask.job.cloned(),
                node: foreseen.node,
                starts_at: foreseen.starts_at,
                gpus: foreseen.gpus,
                left: foreseen.left,
            });
        }
        let length = ask.length + ask.spec.stop_grace;
        self.capacity.nodes[foreseen.node].plan(Use {
            whose: Whose::Job,
            from: foreseen.starts_at,
            until: foreseen.starts_at + length,
            gpus: foreseen.gpus,
            share: foreseen.share,
        });
    }

    /// The pools of the owner, those with the most time left first.
    pub(super) fn own_pools(&self, ask: &Ask<'_>) -> Vec<usize> {
        let mut own = self.capacity.pools_of(ask.owner).to_vec();
        own.sort_by_key(|at| Reverse(self.capacity.pools[*at].reservation.window.ends_at));
        own
    }
}
