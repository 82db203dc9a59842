//! Judges places that are held for jobs that must leave: no younger new job takes the first one's.
//!
//! It restates what is held and from when, and asks the product only where a job would fit. The first of those who must
//! leave is never in the way of another one, so its place is its own; what holds for several is tested on the core
//! (`core/src/fsm/tests/busy.rs`).

use fleet_core::Fsm;
use fleet_core::allocation::{Allocation, CauseKey};
use fleet_core::command::{Command, Envelope, JobCommand};
use fleet_core::event::Event;
use fleet_core::id::{AllocationId, JobId};
use fleet_core::job::Job;
use fleet_core::scheduler::elsewhere;
use fleet_core::time::Timestamp;

/// Rank of work that was never started, behind what was interrupted.
const NEW: u8 = 1;

/// Whether somebody must leave, so that the state before an entry is worth keeping.
pub(crate) fn anybody_leaves(fsm: &Fsm) -> bool {
    fsm.allocations().values().any(|attempt| attempt.deferral.is_some())
}

/// Said of an entry when the first of those who must leave lost its place by it to a younger job.
pub(crate) fn judge(
    (before, after): (&Fsm, &Fsm),
    (index, envelope): (u64, &Envelope),
    events: &[Event],
) -> Result<(), String> {
    let Some((leaver, from)) = first_to_leave(before) else { return Ok(()) };
    let takers = takers(after, events, from);
    let leaves = |fsm: &Fsm| {
        let attempt = fsm.allocation(&leaver);
        attempt.is_some_and(|attempt| attempt.deferral.is_some() && attempt.stop.is_none())
    };
    if takers.is_empty() || !leaves(after) {
        return Ok(());
    }
    let mut without = before.clone();
    without.apply(index, &without_these(envelope, &takers));
    match (elsewhere(&without, &leaver), elsewhere(after, &leaver)) {
        (Some(node), None) if leaves(&without) => {
            Err(format!("{takers:?} took the place on {node} that is held for {leaver}"))
        }
        _ => Ok(()),
    }
}

fn first_to_leave(fsm: &Fsm) -> Option<(AllocationId, Timestamp)> {
    let leaves = |attempt: &&Allocation| attempt.deferral.is_some() && attempt.stop.is_none();
    let all = fsm.allocations().values().filter(leaves);
    let all = all.filter_map(|attempt| Some((attempt, fsm.job(&attempt.job)?)));
    let all = all.filter(|(attempt, job)| goes_on_elsewhere(fsm, attempt, job));
    let (attempt, job) = all.min_by_key(|(_, job)| job.queue.submitted)?;
    let since = attempt.deferral.as_ref()?.since;
    Some((attempt.id.clone(), held_from(job, since)))
}

/// Nobody holds a place for what does not need one.
fn goes_on_elsewhere(fsm: &Fsm, attempt: &Allocation, job: &Job) -> bool {
    job.spec.checkpoint.is_some()
        && job.spec.reservation.is_none()
        && !job.cancel_requested
        && !attempt.causes.contains_key(&CauseKey::Owner)
        && !attempt.causes.contains_key(&CauseKey::Preemption)
        && (fsm.evictions_frozen().is_none() || attempt.must_leave_by_decision())
}

/// From the next expected save on. No run is long enough for a hold to end.
fn held_from(job: &Job, since: Timestamp) -> Timestamp {
    let newest = job.checkpoints().find(|one| !one.facts.content.is_torn());
    match (newest, job.gaps().into_iter().min()) {
        (Some(newest), Some(shortest)) => newest.completed_at + shortest,
        (_, _) => since,
    }
}

/// New jobs that got a free GPU and may still run when the place is needed.
fn takers(after: &Fsm, events: &[Event], from: Timestamp) -> Vec<JobId> {
    let takes = |id: &&JobId| {
        let Some(job) = after.job(id) else { return false };
        let attempt = job.allocation().and_then(|id| after.allocation(id));
        let lease = attempt.and_then(|attempt| after.leases().get(attempt.lease.as_ref()?));
        let until = after.now() + job.time_left() + job.spec.stop_grace;
        job.queue.rank == NEW && lease.is_some_and(|lease| lease.parent.is_none()) && until > from
    };
    let placed = events.iter().filter_map(|event| match event {
        Event::JobPlaced { job, .. } => Some(job),
        _ => None,
    });
    placed.filter(takes).cloned().collect()
}

fn without_these(envelope: &Envelope, takers: &[JobId]) -> Envelope {
    let mut envelope = envelope.clone();
    if let Command::Job(JobCommand::Place { placements }) = &mut envelope.command {
        placements.retain(|line| !takers.contains(&line.job));
    }
    envelope
}
