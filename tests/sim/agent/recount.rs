//! What a simulated node tells controllers that were restored from a backup: production's choice, from the
//! records on the machine's disk.

use fleet_agent::reconcile::recount::answer;
use fleet_core::desired::DesiredNode;
use fleet_core::holdings::{FoundAttempt, HeldReservation};
use fleet_core::id::AllocationId;
use fleet_core::lease::LeaseHolder;

use super::{Agent, time};
use crate::machine::Attempt;

fn record((id, attempt): (&AllocationId, &Attempt)) -> FoundAttempt {
    FoundAttempt {
        allocation: id.clone(),
        epoch: attempt.epoch,
        lease: attempt.lease.clone(),
        order: attempt.order.clone(),
        accepted_at: time(attempt.started_us),
        end: attempt.end.as_ref().map(|(_, report)| report.clone()),
    }
}

impl Agent {
    /// A new document is there: it may ask.
    pub(super) fn asked(&mut self, document: Option<&DesiredNode>) {
        let Some(document) = document else { return };
        let Some(since) = document.recount else {
            self.leases = document.leases.clone();
            return;
        };
        let records = {
            let machine = self.scene.machine(self.post.at);
            let all = machine.forgotten.iter().chain(&machine.attempts);
            all.map(record).collect::<Vec<_>>()
        };
        let found = answer(&self.table.rows, records, since, self.scene.true_time());
        let held = self.leases.iter().filter_map(|lease| match &lease.holder {
            LeaseHolder::Reservation(id) => Some(HeldReservation {
                id: id.clone(),
                owner: lease.owner.clone(),
                gpus: lease.gpus.clone(),
            }),
            LeaseHolder::Allocation(_) => None,
        });
        self.scene.say(&self.name, &format!("tells {} attempts to who asks", found.len()));
        self.outbox.recount(found, held.collect());
    }
}
