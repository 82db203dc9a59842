//! What should be on one node, worked out from the state.

use std::collections::{BTreeMap, BTreeSet};

use super::Fsm;
use crate::allocation::{Allocation, Phase};
use crate::desired::{
    DESIRED_VERSION, DesiredAllocation, DesiredLease, DesiredNode, Order, StartOrder,
};
use crate::id::AllocationId;
use crate::lease::{Lease, LeaseHolder};
use crate::name::{NodeName, UserName};
use crate::node::Node;
use crate::time::Millis;

impl Fsm {
    /// What should be on `node`. `held` are the allocations its agent still has a record of.
    pub fn desired(&self, node: &NodeName, held: &[AllocationId]) -> DesiredNode {
        if self.node(node).is_some_and(|n| n.uncounted)
            && let Some(restored) = self.restored()
        {
            // What a backup believes is no ground for an order.
            let (v, node, recount) = (DESIRED_VERSION, node.clone(), Some(restored.since));
            let (allocations, leases, forget) = (Vec::new(), Vec::new(), Vec::new());
            return DesiredNode {
                v,
                node,
                allocations,
                leases,
                forget,
                recount,
                clear: Vec::new(),
                windows: Vec::new(),
                enforce: None,
                rules: None,
                no_longer: BTreeMap::new(),
                idle: BTreeMap::new(),
                reboot: None,
                release_driver: false,
                probes: Vec::new(),
                removals: Vec::new(),
                numbers: BTreeMap::new(),
                forgotten: BTreeSet::new(),
            };
        }
        let mut allocations: Vec<DesiredAllocation> =
            self.allocations_on(node).map(|a| self.desired_allocation(a)).collect();
        let on_node = || self.leases_on(node);
        // Declared lost while the node was away: whatever is left of it must go.
        for lease in on_node().filter(|lease| lease.ending_since.is_some()) {
            if let LeaseHolder::Allocation(id) = &lease.holder
                && self.allocation(id).is_none()
                && held.contains(id)
            {
                allocations.push(DesiredAllocation {
                    id: id.clone(),
                    epoch: lease.epoch,
                    lease: Some(lease.id.clone()),
                    order: Order::Stop {
                        grace: Millis::ZERO,
                        why: "its attempt is over".to_owned(),
                    },
                    defer: None,
                    ends_at: None,
                    within: None,
                    ask: None,
                });
            }
        }
        let leases = on_node()
            .map(|lease| DesiredLease {
                id: lease.id.clone(),
                epoch: lease.epoch,
                gpus: lease.gpus.clone(),
                owner: lease.owner.clone(),
                holder: lease.holder.clone(),
                ending: lease.ending_since.is_some(),
                with: self.shared_with(&lease.holder),
            })
            .collect();
        let forget = held.iter().filter(|id| self.is_over(node, id)).cloned().collect();
        let clear = self.node(node).map(|node| node.clearing.clone()).unwrap_or_default();
        let windows = self.desired_windows(node);
        let enforce = self.node(node).map(Node::enforcement_ordered);
        let reboot = self.desired_reboot(node);
        let release_driver = self.node(node).is_some_and(|n| n.drain.is_some());
        let no_longer = self.no_longer(node);
        let idle = self.desired_idle(node);
        let probes = self.probes(node);
        let removals = self.removals(node);
        let (numbers, forgotten) = self.numbers_of(node);
        let (v, node, recount) = (DESIRED_VERSION, node.clone(), None);
        let rules = Some(*self.reservation_rules());
        DesiredNode {
            v,
            node,
            allocations,
            leases,
            forget,
            recount,
            clear,
            windows,
            enforce,
            rules,
            no_longer,
            idle,
            reboot,
            release_driver,
            probes,
            removals,
            numbers,
            forgotten,
        }
    }

    fn shared_with(&self, holder: &LeaseHolder) -> BTreeSet<UserName> {
        match holder {
            LeaseHolder::Reservation(id) => {
                self.reservation(id).map(|r| r.with.clone()).unwrap_or_default()
            }
            LeaseHolder::Allocation(_) => BTreeSet::new(),
        }
    }

    fn desired_allocation(&self, a: &Allocation) -> DesiredAllocation {
        let parent = a.lease.as_ref().and_then(|id| self.lease(id)?.parent.as_ref());
        let within = parent.and_then(|id| match &self.lease(id)?.holder {
            LeaseHolder::Reservation(id) => Some(id.clone()),
            LeaseHolder::Allocation(_) => None,
        });
        let order = match (&a.stop, a.phase, self.job(&a.job)) {
            (Some(stop), _, _) => {
                Order::Stop { grace: stop.grace, why: stop.why.said(within.as_ref()) }
            }
            (None, Phase::Placed, Some(job)) => Order::Start(Box::new(StartOrder {
                job: a.job.clone(),
                attempt: a.attempt,
                restarts_used: job.restarts_used,
                owner: a.owner.clone(),
                spec: job.spec.clone(),
                gpus: a.gpus.clone(),
                cpu_millis: a.cpu_millis,
                memory_bytes: a.memory_bytes,
                resume_from: a.resume_from.clone(),
                marker: job.marker.clone(),
                resume: self.resume_order(job, a),
            })),
            (None, Phase::Placed | Phase::Running | Phase::Stopping, _) => Order::Keep,
        };
        let defer = a.deferral.as_ref().filter(|d| d.baseline.is_none()).map(|d| d.order);
        let limit = self.job(&a.job).map(|job| a.placed_at + job.time_left());
        let ends_at = a.time_limit_at.or(limit.into_iter().chain(a.ends_by).min());
        let (id, epoch, lease) = (a.id.clone(), a.epoch, a.lease.clone());
        let ask = a.asked.as_ref().map(|asked| asked.order);
        DesiredAllocation { id, epoch, lease, order, defer, ends_at, within, ask }
    }

    /// Whether the log holds the end of that attempt, and its GPUs on the node were released.
    fn is_over(&self, node: &NodeName, id: &AllocationId) -> bool {
        let of_attempt =
            |l: &Lease| matches!(&l.holder, LeaseHolder::Allocation(holder) if holder == id);
        let leased = self.leases_on(node).any(of_attempt);
        if self.allocation(id).is_some() || leased {
            return false;
        }
        // An attempt this state never made is not over but unknown: reported, kept, left alone.
        self.job(id.job()).is_some_and(|job| id.attempt() <= job.attempt.number)
    }
}
