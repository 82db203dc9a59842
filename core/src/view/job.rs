//! Why a job is in its state.

use crate::allocation::{Allocation, Deferral, StopWhy};
use crate::hold::JobHold;
use crate::id::{JobId, ReservationId};
use crate::job::{Job, JobState};
use crate::lease::LeaseHolder;
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::Liveness;
use crate::reason::{Wait, WaitReason};
use crate::scheduler::Plan;
use crate::state::Fsm;
use crate::time::{Millis, Timestamp};

/// A job with a checkpoint directory that has saved nothing for this long is pointed out.
const NOTHING_SAVED_MAX: Millis = Millis::hours(1);
/// Shorter gaps between checkpoints than a third of this are nothing to be pointed out.
const NOTHING_SAVED_MIN: Millis = Millis::minutes(10);

/// Why a job is in its state: why it waits, what it waits for, how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReason {
    /// How it ended, as it was recorded then.
    Ended(String),
    /// It does not start before its owner has answered.
    AsksOwner {
        owner: UserName,
        why: String,
    },
    /// It does not start before somebody releases it.
    Held {
        job: JobId,
        hold: JobHold,
        /// How long it is held already.
        held_for: Millis,
    },
    Paused(Pause),
    Waits(Wait),
    Stopping(StopWhy),
    Leaving(Leaving),
    /// A reservation begins on its GPUs before its limit: it leaves at its last checkpoint before that.
    GivesWay {
        reservation: ReservationId,
        owner: UserName,
        within: Millis,
        saves: bool,
    },
    /// What its agent does before it runs, in the agent's words.
    Preparing(String),
    NothingSaved {
        quiet: Millis,
        note: Option<String>,
    },
    /// Its node is not heard. `before`: what was known, if that says more than that the job runs.
    NodeSilent {
        node: NodeName,
        liveness: Liveness,
        before: Option<Box<JobReason>>,
    },
}

/// Why the next attempt begins later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pause {
    /// Its owner wants it to begin later, in so much time.
    Begin { wait: Millis },
    /// No node got its image. `next_try` counts from 1.
    Image { why: String, again: Millis, next_try: u32 },
    /// One fault of a node came again.
    Fault { cause: String, node: NodeName, again: Millis },
    /// It failed.
    Failed { again: Millis },
}

/// A job that must leave its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    pub causes: Vec<String>,
    pub how: LeavingHow,
    /// It leaves within this time, saved or not.
    pub within: Option<Millis>,
    /// It stays if its owner names a time limit.
    pub keeps_with_a_limit: Option<JobId>,
}

/// What a job that must leave waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeavingHow {
    /// It declares no checkpoint: its work is lost at the deadline.
    LosesWork,
    /// It declares no checkpoint, and nothing forces it to leave.
    MayFinish,
    /// It moves to this place at its next checkpoint.
    Moves {
        node: NodeName,
        gpus: Vec<GpuUuid>,
    },
    /// Why it stays for now.
    HeldBack(String),
    NextCheckpoint,
}

/// Why the job is in its state; `None` where there is nothing to say. `preparing`: what its agent said that it does
/// before the job runs.
pub fn job(fsm: &Fsm, plan: &Plan, job: &Job, preparing: Option<String>) -> Option<JobReason> {
    if let Some(outcome) = &job.outcome {
        return Some(JobReason::Ended(outcome.reason.clone()));
    }
    if let Some(question) = &job.question {
        let (owner, why) = (job.owner.clone(), question.why.clone());
        return Some(JobReason::AsksOwner { owner, why });
    }
    if let Some(hold) = fsm.hold_of(&job.id) {
        let held_for = fsm.now().since(hold.since);
        return Some(JobReason::Held { job: job.id.clone(), hold: hold.clone(), held_for });
    }
    if let Some(until) = fsm.paused_until(&job.id) {
        let wait = until.since(fsm.now());
        if job.spec.begin == Some(until) {
            return Some(JobReason::Paused(Pause::Begin { wait }));
        }
        return Some(JobReason::Paused(pause(job, wait)));
    }
    if job.state == JobState::Queued {
        let waiting = plan.waiting.get(&job.id).map(|waiting| waiting.reason.clone());
        let wait = waiting.unwrap_or_else(|| WaitReason::NotPlanned.alone());
        return Some(JobReason::Waits(wait));
    }
    let allocation = job.allocation().and_then(|id| fsm.allocation(id))?;
    let reason = placed(fsm, plan, job, allocation, preparing);
    match fsm.node(&allocation.node).map(|node| node.liveness) {
        Some(Liveness::Ready) | None => reason,
        Some(liveness @ (Liveness::Suspect | Liveness::Unreachable)) => {
            let before = reason.map(Box::new);
            Some(JobReason::NodeSilent { node: allocation.node.clone(), liveness, before })
        }
    }
}

/// By when an attempt that runs is over: its time limit, or the end of its reservation. `None` before it starts.
pub fn ends_by(fsm: &Fsm, allocation: &Allocation) -> Option<Timestamp> {
    let limit = allocation.time_limit_at?;
    let lease = allocation.lease.as_ref().and_then(|id| fsm.lease(id));
    let parent = lease.and_then(|lease| fsm.lease(lease.parent.as_ref()?));
    let reservation = parent.and_then(|parent| match &parent.holder {
        LeaseHolder::Reservation(id) => fsm.reservation(id),
        LeaseHolder::Allocation(_) => None,
    });
    Some(reservation.map_or(limit, |r| limit.min(r.window.ends_at)))
}

/// Of a job that has a place.
fn placed(
    fsm: &Fsm,
    plan: &Plan,
    job: &Job,
    allocation: &Allocation,
    preparing: Option<String>,
) -> Option<JobReason> {
    if let Some(stop) = &allocation.stop {
        return Some(JobReason::Stopping(stop.why.clone()));
    }
    match &allocation.deferral {
        Some(deferral) => Some(JobReason::Leaving(leaving(fsm, plan, job, allocation, deferral))),
        None => preparing
            .map(JobReason::Preparing)
            .or_else(|| gives_way(fsm, job, allocation))
            .or_else(|| nothing_saved(fsm, job, allocation)),
    }
}

fn gives_way(fsm: &Fsm, job: &Job, allocation: &Allocation) -> Option<JobReason> {
    let reservation = fsm.cut_for(allocation)?;
    let within = reservation.wanted().window.starts_at.since(fsm.now());
    let (owner, saves) = (reservation.owner.clone(), job.spec.checkpoint.is_some());
    Some(JobReason::GivesWay { reservation: reservation.id.clone(), owner, within, saves })
}

fn pause(job: &Job, again: Millis) -> Pause {
    if let Some(waits) = job.image_wait.as_ref().filter(|waits| waits.tries > 0) {
        return Pause::Image { why: waits.why.clone(), again, next_try: waits.tries + 1 };
    }
    match job.last_fault.as_ref().filter(|fault| fault.again > 0) {
        Some(fault) => Pause::Fault { cause: fault.cause.clone(), node: fault.node.clone(), again },
        None => Pause::Failed { again },
    }
}

fn leaving(
    fsm: &Fsm,
    plan: &Plan,
    job: &Job,
    allocation: &Allocation,
    deferral: &Deferral,
) -> Leaving {
    let how = match (plan.held.get(&job.id), &deferral.held_back, &job.spec.checkpoint) {
        (_, _, None) if deferral.deadline.is_some() => LeavingHow::LosesWork,
        (_, _, None) => LeavingHow::MayFinish,
        (Some(held), _, Some(_)) => {
            LeavingHow::Moves { node: held.node.clone(), gpus: held.gpus.clone() }
        }
        (None, Some(why), Some(_)) => LeavingHow::HeldBack(why.clone()),
        (None, None, Some(_)) => LeavingHow::NextCheckpoint,
    };
    Leaving {
        causes: allocation.causes.values().map(|cause| cause.text.clone()).collect(),
        how,
        within: deferral.deadline.map(|at| at.since(fsm.now())),
        keeps_with_a_limit: for_want_of_a_limit(fsm, job, allocation).then(|| job.id.clone()),
    }
}

/// Whether it leaves for a job of its own class alone, which it does only because it named no time limit.
fn for_want_of_a_limit(fsm: &Fsm, job: &Job, allocation: &Allocation) -> bool {
    let other = fsm.leaves_for(&allocation.id).and_then(|(other, _)| fsm.job(other));
    let same_class = other.is_some_and(|other| other.spec.class == job.spec.class);
    same_class && allocation.causes.len() == 1 && !job.spec.time_limit_given
}

/// A job that says where it saves and has saved nothing for long.
fn nothing_saved(fsm: &Fsm, job: &Job, allocation: &Allocation) -> Option<JobReason> {
    job.spec.checkpoint.as_ref()?;
    let usual = job.gaps().first().map_or(NOTHING_SAVED_MAX, |gap| Millis(gap.0.saturating_mul(3)));
    let since = match job.newest_saved().filter(|c| c.allocation == allocation.id) {
        Some(last) => last.completed_at,
        None => allocation.started_at?,
    };
    let quiet = fsm.now().since(since);
    let note = || job.checkpoint_notes.first().map(ToString::to_string);
    (quiet > usual.clamp(NOTHING_SAVED_MIN, NOTHING_SAVED_MAX))
        .then(|| JobReason::NothingSaved { quiet, note: note() })
}

/// When the next checkpoint is expected, by the last gap between two.
pub fn next_checkpoint(job: &Job, allocation: Option<&Allocation>) -> Option<Timestamp> {
    let last = job.newest_saved()?;
    let gap = *job.gaps().first()?;
    let current = allocation.is_some_and(|a| a.id == last.allocation && a.stop.is_none());
    current.then(|| last.completed_at + gap)
}
