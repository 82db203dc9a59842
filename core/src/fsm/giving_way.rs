//! Attempts that give way to a reservation: it begins on their GPUs before their own time limit is over.
//!
//! That happens to an attempt whose preparation took long, and to one of a lower class whose GPUs were reserved while it
//! runs (`calendar/preempting.rs`). It is evicted: before the reservation begins fleet asks it for a checkpoint, it leaves
//! at that one, and its job is queued again. Used behind each command, by `advance_time` and by `eviction.rs`; nothing
//! here may stop an attempt for a reservation that was cancelled meanwhile.

use std::collections::BTreeMap;

use super::eviction::next_save_within;
use super::{Fsm, Turn};
use crate::allocation::{Allocation, Cause, CauseKey, GIVES_WAY_LEAD, StopWhy};
use crate::event::Event;
use crate::health::Severity;
use crate::id::{AllocationId, JobId, ReservationId};
use crate::job::{DEFERRAL_DEFAULT, DEFERRAL_MAX, Job};
use crate::name::NodeName;
use crate::preemption::{PreemptionEvent, guaranteed_until};
use crate::reservation::{Place, Reservation};
use crate::time::{Millis, Timestamp};

/// One that its node stopped this much before its time here was stopped by an earlier word; less may be the node's clock.
const TOLD_LATE_MIN: Millis = Millis::minutes(5);

impl Fsm {
    /// The next instant at which the attempt is asked for a checkpoint, or must leave, for a reservation.
    pub(super) fn gives_way_at(&self, a: &Allocation) -> Option<Timestamp> {
        if a.stop.is_some() {
            return None;
        }
        if self.is_in_preparation(a) {
            return self.promised(a).map(|(_, by)| by);
        }
        let waits = a.is_cut() && self.saves(a) && !a.causes.contains_key(&CauseKey::Reservation);
        a.time_limit_at.filter(|_| waits).map(|at| self.asked_at(a, at))
    }

    /// From when on a cut attempt whose time ends at `at` is asked for a checkpoint; not within its guarantee.
    fn asked_at(&self, a: &Allocation, at: Timestamp) -> Timestamp {
        let job = self.jobs.get(&a.job).filter(|_| a.reserved_over);
        let class = job.and_then(|job| Some((job, self.class(&job.spec.class)?)));
        let guaranteed = class.and_then(|(job, class)| guaranteed_until(a, job, &class));
        (at - self.lead(a)).max(guaranteed.unwrap_or(Timestamp(0))).min(at)
    }

    /// How long before its end a cut attempt is asked for a checkpoint: its first one in this time is the last that is
    /// expected before its end.
    fn lead(&self, a: &Allocation) -> Millis {
        let Some(job) = self.jobs.get(&a.job) else { return GIVES_WAY_LEAD };
        let class = self.class(&job.spec.class).filter(|_| a.reserved_over);
        let lead = match (job.gaps().into_iter().max(), class) {
            (Some(longest), _) => next_save_within(longest),
            (None, Some(class)) => class.save_limit,
            (None, None) => GIVES_WAY_LEAD,
        };
        // It is over before its end if it is asked for longer than it can be made to wait.
        let budget = job.spec.max_deferral.unwrap_or(DEFERRAL_DEFAULT).min(DEFERRAL_MAX);
        lead.max(GIVES_WAY_LEAD).min(budget.saturating_sub(a.deferral_spent))
    }

    /// After each change: the time of running attempts whose GPUs are reserved before their limit is shortened at once, and
    /// is their own again where the reservation is gone.
    pub(super) fn settle_cuts(&mut self, turn: &mut Turn<'_>) {
        let nodes = self.reservations.touched().iter();
        let attempts: Vec<AllocationId> =
            nodes.flat_map(|node| self.allocations.keys_on(node)).collect();
        let mut cut: BTreeMap<ReservationId, (NodeName, Vec<JobId>)> = BTreeMap::new();
        for id in attempts {
            let Some(a) = self.allocations.get(&id) else { continue };
            let Some((at, until, by)) = self.new_end(a) else { continue };
            let (job, node) = (a.job.clone(), a.node.clone());
            let Some(a) = self.allocations.get_mut(&id) else { continue };
            let own = a.own_limit_at.unwrap_or(at);
            a.time_limit_at = Some(until);
            a.own_limit_at = (until < own).then_some(own);
            a.reserved_over = until < own && (a.reserved_over || until < at);
            match by {
                Some(by) if until < at => {
                    cut.entry(by).or_insert_with(|| (node, Vec::new())).1.push(job);
                }
                None => turn.say(Event::Preemption(Box::new(PreemptionEvent::Stays { job }))),
                Some(_) => {}
            }
            self.review_allocation(turn, &id);
        }
        for (reservation, (node, jobs)) in cut {
            let Some(r) = self.reservations.get(&reservation) else { continue };
            let (owner, within) = (r.owner.clone(), r.wanted().window.starts_at.since(self.now));
            let told = PreemptionEvent::Reserved { reservation, owner, node, jobs, within };
            turn.say(Event::Preemption(Box::new(told)));
        }
    }

    /// The jobs that run on the reservation's GPUs now and leave before it begins, with the instant by which they are gone;
    /// also of one that is only tried.
    pub fn leaves_first(&self, r: &Reservation) -> Vec<(&Job, Timestamp)> {
        let Place { node, gpus, window, .. } = r.wanted();
        if !r.state.is_ahead() || window.starts_at <= self.now {
            return Vec::new();
        }
        let leaves = |a: &Allocation| {
            let job = self.jobs.get(&a.job)?;
            let own = a.own_limit_at.or(a.time_limit_at)? + job.spec.stop_grace;
            let there = a.gpus.iter().any(|gpu| gpus.contains(gpu)) && own > window.starts_at;
            // It leaves for an earlier one.
            let earlier = self.promised(a).is_some_and(|(other, _)| {
                other.id != r.id && other.wanted().window.starts_at < window.starts_at
            });
            let leaves = there && self.stands_alone(a) && !earlier;
            leaves.then_some((job, window.starts_at))
        };
        self.allocations.on(&node).filter_map(leaves).collect()
    }

    /// The reservation for which a running attempt leaves before its limit.
    pub fn cut_for(&self, a: &Allocation) -> Option<&Reservation> {
        self.promised(a).filter(|_| a.is_cut()).map(|(reservation, _)| reservation)
    }

    /// The end of a running attempt and what it is from now on, where that is another one; and for which reservation.
    fn new_end(&self, a: &Allocation) -> Option<(Timestamp, Timestamp, Option<ReservationId>)> {
        if a.stop.is_some() || !self.stands_alone(a) {
            return None;
        }
        let at = a.time_limit_at.filter(|at| *at > self.now)?;
        let own = a.own_limit_at.unwrap_or(at);
        let promised = self.promised(a).filter(|(_, by)| *by < own);
        let until = promised.map_or(own, |(_, by)| by);
        let by = promised.map(|(reservation, _)| reservation.id.clone());
        (until != at).then_some((at, until, by))
    }

    /// It holds GPUs outside of any reservation, since the last restore.
    fn stands_alone(&self, a: &Allocation) -> bool {
        let parent = a.lease.as_ref().and_then(|id| self.leases.get(id)?.parent.as_ref());
        let of_before = a.epoch.incarnation < self.incarnation;
        !a.gpus.is_empty() && parent.is_none() && !of_before
    }

    /// And has not started.
    fn is_in_preparation(&self, a: &Allocation) -> bool {
        a.started_at.is_none() && self.stands_alone(a)
    }

    fn saves(&self, a: &Allocation) -> bool {
        self.jobs.get(&a.job).is_some_and(|job| job.spec.checkpoint.is_some())
    }

    /// The reservation for which a running attempt must leave soon, as a cause of its eviction.
    pub(super) fn reservation_that_begins(&self, a: &Allocation) -> Option<Cause> {
        let at = a.time_limit_at.filter(|_| a.is_cut() && self.saves(a))?;
        let (reservation, by) = self.promised(a)?;
        let soon = by <= at && self.asked_at(a, at) <= self.now;
        soon.then(|| cause(reservation, self.now, by))
    }

    /// Whether the attempt, whose time is over, had to give way to a reservation. One whose reservation was cancelled
    /// gets its own time back.
    pub(super) fn gives_way(&mut self, turn: &mut Turn<'_>, id: &AllocationId) -> bool {
        let Some(a) = self.allocations.get(id).filter(|a| a.is_cut()) else { return false };
        let promised = self.promised(a).map(|(reservation, by)| cause(reservation, self.now, by));
        match promised.filter(|cause| cause.deadline.is_some_and(|by| by <= self.now)) {
            Some(cause) => self.evict_for(turn, id, cause),
            None => self.put_off(turn, id),
        }
        let now = self.now;
        let is_over = |a: &Allocation| a.time_limit_at.is_some_and(|at| at <= now);
        self.allocations.get(id).is_none_or(|a| a.stop.is_some() || !is_over(a))
    }

    /// Asks those for a checkpoint that must leave soon, and stops those that are still in preparation.
    pub(super) fn give_way_due(&mut self, turn: &mut Turn<'_>) {
        let now = self.now;
        let due = |a: &&Allocation| self.gives_way_at(a).is_some_and(|at| at <= now);
        let due: Vec<AllocationId> =
            self.due_attempts().filter(due).map(|a| a.id.clone()).collect();
        for id in due {
            let Some(a) = self.allocations.get(&id) else { continue };
            if a.started_at.is_none() {
                let promised = self.promised(a).map(|(r, by)| cause(r, now, by));
                if let Some(cause) = promised {
                    self.evict_for(turn, &id, cause);
                }
            } else if self.reservation_that_begins(a).is_some() {
                self.review_allocation(turn, &id);
            } else {
                self.put_off(turn, &id);
            }
        }
    }

    /// The reservation that was in its way is not there any more: the next one is, or its own limit.
    fn put_off(&mut self, turn: &mut Turn<'_>, id: &AllocationId) {
        let Some(a) = self.allocations.get(id) else { return };
        let promised = self.promised(a).map(|(_, by)| by);
        let until = a.own_limit_at.into_iter().chain(promised).min();
        let Some(a) = self.allocations.get_mut(id) else { return };
        a.time_limit_at = until;
        self.review_allocation(turn, id);
    }

    fn evict_for(&mut self, turn: &mut Turn<'_>, id: &AllocationId, cause: Cause) {
        let Some(a) = self.allocations.get_mut(id) else { return };
        a.causes.insert(CauseKey::Reservation, cause);
        self.evict(turn, id, None);
    }

    /// Its node stopped it at `at`, while no controller answered, because a reservation began. False if its own limit
    /// was over by then.
    pub(super) fn gave_way_alone(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        at: Timestamp,
    ) -> bool {
        let Some(a) = self.allocations.get(id) else { return false };
        let early = a.time_limit_at.filter(|limit| at + TOLD_LATE_MIN < *limit);
        let gave_way = match a.own_limit_at {
            Some(own) => at < own,
            // It was given more time, by its owner or by a reservation that went away, and its node had not heard of it.
            None => self.is_in_preparation(a) || early.is_some(),
        };
        // Its time passed here before the node could say what it did.
        let timed_out = a.stop.as_ref().is_some_and(|stop| stop.why == StopWhy::TimeLimit);
        if !gave_way || (a.stop.is_some() && !timed_out) {
            return false;
        }
        // A reservation of next week is no reason.
        let due = self.promised(a).filter(|(_, by)| *by <= at + TOLD_LATE_MIN);
        let for_nobody = early.is_some() && due.is_none();
        let text = match due {
            Some((reservation, _)) => says(reservation),
            None if for_nobody => "its node had not heard that it has more time".to_owned(),
            None => "a reservation began on its GPUs".to_owned(),
        };
        let Some(a) = self.allocations.get_mut(id) else { return false };
        a.stop = None;
        if for_nobody {
            let why =
                StopWhy::Evicted { causes: vec![text], after_checkpoint: false, by_class: true };
            self.stop_allocation(turn, id, why);
            return true;
        }
        let cause = Cause { severity: Severity::Degraded, since: at, text, deadline: None };
        self.evict_for(turn, id, cause);
        true
    }
}

fn says(reservation: &Reservation) -> String {
    format!("reservation {} of {} begins on its GPUs", reservation.id, reservation.owner)
}

fn cause(reservation: &Reservation, since: Timestamp, by: Timestamp) -> Cause {
    let (severity, text) = (Severity::Degraded, says(reservation));
    Cause { severity, since, text, deadline: Some(by) }
}
