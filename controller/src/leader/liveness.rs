//! Who is silent. Silence only stops new placements; it ends nothing.
//!
//! Timers start again with each term of office and whenever this loop itself was late: a leader that
//! was paused must not take its own sleep for everybody's silence.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet_core::command::{Command, NodeCommand};
use fleet_core::name::NodeName;
use fleet_core::node::Liveness;
use fleet_core::time::Millis;

use super::Proposer;
use crate::operations::Operations;
use crate::sessions::Sessions;

/// How often the leader checks who is silent.
const PERIOD: Duration = Duration::from_secs(1);
/// Silent for this long: nothing new is placed there.
const SUSPECT_AFTER: Duration = Duration::from_secs(10);
/// Silent for this long: said to be unreachable.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(60);
/// After an election, one that was not heard yet has this long before its silence counts: it looks for
/// the new leader, and may wait for an old one that only stands still.
const ELECTION_GRACE: Duration = Duration::from_secs(45);
/// Being this late means that this process stood still.
const LATE: Duration = Duration::from_secs(2);

pub(super) async fn run(proposer: Proposer, sessions: Sessions, operations: Operations) {
    let mut since = Instant::now();
    let mut last = Instant::now();
    let mut pulse = operations.begin("liveness");
    loop {
        tokio::time::sleep(PERIOD).await;
        pulse.answer();
        if last.elapsed() > PERIOD + LATE {
            tracing::warn!(
                late_ms = last.elapsed().as_millis(),
                "this process stood still; counting silence again from now"
            );
            since = Instant::now();
        }
        last = Instant::now();
        let known: BTreeMap<NodeName, Liveness> = proposer
            .raft
            .read(|fsm| fsm.nodes().values().map(|n| (n.name.clone(), n.liveness)).collect());
        for (node, liveness) in known {
            let silent = silence(sessions.silence(&node), since.elapsed());
            let connected = sessions.sender(&node).is_some();
            let seen = judge(silent, connected, liveness);
            if seen != liveness {
                let silent_for = Millis(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
                proposer
                    .propose(Command::Node(NodeCommand::SetLiveness {
                        node,
                        liveness: seen,
                        silent_for,
                    }))
                    .await;
            }
        }
    }
}

/// How long a node counts as silent. `heard` is the time since it was last heard, `listening` the time since this
/// leader began to listen: nobody has been silent for longer than that.
fn silence(heard: Option<Duration>, listening: Duration) -> Duration {
    heard.map_or_else(|| listening.saturating_sub(ELECTION_GRACE), |heard| heard.min(listening))
}

fn judge(silent: Duration, connected: bool, before: Liveness) -> Liveness {
    if silent >= UNREACHABLE_AFTER {
        return Liveness::Unreachable;
    }
    if silent >= SUSPECT_AFTER {
        // A new leader that has not listened for long yet knows no better than the old one.
        return if before == Liveness::Unreachable { before } else { Liveness::Suspect };
    }
    if connected { Liveness::Ready } else { before }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_gives_agents_time_to_find_it() {
        let s = Duration::from_secs;
        assert_eq!(silence(None, s(40)), s(0));
        assert_eq!(silence(None, s(60)), s(15));
        assert_eq!(silence(Some(s(3)), s(60)), s(3));
        assert_eq!(silence(Some(s(300)), s(1)), s(1), "this process stood still");
    }

    #[test]
    fn silence_goes_one_way_until_the_agent_is_back() {
        let s = Duration::from_secs;
        assert_eq!(judge(s(1), true, Liveness::Ready), Liveness::Ready);
        assert_eq!(judge(s(1), false, Liveness::Ready), Liveness::Ready);
        assert_eq!(judge(s(11), false, Liveness::Ready), Liveness::Suspect);
        assert_eq!(judge(s(11), false, Liveness::Unreachable), Liveness::Unreachable);
        assert_eq!(judge(s(61), false, Liveness::Suspect), Liveness::Unreachable);
        assert_eq!(judge(s(1), true, Liveness::Unreachable), Liveness::Ready);
    }
}
