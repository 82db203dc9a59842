//! Whether a controller could lead, as it last found itself, and when leadership was last handed over here.
//!
//! `self_check.rs` looks and writes; the service tells the leader with each answer; the leader's `stand_down`
//! reads. In memory only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What was found longer ago says nothing any more.
const FRESH: Duration = Duration::from_secs(5);

/// Looks in a row that find it unwell, at least: a process that stood still has not looked.
const UNFIT_LOOKS: u32 = 4;

/// What a controller found when it checked itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fitness {
    Fit,
    /// `why` completes "controller 2 leads although …".
    Unfit {
        why: String,
    },
}

/// A look, and what its wall clock showed then: only a leader knows the fleet's time to compare it with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    pub fitness: Fitness,
    pub wall: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    found: Option<(Instant, Look)>,
    /// Since when it is unwell, and how many looks found it so.
    unfit: Option<(Instant, u32)>,
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
    pub fn found(&self, look: Look) {
        let (mut state, now) = (self.state(), Instant::now());
        state.unfit = match &look.fitness {
            Fitness::Fit => None,
            Fitness::Unfit { .. } => {
                let (since, looks) = state.unfit.unwrap_or((now, 0));
                Some((since, looks.saturating_add(1)))
            }
        };
        state.found = Some((now, look));
    }

    /// What was found a moment ago.
    pub fn newest(&self) -> Option<Look> {
        let state = self.state();
        let (at, found) = state.found.as_ref()?;
        (at.elapsed() <= FRESH).then(|| found.clone())
    }

    /// Why this controller should not lead, and for how long without a break it should not.
    pub fn unfit(&self) -> Option<(String, Duration)> {
        let state = self.state();
        let (since, _) = state.unfit.filter(|(_, looks)| *looks >= UNFIT_LOOKS)?;
        let (_, look) = state.found.as_ref()?;
        match &look.fitness {
            Fitness::Unfit { why } => Some((why.clone(), since.elapsed())),
            Fitness::Fit => None,
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

    fn look(fitness: Fitness) -> Look {
        Look { fitness, wall: Timestamp(1) }
    }

    fn unfit(why: &str) -> Look {
        look(Fitness::Unfit { why: why.to_owned() })
    }

    #[test]
    fn only_several_looks_in_a_row_make_it_unfit_and_time_counts_from_the_first() {
        let own = OwnFitness::default();
        assert_eq!((own.newest(), own.unfit()), (None, None), "it has not looked yet");
        for _ in 1..UNFIT_LOOKS {
            own.found(unfit("its clock is wrong"));
            assert_eq!(own.unfit(), None);
        }
        let since = own.state().unfit.unwrap().0;
        own.found(unfit("its listener is dead"));
        assert_eq!(own.unfit().unwrap().0, "its listener is dead");
        assert_eq!(own.state().unfit, Some((since, UNFIT_LOOKS)));
        own.found(look(Fitness::Fit));
        assert_eq!((own.newest(), own.unfit()), (Some(look(Fitness::Fit)), None));
        own.found(unfit("its clock is wrong"));
        assert_eq!(own.unfit(), None, "it counts from one");
    }

    #[test]
    fn an_old_look_says_nothing() {
        let own = OwnFitness::default();
        own.found(look(Fitness::Fit));
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
