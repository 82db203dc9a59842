//! After a restore from a backup: each node is asked what it holds, and what the backup does not know is
//! taken over as it is. Nothing is stopped by it, and no GPU is given away before its node was heard.
//!
//! The agent is the last word on its own node: it runs nothing but what a controller once granted, under
//! rising epochs. So an attempt that it found under a higher epoch than a lease in the backup proves that
//! this lease had been released. A node speaks for itself alone: what it brings along that no controller
//! remembers may keep running there, but never runs on another node.

use std::collections::BTreeSet;

use super::{Fsm, Hold, Turn};
use crate::allocation::{Allocation, AttemptEnd, EndReport, Phase, StopWhy};
use crate::ending::Usage;
use crate::event::Event;
use crate::holdings::{FoundAttempt, HeldReservation};
use crate::id::{AllocationId, JobId, LeaseId};
use crate::job::SubmitJob;
use crate::job::{Attempt, Job, JobState, Place, QueueKey};
use crate::lease::{Lease, LeaseHolder};
use crate::name::{GpuUuid, NodeName};
use crate::node::Liveness;
use crate::reservation::{GpuRequest, Reservation, ReservationState};
use crate::state::Restored;
use crate::time::{Millis, Timestamp, Window};

/// Most reservations one node may name.
pub(crate) const HELD_RESERVATIONS_MAX: usize = 1_000;

/// Most addresses of controllers of before a restore that are kept.
const PREDECESSORS_MAX: usize = 16;

impl Fsm {
    /// The cluster continues from a backup: every node is to be asked.
    pub(super) fn begin_recount(&mut self, since: Timestamp) {
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        for name in names {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            node.uncounted = true;
            // The reboot may have happened or been cancelled since the backup. The drain stays to be seen.
            node.reboot = None;
        }
        let at = self.now;
        let members = self.roster.members.values();
        let mut controllers: Vec<String> = members.map(|member| member.address.clone()).collect();
        // Restored twice, those of the first time may come back too.
        for address in self.restored.take().into_iter().flat_map(|r| r.controllers) {
            if !controllers.contains(&address) {
                controllers.push(address);
            }
        }
        controllers.truncate(PREDECESSORS_MAX);
        self.restored = Some(Restored { at, since, adopted: 0, reservations_lost: 0, controllers });
    }

    /// One attempt that a node found. Repeating it is harmless.
    pub(super) fn found(&mut self, turn: &mut Turn<'_>, node: &NodeName, found: &FoundAttempt) {
        if !self.nodes.get(node).is_some_and(|n| n.uncounted) || !self.is_of_node(node, found) {
            return;
        }
        let (id, order) = (&found.allocation, &found.order);
        if let Some(known) = self.allocations.get(id) {
            if known.node == *node && known.epoch == found.epoch {
                if let Some(end) = &found.end {
                    self.ended(turn, node, id, found.epoch, end);
                }
                return;
            }
            // Granted again, or elsewhere, after the backup: what the node has is newer.
            if known.epoch > found.epoch {
                return;
            }
        } else if self.job(&order.job).is_some_and(|job| order.attempt <= job.attempt.number) {
            return;
        }
        if self.job(&order.job).is_some_and(|job| job.state.is_final()) && found.end.is_some() {
            return;
        }
        let Some(over) = self.leases_before(found) else { return };
        self.leave_earlier_attempt(turn, &order.job);
        for lease in over {
            self.note_end(&lease, found.accepted_at);
            self.drop_lease(turn, &lease);
        }
        self.take_up_again(&order.job);
        self.adopt(turn, node, found);
        if self.job(&order.job).is_some_and(|job| job.cancel_requested) && found.end.is_none() {
            let by = order.owner.to_string();
            self.stop_allocation(turn, id, StopWhy::Cancelled { by });
        }
        if let Some(end) = &found.end {
            self.ended(turn, node, id, found.epoch, end);
        }
    }

    /// It names what it must, and only GPUs of its own node.
    fn is_of_node(&self, node: &NodeName, found: &FoundAttempt) -> bool {
        let order = &found.order;
        let own_gpus =
            order.gpus.iter().all(|uuid| self.gpus.get(uuid).is_some_and(|g| g.node == *node));
        own_gpus
            && order.gpus.is_empty() == found.lease.is_none()
            && order.attempt >= 1
            && found.allocation == AllocationId::of_attempt(&order.job, order.attempt)
            && found.epoch.incarnation < self.incarnation
            && super::validate::job_spec(&order.spec).is_ok()
    }

    /// A later attempt proves that the earlier one is over.
    fn leave_earlier_attempt(&mut self, turn: &mut Turn<'_>, job: &JobId) {
        let Some(job) = self.jobs.get_mut(job) else { return };
        let Some(earlier) = job.allocation().cloned() else { return };
        job.attempt.end();
        let Some(allocation) = self.allocations.remove(&earlier) else { return };
        if let Some(lease) = &allocation.lease {
            self.end_lease(lease);
        }
        let message = "a later attempt runs already".to_owned();
        let (job, end) = (allocation.job, AttemptEnd::Lost { message });
        turn.say(Event::AttemptEnded { job, allocation: earlier, end });
    }

    /// A job that is over in a state that has not heard of its later attempt. That attempt runs, so the job
    /// continues. Otherwise nobody would look after the attempt.
    fn take_up_again(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        self.queue.remove(&job.queue);
        self.paused.remove(id);
        self.held.remove(id);
        if job.state.is_final() {
            self.keep_files(id);
            let Some(job) = self.jobs.get_mut(id) else { return };
            (job.outcome, job.ended_at) = (None, None);
            self.finished.retain(|finished| finished != id);
        }
    }

    /// Leases of the backup on the GPUs that a later grant had; nothing if one is held by a grant that
    /// is not older.
    fn leases_before(&self, found: &FoundAttempt) -> Option<Vec<LeaseId>> {
        let owner = &found.order.owner;
        let mut over: Vec<LeaseId> = Vec::new();
        for gpu in &found.order.gpus {
            let Some(Hold { lease, child }) = self.holds.get(gpu) else { continue };
            let (lease, child) =
                (self.leases.get(lease), child.as_ref().and_then(|c| self.leases.get(c)));
            for holder in child.into_iter().chain(lease) {
                let under = matches!(holder.holder, LeaseHolder::Reservation(_))
                    && holder.owner == *owner
                    && holder.ending_since.is_none()
                    && found.order.gpus.iter().all(|gpu| holder.gpus.contains(gpu));
                if under {
                    continue;
                }
                if holder.epoch >= found.epoch {
                    return None;
                }
                over.push(holder.id.clone());
            }
        }
        Some(over)
    }

    /// A lease that had been released after the backup, with what it stood for.
    fn drop_lease(&mut self, turn: &mut Turn<'_>, id: &LeaseId) {
        let Some(lease) = self.leases.get(id).cloned() else { return };
        match &lease.holder {
            LeaseHolder::Allocation(allocation) => {
                let allocation = allocation.clone();
                self.lose_allocation(
                    turn,
                    &allocation,
                    "its GPUs were given on after the backup".to_owned(),
                );
            }
            LeaseHolder::Reservation(reservation) => {
                let reservation = reservation.clone();
                let children: Vec<AllocationId> = self
                    .leases
                    .on(&lease.node)
                    .filter(|l| l.parent.as_ref() == Some(id))
                    .filter_map(|l| match &l.holder {
                        LeaseHolder::Allocation(allocation) => Some(allocation.clone()),
                        LeaseHolder::Reservation(_) => None,
                    })
                    .collect();
                for child in children {
                    self.lose_allocation(
                        turn,
                        &child,
                        "its GPUs were given on after the backup".to_owned(),
                    );
                }
                let children: Vec<LeaseId> = self
                    .leases
                    .on(&lease.node)
                    .filter(|l| l.parent.as_ref() == Some(id))
                    .map(|l| l.id.clone())
                    .collect();
                for child in children {
                    self.end_lease(&child);
                }
                if let Some(mut reservation) = self.reservations.get_mut(&reservation) {
                    reservation.state = ReservationState::Ending;
                    reservation.reason = Some("it had ended after the backup".to_owned());
                }
                self.end_lease(id);
            }
        }
        self.release(turn, id, lease.epoch);
    }

    /// The attempt becomes part of the state, with the grant it was started by.
    fn adopt(&mut self, turn: &mut Turn<'_>, node: &NodeName, found: &FoundAttempt) {
        let (id, order) = (&found.allocation, &found.order);
        let known = self.jobs.contains_key(&order.job);
        if !known {
            self.make_job(node, found);
        }
        let Some(job) = self.jobs.get_mut(&order.job) else { return };
        job.state = JobState::Starting;
        let place = Place {
            node: node.clone(),
            gpus: order.gpus.clone(),
            cpu_millis: order.cpu_millis,
            memory_bytes: order.memory_bytes,
        };
        job.attempt = Attempt::begun(order.attempt, id.clone(), place);
        let owner = job.owner.clone();
        if let Some(lease) = &found.lease {
            let parent =
                order.gpus.first().and_then(|g| self.holds.get(g)).map(|h| h.lease.clone());
            let Some(job) = self.jobs.get(&order.job) else { return };
            let account = self.account_of(job, parent.as_ref());
            for gpu in &order.gpus {
                match self.holds.get_mut(gpu) {
                    Some(hold) => hold.child = Some(lease.clone()),
                    None => {
                        let hold = Hold { lease: lease.clone(), child: None };
                        self.holds.insert(gpu.clone(), hold);
                    }
                }
            }
            let lease = Lease {
                id: lease.clone(),
                epoch: found.epoch,
                node: node.clone(),
                gpus: order.gpus.clone(),
                owner: owner.clone(),
                holder: LeaseHolder::Allocation(id.clone()),
                parent,
                granted_at: found.accepted_at.min(self.now),
                ending_since: None,
                held_from: found.accepted_at.min(self.now),
                account,
                ended: None,
                lost: None,
            };
            self.leases.insert(lease.id.clone(), lease);
        }
        let boot_id = self.nodes.get(node).map(|n| n.facts.boot_id.clone()).unwrap_or_default();
        let allocation = Allocation {
            id: id.clone(),
            job: order.job.clone(),
            attempt: order.attempt,
            node: node.clone(),
            boot_id,
            gpus: order.gpus.clone(),
            lease: found.lease.clone(),
            epoch: found.epoch,
            owner: owner.clone(),
            cpu_millis: order.cpu_millis,
            memory_bytes: order.memory_bytes,
            phase: Phase::Placed,
            placed_at: found.accepted_at.min(self.now),
            started_at: None,
            time_limit_at: None,
            own_limit_at: None,
            reserved_over: false,
            ends_by: None,
            stop: None,
            causes: std::collections::BTreeMap::new(),
            deferral: None,
            deferral_orders: 0,
            deferral_spent: Millis::ZERO,
            checkpoint_seq: 0,
            resume_from: order.resume_from.clone(),
            resumed: None,
            asked: None,
        };
        self.allocations.insert(id.clone(), allocation);
        if let Some(restored) = &mut self.restored {
            restored.adopted += 1;
        }
        turn.say(Event::AttemptAdopted {
            job: order.job.clone(),
            allocation: id.clone(),
            owner,
            node: node.clone(),
            gpus: order.gpus.clone(),
            epoch: found.epoch,
            job_was_known: known,
        });
    }

    /// A job submitted after the backup. Only this node vouches for it, so it never leaves it.
    fn make_job(&mut self, node: &NodeName, found: &FoundAttempt) {
        let order = &found.order;
        // As old as the backup, so that it waits for all nodes: another one may have a later attempt of it.
        let since = self.restored.as_ref().map_or(self.now, |restored| restored.since);
        self.jobs_submitted += 1;
        let queue = QueueKey { rank: crate::job::RANK_NEW, submitted: self.jobs_submitted };
        let mut spec = order.spec.clone();
        spec.gpus.node = Some(node.clone());
        // A reservation that is lost too would shut it out.
        spec.reservation = spec.reservation.filter(|id| self.reservations.contains_key(id));
        let wish = SubmitJob {
            id: order.job.clone(),
            owner: order.owner.clone(),
            spec,
            marker: order.marker.clone(),
        };
        let submitted = Job::submitted(wish, queue, found.accepted_at.min(since));
        let job =
            Job { state: JobState::Starting, restarts_used: order.restarts_used, ..submitted };
        self.bind_job(&job);
        self.jobs.insert(order.job.clone(), job);
    }

    /// The node has said everything: what the state still believes to be there is not.
    pub(super) fn holdings(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        held: &[AllocationId],
        reservations: &[HeldReservation],
    ) {
        if !self.nodes.get(node).is_some_and(|n| n.uncounted) {
            return;
        }
        let gone: Vec<AllocationId> = self
            .allocations
            .on(node)
            .filter(|a| !held.contains(&a.id))
            .map(|a| a.id.clone())
            .collect();
        for id in gone {
            let started_at = self.allocations.get(&id).and_then(|a| a.started_at);
            let message = "its node has no record of it since the restore".to_owned();
            let report = EndReport {
                end: AttemptEnd::NodeFault { message },
                done: false,
                fault: None,
                memory_kill: false,
                no_image: false,
                output_problem: None,
                stopped: false,
                started_at,
                ended_at: self.now,
                cpu_usec: None,
                memory_peak_bytes: None,
            };
            self.end_attempt(turn, &id, &report);
        }
        for held in reservations {
            self.tell_lost_reservation(turn, node, held);
        }
        if let Some(node) = self.nodes.get_mut(node) {
            node.uncounted = false;
        }
        turn.say(Event::NodeCounted { node: node.clone() });
        self.start_due_reservations(turn);
        self.hand_out_due(turn);
    }

    /// An operator vouched for a GPU of a node that does not answer any more: once nothing is held there,
    /// nobody waits for what the node would have said.
    pub(super) fn vouched_for(&mut self, turn: &mut Turn<'_>, gpu: &GpuUuid) {
        let Some(name) = self.gpus.get(gpu).map(|gpu| gpu.node.clone()) else { return };
        let held = self.leases.on(&name).next().is_some();
        let Some(node) = self.nodes.get_mut(&name) else { return };
        if node.uncounted && node.liveness == Liveness::Unreachable && !held {
            node.uncounted = false;
            turn.say(Event::NodeCounted { node: name });
        }
    }

    /// A reservation that only the node remembers is over: said to its owner, under its own id.
    fn tell_lost_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        held: &HeldReservation,
    ) {
        let own = held.gpus.iter().all(|uuid| self.gpus.get(uuid).is_some_and(|g| g.node == *node));
        if self.reservations.contains_key(&held.id) || !own || held.gpus.is_empty() {
            return;
        }
        let count = u32::try_from(held.gpus.len()).unwrap_or(u32::MAX);
        let now = self.now;
        let reservation = Reservation {
            id: held.id.clone(),
            owner: held.owner.clone(),
            project: crate::name::ProjectName::default_project(),
            node: node.clone(),
            gpus: held.gpus.clone(),
            wish: GpuRequest { count, node: Some(node.clone()), ..GpuRequest::default() },
            window: Window { starts_at: now, ends_at: now },
            note: String::new(),
            state: ReservationState::Ending,
            lease: None,
            created_at: now,
            reason: None,
            handed_out: None,
            at_end: None,
            usage: Usage::default(),
            with: BTreeSet::new(),
            imported: None,
            import: None,
            undone: false,
            revision: 1,
            changed: None,
            released_at: None,
            series: None,
            next: None,
            risk: None,
            moved_at: None,
            pair: None,
        };
        self.reservations.insert(reservation);
        let why =
            "it was made after the backup the fleet was restored from: reserve again".to_owned();
        self.finish_reservation(turn, &held.id, ReservationState::Cancelled, Some(why));
        if let Some(restored) = &mut self.restored {
            restored.reservations_lost += 1;
        }
        turn.say(Event::ReservationLost {
            reservation: held.id.clone(),
            owner: held.owner.clone(),
            node: node.clone(),
            gpus: held.gpus.clone(),
        });
    }
}
