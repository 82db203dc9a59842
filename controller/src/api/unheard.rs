//! What to say of nodes that a new leader has not heard yet.
//!
//! The views call it. A leader knows nothing of the time before it: a node that died then is shown as the last leader
//! knew it, until this one has listened for long enough to call it silent. Nothing here decides anything.

use std::time::Duration;

use fleet_core::Fsm;
use fleet_core::node::{Liveness, Node};
use fleet_core::time::Millis;

use crate::sessions::Sessions;

/// Agents need this long to find a new leader: no warning before.
const RECONNECT: Duration = Duration::from_secs(5);
/// Nodes that a warning names.
const NAMED_MAX: usize = 4;

/// Since when a node that counts as well was not heard, in words.
pub(super) fn of(sessions: &Sessions, node: &Node) -> Option<String> {
    let unheard = sessions.unheard_for(&node.name).filter(|_| node.liveness == Liveness::Ready)?;
    Some(said(unheard))
}

fn said(unheard: Duration) -> String {
    format!("not heard since the leader changed {} ago", length(unheard))
}

fn length(length: Duration) -> Millis {
    // Whole seconds: nobody reads milliseconds.
    Millis::secs(length.as_secs())
}

/// One warning for all such nodes.
pub(super) fn warning(sessions: &Sessions, fsm: &Fsm) -> Option<String> {
    let well = fsm.nodes().values().filter(|node| node.liveness == Liveness::Ready);
    let unheard =
        well.filter_map(|node| Some((node.name.as_str(), sessions.unheard_for(&node.name)?)));
    warning_of(&unheard.collect::<Vec<_>>())
}

fn warning_of(unheard: &[(&str, Duration)]) -> Option<String> {
    let longest = unheard.iter().map(|(_, unheard)| *unheard).max();
    let longest = longest.filter(|longest| *longest >= RECONNECT)?;
    let (named, more) = unheard.split_at(unheard.len().min(NAMED_MAX));
    let mut names = named.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if !more.is_empty() {
        names.push_str(&format!(" and {} more", more.len()));
    }
    Some(format!("not heard since the leader changed {} ago: {names}", length(longest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_were_not_heard_by_this_leader_are_named() {
        let s = Duration::from_secs;
        assert_eq!(said(s(20)), "not heard since the leader changed 20s ago");
        assert_eq!(warning_of(&[]), None);
        assert_eq!(warning_of(&[("titan01", s(4))]), None, "agents look for the new leader");
        let all: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|name| (name, s(20))).into();
        assert_eq!(
            warning_of(&all).unwrap_or_default(),
            "not heard since the leader changed 20s ago: a, b, c, d and 2 more"
        );
    }
}
