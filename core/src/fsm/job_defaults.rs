//! Defaults for jobs: set by admins.
//!
//! A job keeps the `stop_after` it was submitted with: its node may be silent when the default changes, and could not
//! hear of it. The part of a node for jobs without GPUs counts for each job that starts, and the number of kept places
//! for each plan.

use super::{Fsm, Turn};
use crate::command::JobDefaultsChange;
use crate::event::Event;
use crate::job::JobSpec;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;

/// Shortest silence of a node after which a job may be replaced: an agent that restarts is silent for a while.
const STOP_AFTER_MIN: Millis = Millis::minutes(1);
/// Longest default: as long as the longest job.
const STOP_AFTER_DEFAULT_MAX: Millis = Millis::days(60);
/// Largest part of a node for jobs without GPUs, in percent: a job on GPUs cannot run without any core.
const WITHOUT_GPUS_PERCENT_MAX: u8 = 90;
/// Most jobs for which places are kept: for each of them a plan looks through all nodes.
const PLACES_KEPT_MAX: u32 = 64;

impl Fsm {
    pub(super) fn set_job_defaults(
        &mut self,
        turn: &mut Turn<'_>,
        change: JobDefaultsChange,
    ) -> Result<Reply, Rejection> {
        let JobDefaultsChange { stop_after, without_gpus_percent, places_kept } = change;
        let mut defaults = self.job_defaults;
        if let Some(after) = stop_after {
            let allowed = STOP_AFTER_MIN..=STOP_AFTER_DEFAULT_MAX;
            if after != Millis::ZERO && !allowed.contains(&after) {
                let problem = format!(
                    "{after} is not between {STOP_AFTER_MIN} and {STOP_AFTER_DEFAULT_MAX}; `never` turns the default off"
                );
                return Err(Rejection::field("stop_after", problem));
            }
            defaults.stop_after = (after != Millis::ZERO).then_some(after);
        }
        if let Some(percent) = without_gpus_percent {
            if percent > WITHOUT_GPUS_PERCENT_MAX {
                let problem = format!(
                    "{percent}% is not between 0% and {WITHOUT_GPUS_PERCENT_MAX}%: jobs on GPUs need cores and memory too"
                );
                return Err(Rejection::field("without_gpus", problem));
            }
            defaults.without_gpus_percent = percent;
        }
        if let Some(places) = places_kept {
            if !(1..=PLACES_KEPT_MAX).contains(&places) {
                let problem = format!("{places} is not between 1 and {PLACES_KEPT_MAX}");
                return Err(Rejection::field("places_kept", problem));
            }
            defaults.places_kept = places;
        }
        let before = std::mem::replace(&mut self.job_defaults, defaults);
        if before != defaults {
            let by = turn.actor.display_name();
            turn.say(Event::JobDefaultsSet { defaults, before, by });
        }
        Ok(Reply::Done)
    }

    /// The job's own word counts, then the fleet's default.
    pub(super) fn with_defaults(&self, spec: &mut JobSpec) {
        match spec.stop_after {
            Some(Millis::ZERO) => spec.stop_after = None,
            Some(_) => {}
            None => {
                spec.stop_after = self.job_defaults.stop_after;
                spec.stop_after_default = spec.stop_after.is_some();
            }
        }
    }
}
