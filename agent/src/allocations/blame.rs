//! Whether a program that failed died of its GPUs.
//!
//! Asked once, at the end of an attempt that had GPUs and did not end with 0: a fault that is sampled is often seen only
//! seconds after the program died of it. So the GPUs are measured at once, and what the health task makes of that is
//! waited for, briefly. Nothing here decides what becomes of the job.

use std::time::Duration;

use fleet_core::allocation::{AttemptEnd, EndReport};
use fleet_core::health::{Condition, Subject, can_end_a_program};
use fleet_core::name::GpuUuid;
use tokio::time::timeout;

use crate::attempts::Record;
use crate::gpu;
use crate::health;

/// Longest time that an end waits for this look.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long the driver's own events (XIDs) may be on their way behind the program's end.
const EVENTS_MAX: Duration = Duration::from_millis(1_500);

/// The report, with the fault that is seen under the program, if one is.
pub(super) async fn with_fault(
    driver: &gpu::Handle,
    health: &health::Handle,
    record: &Record,
    report: EndReport,
) -> EndReport {
    let failed = match report.end {
        AttemptEnd::Exited { code } => code != 0,
        AttemptEnd::Signaled { .. } => true,
        AttemptEnd::OutOfMemory
        | AttemptEnd::CannotStart { .. }
        | AttemptEnd::CannotResume { .. }
        | AttemptEnd::NothingToResume { .. }
        | AttemptEnd::NodeFault { .. }
        | AttemptEnd::Lost { .. } => false,
    };
    let gpus = &record.order.gpus;
    // A stop that arrived decides by its own reason.
    if !failed || report.stopped || gpus.is_empty() {
        return report;
    }
    let mut conditions = health.conditions();
    if let Some(fault) = fault_of(&conditions.borrow_and_update(), gpus) {
        return EndReport { fault: Some(fault), ..report };
    }
    let look = async {
        // A driver that hangs says nothing; the limit below ends the wait for it.
        drop(driver.sample_now().await);
        let appears = conditions.wait_for(|all| fault_of(all, gpus).is_some());
        timeout(EVENTS_MAX, appears).await.is_ok()
    };
    // Whether it ran out of time or saw something, the conditions say.
    drop(timeout(LOOK_MAX, look).await);
    let fault = fault_of(&conditions.borrow(), gpus);
    EndReport { fault, ..report }
}

fn fault_of(conditions: &[Condition], gpus: &[GpuUuid]) -> Option<String> {
    let on_it = |subject: &Subject| match subject {
        Subject::Node => false,
        Subject::Gpu(gpu) => gpus.contains(gpu),
    };
    let found = conditions.iter().find(|condition| {
        condition.is_active() && on_it(&condition.subject) && can_end_a_program(&condition.kind)
    });
    found.map(|condition| condition.reason.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::health::{ConditionStatus, Severity};
    use fleet_core::time::Timestamp;

    use super::*;

    #[test]
    fn only_a_fault_of_its_own_gpu_that_ends_programs_counts() {
        let gpu = |n: u32| GpuUuid::parse(&format!("GPU-{n}")).unwrap();
        let condition = |n: u32, kind: &str, status| Condition {
            subject: Subject::Gpu(gpu(n)),
            kind: kind.to_owned(),
            status,
            severity: Severity::Notice,
            reason: format!("{kind} on {n}"),
            message: String::new(),
            since: Timestamp(0),
            sticky: false,
        };
        let of = |condition: Condition| fault_of(&[condition], &[gpu(1)]);
        assert_eq!(
            of(condition(1, "xid_79", ConditionStatus::True)),
            Some("xid_79 on 1".to_owned())
        );
        assert!(of(condition(1, "gpu_lost", ConditionStatus::True)).is_some());
        assert!(
            of(condition(1, "xid_94", ConditionStatus::True)).is_some(),
            "by design, on Ampere"
        );
        assert_eq!(of(condition(2, "xid_79", ConditionStatus::True)), None);
        assert_eq!(of(condition(1, "xid_79", ConditionStatus::False)), None);
        assert_eq!(of(condition(1, "xid_13", ConditionStatus::True)), None);
        assert_eq!(of(condition(1, "thermal_slowdown", ConditionStatus::True)), None);
    }
}
