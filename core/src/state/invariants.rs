//! What must hold after every step. Checked by tests, the simulator and when a snapshot is loaded.

use std::collections::BTreeMap;

use super::Fsm;
use crate::job::{Job, JobFiles, JobState};
use crate::lease::LeaseHolder;
use crate::name::GpuUuid;
use crate::reservation::ReservationState;
use crate::time::Window;
use crate::waitlist::WAITLIST_MAX;

/// A broken invariant, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

macro_rules! must {
    ($holds:expr, $($arg:tt)*) => {
        if !$holds {
            return Err(Violation(format!($($arg)*)));
        }
    };
}

impl Fsm {
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        self.leases_and_holds_agree()?;
        self.reservations_do_not_overlap()?;
        self.the_waitlist_is_apart_from_the_book()?;
        self.what_is_offered_waits_for_an_answer()?;
        self.jobs_and_allocations_agree()?;
        self.removals_are_of_ended_jobs()?;
        self.nodes_list_their_own_gpus()?;
        self.nodes_to_reboot_are_drained()?;
        self.the_audit_log_holds_its_anchor()?;
        self.nobody_heard_of_what_was_not()?;
        self.controller_ids_were_given()
    }

    /// Who waits without a place has no reservation, and nobody waits for longer than was said.
    fn the_waitlist_is_apart_from_the_book(&self) -> Result<(), Violation> {
        let listed = self.waitlist.all().count();
        must!(listed <= WAITLIST_MAX, "{listed} reservations are on the waiting list");
        for waiter in self.waitlist.without_place() {
            let id = &waiter.wish.id;
            must!(!self.reservations.contains_key(id), "{id} waits and has a place");
        }
        for over in self.waitlist.over() {
            let id = &over.waiter.wish.id;
            must!(self.waitlist.get(id).is_none(), "{id} waits and is over");
        }
        Ok(())
    }

    /// What is offered is on the list, is in no agent's hands, and has not begun; and the list knows of no other offers.
    fn what_is_offered_waits_for_an_answer(&self) -> Result<(), Violation> {
        for (_, waiter) in self.waitlist.offered() {
            let r = self.reservations.get(&waiter.wish.id);
            let offered = r.is_some_and(|r| r.offered_until().is_some());
            must!(offered, "{} has an open offer and no offered place", waiter.wish.id);
        }
        for r in self.reservations.open() {
            let Some(until) = r.offered_until() else { continue };
            let waiter = self.waitlist.get(&r.id).filter(|waiter| waiter.has_open_offer());
            let placed = waiter.and_then(|waiter| waiter.placed);
            must!(placed == Some(r.window.starts_at), "{} is offered and not on the list", r.id);
            let is_late = waiter.is_some_and(|waiter| waiter.latest_start < r.window.starts_at);
            must!(!is_late && until <= r.window.starts_at, "{} is offered for too long", r.id);
            let is_plain = r.handed_out.is_none()
                && r.next.is_none()
                && r.pair.is_none()
                && r.risk.is_none()
                && r.lease.is_none();
            must!(is_plain, "{} is offered, and more was done with it", r.id);
            must!(self.waiting_for(&r.id).is_empty(), "{} is offered and has jobs", r.id);
        }
        Ok(())
    }

    /// Else nothing would say what the first record that stayed continues.
    fn the_audit_log_holds_its_anchor(&self) -> Result<(), Violation> {
        let pruned = self.audit_pruned.as_ref().map_or(0, |pruned| pruned.through);
        must!(
            pruned == 0 || pruned < self.audit_seq,
            "audit records are pruned up to {pruned}, and the newest is {}",
            self.audit_seq
        );
        Ok(())
    }

    /// Notices are made of audit records.
    fn nobody_heard_of_what_was_not(&self) -> Result<(), Violation> {
        let told = self.notices.told();
        must!(
            told.until <= self.audit_seq && told.by_all() <= told.until,
            "people heard of audit records up to {}, and the newest is {}",
            told.until,
            self.audit_seq
        );
        Ok(())
    }

    /// Ids and addresses belong to one controller each, and no id is above the highest given.
    fn controller_ids_were_given(&self) -> Result<(), Violation> {
        let mut addresses = std::collections::BTreeSet::new();
        for (id, member) in &self.roster.members {
            let highest = self.roster.highest;
            must!(*id == member.id && *id <= highest, "controller {id} was never given its id");
            must!(addresses.insert(&member.address), "two controllers have {}", member.address);
        }
        Ok(())
    }

    /// Else the node would never get empty.
    fn nodes_to_reboot_are_drained(&self) -> Result<(), Violation> {
        for node in self.nodes.values().filter(|node| node.reboot.is_some()) {
            let closed = node.drain.is_some() && node.cordon.is_some();
            must!(closed, "{} is to be rebooted and open", node.name);
        }
        Ok(())
    }

    /// One lease a GPU, and under a reservation's lease one child of the same owner.
    fn leases_and_holds_agree(&self) -> Result<(), Violation> {
        let mut held: BTreeMap<&GpuUuid, u32> = BTreeMap::new();
        for lease in self.leases.values() {
            for gpu in &lease.gpus {
                *held.entry(gpu).or_default() += 1;
                let hold = self.holds.get(gpu);
                let there = hold
                    .is_some_and(|h| h.lease == lease.id || h.child.as_ref() == Some(&lease.id));
                must!(there, "{} claims {gpu}, which is held by {hold:?}", lease.id);
            }
            if let Some(parent) = &lease.parent {
                let parent = self.leases.get(parent);
                let same = parent.is_some_and(|p| p.owner == lease.owner && p.node == lease.node);
                must!(same, "{} has no parent of its owner on its node", lease.id);
            }
        }
        for (gpu, hold) in &self.holds {
            let expected = 1 + u32::from(hold.child.is_some());
            let found = held.get(gpu).copied().unwrap_or(0);
            must!(found == expected, "{gpu} is claimed by {found} leases, held by {hold:?}");
        }
        Ok(())
    }

    fn reservations_do_not_overlap(&self) -> Result<(), Violation> {
        must!(self.reservations.is_in_order(), "the open reservations are not all known as open");
        let listed = self.nodes.is_in_order()
            && self.gpus.is_in_order()
            && self.leases.is_in_order()
            && self.allocations.is_in_order();
        must!(listed, "something is not listed on its node");
        must!(self.index_is_true(), "the calendar's index is not what the state says");
        must!(self.bound_jobs_are_true(), "a job is not listed with its reservation");
        let mut windows: BTreeMap<&GpuUuid, Vec<_>> = BTreeMap::new();
        for r in self.reservations.all() {
            let claims = r.state.is_ahead() || r.state == ReservationState::Active;
            if claims {
                // One that was moved lately begins before it came there.
                let claim = r.claim();
                let claim = Window { starts_at: claim.starts_at.max(self.now), ..claim };
                for gpu in r.gpus.iter().filter(|_| claim.ends_at > self.now) {
                    windows.entry(gpu).or_default().push((claim, &r.id));
                }
            }
            if let Some(next) = &r.next {
                let waits = r.state == ReservationState::Scheduled && r.is_unconfirmed();
                must!(waits, "{} is {:?} and waits for its node to move", r.id, r.state);
                let starts_at = next.window.starts_at.max(self.now);
                let window = Window { starts_at, ends_at: next.window.ends_at };
                for gpu in next.gpus.iter().filter(|_| window.ends_at > self.now) {
                    let list = windows.entry(gpu).or_default();
                    // It may overlap its own old place, whose claim was added last.
                    match list.last_mut().filter(|(old, id)| *id == &r.id && old.overlaps(&window))
                    {
                        Some((old, _)) => {
                            old.starts_at = old.starts_at.min(window.starts_at);
                            old.ends_at = old.ends_at.max(window.ends_at);
                        }
                        None => list.push((window, &r.id)),
                    }
                }
            }
            let has_lease = r.lease.as_ref().is_some_and(|l| self.leases.contains_key(l));
            let needs = matches!(r.state, ReservationState::Active | ReservationState::Ending);
            must!(has_lease == needs, "{} is {:?} and its lease is {:?}", r.id, r.state, r.lease);
        }
        for (gpu, mut list) in windows {
            list.sort_by_key(|(window, _)| window.starts_at);
            for pair in list.windows(2) {
                let apart = !pair[0].0.overlaps(&pair[1].0);
                must!(apart, "{gpu} is promised to {} and {} at once", pair[0].1, pair[1].1);
            }
        }
        Ok(())
    }

    fn jobs_and_allocations_agree(&self) -> Result<(), Violation> {
        for job in self.jobs.values() {
            let queued = self.queue.get(&job.queue) == Some(&job.id);
            let (paused, held) =
                (self.paused.contains_key(&job.id), self.held.contains_key(&job.id));
            must!(
                !held || (job.state == JobState::Queued && !paused),
                "{} is {:?}, held, and paused is {paused}",
                job.id,
                job.state
            );
            let waits = job.question.is_some() || paused || held;
            must!(
                queued == (job.state == JobState::Queued && !waits),
                "{} is {:?} and queued is {queued}",
                job.id,
                job.state
            );
            let runs =
                matches!(job.state, JobState::Starting | JobState::Running | JobState::Stopping);
            let has = job.allocation().is_some_and(|a| self.allocations.contains_key(a));
            must!(has == runs, "{} is {:?} and has an allocation: {has}", job.id, job.state);
            must!(
                job.state.is_final() == job.outcome.is_some(),
                "{} is {:?} with outcome {:?}",
                job.id,
                job.state,
                job.outcome
            );
        }
        for a in self.allocations.values() {
            let own = self.jobs.get(&a.job).and_then(|job| job.allocation()) == Some(&a.id);
            must!(own, "{} is not its job's allocation", a.id);
            must!(a.gpus.is_empty() == a.lease.is_none(), "{} has GPUs without a lease", a.id);
            if let Some(lease) = a.lease.as_ref().and_then(|l| self.leases.get(l)) {
                let same = lease.gpus == a.gpus
                    && lease.epoch == a.epoch
                    && lease.holder == LeaseHolder::Allocation(a.id.clone());
                must!(same, "{} and {} do not agree", a.id, lease.id);
            } else {
                must!(a.lease.is_none(), "{} names a lease that is gone", a.id);
            }
        }
        Ok(())
    }

    /// Each is listed once: as due, or as ordered of the node that its job names.
    fn removals_are_of_ended_jobs(&self) -> Result<(), Violation> {
        for (at, id) in &self.files_due {
            let due = self.jobs.get(id).is_some_and(|job| {
                job.files == JobFiles::Stay && job.ended_at.is_some_and(|ended| ended < *at)
            });
            must!(due, "files of {id} are due, which has not ended");
        }
        let mut ordered = 0_usize;
        for (node, jobs) in &self.removing {
            must!(!jobs.is_empty(), "{node} is to remove the files of no job");
            ordered += jobs.len();
            for id in jobs {
                let files = self.jobs.get(id).map(|job| &job.files);
                let of = matches!(files, Some(JobFiles::Removing { node: of, .. }) if of == node);
                must!(of, "{node} is to remove the files of {id}, which are {files:?}");
            }
        }
        let removing = |job: &&Job| matches!(job.files, JobFiles::Removing { .. });
        let known = self.jobs.values().filter(removing).count();
        must!(
            known == ordered,
            "{known} jobs are being removed, and {ordered} removals are ordered"
        );
        Ok(())
    }

    fn nodes_list_their_own_gpus(&self) -> Result<(), Violation> {
        for node in self.nodes.values() {
            for gpu in &node.gpus {
                let own = self.gpus.get(gpu).is_some_and(|g| g.node == node.name);
                must!(own, "{} lists {gpu}, which is not its own", node.name);
            }
            // Those that have a number from the fleet; before that two cards could have one.
            let numbered = node.gpus.iter().filter_map(|gpu| self.gpus.get(gpu));
            let numbered = numbered.filter(|gpu| gpu.driver_index.is_some());
            let mut seen = BTreeMap::new();
            for gpu in numbered {
                let other = seen.insert(gpu.index, &gpu.uuid);
                must!(other.is_none(), "{} is {} and {other:?}", gpu.name(), gpu.uuid);
            }
        }
        Ok(())
    }
}
