//! Whether this agent holds the GPU driver. On a drained node the agent releases the driver once nothing is left
//! there, so that it can be unloaded and upgraded. The agent attaches it again as soon as the node is open or anything
//! needs it.
//!
//! Called by the reconcile task on each turn of its loop, and before it begins anything. A level: nothing is
//! remembered, so an agent that starts on a drained node checks its GPUs once and releases the driver again. It must
//! never end other processes that hold the driver: it waits for processes on a GPU.

use fleet_core::gpu::Presence;

use super::task::Reconciler;
use crate::gpu::{GpuSnapshot, GpuState};
use fleet_node::Row;

/// What is to be done about the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Hold,
    LetGo,
    /// Nobody says, or somebody is in the way: as it is.
    Leave,
}

/// `ordered`: whether the agent is to release the driver; none if nobody said.
fn decide(ordered: Option<bool>, needed: bool, gpus: &GpuSnapshot) -> Driver {
    match ordered {
        Some(false) => Driver::Hold,
        Some(true) | None if needed => Driver::Hold,
        Some(true) if is_unused(gpus) => Driver::LetGo,
        Some(true) | None => Driver::Leave,
    }
}

/// Whether the driver was asked and shows no process. Those that are listed and do not exist are not waited for: some
/// drivers do that.
fn is_unused(gpus: &GpuSnapshot) -> bool {
    let used = |gpu: &GpuState| {
        let listed = gpu.telemetry.processes.value();
        let exists = listed.is_some_and(|all| all.iter().any(|one| one.started_ticks.is_some()));
        gpu.presence == Presence::Present && exists
    };
    !gpus.is_unseen() && !gpus.gpus.iter().any(used)
}

impl Reconciler {
    /// Releases the driver or attaches it. A caller that asks for a sample after this waits until the driver is there.
    pub(super) fn keep_driver(&self) {
        let gpus = &self.parts.gpus.driver;
        match decide(self.driver_ordered(), self.driver_is_needed(), &gpus.latest()) {
            Driver::Hold if gpus.attach() => tracing::info!("the GPU driver is taken up again"),
            Driver::LetGo if gpus.release_driver() => {
                tracing::info!("nothing is left on this drained node: releasing its GPU driver");
            }
            Driver::Hold | Driver::LetGo | Driver::Leave => {}
        }
    }

    fn driver_ordered(&self) -> Option<bool> {
        let desired = self.parts.desired.borrow();
        // One that asks what is here orders nothing.
        let desired = desired.as_ref().filter(|desired| desired.recount.is_none())?;
        Some(desired.release_driver)
    }

    /// Whether anything is here that has GPUs or is to be proven gone: attempts, leases, windows opened alone.
    fn driver_is_needed(&self) -> bool {
        let mut leases = match self.parts.desired.borrow().as_ref() {
            Some(desired) => desired.leases.clone(),
            None => Vec::new(),
        };
        self.calendar.add_leases(&mut leases);
        !leases.is_empty() || !self.proving.is_empty() || self.table.rows.values().any(Row::is_live)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_core::time::Timestamp;

    use super::*;
    use crate::gpu::{DriverState, GpuProcess, Observed, ProcessKind, Telemetry};

    const ASKED: Option<Timestamp> = Some(Timestamp(1));

    /// One GPU, asked at that time.
    fn snapshot(
        presence: Presence,
        sampled_at: Option<Timestamp>,
        processes: Vec<GpuProcess>,
    ) -> GpuSnapshot {
        let processes = Observed::Value(processes);
        let telemetry = Telemetry { processes, ..Telemetry::unknown("") };
        let gpu = GpuState { presence, telemetry, sampled_at, ..GpuState::of_tests(0) };
        GpuSnapshot { gpus: vec![gpu], ..GpuSnapshot::empty(DriverState::Running) }
    }

    fn process(started_ticks: Option<u64>) -> GpuProcess {
        GpuProcess { pid: 7, kind: ProcessKind::Compute, memory_bytes: None, started_ticks }
    }

    #[test]
    fn what_is_needed_or_not_drained_is_held() {
        let gpus = snapshot(Presence::Present, ASKED, Vec::new());
        for (ordered, needed, driver) in [
            (Some(true), false, Driver::LetGo),
            (Some(true), true, Driver::Hold),
            (Some(false), false, Driver::Hold),
            // After a start without controllers, or while they ask what is here.
            (None, false, Driver::Leave),
            (None, true, Driver::Hold),
        ] {
            assert_eq!(decide(ordered, needed, &gpus), driver, "{ordered:?} {needed}");
        }
    }

    #[test]
    fn it_is_let_go_of_after_a_look_that_shows_nobody() {
        let decided = |gpus: &GpuSnapshot| decide(Some(true), false, gpus);
        let someone = || vec![process(Some(3))];
        let used = snapshot(Presence::Present, ASKED, someone());
        assert_eq!(decided(&used), Driver::Leave, "for every user");
        let nobody = snapshot(Presence::Present, ASKED, vec![process(None)]);
        assert_eq!(decided(&nobody), Driver::LetGo);
        assert_eq!(decided(&snapshot(Presence::Present, None, Vec::new())), Driver::Leave);
        assert_eq!(decided(&snapshot(Presence::Unknown, None, someone())), Driver::LetGo);
        let starting = GpuSnapshot::empty(DriverState::Starting);
        assert_eq!(decided(&starting), Driver::Leave, "its GPUs are to be known first");
        let reason = "not loaded".to_owned();
        assert_eq!(decided(&GpuSnapshot::empty(DriverState::Absent { reason })), Driver::LetGo);
        assert_eq!(decided(&GpuSnapshot::empty(DriverState::Released)), Driver::LetGo);
    }
}
