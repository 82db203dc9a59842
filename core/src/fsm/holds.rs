//! Queued jobs that are held, and released.
//!
//! A held job leaves the queue and keeps its place in the order of submission. All that asks the queue does without it:
//! kept places, preemptions, claims, and the bound on waiting.

use super::{Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::event::Event;
use crate::hold::{HoldEvent, JobHold};
use crate::id::JobId;
use crate::job::{Job, JobState};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Timestamp;

impl Fsm {
    /// The hold that keeps a job from starting.
    pub fn hold_of(&self, job: &JobId) -> Option<&JobHold> {
        self.held.get(job)
    }

    /// The job, if it waits: an attempt that has begun is not interrupted by a hold.
    pub(super) fn holdable(&self, id: &JobId) -> Result<&Job, Rejection> {
        let job = self.cancellable(id)?;
        if job.state == JobState::Queued {
            return Ok(job);
        }
        let why = format!(
            "the job is {} and only a job that waits can be held. To stop the job: fleet cancel {id}. \
             To queue it again after that: fleet job restart {id}",
            job.state.word()
        );
        Err(Rejection::NotChangeable { id: id.to_string(), why })
    }

    /// A hold of the owner becomes a hold of an admin, not the reverse.
    pub(super) fn hold_job(&mut self, turn: &mut Turn<'_>, id: &JobId) -> Result<Reply, Rejection> {
        let job = self.holdable(id)?;
        let admin = is_of_an_admin(turn.actor, job);
        if self.held.get(id).is_some_and(|known| known.admin || !admin) {
            return Ok(Reply::Unchanged);
        }
        self.hold_waiting(turn, id, admin);
        Ok(Reply::Done)
    }

    /// Takes a job that waits out of the queue.
    pub(super) fn hold_waiting(&mut self, turn: &mut Turn<'_>, id: &JobId, admin: bool) {
        let Some(job) = self.jobs.get(id) else { return };
        let (by, since) = (turn.actor.display_name(), self.now);
        self.queue.remove(&job.queue);
        let paused_until = self.paused.remove(id);
        let fresh = JobHold {
            by: by.clone(),
            admin,
            since,
            waited: since.since(may_start_since(job)),
            paused_until,
        };
        let hold = match self.held.remove(id) {
            Some(earlier) => {
                JobHold { waited: earlier.waited, paused_until: earlier.paused_until, ..fresh }
            }
            None => fresh,
        };
        self.held.insert(id.clone(), hold);
        self.kept_places.retain(|kept| kept.job != *id);
        turn.say(Event::Hold(HoldEvent::Held { job: id.clone(), by, admin }));
    }

    /// What `release` refuses.
    pub(super) fn check_release(&self, actor: &Actor, id: &JobId) -> Result<(), Rejection> {
        self.cancellable(id)?;
        let of_an_admin = self.held.get(id).filter(|hold| hold.admin);
        match (of_an_admin, &actor.who) {
            (Some(hold), Who::User { admin: false, .. }) => {
                let needs = format!("an admin (admin {} holds {id})", hold.by);
                Err(Rejection::Denied { needs })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn release_job(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
    ) -> Result<Reply, Rejection> {
        self.check_release(turn.actor, id)?;
        let Some(hold) = self.held.remove(id) else { return Ok(Reply::Unchanged) };
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(id) {
            job.queued_at = job.queued_at.max(now - hold.waited);
            let (key, asks) = (job.queue, job.question.is_some());
            match hold.paused_until.filter(|until| *until > now) {
                // Its owner's answer queues it.
                _ if asks => {}
                Some(until) => drop(self.paused.insert(id.clone(), until)),
                None => drop(self.queue.insert(key, id.clone())),
            }
        }
        let by = turn.actor.display_name();
        turn.say(Event::Hold(HoldEvent::Released { job: id.clone(), by }));
        Ok(Reply::Done)
    }
}

/// Since when it could have started, as far as that is its owner's wish.
fn may_start_since(job: &Job) -> Timestamp {
    job.spec.begin.map_or(job.queued_at, |begin| begin.max(job.queued_at))
}

/// Whether a hold by `actor` is an admin's: what admins do about jobs of their own they do as owners.
fn is_of_an_admin(actor: &Actor, job: &Job) -> bool {
    matches!(&actor.who, Who::User { name, admin: true, .. } if *name != job.owner)
}
