//! From what the shim, or the lack of one, says to how an attempt ended, and whose fault it was. Pure.

use fleet_core::allocation::{AttemptEnd, EndReport};
use fleet_core::name::is_plain_text;
use fleet_core::time::Timestamp;

use fleet_shim::order::{EndReason, ExitRecord};

/// How the shim's words about a start begin when the user's own paths or command were wrong.
const USER_FAULTS: [&str; 4] =
    ["volume ", "working directory ", "a device node cannot be a volume", "output file "];

/// Characters kept of an output file's problem: never more than the 512 bytes that a text may have.
const PROBLEM_CHARS_MAX: usize = 120;

/// The report for an exit record. `ordered`: the controller had ordered a stop.
pub fn of_exit(exit: &ExitRecord, ordered: bool) -> EndReport {
    let stopped =
        matches!(exit.reason, EndReason::Stopped | EndReason::Killed | EndReason::StopAfter);
    let end = match &exit.reason {
        EndReason::StartFailed { message } => start_failed(message),
        EndReason::StopAfter if !exit.done => AttemptEnd::NodeFault {
            message: "the node heard no controller for as long as the job allows".to_owned(),
        },
        // Somebody on the node stopped it, at a shutdown say: not the job's doing.
        EndReason::Stopped | EndReason::Killed if !ordered && !exit.done => {
            AttemptEnd::NodeFault { message: "the agent stopped it on this node".to_owned() }
        }
        EndReason::Exited | EndReason::Stopped | EndReason::Killed | EndReason::StopAfter => {
            ended(exit)
        }
    };
    EndReport {
        end,
        done: exit.done,
        fault: None,
        memory_kill: exit.oom_killed && !exit.is_out_of_memory(),
        no_image: false,
        output_problem: exit.output_problem.as_deref().map(shortened),
        stopped: stopped && ordered,
        started_at: exit.started_at_ms.map(Timestamp),
        ended_at: Timestamp(exit.ended_at_ms),
        cpu_usec: exit.cpu_usec,
        memory_peak_bytes: exit.memory_peak_bytes,
    }
}

/// The end of a text whose path may be 4 KiB long, with what went wrong.
fn shortened(problem: &str) -> String {
    let plain: Vec<char> = problem.chars().filter(|c| is_plain(*c)).collect();
    match plain.len().checked_sub(PROBLEM_CHARS_MAX) {
        None | Some(0) => plain.into_iter().collect(),
        Some(more) => format!("…{}", plain[more..].iter().collect::<String>()),
    }
}

fn is_plain(c: char) -> bool {
    is_plain_text(c.encode_utf8(&mut [0; 4]))
}

fn ended(exit: &ExitRecord) -> AttemptEnd {
    // Checked again: a shim from before an upgrade also reported this of a job that fleet had stopped.
    match (exit.is_out_of_memory(), exit.code, exit.signal) {
        (true, _, _) => AttemptEnd::OutOfMemory,
        (false, Some(code), _) => AttemptEnd::Exited { code },
        (false, None, Some(signal)) => AttemptEnd::Signaled { signal },
        (false, None, None) => {
            AttemptEnd::NodeFault { message: "it ended, and nobody knows how".to_owned() }
        }
    }
}

fn start_failed(message: &str) -> AttemptEnd {
    let message = message.to_owned();
    if USER_FAULTS.iter().any(|words| message.starts_with(words)) {
        AttemptEnd::CannotStart { message }
    } else {
        AttemptEnd::NodeFault { message }
    }
}

/// The report of an attempt of which no process is left, or none ever was.
pub fn without_exit(end: AttemptEnd, stopped: bool, at: Timestamp) -> EndReport {
    EndReport {
        end,
        done: false,
        fault: None,
        memory_kill: false,
        no_image: false,
        output_problem: None,
        stopped,
        started_at: None,
        ended_at: at,
        cpu_usec: None,
        memory_peak_bytes: None,
    }
}

/// A fault of the node without the names that only this attempt has: the same cause is to read the same for the next one.
pub(super) fn without_own_names(end: AttemptEnd, id: &str, dir: &str) -> AttemptEnd {
    let plain = |message: String| {
        let message = message.replace(dir, "its records");
        message.replace(&format!("fleet-{id}.service"), "its service").replace(id, "it")
    };
    match end {
        AttemptEnd::NodeFault { message } => AttemptEnd::NodeFault { message: plain(message) },
        AttemptEnd::Lost { message } => AttemptEnd::Lost { message: plain(message) },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_costs_no_end() {
        let why = ": no such file or directory";
        let told = shortened(&format!("/home/ada/{}{why}", "ä\u{1}".repeat(4_000)));
        assert!(told.starts_with('…') && told.ends_with(why), "{told}");
        assert!(told.len() <= fleet_core::name::TEXT_BYTES_MAX && is_plain_text(&told), "{told}");
        assert_eq!(shortened("/x: full"), "/x: full");
    }

    #[test]
    fn the_same_cause_reads_the_same_for_each_attempt() {
        let fault = |n: u32| {
            let (id, dir) = (format!("alloc-a-{n}"), format!("/state/allocations/alloc-a-{n}"));
            let message = format!("create {dir}/x: I/O error; fleet-{id}.service, {id}");
            without_own_names(AttemptEnd::NodeFault { message }, &id, &dir)
        };
        assert_eq!(fault(1), fault(23));
        let message = "create its records/x: I/O error; its service, it".to_owned();
        assert_eq!(fault(1), AttemptEnd::NodeFault { message });
    }

    fn exit(reason: EndReason, code: Option<i32>, signal: Option<i32>) -> ExitRecord {
        ExitRecord {
            v: 1,
            allocation_id: "alloc-a-1".to_owned(),
            epoch: fleet_shim::order::Epoch::default(),
            attempt: 1,
            reason,
            code,
            signal,
            oom_killed: false,
            done: false,
            started_at_ms: Some(5),
            ended_at_ms: 9,
            cpu_usec: None,
            memory_peak_bytes: None,
            stuck: false,
            log_bytes_lost: 0,
            output_problem: None,
        }
    }

    #[test]
    fn a_process_that_the_kernel_took_is_told_beside_the_programs_own_code() {
        let of = |code, signal| {
            let exit = ExitRecord { oom_killed: true, ..exit(EndReason::Exited, code, signal) };
            of_exit(&exit, false).memory_kill
        };
        assert!(of(Some(7), None) && of(Some(0), None));
        assert!(!of(None, Some(9)), "that is its end");
    }

    #[test]
    fn an_exit_is_what_the_program_said() {
        let report = of_exit(&exit(EndReason::Exited, Some(3), None), true);
        assert_eq!(report.end, AttemptEnd::Exited { code: 3 });
        assert!(!report.stopped, "it ended by itself before the signal");
        let report = of_exit(&exit(EndReason::Exited, None, Some(11)), false);
        assert_eq!(report.end, AttemptEnd::Signaled { signal: 11 });
        let oom = ExitRecord { oom_killed: true, ..exit(EndReason::Exited, None, Some(9)) };
        assert_eq!(of_exit(&oom, false).end, AttemptEnd::OutOfMemory);
    }

    /// The kernel has killed a process of each of these for want of memory, at some time.
    #[test]
    fn out_of_memory_is_the_end_only_of_who_failed_and_was_not_told_to_end() {
        let of = |reason, code, signal| {
            let exit = ExitRecord { oom_killed: true, ..exit(reason, code, signal) };
            of_exit(&exit, true).end
        };
        let exited = |code| AttemptEnd::Exited { code };
        for (code, signal, end) in [
            (None, Some(9), AttemptEnd::OutOfMemory),
            (Some(137), None, AttemptEnd::OutOfMemory),
            // Its own code, though it lost a process.
            (Some(7), None, exited(7)),
            (Some(0), None, exited(0)),
        ] {
            assert_eq!(of(EndReason::Exited, code, signal), end, "{code:?} {signal:?}");
        }
        for reason in [EndReason::Stopped, EndReason::Killed, EndReason::StopAfter] {
            let done = ExitRecord { done: true, oom_killed: true, ..exit(reason, None, Some(9)) };
            assert_eq!(of_exit(&done, true).end, AttemptEnd::Signaled { signal: 9 });
        }
        assert_eq!(of(EndReason::Stopped, Some(143), None), exited(143));
    }

    #[test]
    fn a_stop_counts_only_when_it_was_ordered() {
        let stopped = exit(EndReason::Stopped, Some(0), None);
        let report = of_exit(&stopped, true);
        assert!(report.stopped && report.end == AttemptEnd::Exited { code: 0 });
        let report = of_exit(&stopped, false);
        assert!(!report.stopped && matches!(report.end, AttemptEnd::NodeFault { .. }));
        let done = ExitRecord { done: true, ..stopped };
        assert_eq!(of_exit(&done, false).end, AttemptEnd::Exited { code: 0 });
    }

    #[test]
    fn a_job_that_said_it_was_done_is_done_whatever_its_last_code_is() {
        for reason in [EndReason::Stopped, EndReason::StopAfter, EndReason::Exited] {
            let told = ExitRecord { done: true, ..exit(reason, Some(143), None) };
            let report = of_exit(&told, true);
            assert_eq!((report.done, report.end), (true, AttemptEnd::Exited { code: 143 }));
        }
    }

    #[test]
    fn a_failed_start_is_the_users_or_the_nodes() {
        let of = |message: &str| {
            let reason = EndReason::StartFailed { message: message.to_owned() };
            of_exit(&exit(reason, None, None), false).end
        };
        assert!(matches!(
            of("working directory /nowhere: No such file or directory"),
            AttemptEnd::CannotStart { .. }
        ));
        assert!(matches!(of("device filter: load: EPERM"), AttemptEnd::NodeFault { .. }));
    }
}
