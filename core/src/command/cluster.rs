//! Commands about the cluster as a whole: its beginning, its version, its clock.

use serde::{Deserialize, Serialize};

use crate::id::ClusterId;
use crate::time::Timestamp;

/// About the cluster as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterCommand {
    /// First entry of a cluster, and again with a higher incarnation after a restore.
    Init {
        cluster: ClusterId,
        incarnation: u64,
    },
    SetVersion {
        version: u32,
    },
    /// Runs every transition that is due.
    AdvanceTime,
    /// Time is set back to `to`: only after a clock ran ahead.
    ResetClock {
        to: Timestamp,
    },
    /// Evictions frozen by a storm of conditions continue.
    ThawEvictions,
    /// Each replica takes its state's digest after this entry; those who had another `digest` after entry
    /// `index` than most stop. Compared only by controllers that are built with the same `core`.
    CheckState {
        index: u64,
        core: String,
        /// Absent where nothing is to be compared yet.
        digest: Option<String>,
    },
}

impl ClusterCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            ClusterCommand::Init { .. } => "init_cluster",
            ClusterCommand::SetVersion { .. } => "set_cluster_version",
            ClusterCommand::AdvanceTime => "advance_time",
            ClusterCommand::ResetClock { .. } => "reset_clock",
            ClusterCommand::ThawEvictions => "thaw_evictions",
            ClusterCommand::CheckState { .. } => "check_state",
        }
    }
}
