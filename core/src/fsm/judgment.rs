//! What becomes of a job whose attempt ended, from cluster version 18 on. The order of the questions is the rule:
//!
//! 1. it had said `DONE=1`, and fleet's stop signal or a fault ended it: completed, with any code;
//! 2. fleet's stop signal had reached it: the reason of the stop decides, whatever the code;
//! 3. it ended with 0 by itself: completed, also if a stop was on its way;
//! 4. a fault of the node or of its GPUs: the same checkpoint again;
//! 5. its own failure soon after a resume: the checkpoint before;
//! 6. a failure that its owner wants tried again;
//! 7. failed.
//!
//! Pure: `jobs.rs` asks and carries out.

use crate::allocation::{AttemptEnd, EndReport, StopWhy};
use crate::checkpoint::{RetryOn, STEPS_BACK_MAX, StepsBack};
use crate::time::Millis;

/// After a resume a failure within this time may be the checkpoint's: the usual gap between two checkpoints, but at least
/// `SOON_MIN` and at most `SOON_MAX`.
pub(crate) const SOON_MIN: Millis = Millis::minutes(5);
pub(crate) const SOON_MAX: Millis = Millis::hours(1);
/// Failures of its own without a new checkpoint since, after which a job is not tried again.
pub(crate) const RETRIES_MAX: u32 = 10;
/// Pause before the first such try; each next one is twice as long.
const RETRY_PAUSE_MIN: Millis = Millis::secs(10);
const RETRY_PAUSE_MAX: Millis = Millis::minutes(10);

/// How long a job waits for a registry that does not answer.
pub(super) const IMAGE_WAIT_MAX: Millis = Millis::hours(24);

/// All that the judgment goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) report: &'a EndReport,
    /// The stop that was ordered, if one was.
    pub(super) stop: Option<&'a StopWhy>,
    /// A fault of its GPUs that can end a program, by its node or by what is known of the GPUs.
    pub(super) fault: Option<&'a str>,
    /// It resumed from a checkpoint and has saved none of its own.
    pub(super) resumed_without_progress: bool,
    /// Its program had begun.
    pub(super) started: bool,
    pub(super) ran: Millis,
    pub(super) usual_gap: Option<Millis>,
    pub(super) steps: &'a StepsBack,
    /// An earlier checkpoint than the one it resumed from is there.
    pub(super) has_earlier: bool,
    pub(super) retry_on: &'a RetryOn,
    pub(super) retries: u32,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Completed,
    Cancelled,
    TimedOut,
    /// Evicted: queued again.
    Evicted,
    NodeFault {
        cause: String,
        has_run: bool,
    },
    /// Its image is not available for now.
    NoImage {
        why: String,
    },
    /// The node cannot read its directory: another one.
    OtherNode {
        why: String,
    },
    AskOwner {
        why: String,
    },
    StepBack {
        why: String,
    },
    Retry {
        why: String,
        pause: Millis,
    },
    Failed,
}

pub(super) fn judge(case: Case<'_>) -> Verdict {
    let report = case.report;
    let own = is_own_end(&report.end);
    let by_fault = match &report.end {
        AttemptEnd::NodeFault { message } | AttemptEnd::Lost { message } => Some(message.as_str()),
        // Memory is the job's own share, whatever its GPUs do.
        AttemptEnd::OutOfMemory | AttemptEnd::CannotStart { .. } => None,
        AttemptEnd::Exited { code: 0 } => None,
        AttemptEnd::Exited { .. } | AttemptEnd::Signaled { .. } => case.fault,
        AttemptEnd::CannotResume { .. } | AttemptEnd::NothingToResume { .. } => None,
    };
    // A stop that came too late to reach it says nothing.
    let stop = case.stop.filter(|_| report.stopped || !own);
    if report.done && (stop.is_some() || by_fault.is_some()) && own {
        return Verdict::Completed;
    }
    if let Some(why) = stop {
        return match why {
            StopWhy::Cancelled { .. } => Verdict::Cancelled,
            StopWhy::TimeLimit | StopWhy::NoLimitNamed { .. } | StopWhy::ReservationEnded => {
                Verdict::TimedOut
            }
            StopWhy::Evicted { .. } => Verdict::Evicted,
            StopWhy::NodeFault { cause } => {
                Verdict::NodeFault { cause: cause.clone(), has_run: case.started }
            }
        };
    }
    if report.end == (AttemptEnd::Exited { code: 0 }) {
        return Verdict::Completed;
    }
    if let Some(why) = by_fault.filter(|_| report.no_image && !case.started) {
        return Verdict::NoImage { why: why.to_owned() };
    }
    if let Some(fault) = by_fault {
        let cause = match own {
            true => format!("{fault} ({} of the program)", report.end),
            false => fault.to_owned(),
        };
        let lost = matches!(report.end, AttemptEnd::Lost { .. });
        return Verdict::NodeFault { cause, has_run: case.started || own || lost };
    }
    match &report.end {
        AttemptEnd::CannotResume { message } => Verdict::OtherNode { why: message.clone() },
        AttemptEnd::NothingToResume { .. } => Verdict::AskOwner { why: report.end.to_string() },
        AttemptEnd::CannotStart { .. } => Verdict::Failed,
        AttemptEnd::Exited { .. }
        | AttemptEnd::Signaled { .. }
        | AttemptEnd::OutOfMemory
        | AttemptEnd::NodeFault { .. }
        | AttemptEnd::Lost { .. } => own_failure(case),
    }
}

/// The program's own doing, or at least its own process that ended.
fn is_own_end(end: &AttemptEnd) -> bool {
    match end {
        AttemptEnd::Exited { .. } | AttemptEnd::Signaled { .. } | AttemptEnd::OutOfMemory => true,
        AttemptEnd::CannotStart { .. }
        | AttemptEnd::CannotResume { .. }
        | AttemptEnd::NothingToResume { .. }
        | AttemptEnd::NodeFault { .. }
        | AttemptEnd::Lost { .. } => false,
    }
}

fn own_failure(case: Case<'_>) -> Verdict {
    let why = case.report.end.to_string();
    let soon = case.usual_gap.unwrap_or(SOON_MIN).clamp(SOON_MIN, SOON_MAX);
    let may_step = case.steps.taken < STEPS_BACK_MAX && case.has_earlier;
    if case.resumed_without_progress && case.ran <= soon && may_step {
        return Verdict::StepBack { why };
    }
    if wants_another_try(case.retry_on, &case.report.end) && case.retries < RETRIES_MAX {
        return Verdict::Retry { why, pause: pause(case.retries) };
    }
    Verdict::Failed
}

fn wants_another_try(retry: &RetryOn, end: &AttemptEnd) -> bool {
    match end {
        AttemptEnd::Exited { code } => retry.any || retry.exit_codes.contains(code),
        AttemptEnd::Signaled { signal } => {
            retry.any || retry.signal || retry.exit_codes.contains(&(128 + signal))
        }
        AttemptEnd::OutOfMemory => retry.any || retry.exit_codes.contains(&(128 + 9)),
        AttemptEnd::CannotStart { .. }
        | AttemptEnd::CannotResume { .. }
        | AttemptEnd::NothingToResume { .. }
        | AttemptEnd::NodeFault { .. }
        | AttemptEnd::Lost { .. } => false,
    }
}

/// Before it is tried again: longer each time.
pub(super) fn pause(retries: u32) -> Millis {
    let doubled = RETRY_PAUSE_MIN.0.saturating_mul(1_u64 << retries.min(16));
    Millis(doubled).min(RETRY_PAUSE_MAX)
}

#[cfg(test)]
mod tests;
