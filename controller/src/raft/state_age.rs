//! When this controller last knew the newest state: how old an answer of its own may be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct State {
    /// When the leader last spoke, and the last entry it knew to be committed.
    last: Option<(Instant, u64)>,
    /// The newest moment of which everything committed was applied here.
    fresh: Option<Instant>,
}

/// Written by the service that hears the leader.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateAge(Arc<Mutex<State>>);

impl StateAge {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leader spoke, and knows `committed`; here is applied up to `applied`.
    pub(super) fn note(&self, committed: u64, applied: u64) {
        let mut state = self.state();
        state.settle(applied);
        state.last = Some((Instant::now(), committed));
    }

    /// How long ago the leader spoke.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.state().last.map(|(at, _)| at.elapsed())
    }

    /// How old the state is at most, with entries up to `applied` in it.
    pub(super) fn age(&self, applied: u64) -> Option<Duration> {
        let mut state = self.state();
        state.settle(applied);
        state.fresh.map(|at| at.elapsed())
    }
}

impl State {
    fn settle(&mut self, applied: u64) {
        if let Some((at, committed)) = self.last
            && applied >= committed
        {
            self.fresh = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_age_counts_from_the_last_word_that_was_carried_out() {
        let heard = StateAge::default();
        assert_eq!(heard.age(9), None, "never heard the leader");
        heard.note(10, 5);
        assert_eq!(heard.age(9), None, "entry 10 is not applied");
        assert!(heard.age(10).unwrap() <= heard.silence().unwrap() + Duration::from_secs(1));
        let before = heard.age(10).unwrap();
        heard.note(20, 10);
        assert!(heard.age(19).unwrap() >= before, "as old as the word before");
    }
}
