//! What agents report: each fact once, however often it is said.

use super::adoption::HELD_RESERVATIONS_MAX;
use super::{Fsm, Turn, cluster::check_text, ending::check_holders, nodes, windows};
use crate::allocation::{Allocation, EndReport, Phase};
use crate::checkpoint::{Checkpoint, Presence};
use crate::command::Report;
use crate::event::Event;
use crate::id::AllocationId;
use crate::image::ImageUsed;
use crate::job::JobState;
use crate::lease::{Epoch, Lease, LeaseHolder};
use crate::name::NodeName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::Reservation;
use crate::time::Timestamp;

/// Most reports in one command.
pub(crate) const REPORTS_MAX: usize = 2_000;

/// Whether an attempt whose start is reported still runs, or its end came in the same report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GoesOn {
    Yes,
    No,
}

impl Fsm {
    pub(super) fn report_node(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        reports: &[Report],
    ) -> Result<Reply, Rejection> {
        if reports.len() > REPORTS_MAX {
            let what = "reports in one command".to_owned();
            return Err(Rejection::LimitReached { what, limit: REPORTS_MAX as u64 });
        }
        self.node_mut(node)?;
        self.check_reports(node, reports)?;
        for report in reports {
            self.take_report(turn, node, report)?;
        }
        Ok(Reply::Done)
    }

    /// Checks everything that could be refused before anything is changed.
    fn check_reports(&self, node: &NodeName, reports: &[Report]) -> Result<(), Rejection> {
        for report in reports {
            match report {
                Report::Facts { facts } => nodes::check_facts(node, facts)?,
                Report::Checkpoint { path, .. } => check_text("checkpoint.path", path)?,
                Report::CheckpointNoted { note, .. } => check_text("note", &note.to_string())?,
                Report::Resumed { resumed, .. } => {
                    check_text("resumed.path", &resumed.path)?;
                    for passed in &resumed.passed {
                        check_text("resumed.passed.why", &passed.why)?;
                    }
                }
                Report::Conditions { conditions } => {
                    let max = crate::health::CONDITIONS_PER_NODE_MAX;
                    if conditions.len() > max {
                        let what = "conditions of one node".to_owned();
                        return Err(Rejection::LimitReached { what, limit: max as u64 });
                    }
                }
                Report::Holdings { reservations, .. } => {
                    if reservations.len() > HELD_RESERVATIONS_MAX {
                        let what = "reservations held by one node".to_owned();
                        let limit = HELD_RESERVATIONS_MAX as u64;
                        return Err(Rejection::LimitReached { what, limit });
                    }
                }
                Report::Window(window) => windows::check_window_report(window)?,
                Report::Enforcement(switch) => windows::check_switch(switch)?,
                Report::Holders { holders, .. } => check_holders(holders)?,
                Report::GpuUse(seen) => self.check_use(seen)?,
                Report::Started { image, .. } => {
                    if let Some(image) = image {
                        check_text("image.digest", &image.digest)?;
                        check_text("image.note", image.note.as_deref().unwrap_or_default())?;
                    }
                }
                Report::Reboot { problem, .. }
                | Report::Probed { problem, .. }
                | Report::FilesRemoved { problem, .. } => {
                    check_text("problem", problem.as_deref().unwrap_or_default())?;
                }
                Report::StoppedAlone { .. }
                | Report::DeferralTaken { .. }
                | Report::CheckpointChanged { .. }
                | Report::Ended { .. }
                | Report::Found(_)
                | Report::Use { .. }
                | Report::Idle { .. }
                | Report::Released { .. } => {}
            }
        }
        Ok(())
    }

    fn take_report(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        report: &Report,
    ) -> Result<(), Rejection> {
        match report {
            Report::Started { allocation, epoch, at, image } => {
                self.started(turn, node, allocation, *epoch, (*at, image.as_ref()), GoesOn::Yes);
            }
            Report::DeferralTaken { allocation, order, checkpoint_seq } => {
                if self.is_on(node, allocation) {
                    self.deferral_taken(turn, allocation, *order, *checkpoint_seq);
                }
            }
            Report::Checkpoint { allocation, seq, path, size_bytes, completed_at, age, facts } => {
                if let Some(attempt) = self.attempt_on(node, allocation) {
                    let checkpoint = Checkpoint {
                        allocation: allocation.clone(),
                        seq: *seq,
                        path: path.clone(),
                        size_bytes: *size_bytes,
                        completed_at: *completed_at,
                        node: node.clone(),
                        number: 0,
                        attempt,
                        facts: facts.clone(),
                        presence: Presence::There,
                    };
                    self.checkpoint_seen(turn, checkpoint, *age);
                }
            }
            Report::CheckpointChanged { allocation, seq, attempt, content, presence } => {
                if self.is_on(node, allocation) {
                    let at = (*attempt, *seq);
                    self.checkpoint_changed(turn, allocation, at, content.as_ref(), *presence);
                }
            }
            Report::CheckpointNoted { allocation, note } => {
                if self.is_on(node, allocation) {
                    self.checkpoint_noted(turn, allocation, note);
                }
            }
            Report::Resumed { allocation, epoch, resumed } => {
                let current = |a: &Allocation| a.node == *node && a.epoch == *epoch;
                if self.allocations.get(allocation).is_some_and(current) {
                    self.resumed(turn, allocation, resumed);
                }
            }
            Report::Probed { allocation, problem } => {
                self.probed(turn, node, allocation, problem.as_deref());
            }
            Report::FilesRemoved { job, problem } => {
                self.files_removed(turn, node, job, problem.as_deref());
            }
            Report::Ended { allocation, epoch, report } => {
                self.ended(turn, node, allocation, *epoch, report);
            }
            Report::Released { lease, epoch } => {
                if self
                    .leases
                    .get(lease)
                    .is_some_and(|l| l.node == *node && self.is_over_by_its_node(l))
                    && self.release(turn, lease, *epoch)
                {
                    self.start_due_reservations(turn);
                }
            }
            Report::Conditions { conditions } => self.take_conditions(turn, node, conditions)?,
            Report::Facts { facts } => self.take_facts(turn, node, facts),
            Report::Found(found) => self.found(turn, node, found),
            Report::Holdings { allocations, reservations } => {
                self.holdings(turn, node, allocations, reservations);
            }
            Report::Window(window) => self.window_reported(turn, node, window),
            Report::StoppedAlone { allocation, epoch, why, at } => {
                self.stopped_alone(turn, node, allocation, *epoch, (why, *at));
            }
            Report::Enforcement(switch) => self.enforcement_switched(turn, node, switch),
            Report::Use { reservation, seen, came } => {
                self.use_seen(turn, node, reservation, *seen, *came);
            }
            Report::Idle { reservation, seen } => self.idle_seen(turn, node, reservation, *seen),
            Report::GpuUse(seen) => self.use_measured(turn, node, seen),
            Report::Reboot { since, problem } => {
                self.reboot_answered(turn, node, *since, problem.as_ref());
            }
            Report::Holders { reservation, step, holders } => {
                self.holders_seen(turn, node, reservation.as_ref(), *step, holders);
            }
        }
        Ok(())
    }

    /// Whether a lease may end by its node's word that the GPUs are empty.
    fn is_over_by_its_node(&self, lease: &Lease) -> bool {
        // After a restore the state may be older than the end of what ran under it. The node reports
        // that end first, and after it the empty GPUs again.
        let uncounted = self.nodes.get(&lease.node).is_some_and(|node| node.uncounted);
        let over = lease.ending_since.is_some()
            || match &lease.holder {
                LeaseHolder::Allocation(id) => !self.allocations.contains_key(id),
                // A node's word does not end a reservation that continues because it was extended.
                LeaseHolder::Reservation(_) => false,
            };
        over && !uncounted
    }

    /// Whether the allocation is on that node; agents speak for their own node only.
    fn is_on(&self, node: &NodeName, id: &AllocationId) -> bool {
        self.allocations.get(id).is_some_and(|a| a.node == *node)
    }

    /// The number of an attempt that this node speaks for: it runs there, or it was given up and its GPUs there are not
    /// proven empty yet.
    fn attempt_on(&self, node: &NodeName, id: &AllocationId) -> Option<u32> {
        if let Some(allocation) = self.allocations.get(id) {
            return (allocation.node == *node).then_some(allocation.attempt);
        }
        let held = |lease: &Lease| match &lease.holder {
            LeaseHolder::Allocation(holder) => holder == id,
            LeaseHolder::Reservation(_) => false,
        };
        self.leases.on(node).any(held).then(|| id.attempt())
    }

    fn started(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &AllocationId,
        epoch: Epoch,
        (at, image): (Timestamp, Option<&ImageUsed>),
        goes_on: GoesOn,
    ) {
        let now = self.now;
        let starts = self.allocations.get(id).filter(|allocation| {
            allocation.node == *node && allocation.epoch == epoch && allocation.started_at.is_none()
        });
        let Some(ends_by) = starts.map(|allocation| self.ends_by(allocation)) else { return };
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let Some(job) = self.jobs.get_mut(&allocation.job) else { return };
        // The node's clock may be off; a start cannot lie in the future.
        let at = at.min(now).max(allocation.placed_at);
        allocation.started_at = Some(at);
        let limit = now + job.time_left();
        // The word of its owner was about this attempt.
        job.restart_from = None;
        job.image_wait = None;
        let cut = ends_by.filter(|ends_by| *ends_by < limit);
        allocation.time_limit_at = Some(cut.unwrap_or(limit));
        allocation.own_limit_at = cut.is_some().then_some(limit);
        job.started_at.get_or_insert(at);
        job.image = image.cloned();
        if allocation.phase == Phase::Placed {
            allocation.phase = Phase::Running;
            job.state = JobState::Running;
        }
        let lasts = goes_on == GoesOn::Yes && allocation.stop.is_none();
        let for_a_promise = lasts && !allocation.gpus.is_empty();
        let at_most = cut.filter(|_| for_a_promise).map(|cut| cut.since(now));
        let (job, allocation, image) = (allocation.job.clone(), id.clone(), image.cloned());
        turn.say(Event::JobStarted { job, allocation, image, at_most });
    }

    /// By when one that starts now must be over, whatever its time limit: what was known when it was placed, and
    /// what was promised to somebody while it was being prepared. The promise took its time limit as if it had begun
    /// then, so what the preparation took is not the promise's to lose.
    fn ends_by(&self, allocation: &Allocation) -> Option<Timestamp> {
        let known = allocation.ends_by;
        let parent = allocation.lease.as_ref().and_then(|id| self.leases.get(id)?.parent.as_ref());
        // Under a reservation the attempt ends with it. And an attempt that outlasted a restore may have run for
        // long, even in the reservation that waits here to begin.
        let of_before = allocation.epoch.incarnation < self.incarnation;
        if parent.is_some() || of_before {
            return known;
        }
        let promised = self.promised(allocation).map(|(_, by)| by);
        known.into_iter().chain(promised).min()
    }

    /// The first reservation that is to begin on a GPU of the attempt, and by when the attempt must be over for it.
    pub(super) fn promised(&self, allocation: &Allocation) -> Option<(&Reservation, Timestamp)> {
        let grace = self.jobs.get(&allocation.job)?.spec.stop_grace;
        let there = self.reservations.open_on(&allocation.node).filter(|r| {
            r.state.is_ahead()
                && r.handed_out.as_ref().is_none_or(|given| given.withdrawn.is_none())
        });
        let there = there.map(|r| (r, r.window, &r.gpus));
        // One that is to come here comes as soon as another node has released its old place.
        let coming = self.reservations.coming_to(&allocation.node);
        let all = there.chain(coming.map(|(r, next)| (r, next.window, &next.gpus)));
        let promised = all.filter(|(_, window, gpus)| {
            window.ends_at > self.now && gpus.iter().any(|gpu| allocation.gpus.contains(gpu))
        });
        let (first, window, _) = promised.min_by_key(|(_, window, _)| window.starts_at)?;
        Some((first, window.starts_at - grace))
    }

    pub(super) fn ended(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &AllocationId,
        epoch: Epoch,
        report: &EndReport,
    ) {
        let known = self.allocations.get(id).is_some_and(|a| a.node == *node && a.epoch == epoch);
        if !known {
            self.note_end_of_lost(node, id, epoch, report.ended_at);
            return;
        }
        // A program can be gone before its start was reported.
        if let Some(at) = report.started_at {
            self.started(turn, node, id, epoch, (at, None), GoesOn::No);
        }
        self.end_attempt(turn, id, report);
    }

    /// The attempt was lost while its node was away. Its GPUs are held until they are proven empty, but not by a program that
    /// was gone long before.
    fn note_end_of_lost(
        &mut self,
        node: &NodeName,
        id: &AllocationId,
        epoch: Epoch,
        at: Timestamp,
    ) {
        let holder = LeaseHolder::Allocation(id.clone());
        let mut on_node = self.leases.on(node);
        let held = on_node.find(|lease| lease.epoch == epoch && lease.holder == holder);
        let held = held.map(|lease| lease.id.clone());
        drop(on_node);
        if let Some(lease) = held {
            self.note_end(&lease, at);
        }
    }
}
