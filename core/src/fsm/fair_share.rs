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
use crate::scheduler::tally::use_of_reservation;
use crate::state::charged::is_within_a_reservation;
use crate::time::{Millis, Timestamp, Window};

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
        let Some(job) = self.jobs.get(&allocation.job) else { return };
        let ended = ended_at(allocation, report, self.now);
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
        if !is_within_a_reservation(self, allocation) {
            let rate = Rate::of(allocation.gpus.len(), allocation.cpu_millis);
            let (account, now) = ((&job.spec.project, &job.owner), self.now);
            self.fair_share.charge(account, UseOf { rate, from: began, to }, now);
        }
        let lost = (to < ended).then_some(Window { starts_at: to, ends_at: ended });
        let lease = allocation.lease.as_ref().and_then(|id| self.leases.get_mut(id));
        if let Some(lease) = lease {
            lease.lost = lost;
        }
    }

    /// A reservation that its node opened and closed alone: it was over before it could have a lease.
    pub(super) fn charge_what_its_node_opened(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let Some(r) = self.reservations.get(id) else { return };
        let Some(stay) = self.stay_alone(r, self.now) else { return };
        let used = UseOf { rate: Rate::of(r.gpus.len(), 0), from: stay.from, to: stay.until };
        self.fair_share.charge((&stay.account.project, &stay.owner), used, self.now);
        turn.say(Event::ServedByNode(Box::new(stay)));
    }

    /// A reservation that held its GPUs ends now.
    pub(super) fn charge_reservation(&mut self, reservation: &Reservation) {
        let Some(used) = use_of_reservation(self, reservation) else { return };
        let (account, now) = ((&reservation.project, &reservation.owner), self.now);
        self.fair_share.charge(account, used, now);
    }
}

/// By the fleet's time. Both times of the report are by the node's clock, so the time between them is right where the clock
/// is not.
pub(super) fn ended_at(allocation: &Allocation, report: &EndReport, now: Timestamp) -> Timestamp {
    let ended = match (allocation.started_at, report.started_at) {
        (Some(began), Some(started)) => began + report.ended_at.since(started),
        (_, _) => report.ended_at,
    };
    ended.min(now)
}
