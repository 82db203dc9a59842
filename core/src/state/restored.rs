//! What a restore from a backup left to be found out.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Fsm;
use crate::job::Job;
use crate::name::NodeName;
use crate::time::Timestamp;

/// What a restore left to be found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The fleet's time when the cluster started from the backup.
    pub at: Timestamp,
    /// The last time the backup has seen: what happened later is not in it.
    pub since: Timestamp,
    /// Attempts that nodes brought along.
    pub adopted: u32,
    /// Reservations that were made after the backup, as far as nodes had received them.
    pub reservations_lost: u32,
    /// Where the controllers were before, `host:port`: a controller that starts there again learns of the restore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<String>,
}

impl Fsm {
    /// What is known about the restore this incarnation began with.
    pub fn restored(&self) -> Option<&Restored> {
        self.restored.as_ref()
    }

    /// Nodes that have not said yet what they hold.
    pub fn uncounted(&self) -> impl Iterator<Item = &NodeName> {
        // Asked for each waiting job of a plan, so not all nodes are read.
        let index = self.index();
        let known = index.unasked().iter().map(|slot| index.name(slot));
        let names: BTreeSet<&NodeName> = known.chain(self.unsettled()).collect();
        names.into_iter().filter(|name| self.node(name).is_some_and(|node| node.uncounted))
    }

    /// Why the job may not be placed yet: it may run where nobody has been asked.
    pub(crate) fn may_run_unseen(&self, job: &Job) -> Option<&NodeName> {
        let restored = self.restored.as_ref()?;
        let node = self.uncounted().next()?;
        (job.submitted_at <= restored.since).then_some(node)
    }
}
