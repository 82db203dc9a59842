//! What is charged, and to which user: attempts of jobs for the time that they ran, reservations for the time that they held
//! their GPUs, used or not.
//!
//! A job within a reservation is not charged again. What a fault of the node, or an eviction, destroyed is not charged:
//! an attempt that ends that way counts up to its last checkpoint.

use super::judgment::Verdict;
use super::{Fsm, Turn};
use crate::allocation::{Allocation, EndReport};
use crate::event::Event;
use crate::fair_share::{FairShare, HALF_LIFE_MAX, HALF_LIFE_MIN, Rate, UseOf};
use crate::id::ReservationId;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::Reservation;
use crate::scheduler::tally::{is_within_a_reservation, use_of_reservation};
use crate::time::Millis;

impl Fsm {
    /// What people used, and how fast it fades.
    pub fn fair_share(&self) -> &FairShare {
        &self.fair_share
    }

    pub(super) fn set_half_life(
        &mut self,
        turn: &mut Turn<'_>,
        half_life: Millis,
    ) -> Result<Reply, Rejection> {
        if !(HALF_LIFE_MIN..=HALF_LIFE_MAX).contains(&half_life) {
            let problem = format!("{half_life} is not between {HALF_LIFE_MIN} and {HALF_LIFE_MAX}");
            return Err(Rejection::field("half_life", problem));
        }
        let before = self.fair_share.half_life;
        if before != half_life {
            self.fair_share.set_half_life(half_life, self.now);
            let by = turn.actor.display_name();
            turn.say(Event::HalfLifeSet { half_life, before, by });
        }
        Ok(Reply::Done)
    }

    /// An attempt ended, and this becomes of its job.
    pub(super) fn charge_attempt(
        &mut self,
        allocation: &Allocation,
        report: &EndReport,
        verdict: &Verdict,
    ) {
        let Some(began) = allocation.started_at else { return };
        if is_within_a_reservation(self, allocation) {
            return;
        }
        let Some(job) = self.jobs.get(&allocation.job) else { return };
        // Both by the node's clock, so the time between them is right where the clock is not.
        let ended = match report.started_at {
            Some(started) => began + report.ended_at.since(started),
            None => report.ended_at,
        };
        let ended = ended.min(self.now);
        let to = match verdict {
            Verdict::NodeFault { .. }
            | Verdict::Evicted
            | Verdict::NoImage { .. }
            | Verdict::OtherNode { .. } => {
                let own = job.checkpoints();
                let mut own = own.filter(|c| c.allocation == allocation.id && !c.is_torn());
                own.next().map_or(began, |saved| saved.completed_at.min(ended))
            }
            Verdict::Completed
            | Verdict::Cancelled
            | Verdict::TimedOut
            | Verdict::AskOwner { .. }
            | Verdict::StepBack { .. }
            | Verdict::Retry { .. }
            | Verdict::Failed => ended,
        };
        let rate = Rate::of(allocation.gpus.len(), allocation.cpu_millis);
        let (account, now) = ((&job.spec.project, &job.owner), self.now);
        self.fair_share.charge(account, UseOf { rate, from: began, to }, now);
    }

    /// A reservation that its node opened and closed alone: it was over before it could have a lease.
    pub(super) fn charge_what_its_node_opened(&mut self, id: &ReservationId) {
        let Some(r) = self.reservations.get(id).filter(|r| r.lease.is_none()) else { return };
        let given = r.handed_out.as_ref();
        let Some(opened) = given.and_then(|given| given.opened_at) else { return };
        let closed = given.and_then(|given| given.closed_at).unwrap_or(r.window.ends_at);
        // By the node's clock, and never more than was promised.
        let (from, to) = (opened.max(r.window.starts_at), closed.min(r.window.ends_at));
        let used = UseOf { rate: Rate::of(r.gpus.len(), 0), from, to: to.min(self.now) };
        let (project, owner) = (r.project.clone(), r.owner.clone());
        self.fair_share.charge((&project, &owner), used, self.now);
    }

    /// A reservation that held its GPUs ends now.
    pub(super) fn charge_reservation(&mut self, reservation: &Reservation) {
        let Some(used) = use_of_reservation(self, reservation) else { return };
        let (account, now) = ((&reservation.project, &reservation.owner), self.now);
        self.fair_share.charge(account, used, now);
    }
}
