//! Defaults for jobs: set by admins, taken over by each job that is submitted from then on.
//!
//! A job keeps what it was submitted with. Its node may be silent when the default changes, and could not hear of it.

use super::{Fsm, Turn};
use crate::event::Event;
use crate::job::{JobDefaults, JobSpec};
use crate::node::EMPTY_SINCE;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;

/// Shortest silence of a node after which a job may be replaced: an agent that restarts is silent for a while.
const STOP_AFTER_MIN: Millis = Millis::minutes(1);
/// Longest default: as long as the longest job.
const STOP_AFTER_DEFAULT_MAX: Millis = Millis::days(60);

impl Fsm {
    /// The defaults for jobs that are submitted now.
    pub fn job_defaults(&self) -> &JobDefaults {
        &self.job_defaults
    }

    pub(super) fn set_job_defaults(
        &mut self,
        turn: &mut Turn<'_>,
        defaults: JobDefaults,
    ) -> Result<Reply, Rejection> {
        let allowed = STOP_AFTER_MIN..=STOP_AFTER_DEFAULT_MAX;
        if let Some(after) = defaults.stop_after.filter(|after| !allowed.contains(after)) {
            let problem = format!(
                "{after} is not between {STOP_AFTER_MIN} and {STOP_AFTER_DEFAULT_MAX}; `never` turns the default off"
            );
            return Err(Rejection::field("stop_after", problem));
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
        if self.cluster_version < EMPTY_SINCE {
            return;
        }
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
