//! What to do so that the node becomes what it should be. Pure: what is wanted and what is, in; actions, out.
//!
//! Called by the reconcile task whenever either side changed. Only explicit entries lead to anything: an
//! attempt that is not named is left alone, and nothing here ever follows from an absence.

use std::collections::BTreeSet;

use fleet_core::desired::{DesiredAllocation, DesiredLease, DesiredNode, Order, StartOrder};
use fleet_core::id::{AllocationId, LeaseId, ReservationId};
use fleet_core::lease::{Epoch, LeaseHolder};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Millis;

use crate::table::{AttemptPhase, Release, Row, Table};

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Start {
        id: AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
        order: Box<StartOrder>,
        /// Its GPUs are reserved for these users, whose own programs may be on them.
        reserved_for: BTreeSet<UserName>,
    },
    /// The same attempt runs already, under an older grant: it keeps running, with the new epoch.
    Adopt {
        id: AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
    },
    /// What runs under this id was superseded by something else: it must go first.
    Supersede {
        id: AllocationId,
    },
    /// It ended and its record makes room for a newer grant of the same id.
    Replace {
        id: AllocationId,
    },
    Stop {
        id: AllocationId,
        grace: Millis,
        why: String,
    },
    /// It is to be stopped and was never started here.
    SayNeverStarted {
        id: AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
    },
    /// Its GPUs are somebody else's by now: the order is older than what this node did alone.
    SayPromised {
        id: AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
        why: String,
    },
    /// It is believed to run here and this node has no record of it.
    SayLost {
        id: AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
    },
    AnswerDeferral {
        id: AllocationId,
        order: u32,
        checkpoint_seq: u64,
    },
    /// A person asks for a checkpoint.
    AskCheckpoint {
        id: AllocationId,
        order: u32,
    },
    /// The deferral was called off: nothing is asked of the job any more.
    CallOffDeferral {
        id: AllocationId,
    },
    Forget {
        id: AllocationId,
    },
    /// Prove the GPUs empty, then report the release.
    Prove {
        lease: LeaseId,
        epoch: Epoch,
        gpus: Vec<GpuUuid>,
        /// They stay reserved for these users, whose own programs may be on them.
        reserved_for: BTreeSet<UserName>,
    },
    /// The controller has the release in its log.
    DropRelease {
        lease: LeaseId,
    },
}

/// Everything that is to be done now. Doing it and planning again gives nothing more.
pub fn plan(desired: &DesiredNode, table: &Table) -> Vec<Action> {
    let mut actions = Vec::new();
    // First what makes room, then what takes it.
    for id in &desired.forget {
        if table.rows.get(id).is_some_and(|row| !row.is_live()) {
            actions.push(Action::Forget { id: id.clone() });
        }
    }
    for wanted in &desired.allocations {
        allocation(wanted, desired, table, &mut actions);
    }
    for lease in &desired.leases {
        if let Some(action) = release(lease, desired, table) {
            actions.push(action);
        }
    }
    for lease in table.releases.keys() {
        if !desired.leases.iter().any(|wanted| wanted.id == *lease) {
            actions.push(Action::DropRelease { lease: lease.clone() });
        }
    }
    actions
}

fn allocation(
    wanted: &DesiredAllocation,
    desired: &DesiredNode,
    table: &Table,
    actions: &mut Vec<Action>,
) {
    let id = wanted.id.clone();
    let row = table.rows.get(&id);
    match &wanted.order {
        Order::Start(order) => actions.extend(start(wanted, order, desired, row, table)),
        Order::Keep => {
            if row.is_none() {
                let (epoch, lease) = (wanted.epoch, wanted.lease.clone());
                actions.push(Action::SayLost { id: id.clone(), epoch, lease });
            }
        }
        Order::Stop { grace, why } => match row {
            None => {
                let (epoch, lease) = (wanted.epoch, wanted.lease.clone());
                actions.push(Action::SayNeverStarted { id: id.clone(), epoch, lease });
            }
            // An order from before what runs now says nothing about it.
            Some(row) if wanted.epoch < row.epoch => {}
            Some(row) if row.is_live() && row.stop_grace.is_none_or(|told| *grace < told) => {
                actions.push(Action::Stop { id: id.clone(), grace: *grace, why: why.clone() });
            }
            Some(_) => {}
        },
    }
    if let (Some(order), Some(row)) = (wanted.defer, row)
        && row.is_live()
        && row.deferral != Some(order)
    {
        let (id, checkpoint_seq) = (id.clone(), row.checkpoint_seq);
        actions.push(Action::AnswerDeferral { id, order, checkpoint_seq });
    }
    let Some(row) = row.filter(|row| row.is_live()) else { return };
    if wanted.defer.is_none() && row.deferral.is_some() {
        actions.push(Action::CallOffDeferral { id: id.clone() });
    }
    // One that has no process yet hears nothing.
    if let Some(order) = wanted.ask
        && row.phase == AttemptPhase::Running
        && row.asked != Some(order)
    {
        actions.push(Action::AskCheckpoint { id, order });
    }
}

fn start(
    wanted: &DesiredAllocation,
    order: &StartOrder,
    desired: &DesiredNode,
    row: Option<&Row>,
    table: &Table,
) -> Option<Action> {
    let (id, epoch, lease) = (wanted.id.clone(), wanted.epoch, wanted.lease.clone());
    match row {
        Some(row) if epoch <= row.epoch => None,
        Some(row) if row.is_live() && row.order.as_deref().is_some_and(|o| same_work(o, order)) => {
            Some(Action::Adopt { id, epoch, lease })
        }
        Some(row) if row.is_live() && row.stop_grace == Some(Millis::ZERO) => None,
        Some(row) if row.is_live() => Some(Action::Supersede { id }),
        Some(_) => Some(Action::Replace { id }),
        None if table.refused.get(&id) == Some(&epoch) => None,
        // Planned again when the attempt that has the GPU has ended.
        None if order.gpus.iter().any(|gpu| table.occupant(gpu, &id).is_some()) => None,
        None => {
            let (order, within) = (Box::new(order.clone()), wanted.within.as_ref());
            let reserved_for = within.map(|id| users_of(desired, id)).unwrap_or_default();
            Some(Action::Start { id, epoch, lease, order, reserved_for })
        }
    }
}

/// Who may use the GPUs of a reservation by its lease.
fn users_of(desired: &DesiredNode, reservation: &ReservationId) -> BTreeSet<UserName> {
    let by = |lease: &&DesiredLease| {
        matches!(&lease.holder, LeaseHolder::Reservation(id) if id == reservation) && !lease.ending
    };
    desired.leases.iter().filter(by).flat_map(DesiredLease::users).cloned().collect()
}

/// Whether two orders ask for the same thing, so that what runs by the one answers the other.
fn same_work(a: &StartOrder, b: &StartOrder) -> bool {
    a.job == b.job && a.attempt == b.attempt && a.gpus == b.gpus && a.spec == b.spec
}

fn release(lease: &DesiredLease, desired: &DesiredNode, table: &Table) -> Option<Action> {
    let told = table.releases.get(&lease.id);
    if told.is_some_and(|(epoch, _)| *epoch == lease.epoch) {
        return None;
    }
    // An attempt that ended here has ended its lease, also before the controller says so.
    let over = match &lease.holder {
        LeaseHolder::Allocation(id) => {
            table.rows.get(id).is_some_and(|row| row.phase == AttemptPhase::Ended)
        }
        LeaseHolder::Reservation(_) => false,
    };
    if !(lease.ending || over) || table.in_use(&lease.id, &lease.gpus) {
        return None;
    }
    let (epoch, gpus) = (lease.epoch, lease.gpus.clone());
    let covers = |other: &&DesiredLease| {
        matches!(other.holder, LeaseHolder::Reservation(_))
            && other.id != lease.id
            && !other.ending
            && gpus.iter().all(|gpu| other.gpus.contains(gpu))
    };
    let reserved_for = desired.leases.iter().filter(covers).flat_map(DesiredLease::users);
    let reserved_for = reserved_for.cloned().collect();
    Some(Action::Prove { lease: lease.id.clone(), epoch, gpus, reserved_for })
}

/// What this node has released and the document still waits for, though nothing of it is under the lease any
/// more: a release is not taken while somebody else is believed to be there. So it is when this node has
/// closed a window alone, and a job was meant to run in it that the node never heard of.
pub fn waited_for<'a>(
    desired: &'a DesiredNode,
    table: &'a Table,
) -> impl Iterator<Item = &'a LeaseId> {
    let released = |lease: &&DesiredLease| {
        let known = table.releases.get(&lease.id);
        lease.ending && known == Some(&(lease.epoch, Release::Released))
    };
    let under = |lease: &DesiredLease, other: &DesiredLease| {
        other.id != lease.id
            && matches!(other.holder, LeaseHolder::Allocation(_))
            && other.gpus.iter().any(|gpu| lease.gpus.contains(gpu))
    };
    let alone =
        move |lease: &&DesiredLease| !desired.leases.iter().any(|other| under(lease, other));
    desired.leases.iter().filter(released).filter(alone).map(|lease| &lease.id)
}

impl Table {
    /// Notes what an action changes in the table itself; the caller does the rest.
    pub fn note(&mut self, action: &Action) {
        match action {
            Action::Start { id, epoch, lease, order, .. } => {
                let row = Row::starting(*epoch, lease.clone(), (**order).clone());
                self.rows.insert(id.clone(), row);
            }
            Action::Adopt { id, epoch, lease } => {
                if let Some(row) = self.rows.get_mut(id) {
                    (row.epoch, row.lease) = (*epoch, lease.clone());
                }
            }
            Action::Supersede { id } => self.told_to_stop(id, Millis::ZERO),
            Action::Stop { id, grace, .. } => self.told_to_stop(id, *grace),
            Action::Replace { id } | Action::Forget { id } => drop(self.rows.remove(id)),
            Action::SayNeverStarted { id, epoch, lease }
            | Action::SayPromised { id, epoch, lease, .. }
            | Action::SayLost { id, epoch, lease } => {
                self.rows.insert(id.clone(), Row::never_started(*epoch, lease.clone()));
            }
            Action::AnswerDeferral { id, order, .. } => {
                if let Some(row) = self.rows.get_mut(id) {
                    row.deferral = Some(*order);
                }
            }
            Action::AskCheckpoint { id, order } => {
                if let Some(row) = self.rows.get_mut(id) {
                    row.asked = Some(*order);
                }
            }
            Action::CallOffDeferral { id } => {
                if let Some(row) = self.rows.get_mut(id) {
                    row.deferral = None;
                }
            }
            Action::Prove { lease, epoch, .. } => {
                self.releases.insert(lease.clone(), (*epoch, Release::Proving));
            }
            Action::DropRelease { lease } => drop(self.releases.remove(lease)),
        }
    }

    fn told_to_stop(&mut self, id: &AllocationId, grace: Millis) {
        if let Some(row) = self.rows.get_mut(id) {
            row.stop_grace = Some(grace);
        }
    }
}

#[cfg(test)]
mod tests;
