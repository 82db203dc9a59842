//! Plans whenever the state changed, and proposes what can start.

use fleet_core::Fsm;
use fleet_core::command::Command;
use fleet_core::scheduler;

use super::Proposer;
use crate::operations::Operations;

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
        let commands = raft.read(|fsm| scheduler::next(fsm).commands(fsm));
        planned = Some(inputs);
        for command in commands {
            // Whatever came of the proposal, the loop plans from the state again.
            let _: bool = proposer.propose(Command::Job(command)).await;
            planned = None;
        }
    }
}
