//! Carries out what `judgment.rs` says of an attempt's end: steps back, pauses, questions to the owner, and what the job has
//! used of its time.

use std::collections::BTreeSet;

use super::cluster::check_text;
use super::jobs::Next;
use super::judgment::{Case, IMAGE_WAIT_MAX, Verdict, judge, pause};
use super::{Fsm, Turn};
use crate::allocation::{Allocation, AttemptEnd, EndReport, StopWhy};
use crate::checkpoint::{Checkpoint, Doubt, Presence, Question, RestartFrom};
use crate::event::Event;
use crate::health::{Severity, Subject, can_end_a_program};
use crate::id::JobId;
use crate::job::{FaultCounted, ImageWait, Job, JobOutcome, JobState};
use crate::name::NodeName;
use crate::time::{Millis, Timestamp};

/// A fault of one cause on one node uses up one restart in this time, where the job can go elsewhere.
const SAME_FAULT: Millis = Millis::minutes(10);

impl Fsm {
    /// What becomes of the job. What it says of steps back and time is noted already.
    pub(super) fn judged(
        &mut self,
        turn: &mut Turn<'_>,
        allocation: &Allocation,
        report: &EndReport,
        exit_code: Option<i32>,
    ) -> Option<Next> {
        self.note_time_used(allocation, report);
        self.put_back(&allocation.job);
        let fault = report.fault.clone().or_else(|| self.fault_under(allocation));
        let job = self.jobs.get(&allocation.job)?;
        let earlier = job.candidates().into_iter().find(|c| Some(c.id) != allocation.resumed);
        let verdict = judge(Case {
            report,
            stop: allocation.stop.as_ref().map(|stop| &stop.why),
            fault: fault.as_deref().filter(|_| !allocation.gpus.is_empty()),
            resumed_without_progress: allocation.resumed.is_some()
                && !job.checkpoints().any(|c| c.allocation == allocation.id && !c.is_torn()),
            started: allocation.started_at.is_some(),
            ran: ran(allocation, report, self.now),
            usual_gap: job.gaps().first().copied(),
            steps: &job.steps_back,
            has_earlier: earlier.is_some(),
            retry_on: &job.spec.retry_on,
            retries: job.retries,
        });
        self.charge_attempt(allocation, report, &verdict);
        self.carry_out(turn, (allocation, report), verdict, exit_code)
    }

    fn carry_out(
        &mut self,
        turn: &mut Turn<'_>,
        (allocation, report): (&Allocation, &EndReport),
        verdict: Verdict,
        exit_code: Option<i32>,
    ) -> Option<Next> {
        let job = self.jobs.get_mut(&allocation.job)?;
        if !matches!(verdict, Verdict::NoImage { .. }) {
            job.image_wait = None;
        }
        let job = self.jobs.get(&allocation.job)?;
        let stop = allocation.stop.as_ref().map(|stop| stop.why.to_string()).unwrap_or_default();
        let finish =
            |state, reason: String| Some(Next::Finish(state, JobOutcome { exit_code, reason }));
        match verdict {
            Verdict::Completed => {
                let code = exit_code.unwrap_or(0);
                finish(JobState::Completed, with_output(format!("exit code {code}"), report))
            }
            Verdict::Cancelled => finish(JobState::Cancelled, stop),
            Verdict::TimedOut => finish(JobState::TimedOut, stop),
            Verdict::Evicted => {
                let why = allocation.stop.as_ref().map(|stop| &stop.why)?.clone();
                self.evicted(turn, allocation, &why)
            }
            Verdict::NodeFault { cause, has_run } => self.faulted(turn, allocation, cause, has_run),
            Verdict::NoImage { why } => self.without_image(turn, allocation, why),
            Verdict::OtherNode { why } => Some(Next::Again { why, uses_restart: false }),
            Verdict::AskOwner { why } => Some(Next::Ask { why }),
            Verdict::StepBack { why } => self.step_back(turn, allocation, why, exit_code),
            Verdict::Retry { why, pause } => {
                let until = self.now + pause;
                let job = self.jobs.get_mut(&allocation.job)?;
                job.retries += 1;
                // It pauses for its own sake, not for a node's.
                job.last_fault = None;
                Some(Next::Pause { why, until })
            }
            Verdict::Failed => {
                let (code, reason) = failure(job, (allocation, report), exit_code);
                Some(Next::Finish(JobState::Failed, JobOutcome { exit_code: code, reason }))
            }
        }
    }

    fn evicted(
        &mut self,
        turn: &mut Turn<'_>,
        allocation: &Allocation,
        why: &StopWhy,
    ) -> Option<Next> {
        let job = self.jobs.get(&allocation.job)?;
        let by_class = matches!(why, StopWhy::Evicted { by_class: true, .. });
        if job.has_saved() || by_class {
            return Some(Next::Again { why: why.to_string(), uses_restart: false });
        }
        self.faulted(turn, allocation, why.to_string(), allocation.started_at.is_some())
    }

    /// One cause on one node counts once in ten minutes: until then the job goes elsewhere, or waits longer each time.
    fn faulted(
        &mut self,
        turn: &mut Turn<'_>,
        allocation: &Allocation,
        cause: String,
        has_run: bool,
    ) -> Option<Next> {
        let (id, node, now) = (allocation.job.clone(), allocation.node.clone(), self.now);
        let job = self.jobs.get(&id)?;
        let same = self.is_same_fault(job, &node, &cause) && !job.cancel_requested;
        if same && self.can_run_elsewhere(job, &node) {
            // One that never ran keeps away already, and so does one from a node that can begin nothing.
            if has_run && !self.nodes.get(&node).is_some_and(|node| self.is_short(node)) {
                self.exclude_node(turn, &id, &node, &cause);
            }
            return Some(Next::Again { why: cause, uses_restart: false });
        }
        if same {
            let last = self.jobs.get_mut(&id)?.last_fault.as_mut()?;
            let until = now + pause(last.again);
            last.again += 1;
            return Some(Next::Pause { why: cause, until });
        }
        let last = job.last_fault.as_ref().filter(|last| last.node == node && last.cause == cause);
        // The pauses continue at the length they had.
        let again = last.map_or(0, |last| last.again);
        let next = self.after_node_fault(job, cause.clone(), has_run);
        if let Some(Next::Again { uses_restart, .. }) = &next
            && (*uses_restart || !has_run)
        {
            let counted = FaultCounted { node, cause, at: now, again };
            self.jobs.get_mut(&id)?.last_fault = Some(counted);
        }
        next
    }

    /// A registry that does not answer is nobody's fault here and comes back: each node is tried once, and then the job
    /// waits longer each time, without using anything up.
    fn without_image(
        &mut self,
        turn: &mut Turn<'_>,
        allocation: &Allocation,
        why: String,
    ) -> Option<Next> {
        let (id, now) = (allocation.job.clone(), self.now);
        let job = self.jobs.get(&id)?;
        if job.cancel_requested {
            let outcome = JobOutcome { exit_code: None, reason: why };
            return Some(Next::Finish(JobState::Cancelled, outcome));
        }
        let waits = job.image_wait.clone().unwrap_or_default();
        if waits.tries == 0 && self.can_run_elsewhere(job, &allocation.node) {
            self.exclude_node(turn, &id, &allocation.node, &why);
            let job = self.jobs.get_mut(&id)?;
            let waits = job.image_wait.get_or_insert(waits);
            waits.tried.insert(allocation.node.clone());
            return Some(Next::Again { why, uses_restart: false });
        }
        if waits.waited >= IMAGE_WAIT_MAX {
            let reason = format!("{why}; it was tried for {}", waits.waited);
            return Some(Next::Finish(JobState::Failed, JobOutcome { exit_code: None, reason }));
        }
        let pause = pause(waits.tries);
        let (until, waited) = (now + pause, waits.waited + pause);
        let job = self.jobs.get_mut(&id)?;
        for node in &waits.tried {
            job.excluded_nodes.remove(node);
        }
        let tries = waits.tries + 1;
        job.image_wait =
            Some(ImageWait { waited, tries, tried: BTreeSet::new(), why: why.clone() });
        Some(Next::Pause { why, until })
    }

    /// Whether this cause on this node was counted a moment ago.
    pub(super) fn is_same_fault(&self, job: &Job, node: &NodeName, cause: &str) -> bool {
        job.last_fault.as_ref().is_some_and(|last| {
            last.node == *node && last.cause == cause && self.now.since(last.at) <= SAME_FAULT
        })
    }

    /// The next attempt takes the checkpoint before the one that this attempt took.
    fn step_back(
        &mut self,
        turn: &mut Turn<'_>,
        allocation: &Allocation,
        why: String,
        exit_code: Option<i32>,
    ) -> Option<Next> {
        let job = self.jobs.get_mut(&allocation.job)?;
        let from = job.checkpoints().find(|c| Some(c.id()) == allocation.resumed).map(|c| c.number);
        let path = allocation.resume_from.clone().unwrap_or_default();
        let steps = &mut job.steps_back;
        if steps.taken == 0 {
            (steps.exit_code, steps.reason) = (exit_code, why.clone());
        }
        steps.taken += 1;
        steps.below = from.or(steps.below);
        steps.tried.push(format!("{path}: {why}"));
        job.restart_from = None;
        let to = job.candidates().first().map(|c| c.number);
        let event = Event::JobSteppedBack { job: job.id.clone(), from, to, why: why.clone() };
        turn.say(event);
        Some(Next::Again { why, uses_restart: false })
    }

    /// A condition of its GPUs, seen by its node, after which programs end.
    fn fault_under(&self, allocation: &Allocation) -> Option<String> {
        let node = self.nodes.get(&allocation.node)?;
        let on_it = |subject: &Subject| match subject {
            Subject::Node => false,
            Subject::Gpu(gpu) => allocation.gpus.contains(gpu),
        };
        let found = node.conditions.iter().find(|condition| {
            condition.is_active() && on_it(&condition.subject) && can_end_a_program(&condition.kind)
        });
        found.map(|condition| condition.reason.clone())
    }

    /// Running time counts up to the checkpoint that the next attempt resumes from: what was lost after it does not.
    fn note_time_used(&mut self, allocation: &Allocation, report: &EndReport) {
        let Some(job) = self.jobs.get_mut(&allocation.job) else { return };
        let Some(began) = allocation.started_at else { return };
        let own = job.checkpoints().find(|c| c.allocation == allocation.id && !c.is_torn());
        let own = own.map(|c| c.completed_at);
        let most = ran(allocation, report, self.now);
        let used = own.map_or(Millis::ZERO, |saved| saved.since(began)).min(most);
        job.time_used = job.time_used + used;
    }

    /// Its node gives what was moved aside for the attempt its name back.
    fn put_back(&mut self, job: &JobId) {
        let Some(job) = self.jobs.get_mut(job) else { return };
        for checkpoint in job.last_checkpoint.iter_mut().chain(&mut job.older_checkpoints) {
            if checkpoint.presence == Presence::Aside && !checkpoint.facts.content.is_torn() {
                checkpoint.presence = Presence::There;
            }
        }
    }

    /// Since when one of its GPUs has a fault that destroys work, by its node's own clock, as its checkpoints are.
    pub(super) fn fatal_since(&self, allocation: &Allocation) -> Option<Timestamp> {
        let node = self.nodes.get(&allocation.node)?;
        let fatal = node.conditions.iter().filter(|condition| {
            let on_it = match &condition.subject {
                Subject::Node => true,
                Subject::Gpu(gpu) => allocation.gpus.contains(gpu),
            };
            on_it && condition.is_active() && condition.severity == Severity::Fatal
        });
        fatal.map(|condition| condition.since).min()
    }

    /// What was saved after a fatal fault of its GPU may hold wrong numbers.
    pub(super) fn doubt_after_fault(&mut self, allocation: &Allocation, since: Timestamp) {
        let Some(job) = self.jobs.get_mut(&allocation.job) else { return };
        let all = job.last_checkpoint.iter_mut().chain(&mut job.older_checkpoints);
        let later = |c: &&mut Checkpoint| c.allocation == allocation.id && c.completed_at > since;
        for checkpoint in all.filter(later) {
            if checkpoint.facts.doubt != Doubt::WriterUnknown {
                checkpoint.facts.doubt = Doubt::AfterFault;
            }
        }
    }

    /// It waits for its owner's word, holds nothing and is in nobody's way.
    pub(super) fn ask_owner(&mut self, turn: &mut Turn<'_>, id: &JobId, why: String) {
        let since = self.now;
        let Some(job) = self.jobs.get_mut(id) else { return };
        self.queue.remove(&job.queue);
        job.attempt.end();
        job.state = JobState::Queued;
        job.question = Some(Question { why: why.clone(), since });
        turn.say(Event::JobAsksOwner { job: id.clone(), why });
    }

    /// Some of its checkpoints counted, and none can be used without a word of its owner.
    pub(super) fn nothing_to_resume(&self, job: &Job) -> Option<String> {
        let from_nothing = job.restart_from == Some(RestartFrom::Scratch)
            || matches!(job.restart_from, Some(RestartFrom::Checkpoint(_)));
        if !job.has_saved() || from_nothing || !job.candidates().is_empty() {
            return None;
        }
        let all =
            job.checkpoints().map(|c| format!("checkpoint {} is {}", c.number, c.condition()));
        Some(format!("no usable checkpoint: {}", all.collect::<Vec<_>>().join("; ")))
    }

    /// Queues those whose pause is over.
    pub(super) fn queue_paused(&mut self, now: Timestamp) {
        let due: Vec<JobId> =
            self.paused.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
        for id in due {
            self.paused.remove(&id);
            if let Some(job) = self.jobs.get(&id) {
                self.queue.insert(job.queue, id);
            }
        }
    }
}

/// How long the attempt ran, by what is known.
fn ran(allocation: &Allocation, report: &EndReport, now: Timestamp) -> Millis {
    let end = report.ended_at.min(now);
    allocation.started_at.map_or(Millis::ZERO, |began| end.since(began))
}

/// In whole GiB where it is that, else in MiB.
fn memory(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes % GIB {
        0 => format!("{} GiB", bytes / GIB),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A user who reads only the file would take it for the whole output. No end is refused because of this text.
fn with_output(reason: String, report: &EndReport) -> String {
    match report.output_problem.as_deref() {
        Some(problem) if check_text("output_problem", problem).is_ok() => {
            format!("{reason}; its output file is not whole: {problem}")
        }
        Some(_) => format!("{reason}; its output file is not whole, see its log"),
        None => reason,
    }
}

/// After steps back the first failure is the one that counts, and the list says what each try took.
fn failure(
    job: &Job,
    (allocation, report): (&Allocation, &EndReport),
    exit_code: Option<i32>,
) -> (Option<i32>, String) {
    if job.steps_back.taken == 0 {
        let reason = match (&report.end, report.memory_kill) {
            (AttemptEnd::OutOfMemory, _) => {
                let limit = memory(allocation.memory_bytes);
                format!("it used more than its {limit} of host memory; raise it with --memory")
            }
            (end, true) => {
                let limit = memory(allocation.memory_bytes);
                format!(
                    "{end}; one of its processes was killed for lack of memory (limit {limit}; raise it with --memory)"
                )
            }
            (end, false) => end.to_string(),
        };
        return (exit_code, with_output(reason, report));
    }
    let tried = job.steps_back.tried.join("; ");
    let reason = format!(
        "{}; {} earlier checkpoints were tried as well: {tried}",
        job.steps_back.reason, job.steps_back.taken
    );
    (job.steps_back.exit_code, reason)
}
