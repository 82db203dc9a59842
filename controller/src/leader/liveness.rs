//! Who is silent. Silence only stops new placements; it ends nothing.
//!
//! Timers begin anew with each term of office and whenever this loop itself was late: a leader that
//! was paused must not take its own sleep for everybody's silence.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet_core::command::Command;
use fleet_core::name::NodeName;
use fleet_core::node::Liveness;
use fleet_core::time::Millis;

use super::propose;
use crate::api::Context;

/// How often silence is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// Silent for this long: nothing new is placed there.
const SUSPECT_AFTER: Duration = Duration::from_secs(10);
/// Silent for this long: said to be unreachable.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(60);
/// Being this late means that this process stood still.
const LATE: Duration = Duration::from_secs(2);

pub(super) async fn run(context: Context) {
    let mut since = Instant::now();
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(PERIOD).await;
        if last.elapsed() > PERIOD + LATE {
            tracing::warn!(
                late_ms = last.elapsed().as_millis(),
                "this process stood still; silence is counted anew"
            );
            since = Instant::now();
        }
        last = Instant::now();
        let known: BTreeMap<NodeName, Liveness> = context
            .raft
            .read(|fsm| fsm.nodes().values().map(|n| (n.name.clone(), n.liveness)).collect());
        for (node, liveness) in known {
            // Nobody has been silent for longer than we have listened.
            let silent =
                context.sessions.silence(&node).unwrap_or(Duration::MAX).min(since.elapsed());
            let connected = context.sessions.sender(&node).is_some();
            let seen = judge(silent, connected, liveness);
            if seen != liveness {
                let silent_for = Millis(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
                propose(&context, Command::SetLiveness { node, liveness: seen, silent_for }).await;
            }
        }
    }
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
