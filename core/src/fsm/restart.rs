//! A job that ended, or asks its owner, is queued again by somebody's word.

use super::removal::FILES_STAY;
use super::{Fsm, Turn, validate};
use crate::checkpoint::{MayUse, RestartFrom, StepsBack};
use crate::event::Event;
use crate::id::JobId;
use crate::job::{Job, JobFiles, JobState, QueueKey, RANK_NEW};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler;
use crate::time::Millis;

impl Fsm {
    /// Begins a new time limit, a new budget of restarts and steps back, and the rank of new work.
    pub(super) fn restart_job(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
        from: RestartFrom,
        time_limit: Option<Millis>,
    ) -> Result<Reply, Rejection> {
        let job = self.jobs.get(id).ok_or_else(|| Rejection::not_found("job", id))?;
        let words = self.check_restart(job, from, time_limit)?;
        // One that asks its owner has not left the queue.
        if job.question.is_none() {
            self.check_project(turn.actor, &job.owner, &job.spec.project)?;
            self.check_class(turn.actor, &job.owner, &job.spec.class)?;
        }
        let reservation = job.spec.reservation.clone();
        let reservation = reservation.filter(|id| self.open_reservation(id).is_ok());
        self.finished.retain(|finished| finished != id);
        self.jobs_submitted += 1;
        let queue = QueueKey { rank: RANK_NEW, submitted: self.jobs_submitted };
        self.keep_files(id);
        self.unbind_job(id);
        let Some(job) = self.jobs.get_mut(id) else { return Ok(Reply::Done) };
        self.queue.remove(&job.queue);
        job.queue = queue;
        job.queued_at = self.now;
        job.state = JobState::Queued;
        job.outcome = None;
        job.ended_at = None;
        job.cancel_requested = false;
        job.question = None;
        job.restart_from = Some(from);
        job.steps_back = StepsBack::default();
        job.restarts_used = 0;
        job.start_faults = 0;
        job.retries = 0;
        job.last_fault = None;
        job.image_wait = None;
        job.time_used = Millis::ZERO;
        job.excluded_nodes.clear();
        job.spec.reservation = reservation;
        if let Some(limit) = time_limit {
            job.spec.time_limit = limit;
            job.spec.time_limit_given = true;
        }
        let restarted = job.clone();
        self.bind_job(&restarted);
        // The answer to a question does not lift a hold.
        match self.held.get_mut(id) {
            Some(hold) => (hold.waited, hold.paused_until) = (Millis::ZERO, None),
            None => drop(self.queue.insert(queue, id.clone())),
        }
        let by = turn.actor.display_name();
        turn.say(Event::JobRestarted { job: id.clone(), by, from: words });
        Ok(Reply::Done)
    }

    /// Everything that could be refused; says in words from where it restarts.
    fn check_restart(
        &self,
        job: &Job,
        from: RestartFrom,
        time_limit: Option<Millis>,
    ) -> Result<String, Rejection> {
        let not = |why: String| Rejection::NotRestartable { id: job.id.to_string(), why };
        if !job.state.is_final() && job.question.is_none() {
            return Err(not(format!("it is {}", job.state.word())));
        }
        if job.allocation().is_some() {
            return Err(not("its last attempt may still run".to_owned()));
        }
        match &job.files {
            JobFiles::Removing { job_too: Some(by), .. } => {
                return Err(not(format!("{by} is removing it")));
            }
            // The node could take away what the next attempt has just written.
            JobFiles::Removing { node, .. } => {
                return Err(not(format!(
                    "{node} is removing fleet's files beside its checkpoints. A new job continues from a \
                     checkpoint: fleet run --resume-from PATH"
                )));
            }
            JobFiles::Removed if from != RestartFrom::Scratch => {
                return Err(not(format!(
                    "fleet removed its files beside the checkpoints {FILES_STAY} after the job ended. A new job \
                     continues from a checkpoint: fleet run --resume-from PATH. This one can only begin again: \
                     fleet job restart {} --from-scratch",
                    job.id
                )));
            }
            JobFiles::Removed | JobFiles::Stay => {}
        }
        self.check_enabled(&job.owner)?;
        time_limit.map_or(Ok(()), validate::time_limit)?;
        let mut spec = job.spec.clone();
        spec.reservation = spec.reservation.filter(|id| self.open_reservation(id).is_ok());
        spec.time_limit = time_limit.unwrap_or(spec.time_limit);
        scheduler::satisfiable(self, &job.owner, &spec)?;
        if job.question.is_none() {
            scheduler::limits::check(self, &spec)?;
        }
        match from {
            RestartFrom::Scratch => Ok("from its beginning".to_owned()),
            RestartFrom::Newest => match job.candidates().first() {
                Some(newest) => Ok(format!("from checkpoint {}", newest.number)),
                None if !job.has_saved() => Ok("from its beginning".to_owned()),
                None => Err(not(
                    "none of its checkpoints can be used without your word: name one (--from) or \
                     begin again (--from-scratch)"
                        .to_owned(),
                )),
            },
            RestartFrom::Checkpoint(id) => {
                let found = job.checkpoints().find(|c| c.id() == id);
                match found {
                    None => Err(not(format!("it has no checkpoint {id}"))),
                    Some(c) if c.may_use() == MayUse::Never => {
                        Err(not(format!("checkpoint {} is {}", c.number, c.condition())))
                    }
                    Some(c) => Ok(format!("from checkpoint {}", c.number)),
                }
            }
        }
    }
}
