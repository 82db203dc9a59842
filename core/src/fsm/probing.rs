//! Whether a job that must leave could continue elsewhere: other nodes are asked at once whether they see its checkpoints.
//!
//! Otherwise it is found out only when the next attempt starts there, and the job has left its place by then. What is asked
//! is in [`DesiredNode::probes`](crate::desired::DesiredNode::probes); a node that answers no is left out as one on which
//! an attempt could not resume. Of one that does not answer nothing is known, and it counts as a place.

use super::{Fsm, Turn};
use crate::allocation::{Allocation, Deferral};
use crate::desired::{JobDir, Probe};
use crate::id::AllocationId;
use crate::job::Job;
use crate::name::NodeName;
use crate::node::Node;
use crate::scheduler;

/// Most nodes that are asked about one job, the first by name. About others it is found out when it starts there.
const ASKED_MAX: usize = 16;

impl Fsm {
    /// Of a job that saved something: nothing else is bound to a directory.
    pub(super) fn ask_other_nodes(&mut self, id: &AllocationId) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let Some(job) = self.jobs.get(&allocation.job) else { return };
        let saves =
            job.spec.checkpoint.is_some() && job.has_saved() && job.spec.reservation.is_none();
        if !saves {
            return;
        }
        let asked = self.built_for(job, &allocation.node).filter(|n| n.closed().is_none());
        let asks = asked.take(ASKED_MAX).map(|n| n.name.clone()).collect();
        let open = self.allocations.get_mut(id).and_then(|allocation| allocation.deferral.as_mut());
        if let Some(deferral) = open {
            deferral.asks = asks;
        }
    }

    /// Nodes other than its own on which it could run by what they are made of, and that were not left out.
    fn built_for<'a>(&'a self, job: &'a Job, own: &'a NodeName) -> impl Iterator<Item = &'a Node> {
        // All nodes: only when a job must leave and waits for its checkpoint; the caller takes the first few.
        self.nodes.values().filter(move |n| {
            n.name != *own
                && !job.excluded_nodes.contains_key(&n.name)
                && scheduler::satisfiable_on(self, &job.owner, &job.spec, &n.name)
        })
    }

    /// What the node is asked.
    pub(crate) fn probes(&self, node: &NodeName) -> Vec<Probe> {
        let asks = |deferral: &Deferral| deferral.asks.contains(node);
        let open = |a: &Allocation| a.stop.is_none() && a.deferral.as_ref().is_some_and(asks);
        let of = |allocation: &Allocation| {
            let job = self.jobs.get(&allocation.job)?;
            Some(Probe { allocation: allocation.id.clone(), place: JobDir::of(job) })
        };
        self.deferring().filter(|a| open(a)).filter_map(of).collect()
    }

    /// The node answers.
    pub(super) fn probed(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &AllocationId,
        problem: Option<&str>,
    ) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let Some(deferral) = &mut allocation.deferral else { return };
        if !deferral.asks.remove(node) {
            return;
        }
        let job = allocation.job.clone();
        if let Some(why) = problem {
            self.exclude_node(turn, &job, node, why);
        }
    }

    /// Why it can continue only on its own node: every other node that is built for it does not see its checkpoints. After a
    /// reboot its own node sees them again, so that it leaves for one.
    pub(super) fn bound_to_its_node(&self, allocation: &Allocation) -> Option<String> {
        let job = self.jobs.get(&allocation.job)?;
        let reboots = self.nodes.get(&allocation.node).is_some_and(|node| node.reboot.is_some());
        let (node, why) = job.excluded_nodes.first_key_value()?;
        let bound = !reboots && self.built_for(job, &allocation.node).next().is_none();
        bound.then(|| format!("no other node can continue it ({node}: {why})"))
    }
}
