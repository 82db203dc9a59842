//! Proposes `AdvanceTime` when the state says that time alone changes something.

use std::time::Duration;

use fleet_core::Fsm;
use fleet_core::command::{ClusterCommand, Command};

use super::Proposer;
use crate::operations::Operations;

/// Longest sleep: the clock may be taken over from agents meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Least time between two proposals, should one not do away with what is due.
const PAUSE_MIN: Duration = Duration::from_millis(20);

pub(super) async fn run(proposer: Proposer, operations: Operations) {
    let Proposer { raft, clock } = &proposer;
    let mut applied = raft.applied();
    let mut pulse = operations.begin("calendar");
    loop {
        pulse.answer();
        applied.borrow_and_update();
        let now = clock.now();
        let due = raft.read(Fsm::next_deadline);
        let paused = clock.is_unconfirmed();
        if due.is_some_and(|due| due <= now) && !paused {
            proposer.propose(Command::Cluster(ClusterCommand::AdvanceTime)).await;
            tokio::time::sleep(PAUSE_MIN).await;
            continue;
        }
        let until = due.map_or(SLEEP_MAX, |due| Duration::from_millis(due.since(now).0));
        let wait = if paused { SLEEP_MAX } else { until.clamp(PAUSE_MIN, SLEEP_MAX) };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = applied.changed() => if changed.is_err() { return },
        }
    }
}
