//! What nodes report of checkpoints: kept with the job, said once, and offered to the next attempt.
//!
//! Which end of an attempt leads to another one is `jobs.rs`; when a checkpoint makes a job leave is `eviction.rs`.

use std::collections::BTreeSet;

use super::{Fsm, Turn};
use crate::allocation::{Allocation, CheckpointAsked};
use crate::checkpoint::{
    Candidate, Checkpoint, CheckpointId, CheckpointNote, Content, Presence, RecordedFacts,
    RestartFrom, ResumeOrder, Resumed, StepsBack,
};
use crate::event::Event;
use crate::id::{AllocationId, JobId};
use crate::job::{Job, JobState};
use crate::lease::{Lease, LeaseHolder};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Timestamp;

/// Kinds of notes are few, so this many of one job hold all of them.
const NOTES_MAX: usize = 8;

impl Fsm {
    /// Gives a checkpoint the job's next number and its place: behind those of later attempts, so that one heard late is
    /// not the newest.
    ///
    /// A torn one is listed and nothing more: it is no progress, so steps back and retries are still counted.
    pub(super) fn keep_checkpoint(
        &mut self,
        job: &JobId,
        mut checkpoint: Checkpoint,
    ) -> Option<u64> {
        let job = self.jobs.get_mut(job)?;
        job.checkpoints_heard += 1;
        checkpoint.number = job.checkpoints_heard;
        let is_late = checkpoint.attempt < job.attempt.number;
        if !checkpoint.is_torn() {
            job.has_saved = true;
            if !is_late {
                job.steps_back = StepsBack::default();
                job.retries = 0;
            }
        }
        job.list_checkpoint(checkpoint);
        Some(job.checkpoints_heard)
    }

    /// A checkpoint of an attempt that was given up while its node was silent: it is listed under that attempt, once. A
    /// node that is back reports everything it knows, also checkpoints that it had reported before and that the state
    /// has dropped for newer ones since: these are not listed a second time.
    pub(super) fn checkpoint_heard_late(&mut self, turn: &mut Turn<'_>, checkpoint: Checkpoint) {
        let job = checkpoint.allocation.job().clone();
        let known = |job: &Job| job.checkpoints().any(|c| c.id() == checkpoint.id());
        let is_listed = |job: &Job| !known(job) && job.has_place_for(checkpoint.id());
        let is_new = self.jobs.get(&job).is_some_and(is_listed);
        if !is_new {
            return;
        }
        let (allocation, seq) = (checkpoint.allocation.clone(), checkpoint.seq);
        let (path, facts) = (checkpoint.path.clone(), Box::new(recorded(&checkpoint)));
        let Some(number) = self.keep_checkpoint(&job, checkpoint) else { return };
        turn.say(Event::CheckpointRecorded { job, allocation, seq, path, number, facts });
    }

    /// A checkpoint that was reported is gone, or is not what it was taken for. It may be one of an earlier attempt of
    /// the same job.
    pub(super) fn checkpoint_changed(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        (attempt, seq): (Option<u32>, u64),
        content: Option<&Content>,
        presence: Option<Presence>,
    ) {
        let Some(current) = self.allocations.get(id) else { return };
        let attempt = attempt.unwrap_or(current.attempt);
        let (job, at) = (current.job.clone(), CheckpointId { attempt, seq });
        self.change_checkpoint(turn, &job, id, at, content, presence);
    }

    fn change_checkpoint(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        allocation: &AllocationId,
        at: CheckpointId,
        content: Option<&Content>,
        presence: Option<Presence>,
    ) {
        let Some(job) = self.jobs.get_mut(job) else { return };
        let all = job.last_checkpoint.iter_mut().chain(&mut job.older_checkpoints);
        let Some(checkpoint) = all.into_iter().find(|c| c.id() == at) else { return };
        let content = content.filter(|new| **new != checkpoint.facts.content).cloned();
        let presence = presence.filter(|new| *new != checkpoint.presence);
        if content.is_none() && presence.is_none() {
            return;
        }
        checkpoint.facts.content = content.clone().unwrap_or(checkpoint.facts.content.clone());
        checkpoint.presence = presence.unwrap_or(checkpoint.presence);
        turn.say(Event::CheckpointChanged {
            job: job.id.clone(),
            allocation: allocation.clone(),
            number: checkpoint.number,
            path: checkpoint.path.clone(),
            content,
            presence,
        });
    }

    /// Kept and said once of each kind.
    pub(super) fn checkpoint_noted(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        note: &CheckpointNote,
    ) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let Some(job) = self.jobs.get_mut(&allocation.job) else { return };
        let known = job.checkpoint_notes.iter().any(|known| known.is_of_kind(note));
        if known || job.checkpoint_notes.len() >= NOTES_MAX {
            return;
        }
        job.checkpoint_notes.push(note.clone());
        let (job, allocation, note) = (job.id.clone(), id.clone(), note.clone());
        turn.say(Event::CheckpointNoted { job, allocation, note });
    }

    /// The node says what the attempt resumes from, and what it found on the way.
    pub(super) fn resumed(&mut self, turn: &mut Turn<'_>, id: &AllocationId, resumed: &Resumed) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        if allocation.resumed.is_some() && allocation.resumed == resumed.taken {
            return;
        }
        allocation.resumed = resumed.taken;
        allocation.resume_from = Some(resumed.path.clone());
        let job = allocation.job.clone();
        for passed in &resumed.passed {
            let (content, presence) = (passed.content.as_ref(), passed.presence);
            self.change_checkpoint(turn, &job, id, passed.id, content, presence);
        }
        let moves = [(&resumed.aside, Presence::Aside), (&resumed.back, Presence::There)];
        for (paths, presence) in moves {
            for path in paths {
                let known = self.jobs.get(&job).and_then(|job| {
                    job.checkpoints().find(|c| c.path == *path && c.presence != Presence::Gone)
                });
                if let Some(at) = known.map(Checkpoint::id) {
                    self.change_checkpoint(turn, &job, id, at, None, Some(presence));
                }
            }
        }
        if let Some(taken) = resumed.taken.filter(|_| resumed.from_kept) {
            self.change_checkpoint(turn, &job, id, taken, None, Some(Presence::There));
        }
        let number = self.jobs.get(&job).and_then(|job| {
            job.checkpoints().find(|c| Some(c.id()) == resumed.taken).map(|c| c.number)
        });
        turn.say(Event::JobResumed {
            job,
            allocation: id.clone(),
            path: resumed.path.clone(),
            number,
            passed: resumed.passed.iter().map(|p| format!("{}: {}", p.id, p.why)).collect(),
            aside: resumed.aside.len() as u64,
            aside_bytes: resumed.aside_bytes,
            found: resumed.found,
            from_kept: resumed.from_kept,
        });
    }

    /// The checkpoints that the node of an attempt gets to resume from; none where the attempt starts from nothing.
    pub(crate) fn resume_order(&self, job: &Job, allocation: &Allocation) -> Option<ResumeOrder> {
        if job.spec.checkpoint.is_none() && job.spec.resume_from.is_none() {
            return None;
        }
        let by_owner = matches!(job.restart_from, Some(RestartFrom::Checkpoint(_)));
        let candidates = match job.restart_from {
            Some(RestartFrom::Scratch) => {
                let there = job.checkpoints().filter(|c| c.presence == Presence::There);
                there.map(Candidate::of).collect()
            }
            Some(RestartFrom::Checkpoint(id)) => {
                job.checkpoints().filter(|c| c.id() == id).map(Candidate::of).collect()
            }
            Some(RestartFrom::Newest) | None => job.candidates(),
        };
        let path = job.spec.resume_from.clone().filter(|_| !job.has_saved());
        let scratch = job.restart_from == Some(RestartFrom::Scratch);
        let first_of_all = path.is_none() && allocation.attempt <= 1;
        (!first_of_all).then(|| ResumeOrder {
            candidates,
            by_owner,
            path,
            others_dead: self.others_are_dead(job, allocation),
            scratch,
            shared_dir: self.shares_its_directory(job).is_some(),
            below: job.steps_back.below,
        })
    }

    /// Whether every earlier attempt is known to be dead: the GPUs of one that was given up as lost stay leased until its
    /// node says that nobody has them, has booted again, or somebody vouches for it.
    fn others_are_dead(&self, job: &Job, current: &Allocation) -> bool {
        let earlier: BTreeSet<AllocationId> =
            (1..current.attempt).map(|n| AllocationId::of_attempt(&job.id, n)).collect();
        let holds = |lease: &Lease| match &lease.holder {
            LeaseHolder::Allocation(id) => earlier.contains(id),
            LeaseHolder::Reservation(_) => false,
        };
        // All leases: only for an attempt that follows another, until it has begun.
        earlier.is_empty() || !self.leases.values().any(holds)
    }

    /// Another open job that writes checkpoints of the same names into the same directory.
    pub(super) fn shares_its_directory(&self, job: &Job) -> Option<&JobId> {
        let plan = job.spec.checkpoint.as_ref()?;
        // A directory of each job's own cannot be another's.
        if plan.dir.contains(job.id.as_str()) {
            return None;
        }
        // All open jobs: only for a job with checkpoints in a directory that is not its own by name.
        let open = self.queue.values().chain(self.allocations.values().map(|a| &a.job));
        let mut others = open.filter(|id| **id != job.id).filter_map(|id| self.jobs.get(id));
        let same = |other: &&Job| {
            other
                .spec
                .checkpoint
                .as_ref()
                .is_some_and(|theirs| theirs.dir == plan.dir && theirs.pattern == plan.pattern)
        };
        others.find(same).map(|other| &other.id)
    }

    /// Asks the running attempt for a checkpoint; the node does it, and what comes of it is a checkpoint or nothing.
    pub(super) fn ask_checkpoint(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
    ) -> Result<Reply, Rejection> {
        let job = self.jobs.get(id).ok_or_else(|| Rejection::not_found("job", id))?;
        let running = job.allocation().filter(|_| job.state == JobState::Running);
        let Some(allocation) = running.cloned() else {
            let state = job.state.word().to_owned();
            return Err(Rejection::NotRunning { id: id.to_string(), state });
        };
        if job.spec.checkpoint.is_none() {
            let why = "it declares no checkpoint directory (--checkpoint-dir)".to_owned();
            return Err(Rejection::NoCheckpoints { id: id.to_string(), why });
        }
        let by = turn.actor.display_name();
        self.ask_allocation(turn, &allocation, by);
        Ok(Reply::Done)
    }

    pub(super) fn ask_allocation(&mut self, turn: &mut Turn<'_>, id: &AllocationId, by: String) {
        let at: Timestamp = self.now;
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let order = allocation.asked.as_ref().map_or(0, |asked| asked.order) + 1;
        allocation.asked = Some(CheckpointAsked { order, at, by: by.clone() });
        let (job, allocation) = (allocation.job.clone(), id.clone());
        turn.say(Event::CheckpointAsked { job, allocation, by });
    }
}

/// What the audit log keeps of it.
pub(super) fn recorded(checkpoint: &Checkpoint) -> RecordedFacts {
    RecordedFacts {
        facts: checkpoint.facts.clone(),
        attempt: checkpoint.attempt,
        size_bytes: checkpoint.size_bytes,
        completed_at: checkpoint.completed_at,
        node: checkpoint.node.clone(),
    }
}
