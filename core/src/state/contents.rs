//! What is on one node, looked up once for all that is derived from it.
//!
//! A node of a large fleet is cold in the processor's caches, so each lookup by an id costs more than what is done with
//! what it finds. Used by what keeps the index and the standings; it decides nothing.

use std::sync::Arc;

use super::Fsm;
use super::built::Built;
use crate::allocation::Allocation;
use crate::node::Node;
use crate::reservation::Reservation;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) node: &'a Node,
    pub(crate) built: Arc<Built>,
    /// Reservations that have not ended, by id.
    pub(crate) reservations: Vec<&'a Reservation>,
    /// Attempts that have not ended, by id.
    pub(crate) attempts: Vec<&'a Allocation>,
}

impl<'a> Contents<'a> {
    /// Everything worked out from the state.
    pub(crate) fn of(fsm: &'a Fsm, node: &'a Node) -> Self {
        Self::with(fsm, node, Arc::new(Built::of(fsm, node)))
    }

    /// Of a node that is built as it was.
    pub(crate) fn with(fsm: &'a Fsm, node: &'a Node, built: Arc<Built>) -> Self {
        let reservations = fsm.open_reservations_on(&node.name).collect();
        let attempts = fsm.allocations_on(&node.name).collect();
        Self { node, built, reservations, attempts }
    }
}
