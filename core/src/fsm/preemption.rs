//! Preemptions as they are carried out: ordered by a plan, kept while work leaves, given up where nobody wants the place.
//!
//! Work that leaves does so by a deferral like any other (`eviction.rs`), with its own cause. What is free already and
//! what gets free is held for the job that it is freed for: `scheduler/preemption.rs` does that in each plan, and
//! [`Fsm::takes_a_freed_place`] where a line of an older plan is checked.

use super::{Fsm, Turn};
use crate::allocation::{Allocation, Cause, CauseKey};
use crate::calendar::RELEASE_ALLOWANCE;
use crate::command::{Placement, Preempt};
use crate::event::Event;
use crate::health::Severity;
use crate::id::{AllocationId, JobId};
use crate::job::Job;
use crate::preemption::{
    HELD_FREE_MAX, PREEMPTIONS_MAX, PREEMPTIONS_OF_A_JOB_MAX, Preemption, PreemptionEvent,
    guaranteed_until, has_a_way, is_open,
};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler::claims::next_save;
use crate::scheduler::limits::{Awaited, JobLimits};
use crate::scheduler::preemption::{Running, is_over, may_preempt};
use crate::state::charged::is_within_a_reservation;
use crate::time::Timestamp;

impl Fsm {
    /// Before that no job of a higher class can take the place of the job's attempt; `None` where none ever can, or where
    /// it has not begun.
    pub fn guaranteed_until(&self, job: &Job) -> Option<Timestamp> {
        let attempt = job.allocation().and_then(|id| self.allocations.get(id))?;
        let class = self.class(&job.spec.class)?;
        let may_leave = has_a_way(&class, job) || is_open(&class, job);
        let outside = !attempt.gpus.is_empty() && !is_within_a_reservation(self, attempt);
        (may_leave && outside).then(|| guaranteed_until(attempt, job, &class))?
    }

    /// For which job that attempt leaves, if it does.
    pub fn leaves_for(&self, id: &AllocationId) -> Option<(&JobId, &Preemption)> {
        self.preemptions.iter().find(|(_, preemption)| preemption.victims.contains_key(id))
    }

    /// A plan says whose work leaves for a job. Checked again: the plan may be of an earlier state.
    pub(super) fn preempt(
        &mut self,
        turn: &mut Turn<'_>,
        order: &Preempt,
    ) -> Result<Reply, Rejection> {
        self.check_preempt(order)?;
        let Some(job) = self.jobs.get(&order.job) else { return Ok(Reply::Done) };
        let (owner, class) = (job.owner.clone(), job.spec.class.clone());
        let victims = order.victims.iter();
        let victims = victims.filter_map(|(id, _)| Some(self.allocations.get(id)?.job.clone()));
        let victims: Vec<JobId> = victims.collect();
        let gone = order.victims.iter().filter_map(|(id, limit)| {
            let of = self.jobs.get(&self.allocations.get(id)?.job)?;
            Some(*limit + of.spec.stop_grace + RELEASE_ALLOWANCE)
        });
        let last = gone.max().unwrap_or(self.now).max(order.starts_at);
        let preemption = Preemption {
            held_until: last + HELD_FREE_MAX,
            node: order.node.clone(),
            gpus: order.gpus.clone(),
            since: self.now,
            starts_at: order.starts_at,
            victims: order.victims.clone(),
        };
        self.preemptions.insert(order.job.clone(), preemption);
        turn.say(Event::Preemption(Box::new(PreemptionEvent::Ordered {
            job: order.job.clone(),
            owner,
            class,
            node: order.node.clone(),
            victims,
            starts_at: order.starts_at,
        })));
        for id in order.victims.keys() {
            self.review_allocation(turn, id);
        }
        Ok(Reply::Done)
    }

    fn check_preempt(&self, order: &Preempt) -> Result<(), Rejection> {
        let stale = |why: &str| {
            let what = order.job.to_string();
            Err(Rejection::PlanStale { what, why: why.to_owned() })
        };
        let Some(job) = self.jobs.get(&order.job).filter(|job| self.is_in_queue(job)) else {
            return stale("it does not wait");
        };
        if self.preemptions.contains_key(&order.job) {
            return stale("something leaves for it already");
        }
        if self.preemptions.len() >= PREEMPTIONS_MAX {
            return stale("enough leaves at once");
        }
        if self.storm.frozen().is_some() {
            return stale("automatic evictions are frozen");
        }
        if self.nodes.get(&order.node).is_none_or(|node| node.closed().is_some()) {
            return stale("the node takes no work");
        }
        let running = Running::of(self);
        let there = |id: &AllocationId| {
            let of = self.allocations.get(id).filter(|a| a.node == order.node);
            let has_less =
                |a: &Allocation| self.jobs.get(&a.job).is_some_and(|of| running.has_less(job, of));
            of.is_some_and(|a| {
                may_preempt(self, job, a).is_ok_and(|from| from <= self.now) && has_less(a)
            })
        };
        if self.may_run_unseen(job).is_some() {
            return stale("it may run on a node that has not reported");
        }
        match !order.victims.is_empty() && order.victims.keys().all(there) {
            true => Ok(()),
            false => stale("what would leave is not to leave"),
        }
    }

    /// Why an attempt is asked to leave, if it leaves for a job of a higher class.
    pub(super) fn preempted_by(&self, a: &Allocation) -> Option<Cause> {
        let (job, preemption) = self.leaves_for(&a.id)?;
        let by = self.jobs.get(job)?;
        let of = self.jobs.get(&a.job)?;
        let text = match by.spec.class == of.spec.class {
            true => format!("it named no time limit, and {job} of {} waits", by.owner),
            false => format!("preempted by {job} of {}, class {}", by.owner, by.spec.class),
        };
        Some(Cause {
            severity: Severity::Degraded,
            since: preemption.since,
            text,
            deadline: preemption.victims.get(&a.id).copied(),
        })
    }

    /// Whether an attempt that leaves for a job, and has just saved, waits for its next save: another one that leaves for
    /// the same job is expected to save later than that, so what it gives now would only stand empty.
    pub(super) fn waits_for_others(&self, a: &Allocation) -> Option<String> {
        let (_, preemption) = self.leaves_for(&a.id)?;
        let job = self.jobs.get(&a.job)?;
        let gap = job.gaps().into_iter().max()?;
        let next = self.now + gap;
        if next > preemption.victims.get(&a.id).copied()? {
            return None;
        }
        let others = preemption.victims.iter().filter(|(id, _)| **id != a.id);
        let mut later = others.filter_map(|(id, limit)| {
            let other = self.allocations.get(id).filter(|other| other.stop.is_none())?;
            let of = self.jobs.get(&other.job)?;
            let expected = next_save(of, self.now).map_or(*limit, |(_, latest)| latest);
            (expected.min(*limit) > next).then(|| of.id.clone())
        });
        let other = later.next()?;
        Some(format!("{other} leaves for the same job, and is expected to save later"))
    }

    /// Whether its time is over because it named no limit and others wait. A job without checkpoints is preempted only
    /// where its class says so; this one is not preempted, but has had its time.
    pub(super) fn has_had_its_time(&self, a: &Allocation) -> bool {
        let Some(job) = self.jobs.get(&a.job).filter(|job| job.spec.checkpoint.is_none()) else {
            return false;
        };
        let class = self.class(&job.spec.class).filter(|class| !has_a_way(class, job));
        let guaranteed = class.filter(|class| is_open(class, job));
        let guaranteed = guaranteed.and_then(|class| guaranteed_until(a, job, &class));
        a.leaves_by_class() && guaranteed.is_some_and(|until| until <= self.now)
    }

    /// It leaves now: counted, so that no job is preempted too often.
    pub(super) fn count_preemption(&mut self, id: &JobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.preempted_at.push(now);
        let surplus = job.preempted_at.len().saturating_sub(PREEMPTIONS_OF_A_JOB_MAX);
        job.preempted_at.drain(..surplus);
    }

    /// Whether a line of a plan would take a place that was freed for another job.
    pub(super) fn takes_a_freed_place(&self, job: &Job, line: &Placement) -> bool {
        let until = self.now + job.time_left() + job.spec.stop_grace;
        let mut others = self.preemptions.iter().filter(|(of, _)| **of != job.id);
        others.any(|(_, place)| {
            until > place.starts_at && line.gpus.iter().any(|gpu| place.gpus.contains(gpu))
        })
    }

    /// After each change: those whose job has its place, or does not wait for it any more, are over, and what has not left
    /// yet stays. True where one is over: a plan may come out differently then.
    pub(super) fn settle_preemptions(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.preemptions.is_empty() {
            return false;
        }
        let gone = self.now + RELEASE_ALLOWANCE + HELD_FREE_MAX;
        for place in self.preemptions.values_mut() {
            if !place.victims.keys().any(|id| self.allocations.contains_key(id)) {
                place.held_until = place.held_until.min(gone);
            }
        }
        let mut limits = JobLimits::new(Awaited::CountsNot);
        let over: Vec<(JobId, Option<String>)> = self
            .preemptions
            .iter()
            .filter_map(|(job, preemption)| {
                Some((job.clone(), is_over(self, job, preemption, &mut limits)?))
            })
            .collect();
        let any = !over.is_empty();
        for (job, why) in over {
            let Some(preemption) = self.preemptions.remove(&job) else { continue };
            if let Some(why) = why {
                let event = PreemptionEvent::GivenUp { job, why };
                turn.say(Event::Preemption(Box::new(event)));
            }
            for id in preemption.victims.keys() {
                self.review_allocation(turn, id);
            }
        }
        any
    }

    /// When a place that was freed is given up, and when somebody's place may be taken next.
    pub(super) fn preemptions_due(&self) -> impl Iterator<Item = Timestamp> {
        let given_up = self.preemptions.values().map(|preemption| preemption.held_until);
        given_up.chain(self.look_at).filter(|at| *at > self.now)
    }
}

impl Allocation {
    /// It leaves for a job of a higher class, or for a reservation that was made while it ran, whatever else it leaves for.
    pub(crate) fn leaves_by_class(&self) -> bool {
        let for_a_reservation = self.causes.contains_key(&CauseKey::Reservation);
        self.causes.contains_key(&CauseKey::Preemption) || (for_a_reservation && self.reserved_over)
    }

    /// And for nothing else.
    pub(crate) fn is_preempted(&self) -> bool {
        let by_class = |key| matches!(key, &CauseKey::Preemption | &CauseKey::Reservation);
        self.leaves_by_class() && self.causes.keys().all(by_class)
    }
}
