//! What would become of a job if it were submitted now: tried on a copy of the state.
//!
//! The copy submits the job and then does what the leader does: it plans, places and preempts until the plan comes to
//! rest. So the answer follows the same rules as the queue itself. The state that was copied never changes.

use super::Fsm;
use crate::actor::Actor;
use crate::command::{Command, ENVELOPE_VERSION, Envelope, JobCommand};
use crate::id::{JobId, ReservationId};
use crate::job::{JobState, SubmitJob};
use crate::lease::LeaseHolder;
use crate::name::{ClassName, GpuUuid, NodeName, UserName};
use crate::rejection::Rejection;
use crate::scheduler::{self, Plan};
use crate::time::Timestamp;
use crate::view::{self, NamesAt};

/// Rounds of the queue that are tried. The leader has done all of them but those that the job itself brings.
const ROUNDS_MAX: usize = 16;

/// What would become of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobTrial {
    /// It starts in the next round of the queue.
    pub starts_now: bool,
    /// When it is expected to start; `None` where that is not known.
    pub starts_at: Option<Timestamp>,
    /// Where it starts, or is expected to.
    pub at: Option<(NodeName, Vec<GpuUuid>)>,
    /// The reservation of its owner that it starts in.
    pub reservation: Option<ReservationId>,
    /// Its place in the queue, from 1; `None` where it does not wait in the queue.
    pub place: Option<u32>,
    /// Why it does not start now.
    pub reason: Option<String>,
    /// The jobs that would leave for it.
    pub leaving: Vec<TrialLeaving>,
}

/// A job that would leave for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialLeaving {
    pub job: JobId,
    pub owner: UserName,
    pub class: ClassName,
    /// Until when it is waited for to save.
    pub until: Timestamp,
}

impl Fsm {
    /// Consumes a copy of the state, and gives it back as it would be then: names of GPUs are looked up in it.
    ///
    /// # Errors
    ///
    /// What a submission would be refused for.
    pub fn try_job(
        mut self,
        actor: &Actor,
        wish: SubmitJob,
        now: Timestamp,
    ) -> Result<(JobTrial, Fsm), Rejection> {
        let id = wish.id.clone();
        self.try_command(actor, now, JobCommand::Submit(Box::new(wish)))?;
        let leader = Actor::controller();
        for _ in 0..ROUNDS_MAX {
            if self.job(&id).is_none_or(|job| job.state != JobState::Queued) {
                break;
            }
            let all = scheduler::next(&self).commands(&self);
            if all.is_empty() {
                break;
            }
            for command in all {
                // What the leader would have refused changes nothing.
                drop(self.try_command(&leader, now, command));
            }
        }
        Ok((self.trial_of(&id), self))
    }

    fn try_command(
        &mut self,
        actor: &Actor,
        now: Timestamp,
        command: JobCommand,
    ) -> Result<(), Rejection> {
        let envelope = Envelope {
            v: ENVELOPE_VERSION,
            actor: actor.clone(),
            proposed_at: now,
            request: None,
            command: Command::Job(command),
        };
        self.apply(self.applied + 1, &envelope).reply.map(drop)
    }

    fn trial_of(&self, id: &JobId) -> JobTrial {
        let Some(job) = self.job(id) else { return JobTrial::default() };
        if let Some(a) = job.allocation().and_then(|id| self.allocation(id)) {
            let parent = a.lease.as_ref().and_then(|id| self.lease(id)?.parent.as_ref());
            let reservation = parent.and_then(|id| match &self.lease(id)?.holder {
                LeaseHolder::Reservation(id) => Some(id.clone()),
                LeaseHolder::Allocation(_) => None,
            });
            return JobTrial {
                starts_now: true,
                starts_at: Some(self.now),
                at: Some((a.node.clone(), a.gpus.clone())),
                reservation,
                ..JobTrial::default()
            };
        }
        let Some(explained) = scheduler::explain(self, id) else {
            // What is free when it begins, nobody knows. And there is no job yet that somebody could release.
            let reason = match self.hold_of(id) {
                Some(_) => Some("held until it is released".to_owned()),
                None => view::job::job(self, &Plan::default(), job, None)
                    .map(|reason| reason.text(&NamesAt::now(self))),
            };
            return JobTrial { reason, ..JobTrial::default() };
        };
        let victims = self.preemptions().get(id).into_iter().flat_map(|place| &place.victims);
        let leaving = victims.filter_map(|(attempt, until)| {
            let of = self.job(attempt.job())?;
            let (job, owner, class) = (of.id.clone(), of.owner.clone(), of.spec.class.clone());
            Some(TrialLeaving { job, owner, class, until: *until })
        });
        JobTrial {
            starts_at: explained.earliest,
            at: explained.at,
            place: Some(explained.place),
            reason: explained.reason.map(|reason| reason.to_string()),
            leaving: leaving.collect(),
            ..JobTrial::default()
        }
    }
}
