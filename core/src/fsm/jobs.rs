//! Jobs: submitted, placed, stopped, ended, queued again.

use super::fair_share::ended_at;
use super::leases::Grant;
use super::reservations::check_owner;
use super::{FINISHED_JOBS_KEPT, Fsm, Turn, validate};
use crate::actor::Actor;
use crate::allocation::{Allocation, AttemptEnd, EndReport, Phase, StopOrder, StopWhy};
use crate::calendar::HeldPlace;
use crate::checkpoint::CheckpointNote;
use crate::command::Placement;
use crate::event::Event;
use crate::health::begins_nothing;
use crate::id::{AllocationId, JobId, ReservationId};
use crate::job::SubmitJob;
use crate::job::{
    Attempt, JOBS_OPEN_MAX, Job, JobOutcome, JobSpec, JobState, Place, QueueKey, RANK_INTERRUPTED,
    RANK_NEW, START_FAULTS_MAX,
};
use crate::lease::LeaseHolder;
use crate::name::NodeName;
use crate::node::Node;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::scheduler::limits::{Awaited, JobLimits};
use crate::scheduler::{self, claims};
use crate::time::{Millis, Timestamp, Window};

/// What becomes of a job whose attempt ended.
#[derive(Debug)]
pub(super) enum Next {
    Finish(JobState, JobOutcome),
    /// It waits for its owner's word.
    Ask {
        why: String,
    },
    /// Queued again after a pause.
    Pause {
        why: String,
        until: Timestamp,
    },
    /// Queue again; the flag says whether a restart is used up.
    Again {
        why: String,
        uses_restart: bool,
    },
}

/// How far ahead a job may begin: as far as people book GPUs.
const BEGIN_AHEAD_MAX: Millis = Millis::days(365);

impl Fsm {
    pub(super) fn submit_job(
        &mut self,
        turn: &mut Turn<'_>,
        wish: &SubmitJob,
    ) -> Result<Reply, Rejection> {
        self.check_job(turn.actor, wish)?;
        self.jobs_submitted += 1;
        let queue = QueueKey { rank: RANK_NEW, submitted: self.jobs_submitted };
        let mut job = Job::submitted(wish.clone(), queue, self.now);
        self.with_defaults(&mut job.spec);
        let stop_after = job.spec.stop_after.filter(|_| job.spec.stop_after_default);
        if let Some(other) = self.shares_its_directory(&job) {
            job.checkpoint_notes.push(CheckpointNote::SharedDir { job: other.to_string() });
        }
        self.bind_job(&job);
        self.jobs.insert(wish.id.clone(), job);
        self.queue.insert(queue, wish.id.clone());
        let begin = wish.spec.begin.filter(|begin| *begin > self.now);
        if let Some(begin) = begin {
            self.pause(&wish.id, begin);
        }
        let (job, owner) = (wish.id.clone(), wish.owner.clone());
        turn.say(Event::JobQueued { job, owner, stop_after, begin });
        if wish.spec.hold {
            self.hold_waiting(turn, &wish.id, false);
        }
        Ok(Reply::JobSubmitted { id: wish.id.clone() })
    }

    /// Everything that could be refused.
    pub(super) fn check_job(&self, actor: &Actor, wish: &SubmitJob) -> Result<(), Rejection> {
        check_owner(actor, &wish.owner)?;
        self.check_enabled(&wish.owner)?;
        validate::job_spec(&wish.spec)?;
        self.check_project(actor, &wish.owner, &wish.spec.project)?;
        self.check_class(actor, &wish.owner, &wish.spec.class)?;
        scheduler::limits::check(self, &wish.spec)?;
        if self.jobs.contains_key(&wish.id) {
            return Err(Rejection::IdTaken { id: wish.id.to_string() });
        }
        let waiting = self.queue.len() + self.paused.len() + self.held.len();
        if waiting + self.allocations.len() >= JOBS_OPEN_MAX {
            let what = "open jobs".to_owned();
            return Err(Rejection::LimitReached { what, limit: JOBS_OPEN_MAX as u64 });
        }
        if let Some(id) = &wish.spec.reservation {
            scheduler::may_run_in(self.accepted_reservation(id)?, &wish.owner)?;
        }
        self.check_begin(&wish.spec)?;
        scheduler::satisfiable(self, &wish.owner, &wish.spec)?;
        if wish.spec.immediate {
            scheduler::could_start_now(self, &wish.owner, &wish.spec)?;
        }
        Ok(())
    }

    /// A time that has passed counts as now: the command may have taken a while.
    fn check_begin(&self, spec: &JobSpec) -> Result<(), Rejection> {
        let Some(begin) = spec.begin.filter(|begin| *begin > self.now) else { return Ok(()) };
        let wait = begin.since(self.now);
        if wait > BEGIN_AHEAD_MAX {
            let problem = format!("the job would begin in {wait}; at most {BEGIN_AHEAD_MAX} ahead");
            return Err(Rejection::field("begin", problem));
        }
        if spec.immediate {
            let problem = "a job that begins later cannot start at once; leave out --immediate";
            return Err(Rejection::field("begin", problem));
        }
        let reservation = spec.reservation.as_ref().and_then(|id| self.reservation(id));
        if let Some(ended) = reservation.filter(|r| r.window.ends_at <= begin) {
            let problem = format!("{} ends before that time", ended.id);
            return Err(Rejection::field("begin", problem));
        }
        Ok(())
    }

    /// The job, if it has not ended. One that is being cancelled is returned too: cancelling twice is harmless.
    pub(super) fn cancellable(&self, id: &JobId) -> Result<&Job, Rejection> {
        let job = self.jobs.get(id).ok_or_else(|| Rejection::not_found("job", id))?;
        if job.state.is_final() {
            let state = job.state.word().to_owned();
            return Err(Rejection::AlreadyEnded { id: id.to_string(), state });
        }
        Ok(job)
    }

    pub(super) fn cancel_job(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
    ) -> Result<Reply, Rejection> {
        let allocation = self.cancellable(id)?.allocation().cloned();
        if let Some(job) = self.jobs.get_mut(id) {
            job.cancel_requested = true;
        }
        let by = turn.actor.display_name();
        match allocation {
            Some(allocation) => self.stop_allocation(turn, &allocation, StopWhy::Cancelled { by }),
            None => {
                let reason = format!("cancelled by {by} before it ran");
                let outcome = JobOutcome { exit_code: None, reason };
                turn.say(Event::JobCancelled { job: id.clone(), by });
                self.finish_job(id, JobState::Cancelled, outcome, self.now);
            }
        }
        Ok(Reply::Done)
    }

    /// Applies a plan line by line; a line the state outran is refused and planned again.
    pub(super) fn place_jobs(&mut self, turn: &mut Turn<'_>, lines: &[Placement]) -> Reply {
        let always = Window { starts_at: self.now, ends_at: Timestamp::MAX_ACCEPTED };
        let mut held = claims::held_within(self, &always);
        let mut limits = JobLimits::new(Awaited::CountsNot);
        let mut results = Vec::with_capacity(lines.len());
        for line in lines {
            let result = self.place_job(turn, line, &held, &mut limits);
            // Interrupted work comes first, and may take a place that is held: another one is held from then on.
            if result.is_ok() && held.iter().any(|place| has_a_gpu_of(line, place)) {
                held = claims::held_within(self, &always);
            }
            results.push(result);
        }
        Reply::Placed { results }
    }

    /// Whether a new job would still be there when the place is needed that is held for one that must leave. The plan may
    /// be older than the reason to leave.
    fn takes_a_held_place(&self, job: &Job, line: &Placement, held: &[HeldPlace]) -> bool {
        let until = self.now + job.time_left() + job.spec.stop_grace;
        job.queue.rank == RANK_NEW
            && held.iter().any(|place| until > place.window.starts_at && has_a_gpu_of(line, place))
    }

    /// Why the job may not have GPUs that are free.
    fn is_kept_for_another(
        &self,
        job: &Job,
        line: &Placement,
        held: &[HeldPlace],
    ) -> Option<&'static str> {
        let is_its_own = self.preemptions.get(&line.job).is_some_and(|place| {
            place.node == line.node && line.gpus.iter().all(|gpu| place.gpus.contains(gpu))
        });
        if !is_its_own && self.takes_a_held_place(job, line, held) {
            return Some("a GPU is held for a job that must leave");
        }
        self.takes_a_freed_place(job, line)
            .then_some("a GPU is held for the job that it was freed for")
    }

    fn place_job(
        &mut self,
        turn: &mut Turn<'_>,
        line: &Placement,
        held: &[HeldPlace],
        limits: &mut JobLimits,
    ) -> Result<AllocationId, Rejection> {
        let approved = scheduler::check(self, line, limits)?;
        let stale =
            |why: &str| Rejection::PlanStale { what: line.job.to_string(), why: why.to_owned() };
        let boot_id = self
            .nodes
            .get(&line.node)
            .map(|node| node.facts.boot_id.clone())
            .ok_or_else(|| stale("the node is gone"))?;
        let job = self.jobs.get(&line.job).ok_or_else(|| stale("the job is gone"))?;
        if approved.parent.is_none()
            && let Some(why) = self.is_kept_for_another(job, line, held)
        {
            return Err(stale(why));
        }
        let attempt = job.attempt.number + 1;
        let id = AllocationId::of_attempt(&line.job, attempt);
        let owner = job.owner.clone();
        let resume_from = job.candidates().first().map(|c| c.path.clone());
        let key = job.queue;
        let account = self.account_of(job, approved.parent.as_ref());
        if approved.parent.is_none() {
            limits.count(self, job);
        }
        let lease = (!line.gpus.is_empty()).then(|| {
            let grant = Grant {
                node: line.node.clone(),
                gpus: line.gpus.clone(),
                owner: owner.clone(),
                holder: LeaseHolder::Allocation(id.clone()),
                parent: approved.parent.clone(),
                account,
                given: None,
            };
            self.grant(turn, grant)
        });
        let allocation = Allocation {
            id: id.clone(),
            job: line.job.clone(),
            attempt,
            node: line.node.clone(),
            boot_id,
            gpus: line.gpus.clone(),
            lease,
            epoch: turn.epoch,
            owner: owner.clone(),
            cpu_millis: line.cpu_millis,
            memory_bytes: line.memory_bytes,
            phase: Phase::Placed,
            placed_at: self.now,
            started_at: None,
            time_limit_at: None,
            own_limit_at: None,
            reserved_over: false,
            // Under a reservation's lease the end of the reservation stops it, however often that
            // is moved.
            ends_by: approved.ends_by.filter(|_| approved.parent.is_none()),
            stop: None,
            causes: std::collections::BTreeMap::new(),
            deferral: None,
            deferral_orders: 0,
            deferral_spent: Millis::ZERO,
            checkpoint_seq: 0,
            resume_from: resume_from.clone(),
            resumed: None,
            asked: None,
        };
        self.allocations.insert(id.clone(), allocation);
        self.queue.remove(&key);
        self.kept_places.retain(|kept| kept.job != line.job);
        if let Some(job) = self.jobs.get_mut(&line.job) {
            job.state = JobState::Starting;
            let place = Place {
                node: line.node.clone(),
                gpus: line.gpus.clone(),
                cpu_millis: line.cpu_millis,
                memory_bytes: line.memory_bytes,
            };
            job.attempt = Attempt::begun(attempt, id.clone(), place);
        }
        turn.say(Event::JobPlaced {
            job: line.job.clone(),
            allocation: id.clone(),
            node: line.node.clone(),
            gpus: line.gpus.clone(),
            epoch: turn.epoch,
            resume_from,
            owner,
        });
        Ok(id)
    }

    /// Orders the stop; the first order wins, but a user's cancel replaces the reason.
    pub(super) fn stop_allocation(&mut self, turn: &mut Turn<'_>, id: &AllocationId, why: StopWhy) {
        let now = self.now;
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        if let Some(stop) = &mut allocation.stop {
            if matches!(why, StopWhy::Cancelled { .. })
                && !matches!(stop.why, StopWhy::Cancelled { .. })
            {
                turn.say(Event::JobStopping {
                    job: allocation.job.clone(),
                    allocation: id.clone(),
                    why: why.to_string(),
                });
                stop.why = why;
            }
            return;
        }
        let Some(job) = self.jobs.get_mut(&allocation.job) else { return };
        let grace = match &why {
            // The work is lost already: nothing is won by waiting.
            StopWhy::NodeFault { .. } => Millis::ZERO,
            StopWhy::Cancelled { .. }
            | StopWhy::TimeLimit
            | StopWhy::NoLimitNamed { .. }
            | StopWhy::ReservationEnded
            | StopWhy::Evicted { .. } => job.spec.stop_grace,
        };
        job.state = JobState::Stopping;
        allocation.phase = Phase::Stopping;
        // An eviction has its own event, which says more.
        if !matches!(why, StopWhy::Evicted { .. }) {
            turn.say(Event::JobStopping {
                job: allocation.job.clone(),
                allocation: id.clone(),
                why: why.to_string(),
            });
        }
        allocation.stop = Some(StopOrder { why, at: now, grace });
    }

    /// Ends an attempt that no agent will ever report on.
    pub(super) fn lose_allocation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        message: String,
    ) {
        let report = EndReport {
            end: AttemptEnd::Lost { message },
            done: false,
            fault: None,
            memory_kill: false,
            no_image: false,
            output_problem: None,
            stopped: false,
            started_at: None,
            ended_at: self.now,
            cpu_usec: None,
            memory_peak_bytes: None,
        };
        self.end_attempt(turn, id, &report);
    }

    /// The attempt is over; its GPUs are free only when they are proven empty.
    pub(super) fn end_attempt(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        report: &EndReport,
    ) {
        let Some(allocation) = self.allocations.remove(id) else { return };
        if let Some(lease) = &allocation.lease {
            self.end_lease(lease);
            // Of an attempt that is lost nobody knows the end, until its node is back.
            if !matches!(report.end, AttemptEnd::Lost { .. }) {
                self.note_end(lease, ended_at(&allocation, report, self.now));
            }
        }
        turn.say(Event::AttemptEnded {
            job: allocation.job.clone(),
            allocation: id.clone(),
            end: report.end.clone(),
        });
        let id = allocation.job.clone();
        if let AttemptEnd::CannotResume { message } = &report.end {
            self.exclude_node(turn, &id, &allocation.node, message);
        }
        if let AttemptEnd::NodeFault { message } = &report.end
            && allocation.started_at.is_none()
            && !report.no_image
        {
            self.note_start_fault(turn, &id, &allocation.node, message);
        }
        match self.judged(turn, &allocation, report, exit_code(&report.end)) {
            Some(Next::Finish(state, outcome)) => {
                turn.say(finished_event(&id, state, &outcome, &allocation));
                // The report may come long after the end; and the node's clock may be off.
                let began = allocation.started_at.unwrap_or(allocation.placed_at);
                let at = report.ended_at.min(self.now).max(began);
                self.finish_job(&id, state, outcome, at);
            }
            Some(Next::Again { why, uses_restart }) => self.requeue(turn, &id, why, uses_restart),
            Some(Next::Ask { why }) => self.ask_owner(turn, &id, why),
            Some(Next::Pause { why, until }) => {
                self.requeue(turn, &id, why, false);
                self.pause(&id, until);
            }
            None => {}
        }
        self.say_if_drained(turn, &allocation.node);
        self.end_reservations_of_disabled(turn);
    }

    /// The node is not tried again while the job can go to another; the only one gets another chance.
    fn note_start_fault(&mut self, turn: &mut Turn<'_>, id: &JobId, node: &NodeName, why: &str) {
        let Some(job) = self.jobs.get(id) else { return };
        let counted = self.is_same_fault(job, node, why);
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.start_faults += u32::from(!counted);
        // Its condition keeps the job away for as long as it holds, and no longer.
        if self.nodes.get(node).is_some_and(|node| self.is_short(node)) {
            return;
        }
        if self.jobs.get(id).is_some_and(|job| self.can_run_elsewhere(job, node)) {
            self.exclude_node(turn, id, node, why);
        }
    }

    /// Whether some other open node is built for it.
    pub(super) fn can_run_elsewhere(&self, job: &Job, node: &NodeName) -> bool {
        let other = |n: &Node| {
            n.name != *node
                && n.closed().is_none()
                && !self.is_short(n)
                && !job.excluded_nodes.contains_key(&n.name)
                && scheduler::satisfiable_on(self, &job.owner, &job.spec, &n.name)
        };
        // Most jobs find one among the first nodes; it is asked only when a start failed.
        self.nodes.values().any(other)
    }

    /// Whether it can begin nothing now, for want of room.
    pub(super) fn is_short(&self, node: &Node) -> bool {
        node.conditions.iter().any(begins_nothing)
    }

    /// It leaves the queue until then.
    fn pause(&mut self, id: &JobId, until: Timestamp) {
        let Some(job) = self.jobs.get(id) else { return };
        if self.queue.remove(&job.queue).is_some() {
            self.paused.insert(id.clone(), until);
        }
    }

    pub(super) fn exclude_node(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
        node: &NodeName,
        why: &str,
    ) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.excluded_nodes.insert(node.clone(), why.to_owned());
        turn.say(Event::NodeExcluded { job: id.clone(), node: node.clone(), why: why.to_owned() });
    }

    /// What kept jobs from a node may be mended by now: a disk that was not mounted yet, for instance.
    pub(super) fn lift_exclusions(&mut self, turn: &mut Turn<'_>, node: &NodeName, why: &str) {
        for job in self.jobs.values_mut().filter(|job| !job.state.is_final()) {
            if job.excluded_nodes.remove(node).is_some() {
                let (job, node, why) = (job.id.clone(), node.clone(), why.to_owned());
                turn.say(Event::ExclusionLifted { job, node, why });
            }
        }
    }

    pub(super) fn after_node_fault(&self, job: &Job, why: String, ran: bool) -> Option<Next> {
        if job.cancel_requested {
            let outcome = JobOutcome { exit_code: None, reason: why };
            return Some(Next::Finish(JobState::Cancelled, outcome));
        }
        // What never ran costs nothing but another try, a few times.
        if !ran && job.start_faults < START_FAULTS_MAX {
            return Some(Next::Again { why, uses_restart: false });
        }
        if job.restarts_used < job.spec.restarts {
            return Some(Next::Again { why, uses_restart: true });
        }
        let left = match job.spec.restarts {
            0 => "it may not be restarted (--restarts 0)".to_owned(),
            n => format!("all {n} restarts are used"),
        };
        let outcome = JobOutcome { exit_code: None, reason: format!("{why}; {left}") };
        Some(Next::Finish(JobState::Failed, outcome))
    }

    fn requeue(&mut self, turn: &mut Turn<'_>, id: &JobId, why: String, uses_restart: bool) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if let Some(closed) = self.access.disabled(&job.owner) {
            let by = closed.by.clone();
            let reason = format!("{why}; the account of {} is closed", job.owner);
            turn.say(Event::JobCancelled { job: id.clone(), by });
            let outcome = JobOutcome { exit_code: None, reason };
            return self.finish_job(id, JobState::Cancelled, outcome, self.now);
        }
        if let Some(reservation) = job.spec.reservation.clone()
            && !self.still_takes_jobs(&reservation)
        {
            return self.end_with_its_reservation(turn, id, &reservation, Some(why));
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.restarts_used += u32::from(uses_restart);
        if let Some(nothing) = self.jobs.get(id).and_then(|job| self.nothing_to_resume(job)) {
            return self.ask_owner(turn, id, format!("{why}; {nothing}"));
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.attempt.end();
        job.state = JobState::Queued;
        job.queue.rank = RANK_INTERRUPTED;
        let key = job.queue;
        let resume_from = job.candidates().first().map(|c| c.path.clone());
        self.queue.insert(key, id.clone());
        turn.say(Event::JobRequeued { job: id.clone(), why, resume_from });
    }

    /// It has no attempt, and the reservation that it is bound to is over. `why`: how its last attempt ended.
    pub(super) fn end_with_its_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
        reservation: &ReservationId,
        why: Option<String>,
    ) {
        let reason = match why {
            Some(why) => format!("{why}, and its reservation {reservation} is over"),
            None => format!("its reservation {reservation} is over, and it still waited"),
        };
        turn.say(Event::JobTimedOut { job: id.clone(), why: Some(reason.clone()) });
        let outcome = JobOutcome { exit_code: None, reason };
        self.finish_job(id, JobState::TimedOut, outcome, self.now);
    }

    fn finish_job(&mut self, id: &JobId, state: JobState, outcome: JobOutcome, at: Timestamp) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        self.queue.remove(&job.queue);
        self.paused.remove(id);
        self.held.remove(id);
        job.question = None;
        job.state = state;
        job.outcome = Some(outcome);
        job.ended_at = Some(at);
        job.attempt.end();
        self.finished.push_back(id.clone());
        self.note_files(id);
        if self.finished.len() > FINISHED_JOBS_KEPT {
            self.forget_oldest();
        }
    }
}

/// The code a shell would show: the program's own, 128 + n for signal n, 137 for out of memory.
fn exit_code(end: &AttemptEnd) -> Option<i32> {
    match end {
        AttemptEnd::Exited { code } => Some(*code),
        AttemptEnd::Signaled { signal } => Some(128 + signal),
        AttemptEnd::OutOfMemory => Some(128 + 9),
        AttemptEnd::CannotStart { .. } => Some(125),
        AttemptEnd::CannotResume { .. }
        | AttemptEnd::NothingToResume { .. }
        | AttemptEnd::NodeFault { .. }
        | AttemptEnd::Lost { .. } => None,
    }
}

fn has_a_gpu_of(line: &Placement, place: &HeldPlace) -> bool {
    place.node == line.node && line.gpus.iter().any(|gpu| place.gpus.contains(gpu))
}

fn finished_event(
    id: &JobId,
    state: JobState,
    outcome: &JobOutcome,
    allocation: &Allocation,
) -> Event {
    let job = id.clone();
    match state {
        JobState::Completed => {
            Event::JobCompleted { job, exit_code: outcome.exit_code.unwrap_or(0) }
        }
        JobState::Cancelled => {
            let by = match allocation.stop.as_ref().map(|stop| &stop.why) {
                Some(StopWhy::Cancelled { by }) => by.clone(),
                Some(_) | None => "fleet".to_owned(),
            };
            Event::JobCancelled { job, by }
        }
        JobState::TimedOut => {
            let by_limit = allocation.stop.as_ref().is_none_or(|s| s.why == StopWhy::TimeLimit);
            let why = (!by_limit).then(|| outcome.reason.clone());
            Event::JobTimedOut { job, why }
        }
        JobState::Failed
        | JobState::Queued
        | JobState::Starting
        | JobState::Running
        | JobState::Stopping => {
            Event::JobFailed { job, why: outcome.reason.clone(), exit_code: outcome.exit_code }
        }
    }
}
