//! Tries a job without submitting it: on a copy of the state, which nobody else sees.

use std::sync::Arc;

use fleet_core::fsm::{JobTrial, TrialLeaving};
use fleet_core::job::SubmitJob;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Status};

use super::{Context, views};

/// Trials at once: each has a copy of the whole state and plans the whole queue. Further ones wait for their turn.
const TRIALS_MAX: usize = 2;

/// Turns of trials. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Trials(Arc<Semaphore>);

impl Default for Trials {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TRIALS_MAX)))
    }
}

impl Trials {
    /// Waits for a turn; it ends with what is returned.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, Status> {
        let closed = |_| Status::internal("nothing can be tried any more");
        Arc::clone(&self.0).acquire_owned().await.map_err(closed)
    }
}

impl Context {
    pub(super) async fn try_job(
        &self,
        request: Request<v1::TryJobRequest>,
    ) -> Result<v1::JobForecast, Status> {
        let spec = request.get_ref().spec.clone();
        let caller = self.submitter(&request, spec.as_ref()).await?;
        let request = request.into_inner();
        let (owner, spec) = super::writes::wished(spec, &request.owner, &caller)?;
        if caller.admin && !request.new_users {
            let unknown = self.unknown_of([owner.clone()].into(), &caller).await?;
            if !unknown.is_empty() {
                let users = unknown.into_values().collect();
                return Err(to_status(&Rejection::UnknownUsers { users }));
            }
        }
        // Only the leader knows what runs where.
        self.newest().await?;
        let turn = self.trials.turn().await?;
        let wish = SubmitJob { id: self.new_job_id()?, owner, spec, marker: String::new() };
        // The state is read only while it is copied: planning a long queue takes longer than others may wait.
        let (state, now) = (self.raft.read(Fsm::clone), self.clock.now());
        let tried = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let (trial, then) = state.try_job(&caller.actor, wish, now)?;
            Ok(forecast(&then, trial))
        });
        let tried = tried.await.map_err(|error| Status::internal(error.to_string()))?;
        tried.map_err(|rejection: Rejection| to_status(&rejection))
    }
}

/// `then`: the state with the job, which knows the names of its GPUs.
fn forecast(then: &Fsm, trial: JobTrial) -> v1::JobForecast {
    let JobTrial { starts_now, starts_at, at, reservation, place, reason, leaving } = trial;
    let (node, gpus) = at.map_or_else(Default::default, |(node, gpus)| {
        (node.to_string(), views::gpu_refs(then, &gpus, then.now()))
    });
    let leaving =
        leaving.into_iter().map(|TrialLeaving { job, owner, class, until }| v1::ForecastLeaving {
            job: job.to_string(),
            owner: owner.to_string(),
            class: class.to_string(),
            until_unix_ms: until.0,
        });
    v1::JobForecast {
        starts_now,
        starts_at_unix_ms: starts_at.map_or(0, |at| at.0),
        node,
        gpus,
        reservation: reservation.map(|id| id.to_string()).unwrap_or_default(),
        place: place.unwrap_or_default(),
        reason: reason.unwrap_or_default(),
        leaving: leaving.collect(),
    }
}
