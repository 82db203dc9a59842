//! Deferred eviction: work that must leave waits for its next checkpoint, unless it is lost already.
//!
//! Each allocation has a set of causes (conditions of its GPUs and node, a drain). While the set is
//! not empty a deferral is open; it ends by a later checkpoint, by its deadline, or by the causes
//! going away. Nothing here compares clocks of two machines: the agent says what its checkpoint
//! number was when it took the order, and only a higher number counts.

use std::collections::BTreeMap;

use super::checkpoints::recorded;
use super::{Fsm, Turn};
use crate::allocation::{Allocation, Cause, CauseKey, Deferral, StopWhy};
use crate::checkpoint::{Checkpoint, Doubt};
use crate::event::Event;
use crate::health::{Severity, Subject};
use crate::id::{AllocationId, JobId};
use crate::job::{DEFERRAL_DEFAULT, DEFERRAL_MAX, Job};
use crate::name::NodeName;
use crate::scheduler;
use crate::time::{Millis, Timestamp};

/// A checkpoint reported later than this after its completion triggers nothing: after a long
/// partition it says little about where the job is now.
pub(crate) const CHECKPOINT_FRESH: Millis = Millis::secs(60);

/// What flushing and checking a checkpoint may take besides the gap to it.
const SAVE_MAX: Millis = Millis::secs(60);

/// By how much, in percent, the next gap may be longer than the last three where the limit is near. Leaving one save too
/// early costs a wait; being stopped between two saves costs the work since the last one.
const LONGER_PERCENT: u64 = 25;
/// Numbers of orders that each restore has for itself.
const ORDERS_OF_A_RESTORE: u32 = 1_000;
/// So many restores have numbers of their own.
const RESTORES_APART: u64 = 4_000_000;

impl Fsm {
    /// Looks again at everything on the node, after its conditions or its drain changed.
    pub(super) fn review_node(&mut self, turn: &mut Turn<'_>, node: &NodeName) {
        for id in self.allocations.keys_on(node) {
            self.review_allocation(turn, &id);
        }
    }

    fn causes_of(&self, id: &AllocationId) -> BTreeMap<CauseKey, Cause> {
        let mut causes = BTreeMap::new();
        let Some(allocation) = self.allocations.get(id) else { return causes };
        let Some(node) = self.nodes.get(&allocation.node) else { return causes };
        for condition in node.conditions.iter().filter(|c| c.is_active()) {
            let subject = match &condition.subject {
                Subject::Node => "node".to_owned(),
                Subject::Gpu(gpu) if allocation.gpus.contains(gpu) => gpu.to_string(),
                Subject::Gpu(_) => continue,
            };
            if condition.severity < Severity::Degraded {
                continue;
            }
            let key = CauseKey::Condition { subject, kind: condition.kind.to_string() };
            let text = condition.reason.clone();
            let cause =
                Cause { severity: condition.severity, since: self.now, text, deadline: None };
            causes.insert(key, cause);
        }
        if let Some(drain) = &node.drain {
            let text = format!("{} is being drained", node.name);
            let cause = Cause {
                severity: Severity::Degraded,
                since: drain.since,
                text,
                deadline: drain.deadline,
            };
            causes.insert(CauseKey::Drain, cause);
        }
        if let Some(closed) = self.access.disabled(&allocation.owner) {
            let text = format!("the account of {} is closed", allocation.owner);
            let (severity, since) = (Severity::Degraded, closed.at);
            causes.insert(CauseKey::Owner, Cause { severity, since, text, deadline: None });
        }
        if let Some(cause) = self.preempted_by(allocation) {
            causes.insert(CauseKey::Preemption, cause);
        }
        if let Some(cause) = self.reservation_that_begins(allocation) {
            causes.insert(CauseKey::Reservation, cause);
        }
        causes
    }

    pub(super) fn review_allocation(&mut self, turn: &mut Turn<'_>, id: &AllocationId) {
        let mut causes = self.causes_of(id);
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        for (key, cause) in &mut causes {
            if let Some(old) = allocation.causes.get(key) {
                cause.since = old.since;
            }
        }
        let was_preempted = allocation.is_preempted();
        // What it waited for another job's sake counts for no other cause.
        let by_class = [CauseKey::Preemption, CauseKey::Reservation];
        let any = |of: &BTreeMap<CauseKey, Cause>| by_class.iter().any(|key| of.contains_key(key));
        let no_more = any(&allocation.causes) && !any(&causes);
        if no_more
            && let Some(first) = causes.values().map(|cause| cause.since).min()
            && let Some(deferral) = &mut allocation.deferral
        {
            deferral.since = deferral.since.max(first);
        }
        allocation.causes = causes;
        if allocation.stop.is_some() {
            return;
        }
        let fatal = allocation
            .causes
            .values()
            .find(|c| c.severity == Severity::Fatal)
            .map(|c| c.text.clone());
        if let Some(allocation) = self.allocations.get(id).cloned()
            && let Some(since) = self.fatal_since(&allocation)
        {
            self.doubt_after_fault(&allocation, since);
        }
        match fatal {
            Some(cause) if self.storm.frozen().is_none() => {
                self.stop_allocation(turn, id, StopWhy::NodeFault { cause });
            }
            Some(_) | None if self.allocations.get(id).is_some_and(|a| a.causes.is_empty()) => {
                self.cancel_deferral(turn, id, was_preempted);
            }
            Some(_) | None => self.defer(turn, id),
        }
    }

    /// `was_preempted`: it waited for another job's sake alone, and no time of its own is used up by that.
    fn cancel_deferral(&mut self, turn: &mut Turn<'_>, id: &AllocationId, was_preempted: bool) {
        let now = self.now;
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let Some(deferral) = allocation.deferral.take() else { return };
        let waited = now.since(deferral.since);
        if !was_preempted {
            allocation.deferral_spent = allocation.deferral_spent + waited;
        }
        let job = allocation.job.clone();
        turn.say(Event::DeferralCancelled { job, allocation: id.clone(), waited });
    }

    /// Opens the deferral, or moves the deadline of the open one to what the causes now say.
    fn defer(&mut self, turn: &mut Turn<'_>, id: &AllocationId) {
        let (now, incarnation) = (self.now, self.incarnation);
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let Some(job) = self.jobs.get(&allocation.job) else { return };
        let since = allocation.deferral.as_ref().map_or(now, |d| d.since);
        // Work that declares no checkpoint has nothing to wait for: it finishes, unless somebody
        // set a limit.
        let budget = job.spec.checkpoint.as_ref().map(|_| {
            let limit = job.spec.max_deferral.unwrap_or(DEFERRAL_DEFAULT).min(DEFERRAL_MAX);
            since + limit.saturating_sub(allocation.deferral_spent)
        });
        let deadline = allocation.causes.values().filter_map(|c| c.deadline).chain(budget).min();
        if let Some(open) = &mut allocation.deferral {
            open.deadline = deadline;
            return;
        }
        allocation.deferral_orders = next_order(allocation, incarnation);
        allocation.deferral = Some(Deferral {
            order: allocation.deferral_orders,
            since: now,
            baseline: None,
            deadline,
            held_back: None,
            asks: Default::default(),
        });
        let causes = cause_texts(&allocation.causes);
        let saves_nothing = job.spec.checkpoint.is_none();
        turn.say(Event::EvictionDeferred {
            job: allocation.job.clone(),
            allocation: id.clone(),
            causes,
            deadline,
            saves_nothing,
        });
        self.ask_other_nodes(id);
    }

    /// The agent says which checkpoint number it had when it took the order.
    pub(super) fn deferral_taken(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        order: u32,
        checkpoint_seq: u64,
    ) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let Some(deferral) = &mut allocation.deferral else { return };
        if deferral.order != order || deferral.baseline.is_some() {
            return;
        }
        deferral.baseline = Some(checkpoint_seq);
        let (job, allocation) = (allocation.job.clone(), id.clone());
        let saves_nothing = self.saves_nothing(&job);
        turn.say(Event::DeferralTaken { job, allocation, checkpoint_seq, saves_nothing });
    }

    /// A checkpoint is complete. It becomes the job's newest, and may end a deferral.
    pub(super) fn checkpoint_seen(
        &mut self,
        turn: &mut Turn<'_>,
        mut checkpoint: Checkpoint,
        age: Millis,
    ) {
        let id = checkpoint.allocation.clone();
        let seq = checkpoint.seq;
        if self.allocations.get(&id).is_some_and(|a| a.causes.contains_key(&CauseKey::Reservation))
        {
            // The reservation may have been cancelled since.
            self.review_allocation(turn, &id);
        }
        let Some(allocation) = self.allocations.get_mut(&id) else {
            return self.checkpoint_heard_late(turn, checkpoint);
        };
        let fatal = allocation.causes.values().any(|cause| cause.severity == Severity::Fatal);
        if fatal && checkpoint.facts.doubt == Doubt::None {
            checkpoint.facts.doubt = Doubt::AfterFault;
        }
        let facts = Box::new(recorded(&checkpoint));
        if seq <= allocation.checkpoint_seq {
            return;
        }
        allocation.checkpoint_seq = seq;
        let Some(job) = self.jobs.get(&allocation.job) else { return };
        let (job, path) = (job.id.clone(), checkpoint.path.clone());
        let torn = checkpoint.facts.content.is_torn();
        let after_order = allocation
            .deferral
            .as_ref()
            .and_then(|d| d.baseline)
            .is_some_and(|baseline| seq > baseline);
        let stays = allocation.stop.is_none();
        let Some(number) = self.keep_checkpoint(&job, checkpoint) else { return };
        turn.say(Event::CheckpointRecorded {
            job,
            allocation: id.clone(),
            seq,
            path,
            number,
            facts,
        });
        if after_order && stays && !torn && age <= CHECKPOINT_FRESH {
            self.leave_after_checkpoint(turn, &id, seq);
        }
    }

    fn leave_after_checkpoint(&mut self, turn: &mut Turn<'_>, id: &AllocationId, seq: u64) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let held_back = if allocation.causes.contains_key(&CauseKey::Owner) {
            // The job does not resume elsewhere, so it needs no other place.
            None
        } else if self.storm.frozen().is_some() && !allocation.must_leave_by_decision() {
            Some("automatic evictions are frozen".to_owned())
        } else if allocation.is_preempted() {
            self.waits_for_others(allocation)
        } else if self.leaves_without_a_place(allocation)
            || allocation.causes.contains_key(&CauseKey::Preemption)
        {
            None
        } else if scheduler::elsewhere(self, id).is_none() {
            let bound = self.bound_to_its_node(allocation);
            Some(bound.unwrap_or_else(|| "nothing else fits it now".to_owned()))
        } else {
            None
        };
        let Some(why) = held_back else {
            self.evict(turn, id, Some(seq));
            return;
        };
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let Some(deferral) = &mut allocation.deferral else { return };
        if deferral.held_back.as_deref() != Some(why.as_str()) {
            deferral.held_back = Some(why.clone());
            let job = allocation.job.clone();
            turn.say(Event::DeferralHeldBack { job, allocation: id.clone(), why });
        }
    }

    /// A drain, a reboot and maintenance empty the node whatever is free elsewhere; and near its limit a job leaves at the
    /// last checkpoint before it, not in the middle of an interval.
    fn leaves_without_a_place(&self, allocation: &Allocation) -> bool {
        let Some(job) = self.jobs.get(&allocation.job) else { return false };
        let deadline = allocation.deferral.as_ref().and_then(|deferral| deferral.deadline);
        let longest = job.gaps().into_iter().max();
        let is_last = match (deadline, longest) {
            (Some(deadline), Some(longest)) => self.now + next_save_within(longest) > deadline,
            (_, _) => false,
        };
        let promised = allocation.causes.contains_key(&CauseKey::Reservation);
        let must = promised
            || allocation.causes.contains_key(&CauseKey::Drain)
                && self.bound_to_its_node(allocation).is_none();
        must || is_last
    }

    /// Stops the attempt so that the job resumes elsewhere. From here on, the eviction is not cancelled any more.
    pub(super) fn evict(
        &mut self,
        turn: &mut Turn<'_>,
        id: &AllocationId,
        after_checkpoint: Option<u64>,
    ) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let causes = cause_texts(&allocation.causes);
        turn.say(Event::EvictionStarted {
            job: allocation.job.clone(),
            allocation: id.clone(),
            causes: causes.clone(),
            after_checkpoint,
            saves_nothing: self.saves_nothing(&allocation.job),
        });
        let by_class = allocation.leaves_by_class();
        if by_class {
            let job = allocation.job.clone();
            self.count_preemption(&job);
        }
        let why = match self.allocations.get(id).is_some_and(|a| self.has_had_its_time(a)) {
            true => StopWhy::NoLimitNamed { causes },
            false => {
                let after_checkpoint = after_checkpoint.is_some();
                StopWhy::Evicted { causes, after_checkpoint, by_class }
            }
        };
        self.stop_allocation(turn, id, why);
    }

    /// Whether a story says of it that there is no checkpoint to wait for.
    fn saves_nothing(&self, job: &JobId) -> bool {
        let declares_none = |job: &Job| job.spec.checkpoint.is_none();
        self.jobs.get(job).is_some_and(declares_none)
    }

    /// Deferrals whose wait is over now.
    pub(super) fn overdue_deferrals(&self, now: Timestamp) -> Vec<AllocationId> {
        let frozen = self.storm.frozen().is_some();
        self.deferring()
            .filter(|a| a.stop.is_none())
            .filter(|a| !frozen || a.must_leave_by_decision())
            .filter(|a| a.deferral.as_ref().and_then(|d| d.deadline).is_some_and(|at| at <= now))
            .map(|a| a.id.clone())
            .collect()
    }
}

/// Within what time after a save the next one is expected to be done, by the longest of the last gaps.
pub(super) fn next_save_within(longest: Millis) -> Millis {
    let longer = Millis(longest.0.saturating_mul(LONGER_PERCENT) / 100);
    longest + longer + SAVE_MAX
}

/// The number of an order to defer. Of work that is older than the restore that the controllers began with, orders after the
/// backup are not known: their numbers are not used again, since a node may answer them yet.
fn next_order(allocation: &Allocation, incarnation: u64) -> u32 {
    let next = allocation.deferral_orders.saturating_add(1);
    if allocation.epoch.incarnation == incarnation {
        return next;
    }
    let restore = u32::try_from(incarnation % RESTORES_APART).unwrap_or(0);
    let first = restore * ORDERS_OF_A_RESTORE + 1;
    let is_of_it = (first..first + ORDERS_OF_A_RESTORE).contains(&next);
    if is_of_it { next } else { first }
}

fn cause_texts(causes: &BTreeMap<CauseKey, Cause>) -> Vec<String> {
    causes.values().map(|cause| cause.text.clone()).collect()
}
