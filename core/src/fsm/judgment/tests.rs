//! Every reason of a stop, with each kind of end.

use super::*;
use crate::time::Timestamp;

fn report(end: AttemptEnd, done: bool, stopped: bool) -> EndReport {
    EndReport {
        end,
        done,
        fault: None,
        memory_kill: false,
        no_image: false,
        output_problem: None,
        stopped,
        started_at: None,
        ended_at: Timestamp(0),
        cpu_usec: None,
        memory_peak_bytes: None,
    }
}

fn verdict(report: &EndReport, stop: Option<&StopWhy>, with: impl Fn(&mut Case<'_>)) -> String {
    let (steps, retry_on) = (StepsBack::default(), RetryOn::default());
    let mut case = Case {
        report,
        stop,
        fault: None,
        resumed_without_progress: false,
        started: true,
        ran: Millis::minutes(1),
        usual_gap: None,
        steps: &steps,
        has_earlier: true,
        retry_on: &retry_on,
        retries: 0,
    };
    with(&mut case);
    match judge(case) {
        Verdict::Completed => "completed",
        Verdict::Cancelled => "cancelled",
        Verdict::TimedOut => "timed out",
        Verdict::Evicted => "evicted",
        Verdict::NodeFault { .. } => "node's fault",
        Verdict::NoImage { .. } => "waits for its image",
        Verdict::OtherNode { .. } => "other node",
        Verdict::AskOwner { .. } => "asks",
        Verdict::StepBack { .. } => "steps back",
        Verdict::Retry { .. } => "tries again",
        Verdict::Failed => "failed",
    }
    .to_owned()
}

#[test]
fn the_reason_of_the_stop_decides_where_its_signal_arrived() {
    let reasons = [
        (StopWhy::Cancelled { by: "ada".to_owned() }, "cancelled"),
        (StopWhy::TimeLimit, "timed out"),
        (StopWhy::ReservationEnded, "timed out"),
        (
            StopWhy::Evicted { causes: Vec::new(), after_checkpoint: true, by_class: false },
            "evicted",
        ),
        (StopWhy::NodeFault { cause: "lost".to_owned() }, "node's fault"),
    ];
    for (why, by_reason) in &reasons {
        for code in [0, 1, 143, 137] {
            for done in [false, true] {
                for arrived in [false, true] {
                    let report = report(AttemptEnd::Exited { code }, done, arrived);
                    let expected = match (arrived, done, code) {
                        (true, true, _) => "completed",
                        // The polite program that saves at the signal and ends with 0 has not completed.
                        (true, false, _) => by_reason,
                        (false, _, 0) => "completed",
                        (false, _, _) => "failed",
                    };
                    let found = verdict(&report, Some(why), |_| {});
                    assert_eq!(
                        found, expected,
                        "{why:?}, code {code}, DONE {done}, arrived {arrived}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_fault_of_its_gpu_is_the_nodes() {
    for (end, expected) in [
        (AttemptEnd::Exited { code: 1 }, "node's fault"),
        (AttemptEnd::Signaled { signal: 6 }, "node's fault"),
        (AttemptEnd::Exited { code: 0 }, "completed"),
        (AttemptEnd::OutOfMemory, "failed"),
        (AttemptEnd::CannotStart { message: String::new() }, "failed"),
    ] {
        let report = report(end, false, false);
        assert_eq!(
            verdict(&report, None, |case| case.fault = Some("xid 79")),
            expected,
            "{report:?}"
        );
    }
    let done = report(AttemptEnd::Exited { code: 1 }, true, false);
    assert_eq!(verdict(&done, None, |case| case.fault = Some("xid 79")), "completed");
    assert_eq!(verdict(&done, None, |_| {}), "failed", "DONE=1 alone changes no failure");
}

#[test]
fn a_failure_soon_after_a_resume_steps_back() {
    let failed = report(AttemptEnd::Exited { code: 9 }, false, false);
    let resumed = |ran, gap: Option<Millis>| {
        verdict(&failed, None, |case| {
            case.resumed_without_progress = true;
            case.ran = ran;
            case.usual_gap = gap;
        })
    };
    assert_eq!(resumed(Millis::minutes(5), None), "steps back");
    assert_eq!(resumed(Millis::minutes(6), None), "failed");
    assert_eq!(resumed(Millis::minutes(30), Some(Millis::minutes(40))), "steps back");
    assert_eq!(resumed(Millis::minutes(61), Some(Millis::hours(4))), "failed", "an hour at most");
    let spent = StepsBack { taken: STEPS_BACK_MAX, ..StepsBack::default() };
    let again = Case {
        report: &failed,
        stop: None,
        fault: None,
        resumed_without_progress: true,
        started: true,
        ran: Millis::secs(1),
        usual_gap: None,
        steps: &spent,
        has_earlier: true,
        retry_on: &RetryOn::default(),
        retries: 0,
    };
    assert_eq!(judge(again), Verdict::Failed);
    assert_eq!(
        judge(Case { steps: &StepsBack::default(), has_earlier: false, ..again }),
        Verdict::Failed
    );
}

#[test]
fn the_owner_says_which_failures_are_tried_again() {
    let retry = RetryOn { exit_codes: [75, 134].into(), ..RetryOn::default() };
    let of = |end: AttemptEnd, retry: &RetryOn, retries: u32| {
        let report = report(end, false, false);
        let steps = StepsBack::default();
        judge(Case {
            report: &report,
            stop: None,
            fault: None,
            resumed_without_progress: false,
            started: true,
            ran: Millis::hours(3),
            usual_gap: None,
            steps: &steps,
            has_earlier: false,
            retry_on: retry,
            retries,
        })
    };
    let pause = |verdict| match verdict {
        Verdict::Retry { pause, .. } => Some(pause),
        _ => None,
    };
    assert_eq!(pause(of(AttemptEnd::Exited { code: 75 }, &retry, 0)), Some(Millis::secs(10)));
    assert_eq!(pause(of(AttemptEnd::Exited { code: 75 }, &retry, 2)), Some(Millis::secs(40)));
    assert_eq!(pause(of(AttemptEnd::Exited { code: 75 }, &retry, 9)), Some(RETRY_PAUSE_MAX));
    assert_eq!(of(AttemptEnd::Exited { code: 75 }, &retry, RETRIES_MAX), Verdict::Failed);
    assert_eq!(of(AttemptEnd::Exited { code: 1 }, &retry, 0), Verdict::Failed);
    assert!(pause(of(AttemptEnd::Signaled { signal: 6 }, &retry, 0)).is_some());
    let any = RetryOn { any: true, ..RetryOn::default() };
    assert!(pause(of(AttemptEnd::OutOfMemory, &any, 0)).is_some());
    let cannot_start = AttemptEnd::CannotStart { message: String::new() };
    assert_eq!(of(cannot_start, &any, 0), Verdict::Failed);
}

#[test]
fn what_never_ran_says_so() {
    let nothing =
        report(AttemptEnd::NothingToResume { tried: vec!["a: gone".to_owned()] }, false, false);
    assert_eq!(verdict(&nothing, None, |_| {}), "asks");
    let other = report(AttemptEnd::CannotResume { message: "no marker".to_owned() }, false, false);
    assert_eq!(verdict(&other, None, |_| {}), "other node");
    let fault = StopWhy::NodeFault { cause: "lost".to_owned() };
    let stopped = report(AttemptEnd::CannotStart { message: String::new() }, false, true);
    let case = |case: &mut Case<'_>| case.started = false;
    assert_eq!(verdict(&stopped, Some(&fault), case), "node's fault");
    let (steps, retry_on) = (StepsBack::default(), RetryOn::default());
    let before = Case {
        report: &stopped,
        stop: Some(&fault),
        fault: None,
        resumed_without_progress: false,
        started: false,
        ran: Millis::ZERO,
        usual_gap: None,
        steps: &steps,
        has_earlier: false,
        retry_on: &retry_on,
        retries: 0,
    };
    let Verdict::NodeFault { has_run, .. } = judge(before) else { unreachable!("a fault") };
    assert!(!has_run, "a start that a fault stopped has not run");
}
