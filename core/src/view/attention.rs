//! What an operator should know of nodes and GPUs whose state does not show it, because somebody has them.
//!
//! A node that is drained shows who has its GPUs, as any other; a GPU that is not well shows its job. `fleet status` asks
//! here for a line about either. Nothing here changes anything.

use std::cmp::Reverse;

use crate::gpu::GpuName;
use crate::health::{Condition, Severity, Subject};
use crate::id::JobId;
use crate::lease::LeaseHolder;
use crate::name::{NodeName, UserName};
use crate::node::Node;
use crate::reason::Few;
use crate::state::Fsm;
use crate::view::node::{NodeState, node};

/// A node that is being drained, and what is left on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emptying {
    pub node: NodeName,
    pub jobs: usize,
    pub reservations: usize,
}

/// A GPU with a condition of its own that keeps new work away, under a job that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnwellUnderJob {
    pub gpu: GpuName,
    pub severity: Severity,
    /// The worst condition, by its name.
    pub why: String,
    pub job: JobId,
    pub owner: UserName,
}

/// Nodes that are being drained and not empty yet.
pub fn emptying(fsm: &Fsm) -> Few<Emptying> {
    let draining = fsm.nodes().values().filter(|one| node(fsm, one) == NodeState::Draining);
    let left = draining.map(|node| {
        let reserved = |holder: &LeaseHolder| matches!(holder, LeaseHolder::Reservation(_));
        Emptying {
            node: node.name.clone(),
            jobs: fsm.allocations_on(&node.name).count(),
            reservations: fsm.leases_on(&node.name).filter(|l| reserved(&l.holder)).count(),
        }
    });
    left.collect()
}

/// GPUs that are degraded or worse while a job has them, the worst first.
pub fn unwell_under_jobs(fsm: &Fsm) -> Few<UnwellUnderJob> {
    // Most nodes have no condition: their attempts are not searched.
    let unwell = |node: &&Node| node.conditions.iter().any(|one| of_gpu(one).is_some());
    let nodes = fsm.nodes().values().filter(unwell);
    let attempts = nodes.flat_map(|node| fsm.allocations_on(&node.name).map(move |a| (node, a)));
    let found = attempts.flat_map(|(node, attempt)| {
        attempt.gpus.iter().filter_map(move |uuid| {
            let own = node.conditions_for(uuid).filter_map(of_gpu);
            let worst = own.max_by_key(|c| c.severity)?;
            Some(UnwellUnderJob {
                gpu: fsm.gpu_name(uuid)?,
                severity: worst.severity,
                why: worst.kind.clone(),
                job: attempt.job.clone(),
                owner: fsm.job(&attempt.job)?.owner.clone(),
            })
        })
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|one| Reverse(one.severity));
    found.into_iter().collect()
}

/// The condition, if it holds, is of a GPU, and keeps new work away. One of the node says nothing about its GPUs.
fn of_gpu(condition: &Condition) -> Option<&Condition> {
    let bad = condition.severity >= Severity::Degraded;
    let own = matches!(condition.subject, Subject::Gpu(_));
    (own && bad && condition.is_active()).then_some(condition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::story::Story;

    #[test]
    fn a_drained_node_is_named_until_it_is_empty() {
        let mut story = Story::new();
        story.tell(
            "node titan01 v100*2
             node titan02 v100*2
             run job-a ada 1@titan01 2h
             place
             start job-a
             reserve res-b bob titan01:1 +0h +4h",
        );
        assert_eq!(emptying(&story.fsm).to_string(), "");
        story.tell("drain titan01\n drain titan02");
        let said = emptying(&story.fsm).to_string();
        assert_eq!(said, "titan01 (1 job, 1 reservation)", "titan02 is empty");
        story.tell("release res-b\n freed titan01");
        assert_eq!(emptying(&story.fsm).to_string(), "titan01 (1 job)");
        story.tell("end job-a\n freed titan01");
        assert_eq!(emptying(&story.fsm).to_string(), "");
    }

    #[test]
    fn a_degraded_gpu_is_named_while_a_job_has_it() {
        let mut story = Story::new();
        story.tell(
            "node titan01 v100*2
             run job-a ada 1@titan01 2h
             place
             start job-a
             degraded titan01:1",
        );
        assert_eq!(unwell_under_jobs(&story.fsm).to_string(), "", "nobody has it");
        story.tell("degraded titan01:0");
        let said = unwell_under_jobs(&story.fsm).to_string();
        assert_eq!(said, "titan01:0 is degraded (test_1) under job-a of ada");
    }

    #[test]
    fn a_condition_of_the_node_or_an_unknown_one_is_no_fault_of_its_gpus() {
        let mut story = Story::new();
        story.tell(
            "node titan01 v100*2
             run job-a ada 1@titan01 2h
             place
             start job-a
             unsure titan01
             unsure titan01:0
             degraded titan01",
        );
        assert_eq!(unwell_under_jobs(&story.fsm).to_string(), "");
    }

    #[test]
    fn a_fatal_fault_comes_first() {
        let mut story = Story::new();
        story.tell(
            "node titan01 v100*2
             run job-a ada 2@titan01 2h
             place
             start job-a
             degraded titan01:0
             degraded titan01:1
             fatal titan01:1",
        );
        assert_eq!(
            unwell_under_jobs(&story.fsm).to_string(),
            "titan01:1 has a fatal fault (test_2) under job-a of ada, titan01:0 is degraded (test_0) under job-a of ada"
        );
    }
}
