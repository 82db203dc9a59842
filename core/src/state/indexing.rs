//! Keeps the calendar's index, and what each node has to give, up to date with the state.
//!
//! Called once behind each command, and within those that book many reservations. Each change marks its node; this
//! module checks the marked nodes again. In between, a caller that asks the index checks the marked nodes itself.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Fsm;
use super::built::Built;
use super::claims::Claim;
use super::contents::Contents;
use super::index::{Entry, Index};
use super::standing::Standing;
use crate::allocation::Allocation;
use crate::class::Preemptible;
use crate::id::{JobId, ReservationId};
use crate::job::Job;
use crate::name::{ClassName, NodeName};
use crate::node::Node;
use crate::reservation::{Reservation, ReservationState};

/// Whether a job named a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    Named,
    Open,
}

fn kind(job: &Job) -> (ClassName, Limit) {
    let limit = if job.spec.time_limit_given { Limit::Named } else { Limit::Open };
    (job.spec.class.clone(), limit)
}

impl Fsm {
    /// Looks again at the nodes where something changed.
    pub(crate) fn settle_index(&mut self) {
        let mut built = self.nodes.take_touched();
        built.append(&mut self.gpus.take_touched());
        let mut nodes = built.clone();
        nodes.append(&mut self.leases.take_touched());
        nodes.append(&mut self.allocations.take_touched());
        nodes.append(&mut self.reservations.take_touched());
        if self.index.is_empty() && !nodes.is_empty() {
            self.derive_all();
            return;
        }
        // Out of the state while they read the state.
        let mut index = std::mem::take(&mut self.index);
        let mut standings = std::mem::take(&mut self.standings);
        for name in &nodes {
            let Some(node) = self.nodes.get(name) else {
                standings.remove(name);
                index.set(name, None);
                continue;
            };
            let known = standings.get_mut(name);
            let contents = match known.as_ref().filter(|_| !built.contains(name)) {
                Some(known) => Contents::with(self, node, Arc::clone(&known.built)),
                None => Contents::of(self, node),
            };
            let standing = Standing::with(self, &contents);
            match known {
                Some(known) => *known = standing,
                None => drop(standings.insert(name.clone(), standing)),
            }
            index.set(name, Some(Entry::with(self, &contents)));
        }
        (self.index, self.standings) = (index, standings);
    }

    /// Of a state that was read back, or of a fleet's first nodes.
    fn derive_all(&mut self) {
        let contents: Vec<Contents<'_>> =
            self.nodes.values().map(|node| Contents::of(self, node)).collect();
        let standing = |of: &Contents<'_>| (of.node.name.clone(), Standing::with(self, of));
        let standings = contents.iter().map(standing).collect();
        let entries = contents.iter().map(|of| (&of.node.name, Entry::with(self, of)));
        let index = Index::with(entries);
        (self.index, self.standings) = (index, standings);
    }

    /// One more reservation in a state that is settled, and that nothing but reservations is added to: its node is not
    /// checked again, which would take longer with each reservation on it.
    pub(crate) fn book_on_trial(&mut self, reservation: Reservation) {
        if let Some(node) = self.nodes.get(&reservation.node) {
            self.index.add(node, &reservation.gpus, reservation.window);
            if let Some(standing) = self.standings.get_mut(&node.name) {
                standing.promise(node, &reservation.gpus, reservation.window.starts_at);
            }
        }
        self.reservations.insert(reservation);
        self.reservations.take_touched();
    }

    /// Takes back what was booked on trial; the next [`Self::settle_index`] checks its node again.
    pub(crate) fn unbook_trial(&mut self, id: &ReservationId) {
        self.reservations.remove(id);
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// What the node is made of. It is known while only reservations, leases and attempts changed on it.
    pub(crate) fn built(&self, node: &Node) -> Arc<Built> {
        let changed =
            self.nodes.touched().contains(&node.name) || self.gpus.touched().contains(&node.name);
        match self.standings.get(&node.name).filter(|_| !changed) {
            Some(known) => Arc::clone(&known.built),
            None => Arc::new(Built::of(self, node)),
        }
    }

    /// What each node has to give, as far as only commands change it; in name order.
    pub(crate) fn all_standings(&self) -> impl Iterator<Item = (&Node, Cow<'_, Standing>)> {
        // Both are in name order, so none has to be searched.
        let mut known = self.standings.iter().peekable();
        self.nodes.values().map(move |node| {
            while known.next_if(|(name, _)| **name < node.name).is_some() {}
            let standing = known.next_if(|(name, _)| **name == node.name);
            (node, self.known_or_new(node, standing.map(|(_, standing)| standing)))
        })
    }

    fn known_or_new<'a>(&'a self, node: &Node, known: Option<&'a Standing>) -> Cow<'a, Standing> {
        match known.filter(|_| !self.is_unsettled(&node.name)) {
            Some(standing) => Cow::Borrowed(standing),
            None => {
                let contents = Contents::with(self, node, self.built(node));
                Cow::Owned(Standing::with(self, &contents))
            }
        }
    }

    /// The GPUs of the node that are taken, from when until when, where the index knows it all at this time; `near` is
    /// the node's place among all, or any other.
    pub(crate) fn certain_claims(&self, node: &NodeName, near: usize) -> Option<&[Claim]> {
        if self.is_unsettled(node) {
            return None;
        }
        self.index.certain_claims(node, near, self.now)
    }

    /// Whether the index does not know the newest of the node.
    fn is_unsettled(&self, node: &NodeName) -> bool {
        self.nodes.touched().contains(node)
            || self.gpus.touched().contains(node)
            || self.leases.touched().contains(node)
            || self.allocations.touched().contains(node)
            || self.reservations.touched().contains(node)
    }

    /// Nodes of which the index does not know the newest.
    pub(crate) fn unsettled(&self) -> BTreeSet<&NodeName> {
        let things = self.nodes.touched().iter().chain(self.gpus.touched());
        let held = self.leases.touched().iter().chain(self.allocations.touched());
        things.chain(held).chain(self.reservations.touched()).collect()
    }

    /// Attempts that must leave and wait for a checkpoint, by id.
    pub(crate) fn deferring(&self) -> impl Iterator<Item = &Allocation> {
        let nodes: BTreeSet<&NodeName> = self.index.deferring().chain(self.unsettled()).collect();
        let on_them = nodes.into_iter().flat_map(|node| self.allocations.on(node));
        let mut deferring: Vec<&Allocation> = on_them.filter(|a| a.deferral.is_some()).collect();
        deferring.sort_by_key(|a| &a.id);
        deferring.into_iter()
    }

    /// The nodes where time alone may change something by now. The time of the others has not come.
    pub(crate) fn due_nodes(&self) -> BTreeSet<&NodeName> {
        let due = self.index.due().take_while(|(at, _)| *at <= self.now).map(|(_, node)| node);
        due.chain(self.unsettled()).collect()
    }

    /// Open reservations of which the time may have come, by id: all that time alone changes by now are among them.
    pub(crate) fn due_reservations(&self) -> impl Iterator<Item = &Reservation> {
        let nodes = self.due_nodes().into_iter();
        let mut due: Vec<&Reservation> =
            nodes.flat_map(|node| self.reservations.open_on(node)).collect();
        due.sort_by_key(|r| &r.id);
        due.into_iter()
    }

    /// Attempts of which the time may have come, by id: all that time alone changes by now are among them.
    pub(crate) fn due_attempts(&self) -> impl Iterator<Item = &Allocation> {
        let nodes = self.due_nodes().into_iter();
        let mut due: Vec<&Allocation> = nodes.flat_map(|node| self.allocations.on(node)).collect();
        due.sort_by_key(|a| &a.id);
        due.into_iter()
    }

    /// Reservations whose time has come, by id; not those that were served.
    pub(crate) fn begun_reservations(&self) -> Vec<&Reservation> {
        let begun = self.due_reservations().filter(|r| {
            r.state == ReservationState::Scheduled
                && r.window.starts_at <= self.now
                && self.now < r.window.ends_at
        });
        begun.collect()
    }

    /// The job names its reservation from now on.
    pub(crate) fn bind_job(&mut self, job: &Job) {
        self.jobs_by_class.entry(kind(job)).or_default().insert(job.id.clone());
        if let Some(reservation) = &job.spec.reservation {
            self.jobs_bound.entry(reservation.clone()).or_default().insert(job.id.clone());
        }
    }

    /// Before the job goes away, or names another reservation, class or time limit.
    pub(crate) fn unbind_job(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let kind = kind(job);
        if let Some(jobs) = self.jobs_by_class.get_mut(&kind) {
            jobs.remove(id);
            if jobs.is_empty() {
                self.jobs_by_class.remove(&kind);
            }
        }
        let Some(reservation) = &job.spec.reservation else { return };
        if let Some(jobs) = self.jobs_bound.get_mut(reservation) {
            jobs.remove(id);
            if jobs.is_empty() {
                self.jobs_bound.remove(reservation);
            }
        }
    }

    /// In a state that was read back.
    pub(crate) fn bind_all_jobs(&mut self) {
        let mut bound: BTreeMap<ReservationId, BTreeSet<JobId>> = BTreeMap::new();
        let mut by_class: BTreeMap<(ClassName, Limit), BTreeSet<JobId>> = BTreeMap::new();
        for job in self.jobs.values() {
            by_class.entry(kind(job)).or_default().insert(job.id.clone());
            if let Some(reservation) = &job.spec.reservation {
                bound.entry(reservation.clone()).or_default().insert(job.id.clone());
            }
        }
        self.jobs_bound = bound;
        self.jobs_by_class = by_class;
    }

    /// The jobs of a class, ended ones too.
    pub fn jobs_of_class(&self, class: &ClassName) -> impl Iterator<Item = &Job> {
        [Limit::Named, Limit::Open].into_iter().flat_map(|limit| self.jobs_of(class, limit))
    }

    fn jobs_of(&self, class: &ClassName, limit: Limit) -> impl Iterator<Item = &Job> {
        let of_it = self.jobs_by_class.get(&(class.clone(), limit)).into_iter().flatten();
        of_it.filter_map(|id| self.jobs.get(id))
    }

    /// Whether jobs of more than one class are there, or such as leave for their own.
    pub(crate) fn may_have_to_leave(&self) -> bool {
        self.jobs_by_class.len() > 1 || self.has_open_jobs()
    }

    /// Whether jobs are there that named no time limit.
    pub(crate) fn has_open_jobs(&self) -> bool {
        self.jobs_by_class.keys().any(|(_, limit)| *limit == Limit::Open)
    }

    /// The classes with jobs whose place a job of that class may take.
    pub(crate) fn classes_below(&self, class: &ClassName) -> Vec<ClassName> {
        let Some(mine) = self.class(class).filter(|class| class.preempts) else {
            return Vec::new();
        };
        let below = |name: &&ClassName| {
            let its = self.class(name);
            its.is_some_and(|its| {
                its.priority < mine.priority && its.preemptible != Preemptible::Never
            })
        };
        let names: BTreeSet<&ClassName> = self.jobs_by_class.keys().map(|(name, _)| name).collect();
        names.into_iter().filter(below).cloned().collect()
    }

    /// The jobs that wait to run in a reservation, first served first; those that are held, or tried again later, come last.
    pub(crate) fn waiting_for(&self, reservation: &ReservationId) -> Vec<JobId> {
        let bound = self.jobs_bound.get(reservation).into_iter().flatten();
        let bound = bound.filter_map(|id| self.jobs.get(id));
        let waits = |job: &&Job| {
            self.is_in_queue(job)
                || self.paused.contains_key(&job.id)
                || (self.held.contains_key(&job.id) && job.question.is_none())
        };
        let mut waiting: Vec<&Job> = bound.filter(waits).collect();
        waiting.sort_by_key(|job| match self.is_in_queue(job) {
            true => (false, Some(job.queue), None),
            false => (true, None, Some(&job.id)),
        });
        waiting.into_iter().map(|job| job.id.clone()).collect()
    }

    /// Whether each job is listed with its reservation, and nothing else is.
    pub(crate) fn bound_jobs_are_true(&self) -> bool {
        let listed: usize = self.jobs_bound.values().map(BTreeSet::len).sum();
        let mut naming =
            self.jobs.values().filter_map(|job| Some((job.spec.reservation.as_ref()?, &job.id)));
        let there = |(reservation, job): (&ReservationId, &JobId)| {
            self.jobs_bound.get(reservation).is_some_and(|jobs| jobs.contains(job))
        };
        let count = self.jobs.values().filter(|job| job.spec.reservation.is_some()).count();
        let of_class = |job: &Job| {
            self.jobs_by_class.get(&kind(job)).is_some_and(|jobs| jobs.contains(&job.id))
        };
        let classed: usize = self.jobs_by_class.values().map(BTreeSet::len).sum();
        let by_class = classed == self.jobs.len() && self.jobs.values().all(of_class);
        listed == count && naming.all(there) && by_class
    }

    /// Whether all that is derived from the state is what it would be if it were made again from nothing. A member of
    /// which this is false may answer otherwise than the others, although its stored state is the same.
    pub fn derived_is_true(&self) -> bool {
        self.index_is_true() && self.bound_jobs_are_true()
    }

    /// Has what is derived as it was in an earlier state: a fault that simulations and tests plant, to see it found.
    #[doc(hidden)]
    pub fn plant_derived_of(&mut self, earlier: &Fsm) {
        self.index = earlier.index.clone();
        self.standings = earlier.standings.clone();
    }

    /// The same state, of which nothing that is derived may be believed: each answer is worked out from the state.
    #[cfg(test)]
    pub(crate) fn unindexed(&self) -> Fsm {
        let mut fsm = self.clone();
        let names: Vec<NodeName> = fsm.nodes.keys().cloned().collect();
        for name in &names {
            fsm.nodes.get_mut(name);
        }
        fsm
    }

    /// Whether the index is what the state says, made from nothing.
    pub(crate) fn index_is_true(&self) -> bool {
        let standing =
            |node: &Node| Some(&Standing::of(self, node)) == self.standings.get(&node.name);
        !self.unsettled().is_empty()
            || (Index::of(self) == self.index
                && self.standings.len() == self.nodes.len()
                && self.nodes.values().all(standing))
    }
}
