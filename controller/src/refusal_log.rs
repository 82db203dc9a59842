//! Refused requests, counted and written to the audit log in batches: a flood of them makes a few
//! records with large counts, never a large log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_core::command::RefusedRequests;

/// Different refusals kept between two batches; beyond it they are counted together.
const KINDS_MAX: usize = 90;

/// Principal, action, code.
type Kind = (String, String, String);
type Counts = BTreeMap<Kind, u64>;

/// Handle on the counts.
#[derive(Debug, Clone, Default)]
pub struct RefusalLog(Arc<Mutex<Counts>>, Arc<Mutex<Totals>>);

/// Since the start, by action and code: words of ours, of which there are few.
type Totals = BTreeMap<(String, String), u64>;

impl RefusalLog {
    /// Counts one refusal.
    pub fn note(&self, principal: &str, action: &str, code: &str) {
        *self.totals().entry((action.to_owned(), code.to_owned())).or_default() += 1;
        let mut counts = self.counts();
        let mut key = (principal.to_owned(), action.to_owned(), code.to_owned());
        if counts.len() >= KINDS_MAX && !counts.contains_key(&key) {
            key = ("others".to_owned(), "various".to_owned(), "various".to_owned());
        }
        *counts.entry(key).or_default() += 1;
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All refusals since the start, by action and code.
    pub fn since_start(&self) -> Totals {
        self.totals().clone()
    }

    /// What is to be written. It stays until it is [`Self::written`].
    pub fn due(&self) -> Vec<RefusedRequests> {
        let line = |((principal, action, code), count): (&Kind, &u64)| RefusedRequests {
            principal: principal.clone(),
            action: action.clone(),
            code: code.clone(),
            count: *count,
        };
        self.counts().iter().map(line).collect()
    }

    /// These are in the audit log.
    pub fn written(&self, batch: &[RefusedRequests]) {
        let mut counts = self.counts();
        for line in batch {
            let kind = (line.principal.clone(), line.action.clone(), line.code.clone());
            let Some(count) = counts.get_mut(&kind) else { continue };
            *count = count.saturating_sub(line.count);
            if *count == 0 {
                counts.remove(&kind);
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_few_lines() {
        let log = RefusalLog::default();
        for n in 0..10_000 {
            log.note(&format!("user:u{n}"), "submit_job", "denied");
        }
        let batch = log.due();
        assert!(batch.len() <= KINDS_MAX + 1);
        assert_eq!(batch.iter().map(|line| line.count).sum::<u64>(), 10_000);
        log.note("user:u1", "submit_job", "denied");
        log.written(&batch);
        let later = log.due();
        assert_eq!(later.len(), 1, "what came while they were written is still to write");
        assert_eq!(later[0].count, 1);
    }
}
