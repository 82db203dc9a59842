//! Refused requests, counted and written to the audit log in batches: a flood of them makes a few
//! records with large counts, never a large log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_core::command::RefusedRequests;

/// Different refusals kept between two batches; beyond it they are counted together.
const KINDS_MAX: usize = 90;

type Counts = BTreeMap<(String, String, String), u64>;

/// Handle on the counts.
#[derive(Debug, Clone, Default)]
pub struct RefusalLog(Arc<Mutex<Counts>>, Arc<Mutex<Totals>>);

/// Since the start, by action and code: words of ours, of which there are few.
type Totals = BTreeMap<(String, String), u64>;

impl RefusalLog {
    /// Counts one refusal.
    pub fn note(&self, principal: &str, action: &str, code: &str) {
        *self.totals().entry((action.to_owned(), code.to_owned())).or_default() += 1;
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Takes everything counted since the last batch.
    pub fn take(&self) -> Vec<RefusedRequests> {
        let counts = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        counts
            .into_iter()
            .map(|((principal, action, code), count)| RefusedRequests {
                principal,
                action,
                code,
                count,
            })
            .collect()
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
        let batch = log.take();
        assert!(batch.len() <= KINDS_MAX + 1);
        assert_eq!(batch.iter().map(|line| line.count).sum::<u64>(), 10_000);
        assert!(log.take().is_empty());
    }
}
