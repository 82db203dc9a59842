//! Counting refusals without filling the log: the first of a kind is logged, the next ones are
//! counted and named together once per interval. A peer that hangs up by itself is counted too,
//! and is no reason to worry anybody: port scanners do it, health checks, and killed clients.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::limits::REFUSAL_LOG_INTERVAL;

/// A counter per kind of refusal; cheap to clone, shared by all clones.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<&'static str, Kind>>>);

#[derive(Debug, Default)]
struct Kind {
    total: u64,
    unlogged: u64,
    logged_at: Option<Instant>,
}

impl Refusals {
    /// Counts one refusal; logs it unless one of its kind was logged a moment ago. `kind` is one of
    /// a fixed set of words, so the table cannot grow with what peers send.
    pub fn note(&self, kind: &'static str, peer: &dyn Display, reason: &dyn Display) {
        if let Some(suppressed) = self.counted(kind) {
            tracing::warn!(kind, %peer, %reason, suppressed, "connection refused");
        }
    }

    /// Counts a peer that left before it was let in or refused.
    pub(super) fn hung_up(&self, peer: &dyn Display, reason: &dyn Display) {
        if let Some(suppressed) = self.counted("closed") {
            tracing::info!(%peer, %reason, suppressed, "the peer left before its TLS handshake was done");
        }
    }

    /// Adds one; how many went unlogged before, if it is time to log again.
    fn counted(&self, kind: &'static str) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kinds.entry(kind).or_default();
        entry.total += 1;
        if entry.logged_at.is_some_and(|at| at.elapsed() < REFUSAL_LOG_INTERVAL) {
            entry.unlogged += 1;
            return None;
        }
        entry.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut entry.unlogged))
    }

    /// Refusals of this kind since the start.
    pub fn count(&self, kind: &str) -> u64 {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.get(kind).map_or(0, |entry| entry.total)
    }

    /// All kinds with their counts.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().map(|(kind, entry)| (*kind, entry.total)).collect()
    }
}
