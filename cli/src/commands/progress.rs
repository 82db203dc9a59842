//! One line on standard error while a job is waited for: where it stands, and why.
//!
//! On a terminal the line is replaced in place; elsewhere each new line is printed, and none at all for a job that
//! starts at once. Once it runs, one line says where, and until when; elsewhere than on a terminal only of a job that
//! had to wait.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use fleet_core::job::JobState;
use fleet_proto::json::job::Job;
use fleet_proto::json::values::{Time, gpu_names};

use crate::output::text::harmless;
use crate::times::Clock;

/// A job that starts within this needs no line.
const QUIET: Duration = Duration::from_millis(300);

/// The line.
#[derive(Debug)]
pub(super) struct Progress {
    wanted: bool,
    terminal: bool,
    began: Instant,
    /// What should be shown, and was not yet.
    pending: Option<Line>,
    last: Option<Line>,
    visible: bool,
    /// The attempt that it was said of that it runs.
    runs: u32,
}

/// Where a job stands that does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// State and place.
    stands: String,
    /// When it could start: that moves as time passes.
    starts: String,
    /// Why it waits: last, since that is cut on a narrow terminal.
    reason: String,
}

impl Line {
    fn text(&self) -> String {
        harmless(&format!("{}{}{}", self.stands, self.starts, self.reason))
    }
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            terminal: io::stderr().is_terminal(),
            began: Instant::now(),
            pending: None,
            last: None,
            visible: false,
            runs: 0,
        }
    }

    /// Takes note of the job's state.
    pub(super) fn update(&mut self, job: &Job, clock: &Clock) {
        if !self.wanted {
            return;
        }
        let line = waiting_line(job, clock, self.terminal);
        if line.is_none() {
            let waited = self.last.is_some();
            self.forget();
            self.began = Instant::now();
            if job.state.is(JobState::Running) && job.attempt != self.runs {
                self.runs = job.attempt;
                if self.terminal || waited {
                    // In raw mode a new line does not go back to the first column.
                    let ending = if self.terminal { "\r\n" } else { "\n" };
                    let line = format!("{}{ending}", harmless(&running_line(job, clock)));
                    drop(io::stderr().write_all(line.as_bytes()));
                }
            }
        }
        self.pending = line.filter(|line| match &self.last {
            Some(last) if self.terminal => line != last,
            // A log is not to be filled with a start that moves by a minute each minute.
            Some(last) => (&line.stands, &line.reason) != (&last.stands, &last.reason),
            None => true,
        });
    }

    /// Nothing is waited for any more.
    fn forget(&mut self) {
        self.clear();
        (self.pending, self.last) = (None, None);
    }

    /// How long until [`Progress::show`] is due, if it is.
    pub(super) fn due(&self) -> Option<Duration> {
        self.pending.as_ref().map(|_| QUIET.saturating_sub(self.began.elapsed()))
    }

    /// Shows what is pending.
    pub(super) fn show(&mut self) {
        let Some(line) = self.pending.take() else { return };
        let text = line.text();
        let shown = if self.terminal {
            format!("\r\x1b[K{}", fitting(&text, super::terminal::size()))
        } else {
            format!("{text}\n")
        };
        self.visible = self.terminal;
        self.last = Some(line);
        drop(io::stderr().write_all(shown.as_bytes()));
    }

    /// Takes the line away before other output; it comes again after that.
    pub(super) fn clear(&mut self) {
        if self.visible {
            self.visible = false;
            let line = self.last.take();
            self.pending = self.pending.take().or(line);
            drop(io::stderr().write_all(b"\r\x1b[K"));
        }
    }
}

/// A line that wraps could not be taken away again.
fn fitting(line: &str, size: Option<(u16, u16)>) -> String {
    let columns = size.map_or(80, |(_, columns)| usize::from(columns.max(20)));
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let cut: String = line.chars().take(columns - 2).collect();
    format!("{cut}…")
}

/// Where a job that does not run yet stands; nothing for one that runs or has ended.
fn waiting_line(job: &Job, clock: &Clock, terminal: bool) -> Option<Line> {
    let stands = match job.state.known()? {
        JobState::Queued => match job.place {
            Some(place) => format!("{} queued, place {place}", job.id),
            None => format!("{} queued", job.id),
        },
        JobState::Starting => match &job.node {
            Some(node) => format!("{} starts on {node}", job.id),
            None => format!("{} starts", job.id),
        },
        JobState::Running
        | JobState::Stopping
        | JobState::Completed
        | JobState::Failed
        | JobState::Cancelled
        | JobState::TimedOut => return None,
    };
    let starts = job.earliest_start.filter(|_| job.state.is(JobState::Queued));
    // A log is read another day.
    let at = |at: Time| if terminal { clock.brief(at.0) } else { clock.day_and_minute(at.0) };
    let starts = starts.map(|start| format!(", expected to start {}", at(start)));
    let reason = job.reason.as_ref().map(|reason| format!(": {reason}"));
    Some(Line { stands, starts: starts.unwrap_or_default(), reason: reason.unwrap_or_default() })
}

/// `fleet: job-a runs on titan01:0,1; it ends by Sat 2026-11-21 19:00 CET`.
fn running_line(job: &Job, clock: &Clock) -> String {
    let place = match (job.gpus.as_slice(), &job.node) {
        ([], Some(node)) => format!(" on {node}"),
        ([], None) => String::new(),
        (gpus, _) => format!(" on {}", gpu_names(gpus)),
    };
    let until = job.time_limit_at.map(|at| clock.day_and_minute(at.0));
    let until = until.map(|at| format!("; it ends by {at}")).unwrap_or_default();
    format!("fleet: {}{} runs{place}{until}", job.id, again(job.attempt))
}

/// Of the first attempt nobody needs to know the number.
fn again(attempt: u32) -> String {
    if attempt > 1 { format!(" (attempt {attempt})") } else { String::new() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_proto::v1 as pb;

    use super::*;

    #[test]
    fn a_waiting_job_says_where_it_stands() {
        let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
        let line = |job: pb::Job, terminal| {
            waiting_line(&Job::from(job), &clock, terminal).map(|line| line.text())
        };
        let queued = pb::Job {
            id: "job-a".to_owned(),
            state: "queued".to_owned(),
            place: 3,
            reason: "bea holds titan01:3".to_owned(),
            earliest_start_unix_ms: 1_795_284_000_000,
            ..Default::default()
        };
        assert_eq!(
            line(queued.clone(), true).unwrap(),
            "job-a queued, place 3, expected to start 19:00: bea holds titan01:3"
        );
        assert_eq!(
            line(queued, false).unwrap(),
            "job-a queued, place 3, expected to start Sat 2026-11-21 19:00 CET: bea holds titan01:3"
        );
        let state = |state: &str| pb::Job { state: state.to_owned(), ..Default::default() };
        assert!(line(state("running"), true).is_none());
        assert!(line(state("completed"), true).is_none());
    }

    #[test]
    fn a_job_that_runs_says_where_and_until_when() {
        let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
        let gpu = |index| pb::GpuRef { node: "titan01".to_owned(), index, ..Default::default() };
        let mut job = pb::Job {
            id: "job-a".to_owned(),
            state: "running".to_owned(),
            node: "titan01".to_owned(),
            attempt: 1,
            gpus: vec![gpu(0), gpu(1)],
            time_limit_at_unix_ms: 1_795_284_000_000,
            ..Default::default()
        };
        let line = |job: &pb::Job| running_line(&Job::from(job.clone()), &clock);
        assert_eq!(
            line(&job),
            "fleet: job-a runs on titan01:0,1; it ends by Sat 2026-11-21 19:00 CET"
        );
        (job.attempt, job.gpus, job.time_limit_at_unix_ms) = (2, Vec::new(), 0);
        assert_eq!(line(&job), "fleet: job-a (attempt 2) runs on titan01");
    }

    #[test]
    fn a_log_gets_a_line_when_the_reason_changes_not_when_the_start_moves() {
        let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
        let queued = |reason: &str, start| {
            Job::from(pb::Job {
                id: "job-a".to_owned(),
                state: "queued".to_owned(),
                reason: reason.to_owned(),
                earliest_start_unix_ms: start,
                ..Default::default()
            })
        };
        for (terminal, moves) in [(false, false), (true, true)] {
            let mut progress = Progress { terminal, ..Progress::new(true) };
            progress.update(&queued("bea holds it", 1_795_284_000_000), &clock);
            progress.show();
            progress.update(&queued("bea holds it", 1_795_284_060_000), &clock);
            assert_eq!(progress.due().is_some(), moves, "terminal: {terminal}");
            progress.update(&queued("cyd holds it", 1_795_284_060_000), &clock);
            assert!(progress.due().is_some());
            progress.show();
            progress.clear();
            assert_eq!(progress.due().is_some(), terminal, "it comes again");
        }
    }

    #[test]
    fn a_long_line_is_cut_to_the_terminal() {
        assert_eq!(fitting("short", Some((24, 80))), "short");
        let cut = fitting(&"x".repeat(100), Some((24, 40)));
        assert_eq!(cut.chars().count(), 39);
        assert!(cut.ends_with('…'));
    }
}
