//! What became of each job: when it ran, what it computed, what it computed twice. Written by the agents, read by the
//! measures.

use crate::span::Span;

/// One job.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobRecord {
    /// When it held GPUs.
    pub(crate) ran: Vec<Span>,
    pub(crate) finished: Option<u64>,
    /// Running time that counts: nothing of it was computed a second time.
    pub(crate) useful: u64,
    /// Running time that was lost because another job took the place: computed a second time.
    pub(crate) lost_to_preemption: u64,
    /// It was the first job of its owner. Then: the latest start that fleet foresaw, where it did not start at once.
    pub(crate) first_of_owner: bool,
    pub(crate) foreseen: Option<u64>,
}

/// One month, as one policy ran it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    pub(crate) jobs: Vec<JobRecord>,
    /// What must never happen, and did.
    pub(crate) violations: Vec<String>,
    pub(crate) plans: u64,
    pub(crate) preemptions: u64,
    pub(crate) refused_lines: u64,
}

impl Record {
    pub(crate) fn new(jobs: usize) -> Self {
        Self { jobs: vec![JobRecord::default(); jobs], ..Self::default() }
    }

    pub(crate) fn violation(&mut self, what: String) {
        // The first few say enough.
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }
}

impl JobRecord {
    pub(crate) fn started(&self) -> Option<u64> {
        self.ran.first().map(|ran| ran.from)
    }

    /// For how long it held GPUs within that time.
    pub(crate) fn ran_within(&self, span: Span) -> u64 {
        self.ran.iter().map(|ran| ran.both(span).length()).sum()
    }

    /// When it waited, up to `end`: before its first attempt, and between two.
    pub(crate) fn waits(&self, sent: u64, end: u64) -> Vec<Span> {
        let mut waits = Vec::new();
        let mut from = sent;
        for ran in &self.ran {
            if ran.from > from {
                waits.push(Span { from, to: ran.from });
            }
            from = ran.to;
        }
        if self.finished.is_none() && from < end {
            waits.push(Span { from, to: end });
        }
        waits
    }
}
