//! What should be on one node: the state as the controller sends it to the agent.
//!
//! Built by the leader's link for each agent whenever the state changed, taken by the agent as a
//! level. Only explicit entries mean anything: an allocation that is not named here is left alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::allocation::{Allocation, Phase};
use crate::checkpoint::{JobDir, Probe, ResumeOrder};
use crate::ending::{NoLonger, ReservationRules};
use crate::fsm::Fsm;
use crate::gpu::Gpu;
use crate::id::{AllocationId, JobId, LeaseId, ReservationId};
use crate::job::JobSpec;
use crate::lease::{Epoch, Lease, LeaseHolder};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::{ClearOrder, DRIVER_SINCE, Node};
use crate::reboot::DesiredReboot;
use crate::time::{Millis, Timestamp};
use crate::window::{DesiredWindow, Enforcement};

/// Version of the document that this build writes.
pub const DESIRED_VERSION: u32 = 1;

/// Everything the leader wants of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredNode {
    pub v: u32,
    pub node: NodeName,
    pub allocations: Vec<DesiredAllocation>,
    pub leases: Vec<DesiredLease>,
    /// Records of attempts whose end is in the log; the agent need not report them any more.
    pub forget: Vec<AllocationId>,
    /// After a restore: say what you hold, and what ended since then, before anything else is ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recount: Option<Timestamp>,
    /// Conditions that do not count any more, by an admin's decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clear: Vec<ClearOrder>,
    /// The calendar of the coming days, which the agent keeps by itself. One that is not named is left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<DesiredWindow>,
    /// How the node holds people to their reservations; where it is not said, as it did before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<Enforcement>,
    /// How windows end; where it is not said, by their time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<ReservationRules>,
    /// The open windows that end although the rules would extend them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub no_longer: BTreeMap<ReservationId, NoLonger>,
    /// The machine is to reboot, now that nothing is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<DesiredReboot>,
    /// The node is drained: once nothing is on it, the agent releases the GPU driver, so that it can be exchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release_driver: bool,
    /// Jobs that must leave other nodes: can they continue here?
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
    /// Jobs that ended, of which the node is to remove what fleet wrote beside their checkpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<JobDir>,
    /// The numbers in the names of its GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<GpuUuid, u32>,
    /// Lost cards that an admin forgot: the node need not report them any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub forgotten: BTreeSet<GpuUuid>,
}

/// What to do with one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredAllocation {
    pub id: AllocationId,
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    pub order: Order,
    /// Take deferral order of this number: answer with the current checkpoint number.
    pub defer: Option<u32>,
    /// By when it is to be over; for the agent alone only where somebody else was promised the GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// The reservation under whose lease it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ReservationId>,
    /// Ask the program for a checkpoint: the number of the newest request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<u32>,
}

/// The order for one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start it if it does not run and its epoch is new.
    Start(Box<StartOrder>),
    /// It was reported as running: nothing to do.
    Keep,
    /// The stop signal now, SIGKILL after `grace`.
    Stop { grace: Millis, why: String },
}

/// Everything that is needed to start one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    pub job: JobId,
    pub attempt: u32,
    pub restarts_used: u32,
    pub owner: UserName,
    pub spec: JobSpec,
    pub gpus: Vec<GpuUuid>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub resume_from: Option<String>,
    /// Text of the marker beside the checkpoints.
    pub marker: String,
    /// What it may resume from; absent from a fleet of before cluster version 18, which names `resume_from` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeOrder>,
}

/// A lease on this node that is not over, or is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredLease {
    pub id: LeaseId,
    pub epoch: Epoch,
    pub gpus: Vec<GpuUuid>,
    pub owner: UserName,
    pub holder: LeaseHolder,
    /// Prove the GPUs empty and report the release.
    pub ending: bool,
    /// Who else may use them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
}

impl DesiredLease {
    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }
}

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
        let drained = self.node(node).is_some_and(|n| n.drain.is_some());
        // Before all members know it, it would come and go with the leader.
        let release_driver = drained && self.cluster_version() >= DRIVER_SINCE;
        let no_longer = self.no_longer(node);
        let probes = self.probes(node);
        let removals = self.removals(node);
        let (numbers, forgotten) = self.numbers_of(node);
        let (v, node, recount) = (DESIRED_VERSION, node.clone(), None);
        let rules = self.ends_by_rules().then_some(*self.reservation_rules());
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
        let Some((job, attempt)) = id.attempt_of() else { return false };
        // An attempt this state never made is not over but unknown: reported, kept, left alone.
        self.job(&job).is_some_and(|job| attempt >= 1 && attempt <= job.attempt)
    }

    /// The GPUs of a node in index order.
    pub fn gpus_of<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = &'a Gpu> {
        self.node(node).into_iter().flat_map(|n| n.gpus.iter()).filter_map(|uuid| self.gpu(uuid))
    }
}
