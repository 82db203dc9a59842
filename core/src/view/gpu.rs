//! The state of a GPU, and why it is in it.

use crate::gpu::{Gpu, Presence};
use crate::health::Severity;
use crate::lease::LeaseHolder;
use crate::name::NodeName;
use crate::reason::Closed;
use crate::state::Fsm;
use crate::word::words;

/// What a GPU is doing, or why it can do nothing. The first that is true in this order: held, not there, not clean, not
/// well, not offered; only what none of them is true of is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuState {
    /// It can be given to anybody now.
    Free,
    /// A reservation holds it and runs no job on it.
    Reserved,
    /// A job holds it.
    Running,
    /// Its lease is over, and it is not proven empty yet.
    Releasing,
    /// Memory or a process on it that no lease explains.
    Dirty,
    /// The node does not see it any more.
    Lost,
    /// Nobody can tell how it is.
    Unknown,
    /// Its health forbids new work.
    Unhealthy,
    /// Its node takes no work.
    Closed,
}

words!(GpuState {
    Free => "free",
    Reserved => "reserved",
    Running => "running",
    Releasing => "releasing",
    Dirty => "dirty",
    Lost => "lost",
    Unknown => "unknown",
    Unhealthy => "unhealthy",
    Closed => "closed",
});

/// Why a GPU is in its state, where the state's word does not say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuReason {
    /// Its lease is over; the agent proves that nothing of it is left.
    BeingEmptied,
    /// The driver stopped to answer for it.
    NotAnswering,
    /// The node is drained and has released the driver.
    DriverReleased,
    /// The whole driver does not answer.
    DriverSilent,
    /// What the agent found on it.
    Dirty(String),
    /// Its node takes no work.
    NodeClosed(NodeName, Closed),
    /// The next card in its slot gets its number.
    Replaced,
}

/// The state of a GPU, and the reason where there is more to say.
pub fn gpu(fsm: &Fsm, gpu: &Gpu) -> (GpuState, Option<GpuReason>) {
    let (state, reason) = state_of(fsm, gpu);
    let replaced = || gpu.replaced_by_next.then_some(GpuReason::Replaced);
    (state, reason.or_else(replaced))
}

fn state_of(fsm: &Fsm, gpu: &Gpu) -> (GpuState, Option<GpuReason>) {
    if let Some(hold) = fsm.hold(&gpu.uuid) {
        let top = fsm.lease(&hold.lease);
        let ending = top.is_some_and(|lease| lease.ending_since.is_some());
        let by_job = top.is_some_and(|l| matches!(l.holder, LeaseHolder::Allocation(_)));
        return match (ending, by_job || hold.child.is_some()) {
            (true, _) => (GpuState::Releasing, Some(GpuReason::BeingEmptied)),
            (false, true) => (GpuState::Running, None),
            (false, false) => (GpuState::Reserved, None),
        };
    }
    let node = fsm.node(&gpu.node);
    let released = || node.is_some_and(|node| node.facts.driver_released);
    match gpu.presence {
        Presence::Lost => return (GpuState::Lost, Some(GpuReason::NotAnswering)),
        Presence::Unknown if released() => {
            return (GpuState::Unknown, Some(GpuReason::DriverReleased));
        }
        Presence::Unknown => return (GpuState::Unknown, Some(GpuReason::DriverSilent)),
        Presence::Present => {}
    }
    if let Some(why) = &gpu.dirty {
        return (GpuState::Dirty, Some(GpuReason::Dirty(why.clone())));
    }
    let Some(node) = node else { return (GpuState::Unknown, None) };
    if node.severity_for(&gpu.uuid).is_some_and(|s| s >= Severity::Degraded) {
        return (GpuState::Unhealthy, None);
    }
    match node.closed() {
        Some(why) => (GpuState::Closed, Some(GpuReason::NodeClosed(node.name.clone(), why))),
        None => (GpuState::Free, None),
    }
}
