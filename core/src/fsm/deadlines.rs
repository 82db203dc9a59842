//! Timed transitions. The leader asks `next_deadline`, waits, and proposes `AdvanceTime`; what is
//! due is decided here, by the log's time.

use super::{Fsm, Turn};
use crate::allocation::{Allocation, StopWhy};
use crate::id::{AllocationId, ReservationId};
use crate::name::NodeName;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{Reservation, ReservationState};
use crate::scheduler::claims;
use crate::time::{Millis, Timestamp};

/// Added to a silent node's allowance before its job is replaced: clocks differ in rate by up to
/// one percent, and messages take time.
pub(crate) const LOST_MARGIN: Millis = Millis::secs(5);

/// While a place is kept, the queue is looked through again this often, in whole steps of the fleet's time.
const LOOK_AGAIN: Millis = Millis::minutes(1);

const SILENT_FOR_LONGER: &str = "its node was silent for longer than the job allows";

impl Fsm {
    /// The next instant at which time alone changes something.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let others = self.paused.values().copied().chain(self.next_files_due());
        let others = others.chain(self.cards_due()).chain(self.next_look());
        let others = others.chain(self.preemptions_due());
        let changed = self.unsettled().into_iter().filter_map(|node| self.due_on(node));
        let mut first = others.chain(changed).min();
        // It is asked for after every change: of most nodes the earliest possible instant says enough.
        for (at_least, node) in self.index.due() {
            if first.is_some_and(|first| at_least >= first) {
                break;
            }
            first = first.into_iter().chain(self.due_on(node)).min();
        }
        first
    }

    #[cfg(test)]
    pub(super) fn next_deadline_of_all(&self) -> Option<Timestamp> {
        let nodes = self.nodes.keys().filter_map(|node| self.due_on(node));
        let others = self.next_files_due().into_iter().chain(self.cards_due());
        let others = others.chain(self.next_look()).chain(self.preemptions_due());
        nodes.chain(self.paused.values().copied()).chain(others).min()
    }

    /// Time alone changes who comes first: use fades, waits get long. But nothing starts by that: only a place that is kept
    /// may slip, or be kept for somebody else. The waiting list is tried on all nodes then, and
    /// a wait may be over; and reservations with a bad place may get another one.
    fn next_look(&self) -> Option<Timestamp> {
        let next = Timestamp((self.now.0 / LOOK_AGAIN.0 + 1) * LOOK_AGAIN.0);
        let kept = self.kept_places().next().map(|_| next);
        let moves = (!self.reservations.to_move().is_empty()).then_some(next);
        kept.into_iter().chain(moves).chain(self.waitlist.due_at(self.now)).min()
    }

    /// The next instant at which time alone changes something on the node.
    fn due_on(&self, node: &NodeName) -> Option<Timestamp> {
        let reservations = self.reservations.open_on(node).filter_map(|r| self.reservation_due(r));
        let allocations = self.allocations.on(node).flat_map(|a| self.allocation_due(a));
        reservations.chain(allocations).min()
    }

    fn reservation_due(&self, r: &Reservation) -> Option<Timestamp> {
        match r.state {
            // The waiting list ends the offer then.
            ReservationState::Offered { until } => Some(until),
            ReservationState::Scheduled if r.next.is_some() => r.edit_settles_at(),
            ReservationState::Scheduled if r.window.starts_at > self.now => {
                let begins = self.hand_out_at(r).unwrap_or(r.window.starts_at);
                Some(self.stands_in_at(r).map_or(begins, |at| at.min(begins)))
            }
            // It waits for a release, which starts it; only its end is a matter of time.
            ReservationState::Scheduled => Some(r.window.ends_at),
            ReservationState::Active => Some(self.active_due(r)),
            ReservationState::Ending | ReservationState::Ended | ReservationState::Cancelled => {
                None
            }
        }
    }

    fn allocation_due(&self, a: &Allocation) -> Vec<Timestamp> {
        let mut due = Vec::new();
        if a.stop.is_none() {
            due.extend(a.time_limit_at);
            due.extend(self.gives_way_at(a));
            let waits_for_thaw = self.storm.frozen().is_some() && !a.must_leave_by_decision();
            if !waits_for_thaw {
                due.extend(a.deferral.as_ref().and_then(|d| d.deadline));
            }
        }
        due.extend(claims::edges(self, a));
        due.extend(self.lost_at(a));
        due
    }

    /// When the job of a silent node is replaced, where its owner asked for that.
    fn lost_at(&self, a: &Allocation) -> Option<Timestamp> {
        let node = self.nodes.get(&a.node)?;
        let spec = &self.jobs.get(&a.job)?.spec;
        let (silent_since, allowed) = (node.silent_since?, spec.stop_after?);
        if node.liveness != Liveness::Unreachable {
            return None;
        }
        let drift = Millis(allowed.0 / 100);
        Some(silent_since + allowed + drift + spec.stop_grace + LOST_MARGIN)
    }

    /// Runs everything that is due.
    pub(super) fn advance_time(&mut self, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        let now = self.now;
        self.let_due_go_on(turn);
        self.release_no_shows(turn);
        self.ask_before_idle_release();
        self.settle_due_edits(turn);
        self.end_due_reservations(turn, now);
        self.start_due_reservations(turn);
        self.hand_out_due(turn);
        self.settle_cards(turn);
        self.queue_paused(now);
        self.remove_due_files();
        self.lose_before_their_limit(turn);
        let over: Vec<AllocationId> = self
            .due_attempts()
            .filter(|a| a.stop.is_none() && a.time_limit_at.is_some_and(|at| at <= now))
            .map(|a| a.id.clone())
            .collect();
        for id in over {
            if !self.gives_way(turn, &id) {
                self.stop_allocation(turn, &id, StopWhy::TimeLimit);
            }
        }
        self.give_way_due(turn);
        for id in self.overdue_deferrals(now) {
            self.evict(turn, &id, None);
        }
        let lost: Vec<AllocationId> = self
            .due_attempts()
            .filter(|a| self.lost_at(a).is_some_and(|at| at <= now))
            .map(|a| a.id.clone())
            .collect();
        for id in lost {
            self.lose_allocation(turn, &id, SILENT_FOR_LONGER.to_owned());
        }
        Ok(Reply::Done)
    }

    /// Attempts that were lost before their time was over. Both may be heard of in one moment, after a time without
    /// controllers: the one that happened first decides what becomes of the job.
    fn lose_before_their_limit(&mut self, turn: &mut Turn<'_>) {
        let now = self.now;
        let is_lost = |a: &&Allocation| {
            let lost_at = self.lost_at(a).filter(|at| *at <= now && a.stop.is_none());
            lost_at.is_some_and(|lost| a.time_limit_at.is_some_and(|limit| lost < limit))
        };
        let lost: Vec<AllocationId> =
            self.due_attempts().filter(is_lost).map(|a| a.id.clone()).collect();
        for id in lost {
            self.lose_allocation(turn, &id, SILENT_FOR_LONGER.to_owned());
        }
    }

    fn end_due_reservations(&mut self, turn: &mut Turn<'_>, now: Timestamp) {
        let due: Vec<(ReservationId, bool)> = self
            .due_reservations()
            .filter(|r| r.window.ends_at <= now && r.next.is_none())
            .filter_map(|r| match r.state {
                ReservationState::Active => Some((r.id.clone(), true)),
                ReservationState::Scheduled => Some((r.id.clone(), false)),
                ReservationState::Offered { .. }
                | ReservationState::Ending
                | ReservationState::Ended
                | ReservationState::Cancelled => None,
            })
            .collect();
        for (id, active) in due {
            // The end of one may be the end of another: of a reservation and its stand-in.
            match self.reservations.get(&id).map(|r| &r.state) {
                Some(ReservationState::Active) if active => {
                    self.end_reservation(turn, &id, "its time is over");
                }
                Some(ReservationState::Scheduled) if !active => self.miss_reservation(turn, &id),
                Some(_) | None => {}
            }
        }
    }

    /// Starts what is due; called again whenever GPUs are released.
    pub(super) fn start_due_reservations(&mut self, turn: &mut Turn<'_>) {
        let due: Vec<ReservationId> =
            self.begun_reservations().into_iter().map(|r| r.id.clone()).collect();
        for id in due {
            self.start_reservation(turn, &id);
        }
    }
}
