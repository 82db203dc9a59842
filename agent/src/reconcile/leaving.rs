//! The reconcile task's part of a planned shutdown: asking the jobs, and saying who is still waited for.

use super::task::Reconciler;
use crate::allocations::{Asker, AttemptOrder};
use crate::shutdown::Waited;
use fleet_node::LastSaves;

impl Reconciler {
    /// The machine is about to go down, or is not any more.
    pub(super) fn take_notice(&mut self) {
        let notice = *self.leaving.borrow_and_update();
        self.last_saves = match notice.leaving {
            true => LastSaves::of(&self.table.rows),
            false => LastSaves::default(),
        };
        for id in self.last_saves.asked() {
            tracing::info!(%id, "asked for a checkpoint before the shutdown");
            self.order(&id, AttemptOrder::AskCheckpoint(Asker::Shutdown));
        }
        self.say_waited();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.borrow().leaving
    }

    pub(super) fn say_waited(&self) {
        let round = self.leaving.borrow().round;
        let (asked, open) = (self.last_saves.asked().len(), self.last_saves.open(&self.table.rows));
        self.parts.shutdown.answer(Waited { round, asked, open });
    }
}
