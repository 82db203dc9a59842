//! Changing who takes part: one step at a time, each through the log.
//!
//! Called by the leader's membership loop only (`leader/members.rs`), which decides; here is how it is
//! said to openraft. A change that is cut short leaves the cluster able to work, and is begun again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{BasicNode, ChangeMembers, Instant as _};

use super::handle::{MemberError, RaftHandle, ReadError};

/// How long one step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Who takes part, as this controller knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    pub voters: BTreeMap<u64, String>,
    pub learners: BTreeMap<u64, String>,
    /// A change of voters is half done: two majorities are needed until it is finished.
    pub joint: bool,
}

impl Members {
    pub fn contains(&self, id: u64) -> bool {
        self.voters.contains_key(&id) || self.learners.contains_key(&id)
    }

    /// Where a member is reached.
    pub fn address(&self, id: u64) -> Option<&String> {
        self.voters.get(&id).or_else(|| self.learners.get(&id))
    }
}

/// A controller that answered within this time is there.
pub(crate) const THERE_WITHIN: Duration = Duration::from_secs(2);

/// How far another member is, as the leader knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last entry it is known to hold.
    pub matched: Option<u64>,
    /// How long ago it last answered.
    pub silent: Option<Duration>,
}

impl Progress {
    pub(crate) fn is_there(&self) -> bool {
        self.silent.is_some_and(|silent| silent <= THERE_WITHIN)
    }
}

impl RaftHandle {
    /// Who takes part, by the newest change this controller has in its log.
    pub fn members(&self) -> Members {
        let metrics = self.raft().metrics();
        let m = metrics.borrow_watched();
        let membership = m.membership_config.membership();
        let named =
            |id: u64| (id, membership.get_node(&id).map(|n| n.addr.clone()).unwrap_or_default());
        Members {
            voters: membership.voter_ids().map(named).collect(),
            learners: membership.learner_ids().map(named).collect(),
            joint: membership.get_joint_config().len() > 1,
        }
    }

    /// On the leader: how far the others are.
    pub fn progress(&self) -> BTreeMap<u64, Progress> {
        let metrics = self.raft().metrics();
        let m = metrics.borrow_watched();
        let mut progress: BTreeMap<u64, Progress> = BTreeMap::new();
        for (id, matched) in m.replication.iter().flatten() {
            progress.entry(*id).or_default().matched = matched.map(|id| id.index);
        }
        for (id, heard) in m.heartbeat.iter().flatten() {
            progress.entry(*id).or_default().silent = heard.map(|at| at.elapsed());
        }
        progress
    }

    /// Lets a controller listen. Returns when the change is in the log, not when it has caught up.
    pub async fn add_learner(&self, id: u64, address: &str) -> Result<(), MemberError> {
        let adding = Box::pin(self.raft().add_learner(id, BasicNode::new(address), false));
        within(async { adding.await.map(drop).map_err(|e| e.to_string()) }).await
    }

    /// Afterwards exactly these vote; voters that are not among them take part no more.
    pub async fn set_voters(&self, voters: BTreeSet<u64>) -> Result<(), MemberError> {
        let changing = Box::pin(self.raft().change_membership(voters, false));
        within(async { changing.await.map(drop).map_err(|e| e.to_string()) }).await
    }

    /// Lets learners go.
    pub async fn remove_learners(&self, ids: BTreeSet<u64>) -> Result<(), MemberError> {
        let change = ChangeMembers::RemoveNodes(ids);
        let changing = Box::pin(self.raft().change_membership(change, false));
        within(async { changing.await.map(drop).map_err(|e| e.to_string()) }).await
    }

    /// Hands leadership to another voter. Only a request: watch [`RaftHandle::leadership`].
    pub async fn transfer_leadership(&self, to: u64) -> Result<(), ReadError> {
        self.raft().trigger().transfer_leader(to).await.map_err(|e| ReadError::Fatal(e.to_string()))
    }
}

async fn within(change: impl Future<Output = Result<(), String>>) -> Result<(), MemberError> {
    match tokio::time::timeout(STEP_TIMEOUT, change).await {
        Ok(done) => done.map_err(MemberError),
        Err(_) => Err(MemberError(format!("not done within {STEP_TIMEOUT:?}"))),
    }
}
