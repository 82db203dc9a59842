//! How far an image is on its way: told to who asked for it.

use std::time::{Duration, Instant};

/// Shortest step between two progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// How far a resolve is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub phase: PullPhase,
    pub bytes_done: u64,
    pub bytes_total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPhase {
    /// Others are pulling.
    Waiting,
    Pulling,
    Reading,
    Unpacking,
}

/// Takes each step of progress, for the person who waits.
pub(crate) type Report = dyn Fn(Progress) + Send + Sync;

/// Hands on progress, not too often.
pub(crate) struct Reporter<'a> {
    to: &'a Report,
    phase: PullPhase,
    total: u64,
    base: u64,
    last: Instant,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(to: &'a Report, phase: PullPhase, total: u64) -> Self {
        to(Progress { phase, bytes_done: 0, bytes_total: total });
        Self { to, phase, total, base: 0, last: Instant::now() }
    }

    pub(crate) fn bytes(&mut self, done: u64) {
        if self.last.elapsed() >= REPORT_EVERY {
            self.last = Instant::now();
            (self.to)(Progress {
                phase: self.phase,
                bytes_done: self.base + done,
                bytes_total: self.total,
            });
        }
    }

    pub(crate) fn finished(&mut self, bytes: u64) {
        self.base += bytes;
        (self.to)(Progress { phase: self.phase, bytes_done: self.base, bytes_total: self.total });
    }
}
