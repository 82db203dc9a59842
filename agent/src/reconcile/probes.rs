//! The reconcile task's part of a question: could a job that must leave another node continue here?
//!
//! The question is a level. Each attempt is checked once while it is asked about, on a task of its own: the marker of the
//! job's checkpoint directory is read as its owner. If that gives no answer, because a server hangs, nothing is reported.

use std::collections::BTreeSet;
use std::time::Duration;

use fleet_core::desired::{JobDir, Probe};
use fleet_core::id::AllocationId;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::task::Reconciler;
use crate::allocations::checkpoint_base;
use crate::checkpoint::{ResumeCheck, verify_marker};
use crate::handles::Owners;

/// How long one look may take.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// An answer, or nothing if the check gave none.
type Answer = (AllocationId, Option<ResumeAnswer>);

/// Why it could not continue here; `None` if it could.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResumeAnswer(pub(super) Option<String>);

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Probes {
    asked: BTreeSet<AllocationId>,
    looks: JoinSet<Answer>,
}

impl Probes {
    /// The next answer; none while nobody looks.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        // One that panicked has said so.
        self.looks.join_next().await?.ok()
    }
}

impl Reconciler {
    pub(super) fn look_for(&mut self, probes: &[Probe]) {
        self.probes.asked.retain(|known| probes.iter().any(|probe| probe.allocation == *known));
        for probe in probes {
            if self.probes.asked.insert(probe.allocation.clone()) {
                let (owners, probe) = (self.parts.owners.clone(), probe.clone());
                self.probes.looks.spawn(async move {
                    let answer = timeout(LOOK_MAX, look(&owners, &probe)).await.ok().flatten();
                    (probe.allocation, answer)
                });
            }
        }
    }

    pub(super) fn looked(&self, allocation: &AllocationId, answer: Option<ResumeAnswer>) {
        if let Some(ResumeAnswer(problem)) = answer {
            tracing::debug!(%allocation, problem, "asked whether a job could continue here");
            self.parts.outbox.probed(allocation, problem);
        }
    }
}

/// Reads the marker as the owner of the job.
async fn look(owners: &Owners, probe: &Probe) -> Option<ResumeAnswer> {
    let JobDir { job, owner, spec, marker } = &probe.place;
    let dir = checkpoint_base(spec)?;
    // Some name services answer that they do not know somebody while they are ill.
    let user = owners.users.resolve(owner.as_str(), spec.expected_uid).await.ok()?;
    let job = job.as_str();
    match verify_marker(&owners.as_user, &user, &dir, job, marker).await {
        // A full or hanging server says nothing of the directory.
        ResumeCheck::Unreadable { why } => {
            tracing::debug!(job, why, "not known whether a job could continue here");
            None
        }
        check => Some(ResumeAnswer(check.problem(&dir))),
    }
}
