//! Why queued jobs wait: the whole plan, made when somebody asks and kept until it may come out differently.
//!
//! Called by the services that show jobs. The leader's loop does not need it to start jobs. It must never
//! hold its lock across a wait: the state is being read meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use fleet_core::Fsm;
use fleet_core::scheduler::{self, Plan};

/// The plan that was made last. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct NewestPlan {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// What the state said of itself when the plan was made, and the minute of that: shares change with time.
    inputs: Option<(u64, u64)>,
    plan: Arc<Plan>,
}

impl NewestPlan {
    /// The plan of this state.
    pub(super) fn of(&self, fsm: &Fsm) -> Arc<Plan> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let inputs = Some((fsm.plan_inputs(), fsm.now().0 / 60_000));
        if kept.inputs != inputs {
            *kept = Kept { inputs, plan: Arc::new(scheduler::plan(fsm)) };
        }
        Arc::clone(&kept.plan)
    }

    /// The last one that was made, for an answer that is not worth planning a long queue: it may not know
    /// the newest jobs.
    pub(super) fn last(&self) -> Arc<Plan> {
        Arc::clone(&self.kept.lock().unwrap_or_else(PoisonError::into_inner).plan)
    }
}
