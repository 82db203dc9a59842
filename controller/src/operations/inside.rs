//! Whether this controller can do its work, in words, and its line in `systemctl status`.

use fleet_core::view;
use fleet_daemon::bundle::Bundle;
use fleet_daemon::http::Inside;

use std::sync::Arc;

use super::bundle::bundle;
use super::{Own, Parts};
use crate::clock::Standing;

/// Entries that may wait to be applied while the controller still counts as up to date.
const LAG_MAX: u64 = 1_000;

/// The view from inside.
pub(super) struct Controller(pub(super) Arc<Own>);

impl Inside for Controller {
    fn not_ready(&self) -> Vec<String> {
        not_ready(&self.0.parts)
    }

    fn bundle(&self) -> (Bundle, String) {
        bundle(&self.0)
    }
}

/// Why users cannot be served as they should; empty when they can.
pub(super) fn not_ready(parts: &Parts) -> Vec<String> {
    let raft = parts.raft.status();
    let mut reasons = Vec::new();
    if let Some(why) = raft.stopped {
        reasons.push(format!("consensus has stopped: {why}"));
    } else if raft.leadership.leader.is_none() {
        reasons.push("no controller leads: a majority is not there, or is choosing".to_owned());
    }
    let waiting = raft.committed_index.saturating_sub(raft.applied_index);
    if waiting > LAG_MAX {
        reasons.push(format!("{waiting} committed entries are not applied yet"));
    }
    if raft.leadership.is_leader
        && let Standing::Unconfirmed { step_ms } = parts.clock.standing()
    {
        reasons.push(format!(
            "the clock is {} s from the fleet's time and nobody confirms it",
            step_ms / 1_000
        ));
    }
    reasons.extend(parts.raft.space_problem().map(|problem| problem.to_string()));
    reasons
}

/// One line: what it does at the moment.
pub(super) fn status_line(parts: &Parts) -> String {
    let leadership = parts.raft.status().leadership;
    let role = match (leadership.is_leader, leadership.leader) {
        (true, _) => "leads".to_owned(),
        (false, Some(leader)) => format!("follows controller {leader}"),
        (false, None) => "no controller leads".to_owned(),
    };
    let (ready, nodes, running, waiting) = parts.raft.read(|fsm| {
        (view::node::ready(fsm), fsm.nodes().len(), fsm.allocations().len(), fsm.queue().count())
    });
    format!(
        "{role}, term {}; {ready} of {nodes} nodes ready; jobs: {running} running, {waiting} waiting",
        leadership.term
    )
}
