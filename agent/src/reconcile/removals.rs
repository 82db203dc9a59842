//! The reconcile task's part of a removal: what fleet wrote beside the checkpoints of an ended job is removed, as the job's
//! owner.
//!
//! The order is a level. Each job has a task of its own while it is ordered, which tries until it has an answer: a server
//! may hang, and a name service may be ill.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::desired::JobDir;
use fleet_core::id::JobId;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::task::Reconciler;
use crate::allocations::checkpoint_base;
use crate::chain::chain;
use crate::handles::Owners;
use fleet_user::op::{CheckpointOp, Op};
use fleet_user::{AsUserError, UserError};

/// How long after a try without an answer the next one is made.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Why some of it is left; `None` if it is gone.
type Answer = Option<String>;

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Removals {
    ordered: BTreeMap<JobId, AbortHandle>,
    tries: JoinSet<(JobId, Answer)>,
}

impl Removals {
    /// The next answer; none while nothing is removed.
    pub(super) async fn next(&mut self) -> Option<(JobId, Answer)> {
        loop {
            // One that is not ordered any more was ended; one that panicked has said so.
            if let Ok(answered) = self.tries.join_next().await? {
                return Some(answered);
            }
        }
    }
}

impl Reconciler {
    pub(super) fn remove_files_of(&mut self, orders: &[JobDir]) {
        let Removals { ordered, tries } = &mut self.removals;
        ordered.retain(|job, task| {
            let stays = orders.iter().any(|order| order.job == *job);
            if !stays {
                task.abort();
            }
            stays
        });
        for order in orders {
            ordered.entry(order.job.clone()).or_insert_with(|| {
                let (owners, order) = (self.parts.owners.clone(), order.clone());
                tries.spawn(async move {
                    loop {
                        if let Ok(answer) = remove(&owners, &order).await {
                            return (order.job, answer);
                        }
                        sleep(AGAIN_AFTER).await;
                    }
                })
            });
        }
    }

    pub(super) fn files_removed(&self, job: &JobId, problem: Option<String>) {
        tracing::info!(%job, problem, "files beside its checkpoints removed");
        self.parts.outbox.files_removed(job, problem);
    }
}

/// Not known yet; tried again.
struct NoAnswer;

async fn remove(owners: &Owners, order: &JobDir) -> Result<Answer, NoAnswer> {
    let Some(dir) = checkpoint_base(&order.spec) else { return Ok(None) };
    let user = match owners.users.resolve(order.owner.as_str(), order.spec.expected_uid).await {
        Ok(user) => user,
        Err(
            error @ (UserError::BadName { .. }
            | UserError::Unknown { .. }
            | UserError::UidMismatch { .. }
            | UserError::SystemUser { .. }),
        ) => return Ok(Some(error.to_string())),
        Err(
            UserError::TimedOut { .. } | UserError::TooManyStuck { .. } | UserError::Service { .. },
        ) => return Err(NoAnswer),
    };
    let (job, marker) = (order.job.to_string(), order.marker.clone());
    let remove = CheckpointOp::RemoveJobFiles { dir, job, marker };
    match owners.as_user.call(&user, Op::Checkpoint(remove)).await {
        Ok(_) => Ok(None),
        Err(AsUserError::Op(error)) => Ok(Some(error.to_string())),
        Err(error) => {
            tracing::warn!(job = %order.job, error = chain(&error), "files beside its checkpoints not removed yet");
            Err(NoAnswer)
        }
    }
}
