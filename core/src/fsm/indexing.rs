//! Keeps the calendar's index up to date with the state.
//!
//! Called once behind each command, and within those that book many reservations. Each change marks its node; the nodes
//! that are marked are looked at again here. In between, who asks the index looks at marked nodes itself.

use std::collections::BTreeSet;

use super::Fsm;
use crate::allocation::Allocation;
use crate::calendar::Index;
use crate::name::NodeName;
use crate::reservation::{Reservation, ReservationState};

impl Fsm {
    /// Looks again at the nodes where something changed.
    pub(super) fn settle_index(&mut self) {
        let mut nodes = self.nodes.take_touched();
        nodes.append(&mut self.gpus.take_touched());
        nodes.append(&mut self.leases.take_touched());
        nodes.append(&mut self.allocations.take_touched());
        nodes.append(&mut self.reservations.take_touched());
        if self.index.is_empty() && !nodes.is_empty() {
            self.index = Index::of(self);
            return;
        }
        // Out of the state while it reads the state.
        let mut index = std::mem::take(&mut self.index);
        for node in &nodes {
            index.set(self, node);
        }
        self.index = index;
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Nodes of which the index does not know the newest.
    pub(crate) fn unsettled(&self) -> BTreeSet<&NodeName> {
        let things = self.nodes.touched().iter().chain(self.gpus.touched());
        let held = self.leases.touched().iter().chain(self.allocations.touched());
        things.chain(held).chain(self.reservations.touched()).collect()
    }

    /// Attempts that must leave and wait for a checkpoint, by id.
    pub(crate) fn deferring(&self) -> impl Iterator<Item = &Allocation> {
        let nodes: BTreeSet<&NodeName> = self.index.deferring().chain(self.unsettled()).collect();
        let on_them = nodes.into_iter().flat_map(|node| self.allocations.on(node));
        let mut deferring: Vec<&Allocation> = on_them.filter(|a| a.deferral.is_some()).collect();
        deferring.sort_by_key(|a| &a.id);
        deferring.into_iter()
    }

    /// Reservations whose time has come, by id; not those that were served.
    pub(super) fn begun_reservations(&self) -> Vec<&Reservation> {
        let due = self.index.due().take_while(|(at, _)| *at <= self.now).map(|(_, node)| node);
        let nodes: BTreeSet<&NodeName> = due.chain(self.unsettled()).collect();
        let on_them = nodes.into_iter().flat_map(|node| self.reservations.open_on(node));
        let begun = on_them.filter(|r| {
            r.state == ReservationState::Scheduled
                && r.window.starts_at <= self.now
                && self.now < r.window.ends_at
        });
        let mut begun: Vec<&Reservation> = begun.collect();
        begun.sort_by_key(|r| &r.id);
        begun
    }

    /// Whether the index is what the state says, made from nothing.
    pub(super) fn index_is_true(&self) -> bool {
        !self.unsettled().is_empty() || Index::of(self) == self.index
    }
}
