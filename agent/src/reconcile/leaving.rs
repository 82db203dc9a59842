//! The reconcile task's part of a planned shutdown: asking the jobs, and saying who is still waited for.

use super::task::Reconciler;
use crate::allocations::{Asker, Order};
use crate::shutdown::{Farewell, Waited};

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
            self.order(&id, Order::AskCheckpoint(Asker::Shutdown));
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
}
