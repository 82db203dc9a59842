//! One line on standard error while a job is waited for: where it stands, and why.
//!
//! On a terminal the line is replaced in place; elsewhere each new line is printed, and none at all
//! for a job that starts at once.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use fleet_core::job::JobState;
use fleet_proto::json::job::Job;

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
    pending: Option<String>,
    last: String,
    visible: bool,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            terminal: io::stderr().is_terminal(),
            began: Instant::now(),
            pending: None,
            last: String::new(),
            visible: false,
        }
    }

    /// Takes note of the job's state.
    pub(super) fn update(&mut self, job: &Job, clock: &Clock) {
        if !self.wanted {
            return;
        }
        let line = waiting_line(job, clock);
        if line.is_none() {
            self.clear();
            self.began = Instant::now();
        }
        self.pending = line.filter(|line| *line != self.last);
    }

    /// How long until [`Progress::show`] is due, if it is.
    pub(super) fn due(&self) -> Option<Duration> {
        self.pending.as_ref().map(|_| QUIET.saturating_sub(self.began.elapsed()))
    }

    /// Shows what is pending.
    pub(super) fn show(&mut self) {
        let Some(line) = self.pending.take() else { return };
        let shown = if self.terminal {
            format!("\r\x1b[K{}", fitting(&harmless(&line), super::terminal::size()))
        } else {
            format!("{}\n", harmless(&line))
        };
        self.visible = self.terminal;
        self.last = line;
        drop(io::stderr().write_all(shown.as_bytes()));
    }

    /// Takes the line away before other output.
    pub(super) fn clear(&mut self) {
        self.pending = None;
        if self.visible {
            self.visible = false;
            self.last.clear();
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
fn waiting_line(job: &Job, clock: &Clock) -> Option<String> {
    let mut line = match job.state.known()? {
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
    if let Some(reason) = &job.reason {
        line.push_str(&format!(": {reason}"));
    }
    if let Some(at) = job.earliest_start.filter(|_| job.state.is(JobState::Queued)) {
        line.push_str(&format!("; could start {}", clock.day_and_minute(at.0)));
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_proto::v1 as pb;

    use super::*;

    #[test]
    fn a_waiting_job_says_where_it_stands() {
        let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
        let line = |job: pb::Job| waiting_line(&Job::from(job), &clock);
        let queued = pb::Job {
            id: "job-a".to_owned(),
            state: "queued".to_owned(),
            place: 3,
            reason: "bea holds titan01:3".to_owned(),
            earliest_start_unix_ms: 1_795_284_000_000,
            ..Default::default()
        };
        assert_eq!(
            line(queued).unwrap(),
            "job-a queued, place 3: bea holds titan01:3; could start Sat 2026-11-21 19:00 CET"
        );
        let state = |state: &str| pb::Job { state: state.to_owned(), ..Default::default() };
        assert!(line(state("running")).is_none());
        assert!(line(state("completed")).is_none());
    }

    #[test]
    fn a_long_line_is_cut_to_the_terminal() {
        assert_eq!(fitting("short", Some((24, 80))), "short");
        let cut = fitting(&"x".repeat(100), Some((24, 40)));
        assert_eq!(cut.chars().count(), 39);
        assert!(cut.ends_with('…'));
    }
}
