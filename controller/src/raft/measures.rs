//! What consensus and its log count of themselves, for the metrics. Only counted, never decided on,
//! but for [`LogMeasures::writing_for`], which tells a disk that hangs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_daemon::metrics::Timings;

/// The log on disk. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LogMeasures(Arc<Log>);

#[derive(Debug, Default)]
struct Log {
    syncs: Timings,
    entries: AtomicU64,
    bytes: AtomicU64,
    since: Mutex<Option<Instant>>,
}

impl LogMeasures {
    /// One group is about to be written and synced.
    pub(super) fn begin(&self) {
        *self.0.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// It is on disk.
    pub(super) fn end(&self, entries: usize, bytes: usize) {
        let since = self.0.since.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(since) = since {
            self.0.syncs.observe(since.elapsed());
        }
        self.0.entries.fetch_add(entries as u64, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// For how long the group has been written that is being written now.
    pub fn writing_for(&self) -> Option<Duration> {
        let since = *self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| since.elapsed())
    }

    /// From the write of a group to the end of its sync.
    pub fn syncs(&self) -> &Timings {
        &self.0.syncs
    }

    pub fn entries(&self) -> u64 {
        self.0.entries.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

/// What became of proposals made here. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ProposalMeasures(Arc<Proposals>);

#[derive(Debug, Default)]
struct Proposals {
    answered: Timings,
    /// By the command's name, of which there are as many as there are commands, and the outcome.
    outcomes: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl ProposalMeasures {
    /// One proposal has its answer, or none.
    pub(super) fn count(&self, command: &'static str, outcome: &'static str, took: Duration) {
        if outcome == APPLIED || outcome == REFUSED {
            self.0.answered.observe(took);
        }
        let mut outcomes = self.0.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        *outcomes.entry((command, outcome)).or_default() += 1;
    }

    /// From the proposal to its answer, of those that went through the log.
    pub fn answered(&self) -> &Timings {
        &self.0.answered
    }

    /// How many there were, by command and outcome.
    pub fn outcomes(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.0.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Outcomes of a proposal.
pub(super) const APPLIED: &str = "applied";
pub(super) const REFUSED: &str = "refused";
pub(super) const NOT_LEADER: &str = "not_leader";
pub(super) const NO_QUORUM: &str = "no_quorum";
pub(super) const UNKNOWN: &str = "outcome_unknown";
pub(super) const NOT_TAKEN: &str = "not_taken";
