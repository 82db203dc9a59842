//! Changes the time limit of a job that waits or runs.

use super::{Fsm, Turn, validate};
use crate::allocation::Allocation;
use crate::event::Event;
use crate::id::JobId;
use crate::job::Job;
use crate::lease::LeaseHolder;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler::project_limit::check_time_limit;
use crate::time::{Millis, Timestamp};

impl Fsm {
    /// The limit counts over all attempts, as the one that it was submitted with.
    ///
    /// Refused where the job could not have it: it has run for longer already (a smaller limit is no way to stop a
    /// job), its GPUs are promised to somebody before, its reservation ends before.
    pub(super) fn set_time_limit(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
        limit: Millis,
    ) -> Result<Reply, Rejection> {
        let job = self.jobs.get(id).ok_or_else(|| Rejection::not_found("job", id))?;
        if job.state.is_final() {
            let state = job.state.word().to_owned();
            return Err(Rejection::AlreadyEnded { id: id.to_string(), state });
        }
        validate::time_limit(limit)?;
        let mut changed = job.clone();
        changed.spec.time_limit = limit;
        changed.spec.time_limit_given = true;
        let allocation = job.allocation().and_then(|id| self.allocations.get(id));
        let ends_at = match allocation {
            Some(allocation) => self.ends_with_limit(&changed, allocation)?,
            None => {
                self.fits_its_reservation(&changed)?;
                None
            }
        };
        let longer = limit > job.spec.time_limit;
        if longer && !turn.actor.is_admin() {
            check_time_limit(self, &changed, allocation)?;
        }
        let attempt = allocation.map(|allocation| allocation.id.clone());
        self.unbind_job(id);
        self.bind_job(&changed);
        if let Some(job) = self.jobs.get_mut(id) {
            *job = changed;
        }
        if let Some(allocation) = attempt.and_then(|id| self.allocations.get_mut(&id))
            && ends_at.is_some()
        {
            allocation.time_limit_at = ends_at;
            allocation.own_limit_at = None;
            allocation.reserved_over = false;
            let attempt = allocation.id.clone();
            // It may have had to leave for a reservation.
            self.review_allocation(turn, &attempt);
        }
        let by = turn.actor.display_name();
        turn.say(Event::JobTimeLimitSet { job: id.clone(), limit, ends_at, by });
        Ok(Reply::Done)
    }

    /// When the attempt is over with the changed limit; `None` for one that has not started: its time is counted from
    /// its start.
    fn ends_with_limit(
        &self,
        job: &Job,
        allocation: &Allocation,
    ) -> Result<Option<Timestamp>, Rejection> {
        let refused = |problem: String| Err(Rejection::field("time_limit", problem));
        if allocation.stop.is_some() {
            return refused(format!("{} is being stopped", job.id));
        }
        let Some(started_at) = allocation.started_at else { return Ok(None) };
        let ran = job.time_used + self.now.since(started_at);
        if job.spec.time_limit <= ran {
            return refused(format!(
                "{} has run for {ran} already; `fleet cancel` ends it",
                job.id
            ));
        }
        let ends_at = self.now + job.spec.time_limit.saturating_sub(ran);
        let at_most = |until: Timestamp| ran + until.since(self.now);
        let parent = allocation.lease.as_ref().and_then(|id| self.leases.get(id)?.parent.as_ref());
        match parent.and_then(|parent| self.leases.get(parent)).map(|lease| &lease.holder) {
            Some(LeaseHolder::Reservation(id)) => {
                let end = self.reservations.get(id).map(|r| r.window.ends_at);
                if let Some(end) = end.filter(|end| *end < ends_at) {
                    let most = at_most(end);
                    return refused(format!(
                        "at most {most}: its reservation {id} ends then. To extend it: fleet extend {id}"
                    ));
                }
            }
            // Not what was known when it was placed: a reservation may have been cancelled since, or found by a restore.
            Some(LeaseHolder::Allocation(_)) | None => {
                if let Some((r, by)) = self.promised(allocation).filter(|(_, by)| *by < ends_at) {
                    let (most, id, owner) = (at_most(by), &r.id, &r.owner);
                    return refused(format!(
                        "at most {most}: then a GPU of it is reserved for {owner} ({id})"
                    ));
                }
            }
        }
        Ok(Some(ends_at))
    }

    /// Whether one that waits could run that long in the reservation that it is bound to.
    fn fits_its_reservation(&self, job: &Job) -> Result<(), Rejection> {
        let reservation = job.spec.reservation.as_ref().and_then(|id| self.reservations.get(id));
        let Some(r) = reservation.filter(|r| r.is_open()) else { return Ok(()) };
        let most = r.window.ends_at.since(r.window.starts_at.max(self.now));
        if job.spec.time_limit <= most {
            return Ok(());
        }
        let id = &r.id;
        let problem = format!(
            "at most {most}: its reservation {id} ends then. To extend it: fleet extend {id}"
        );
        Err(Rejection::field("time_limit", problem))
    }
}
