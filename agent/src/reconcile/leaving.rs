//! The reconcile task's part of a planned shutdown: asking the jobs, and saying who is still waited for. And of a
//! reboot that an admin wants once nothing is on this node.

use std::sync::Arc;

use fleet_core::desired::DesiredNode;

use super::Row;
use super::task::Reconciler;
use crate::allocations::Order;
use crate::shutdown::{Farewell, Waited, reboot};

impl Reconciler {
    /// The machine is about to go down, or is not any more.
    pub(super) fn take_notice(&mut self) {
        let notice = *self.leaving.borrow_and_update();
        self.farewell = match notice.leaving {
            true => Farewell::of(&self.table.rows),
            false => Farewell::default(),
        };
        for id in self.farewell.asked() {
            tracing::info!(%id, "asked for a checkpoint before the shutdown");
            self.order(&id, Order::AskCheckpoint);
        }
        self.say_waited();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.borrow().leaving
    }

    pub(super) fn say_waited(&self) {
        let round = self.leaving.borrow().round;
        let (asked, open) = (self.farewell.asked().len(), self.farewell.open(&self.table.rows));
        self.parts.node.shutdown.answer(Waited { round, asked, open });
    }

    /// Once for each wish, in the boot it is meant for, and only where this node sees nothing in its way either.
    pub(super) fn reboot_if_ordered(&mut self, desired: &DesiredNode) {
        let Some(order) = &desired.reboot else { return };
        let node = Arc::clone(&self.parts.node);
        let busy = self.table.rows.values().any(Row::is_live) || !desired.leases.is_empty();
        if order.boot_id != node.boot_id || busy || self.is_leaving() {
            return;
        }
        if self.reboot_tried.replace(order.since) == Some(order.since) {
            return;
        }
        let (outbox, since) = (self.parts.outbox.clone(), order.since);
        tracing::info!("this node is empty and boots anew, as an admin wanted it");
        tokio::spawn(async move {
            let problem = reboot(&node.config).await.err();
            if let Some(problem) = &problem {
                tracing::error!(problem, "this machine cannot be rebooted");
            }
            outbox.reboot(since, problem);
        });
    }
}
