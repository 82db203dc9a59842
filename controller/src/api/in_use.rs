//! What a node that is heard says is on a GPU: nobody's word goes over that.

use std::collections::BTreeSet;

use fleet_core::gpu::Gpu;
use fleet_core::lease::LeaseHolder;
use fleet_core::node::Liveness;
use fleet_core::reason::{TakenBy, TakenGpus, Wait, WaitReason};
use fleet_core::reservation::{Reservation, ReservationState};
use fleet_core::{Fsm, Rejection};
use fleet_proto::v1;

use crate::sessions::Sessions;

/// Processes of one GPU that are named.
const NAMED_MAX: usize = 3;

/// Refuses to call a GPU free whose node is connected and reports a job or a process on it, or is alive as far as is
/// known and has not reported to this controller yet.
pub(super) fn refusal(fsm: &Fsm, sessions: &Sessions, gpu: &Gpu) -> Option<Rejection> {
    let what = gpu.name().to_string();
    if !sessions.is_heard(&gpu.node) {
        let alive = fsm.node(&gpu.node).is_some_and(|node| node.liveness == Liveness::Ready);
        let why = format!(
            "not known by what, as {} has not reported to this controller yet; try again in some seconds",
            gpu.node
        );
        return alive.then(|| Rejection::InUse { what, by: vec![why] });
    }
    let measured = sessions.measured(&gpu.node, gpu.uuid.as_str());
    let processes = measured.map(|(measured, _)| measured.processes).unwrap_or_default();
    let by: Vec<String> = running(fsm, gpu).into_iter().chain(shown(processes)).collect();
    (!by.is_empty()).then_some(Rejection::InUse { what, by })
}

/// What is still on GPUs that a queued job waits for and that are being emptied: `titan01:0: python3 (pid 7) of ada`.
pub(super) fn behind(fsm: &Fsm, sessions: &Sessions, wait: &Wait) -> Option<String> {
    if let WaitReason::Reservation(shut) = &wait.reason {
        return before(fsm, sessions, fsm.reservation(&shut.id)?);
    }
    let emptied = |taken: &&TakenGpus| match taken.by {
        TakenBy::Emptying { .. } | TakenBy::NotEmpty { .. } | TakenBy::BeingEmptied => true,
        TakenBy::Job { .. } | TakenBy::Reservation { .. } | TakenBy::EarlierJob => false,
    };
    let names = wait.taken().iter().filter(emptied).flat_map(|taken| &taken.gpus);
    let gpus = names.filter_map(|name| fsm.gpu_named(name.node.as_str(), name.index));
    named(sessions, gpus)
}

/// What is still on the GPUs of a reservation, where it cannot start or end because of it.
pub(super) fn before(fsm: &Fsm, sessions: &Sessions, r: &Reservation) -> Option<String> {
    let waits = match r.state {
        ReservationState::Scheduled => r.reason.is_some(),
        ReservationState::Ending => true,
        ReservationState::Offered { .. }
        | ReservationState::Active
        | ReservationState::Ended
        | ReservationState::Cancelled => false,
    };
    let gpus = r.gpus.iter().filter(|_| waits).filter_map(|uuid| fsm.gpu(uuid));
    let emptied = |gpu: &&Gpu| {
        let lease = fsm.hold(&gpu.uuid).and_then(|hold| fsm.lease(&hold.lease));
        lease.is_some_and(|lease| lease.ending_since.is_some())
    };
    named(sessions, gpus.filter(emptied))
}

fn named<'a>(sessions: &Sessions, gpus: impl Iterator<Item = &'a Gpu>) -> Option<String> {
    let said: Vec<String> = gpus.filter_map(|gpu| left_on(sessions, gpu)).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// The processes on a GPU that is to be emptied.
pub(super) fn left_on(sessions: &Sessions, gpu: &Gpu) -> Option<String> {
    let (measured, _) = sessions.measured(&gpu.node, gpu.uuid.as_str())?;
    let processes = Vec::from_iter(shown(measured.processes));
    let more = processes.len().saturating_sub(NAMED_MAX);
    let mut said = processes.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        said.push_str(&format!(" and {more} more"));
    }
    (!said.is_empty()).then(|| format!("{}: {said}", gpu.name()))
}

/// The job whose attempt is on it.
fn running(fsm: &Fsm, gpu: &Gpu) -> Option<String> {
    let hold = fsm.hold(&gpu.uuid)?;
    let lease = fsm.lease(hold.child.as_ref().unwrap_or(&hold.lease))?;
    let LeaseHolder::Allocation(id) = &lease.holder else { return None };
    let job = fsm.job(&fsm.allocation(id)?.job)?;
    Some(format!("{} of {}", job.id, job.owner))
}

/// Each once; those that the site lets pass on every GPU are nobody's work.
fn shown(processes: Vec<v1::MeasuredProcess>) -> BTreeSet<String> {
    let own = processes.into_iter().filter(|process| !process.exempt);
    own.map(|process| match process.name.as_str() {
        "" => format!("pid {}", process.pid),
        name => format!("{name} (pid {}) of {}", process.pid, process.user),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_and_the_exempt_are_not() {
        let process = |pid, name: &str, exempt| v1::MeasuredProcess {
            pid,
            name: name.to_owned(),
            user: "ada".to_owned(),
            exempt,
            ..Default::default()
        };
        let all = vec![
            process(7, "python3", false),
            process(7, "python3", false),
            process(8, "", false),
            process(9, "Xorg", true),
        ];
        let expected = ["pid 8", "python3 (pid 7) of ada"].map(str::to_owned);
        assert_eq!(shown(all), BTreeSet::from(expected));
    }
}
