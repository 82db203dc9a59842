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
        let (Next { mut placements, first }, known) =
            raft.read(|fsm| (scheduler::next(fsm), fsm.first_place().cloned()));
        planned = Some(inputs);
        // Before anything starts: what starts changes who would come first.
        if first != known {
            let _: bool = proposer.propose(Command::Job(JobCommand::KeepPlace { first })).await;
            planned = None;
        }
        if !placements.is_empty() {
            placements.truncate(PLACEMENTS_MAX);
            // Whatever came of the proposal, the loop plans from the state again.
            let _: bool = proposer.propose(Command::Job(JobCommand::Place { placements })).await;
            planned = None;
        }
    }
}
