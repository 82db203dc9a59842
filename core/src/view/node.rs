//! The state of a node.

use crate::node::{Liveness, Node};
use crate::state::Fsm;
use crate::word::words;

/// Whether a node takes work, and what keeps it from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeState {
    Ready,
    /// Not heard for a moment: nothing new starts there.
    Suspect,
    /// Not heard for long: what runs there is left alone.
    Unreachable,
    /// An admin wants no new work on it.
    Cordoned,
    /// It is being emptied.
    Draining,
    /// It was emptied: nobody is on it.
    Drained,
    /// Its agent broke a rule of the protocol.
    Suspended,
}

words!(NodeState {
    Ready => "ready",
    Suspect => "suspect",
    Unreachable => "unreachable",
    Cordoned => "cordoned",
    Draining => "draining",
    Drained => "drained",
    Suspended => "suspended",
});

/// How many nodes take work: one that is drained, cordoned or not heard does not.
pub fn ready(fsm: &Fsm) -> usize {
    fsm.nodes().values().filter(|one| node(fsm, one) == NodeState::Ready).count()
}

/// The state of a node.
pub fn node(fsm: &Fsm, node: &Node) -> NodeState {
    if node.suspended.is_some() {
        return NodeState::Suspended;
    }
    match node.liveness {
        Liveness::Suspect => return NodeState::Suspect,
        Liveness::Unreachable => return NodeState::Unreachable,
        Liveness::Ready => {}
    }
    match (&node.drain, &node.cordon) {
        (Some(_), _) if fsm.is_empty(&node.name) => NodeState::Drained,
        (Some(_), _) => NodeState::Draining,
        (None, Some(_)) => NodeState::Cordoned,
        (None, None) => NodeState::Ready,
    }
}
