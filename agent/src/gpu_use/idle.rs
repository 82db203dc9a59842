//! Idle windows: hands the samples to the one who judges, reports what is new, and says how it is to the terminals.

use std::collections::BTreeSet;

use fleet_core::desired::DesiredLease;
use fleet_core::id::ReservationId;
use fleet_core::lease::LeaseHolder;
use fleet_core::time::Timestamp;
use fleet_node::AttemptPhase;
use fleet_node::idle::{Open, Standing, Watch};
use fleet_node::idle_due::{IdleWindows, WindowIdle};
use fleet_node::measured::Sample;

use super::Parts;
use crate::attempts::Registry;
use crate::clock;

/// `now`: the fleet's time. Without it nobody can say since when a window is idle.
pub(super) fn look(
    watch: &mut Watch,
    parts: Parts<'_>,
    samples: &[Sample],
    now: Option<Timestamp>,
) {
    // Before the first document nobody knows which windows there are. Controllers without rules know nothing of this.
    let (Some(leases), Some(rules)) = (parts.leases, parts.orders.rules) else { return };
    let open = open(leases, parts.registry);
    for (id, _) in watch.standing().filter(|(id, _)| open.iter().all(|one| one.reservation != **id))
    {
        parts.outbox.drop_idle(id);
    }
    let asked = parts.orders.idle.iter().filter(|(_, idle)| idle.confirm);
    let asked: BTreeSet<ReservationId> = asked.map(|(id, _)| id.clone()).collect();
    let news = watch.look(clock::since_boot(), rules.idle, &open, &asked, samples);
    for (id, seen) in news {
        tracing::debug!(reservation = %id, ?seen, "whether a window is idle");
        parts.outbox.idle_seen(&id, seen);
    }
    let windows = watch.standing().map(|(id, standing)| {
        let release_at = parts.orders.idle.get(id).map(|idle| idle.release_at);
        let shown = match (standing, now) {
            (Standing::Idle { length }, Some(now)) => {
                WindowIdle::Idle { since: now - length, release_at }
            }
            (Standing::Busy, _) => WindowIdle::Busy,
            (Standing::Idle { .. } | Standing::Neither, _) => WindowIdle::Neither,
        };
        (id.clone(), shown)
    });
    parts.idle.set(IdleWindows { rules: rules.idle, windows: windows.collect() });
}

fn open(leases: &[DesiredLease], registry: &Registry) -> Vec<Open> {
    let mut open = Vec::new();
    for lease in leases.iter().filter(|lease| !lease.ending) {
        if let LeaseHolder::Reservation(id) = &lease.holder {
            let prepares = leases.iter().any(|job| prepares(job, lease, registry));
            open.push(Open { reservation: id.clone(), gpus: lease.gpus.clone(), prepares });
        }
    }
    open
}

/// Whether `job` is the lease of a job on GPUs of the window, of which no process runs yet.
fn prepares(job: &DesiredLease, window: &DesiredLease, registry: &Registry) -> bool {
    let LeaseHolder::Allocation(id) = &job.holder else { return false };
    let here = !job.ending && job.gpus.iter().any(|gpu| window.gpus.contains(gpu));
    here && match registry.get(id).map(|shown| *shown.phase.borrow()) {
        Some(AttemptPhase::Starting) | None => true,
        Some(AttemptPhase::Running | AttemptPhase::Ended) => false,
    }
}
