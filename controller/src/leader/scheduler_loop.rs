//! Plans whenever the state changed, and proposes what can start.

use fleet_core::Fsm;
use fleet_core::command::{Command, JobCommand};
use fleet_core::scheduler::{self, Next};

use super::Proposer;
use crate::operations::Operations;

/// Lines of a plan in one command; the rest is planned again right after.
const PLACEMENTS_MAX: usize = 256;

pub(super) async fn run(proposer: Proposer, operations: Operations) {
    let raft = &proposer.raft;
    let mut applied = raft.applied();
    let mut planned = None;
    let mut pulse = operations.begin("scheduler");
    loop {
        pulse.answer();
        applied.borrow_and_update();
        let inputs = raft.read(Fsm::plan_inputs);
        if planned == Some(inputs) {
            tokio::select! {
                changed = applied.changed() => if changed.is_err() { return },
                () = pulse.asked() => {}
            }
            continue;
        }
        let (Next { mut placements, first, preempt, look_at }, known) =
            raft.read(|fsm| (scheduler::next(fsm), (fsm.first_place().cloned(), fsm.look_at())));
        planned = Some(inputs);
        // Before anything starts: what starts changes who would come first.
        if (&first, look_at) != (&known.0, known.1) {
            let keep = JobCommand::KeepPlace { first, look_at };
            let _: bool = proposer.propose(Command::Job(keep)).await;
            planned = None;
        }
        if !placements.is_empty() {
            placements.truncate(PLACEMENTS_MAX);
            // Whatever came of the proposal, the loop plans from the state again.
            let _: bool = proposer.propose(Command::Job(JobCommand::Place { placements })).await;
            planned = None;
        }
        // Behind what starts: that may need nobody's place any more.
        if let Some(order) = preempt {
            let _: bool = proposer.propose(Command::Job(JobCommand::Preempt(order))).await;
            planned = None;
        }
    }
}
