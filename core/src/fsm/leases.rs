//! Granting and releasing: the only places where a GPU changes hands.

use super::{Fsm, Hold, Turn};
use crate::event::Event;
use crate::id::LeaseId;
use crate::lease::{Account, Epoch, Lease, LeaseHolder};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::rejection::Rejection;
use crate::reply::Reply;

/// What a grant is made of.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) node: NodeName,
    pub(super) gpus: Vec<GpuUuid>,
    pub(super) owner: UserName,
    pub(super) holder: LeaseHolder,
    pub(super) parent: Option<LeaseId>,
    pub(super) account: Account,
    /// What was fixed when the window was handed out; otherwise both come from this turn.
    pub(super) given: Option<(LeaseId, Epoch)>,
}

impl Fsm {
    /// Gives the GPUs away under this turn's epoch. The caller has checked that they are free, or
    /// held by `parent` without a child.
    pub(super) fn grant(&mut self, turn: &mut Turn<'_>, grant: Grant) -> LeaseId {
        let (id, epoch) = grant.given.unwrap_or_else(|| turn.next_lease());
        for gpu in &grant.gpus {
            match self.holds.get_mut(gpu) {
                Some(hold) => hold.child = Some(id.clone()),
                None => {
                    self.holds.insert(gpu.clone(), Hold { lease: id.clone(), child: None });
                }
            }
        }
        if let Some(parent) = &grant.parent {
            self.job_came(parent);
        }
        let held_from = self.held_from(&grant.holder);
        let lease = Lease {
            id: id.clone(),
            epoch,
            node: grant.node,
            gpus: grant.gpus,
            owner: grant.owner,
            holder: grant.holder,
            parent: grant.parent,
            granted_at: self.now,
            ending_since: None,
            held_from,
            account: grant.account,
            ended: None,
            lost: None,
        };
        self.leases.insert(id.clone(), lease);
        id
    }

    /// Tells the agent, through the desired state, that the lease is over. It stays held until the
    /// agent has proven the GPUs empty.
    pub(super) fn end_lease(&mut self, id: &LeaseId) {
        let now = self.now;
        if let Some(lease) = self.leases.get_mut(id) {
            lease.ending_since.get_or_insert(now);
        }
    }

    /// Takes the lease off its GPUs: they were proven empty under this exact epoch. Empty GPUs of a
    /// reservation are empty for the attempts that ran under it too.
    pub(super) fn release(&mut self, turn: &mut Turn<'_>, id: &LeaseId, epoch: Epoch) -> bool {
        self.release_by(turn, id, epoch, None)
    }

    /// `declared_by`: whose word it is that they are empty, where nothing was proven.
    fn release_by(
        &mut self,
        turn: &mut Turn<'_>,
        id: &LeaseId,
        epoch: Epoch,
        declared_by: Option<&str>,
    ) -> bool {
        if self.leases.get(id).is_none_or(|lease| lease.epoch != epoch) {
            return false;
        }
        // What lives under a lease is on its node.
        let Some(node) = self.leases.get(id).map(|lease| lease.node.clone()) else { return false };
        let children = self.leases.on(&node).filter(|l| l.parent.as_ref() == Some(id));
        let children: Vec<Lease> = children.cloned().collect();
        if children.iter().any(|child| child.ending_since.is_none()) {
            return false;
        }
        for child in children {
            self.release_by(turn, &child.id, child.epoch, declared_by);
        }
        let Some(lease) = self.leases.remove(id) else { return false };
        let stay = Box::new(self.stay_of(&lease, self.now));
        for gpu in &lease.gpus {
            let empty = match self.holds.get_mut(gpu) {
                Some(hold) if hold.child.as_ref() == Some(id) => {
                    hold.child = None;
                    false
                }
                Some(hold) => hold.lease == *id,
                None => false,
            };
            if empty {
                self.holds.remove(gpu);
            }
        }
        let node = lease.node;
        let holder = match &lease.holder {
            LeaseHolder::Allocation(id) => id.to_string(),
            LeaseHolder::Reservation(id) => id.to_string(),
        };
        turn.say(Event::GpusReleased {
            lease: id.clone(),
            node: node.clone(),
            gpus: lease.gpus,
            declared_by: declared_by.map(str::to_owned),
            holder,
            stay,
        });
        if let LeaseHolder::Reservation(reservation) = &lease.holder {
            self.reservation_lease_released(turn, reservation);
        }
        self.say_if_drained(turn, &node);
        self.settle_replacements(turn, &node);
        true
    }

    /// Releases every lease of a node whose processes are all gone, children first.
    pub(super) fn release_all_of(&mut self, turn: &mut Turn<'_>, node: &NodeName) {
        let mut ids: Vec<(bool, LeaseId, Epoch)> = self
            .leases
            .on(node)
            .map(|lease| (lease.parent.is_none(), lease.id.clone(), lease.epoch))
            .collect();
        ids.sort();
        for (is_parent, id, epoch) in ids {
            let goes_on = self.leases.get(&id).filter(|lease| lease.ending_since.is_none());
            let keeps = goes_on.is_some_and(|lease| match &lease.holder {
                // A reservation outlives a reboot: its GPUs are empty and still promised.
                LeaseHolder::Reservation(_) => is_parent,
                // So does an attempt that has still to begin.
                LeaseHolder::Allocation(id) => self.allocations.contains_key(id),
            });
            if !keeps {
                self.release(turn, &id, epoch);
            }
        }
    }

    /// An operator vouches that nothing runs on the GPU: whatever held it is over.
    pub(super) fn declare_gpu_free(
        &mut self,
        turn: &mut Turn<'_>,
        gpu: &GpuUuid,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        super::cluster::check_text("reason", reason)?;
        if reason.trim().is_empty() {
            return Err(Rejection::field("reason", "say how you know that nothing runs on it"));
        }
        if !self.gpus.contains_key(gpu) {
            return Err(Rejection::not_found("GPU", gpu));
        }
        let by = turn.actor.display_name();
        let said = reason.to_owned();
        turn.say(Event::GpuDeclaredFree { gpu: gpu.clone(), by: by.clone(), reason: said });
        let word = Some(by.as_str());
        self.settle_withdrawn(turn, gpu);
        let hold = self.holds.get(gpu).cloned();
        let (child, lease) = hold.map_or((None, None), |hold| (hold.child, Some(hold.lease)));
        for id in [child, lease].into_iter().flatten() {
            let Some(lease) = self.leases.get(&id).cloned() else { continue };
            if let LeaseHolder::Allocation(allocation) = &lease.holder {
                let message = format!("{gpu} was declared free by {}", turn.actor.display_name());
                self.lose_allocation(turn, allocation, message);
            }
            let reservation_goes_on =
                matches!(lease.holder, LeaseHolder::Reservation(_)) && lease.ending_since.is_none();
            if !reservation_goes_on {
                self.release_by(turn, &id, lease.epoch, word);
            }
        }
        self.vouched_for(turn, gpu);
        if let Some(node) = self.gpus.get(gpu).map(|gpu| gpu.node.clone()) {
            self.settle_replacements(turn, &node);
        }
        Ok(Reply::Done)
    }
}
