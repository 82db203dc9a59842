//! Whether a controller could lead, as it last found itself, and when leadership was last handed over here.
//!
//! `self_check.rs` looks and writes; the service tells the leader with each answer; the leader's `stand_down`
//! reads. In memory only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What was found longer ago says nothing any more.
const FRESH: Duration = Duration::from_secs(5);

/// What a controller found when it looked at its own clock, certificate and listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fitness {
    Fit,
    /// `why` completes "controller 2 leads although …".
    Unfit {
        why: String,
    },
}

#[derive(Debug, Default)]
struct State {
    found: Option<(Instant, Fitness)>,
    unfit_since: Option<Instant>,
    handed_over: Option<Instant>,
    stays: Option<String>,
}

/// Shared by those who write and read it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct OwnFitness(Arc<Mutex<State>>);

impl OwnFitness {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found just now.
    pub fn found(&self, fitness: Fitness) {
        let (mut state, now) = (self.state(), Instant::now());
        state.unfit_since = match &fitness {
            Fitness::Fit => None,
            Fitness::Unfit { .. } => state.unfit_since.or(Some(now)),
        };
        state.found = Some((now, fitness));
    }

    /// What was found a moment ago.
    pub fn newest(&self) -> Option<Fitness> {
        let state = self.state();
        let (at, found) = state.found.as_ref()?;
        (at.elapsed() <= FRESH).then(|| found.clone())
    }

    /// Why this controller should not lead, and for how long without a break it should not.
    pub fn unfit(&self) -> Option<(String, Duration)> {
        let state = self.state();
        match (&state.found, state.unfit_since) {
            (Some((_, Fitness::Unfit { why })), Some(since)) => {
                Some((why.clone(), since.elapsed()))
            }
            _ => None,
        }
    }

    /// Leadership was handed over now, from here or to here.
    pub fn handed_over(&self) {
        self.state().handed_over = Some(Instant::now());
    }

    /// How long ago that was.
    pub fn since_handover(&self) -> Option<Duration> {
        self.state().handed_over.map(|at| at.elapsed())
    }

    /// Why this controller leads on although it should not; `true` when that is news.
    pub fn stays(&self, why: Option<String>) -> bool {
        let mut state = self.state();
        let news = state.stays != why;
        state.stays = why;
        news
    }

    /// The same, for people.
    pub fn why_it_stays(&self) -> Option<String> {
        self.state().stays.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn how_long_it_is_unfit_counts_from_the_first_of_a_row() {
        let own = OwnFitness::default();
        assert_eq!((own.newest(), own.unfit()), (None, None), "it has not looked yet");
        let unfit = |why: &str| Fitness::Unfit { why: why.to_owned() };
        own.found(unfit("its clock is wrong"));
        let since = own.state().unfit_since;
        own.found(unfit("its listener is dead"));
        assert_eq!(own.state().unfit_since, since);
        assert_eq!(own.unfit().unwrap().0, "its listener is dead");
        own.found(Fitness::Fit);
        assert_eq!((own.newest(), own.unfit()), (Some(Fitness::Fit), None));
        own.found(unfit("its clock is wrong"));
        assert!(own.state().unfit_since > since);
    }

    #[test]
    fn an_old_look_says_nothing() {
        let own = OwnFitness::default();
        own.found(Fitness::Fit);
        let long_ago = Instant::now().checked_sub(FRESH * 2).unwrap();
        own.state().found.as_mut().unwrap().0 = long_ago;
        assert_eq!(own.newest(), None);
    }

    #[test]
    fn only_what_is_new_is_news() {
        let own = OwnFitness::default();
        assert!(!own.stays(None));
        assert!(own.stays(Some("nobody else is well".to_owned())));
        assert!(!own.stays(Some("nobody else is well".to_owned())));
        assert!(own.stays(None));
    }
}
