//! The types openraft is instantiated with. Nothing outside this folder names openraft.

use fleet_core::{Rejection, Reply};
use openraft::{BasicNode, EntryPayload};
use serde::{Deserialize, Serialize};

use super::logged::Logged;

openraft::declare_raft_types!(
    /// fleet's instance of openraft.
    pub(crate) TypeConfig:
        D = Logged,
        R = Answer,
        NodeId = u64,
        Node = BasicNode,
);

pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(crate) type Payload = EntryPayload<Logged, u64, BasicNode>;
pub(crate) type Membership = openraft::Membership<u64, BasicNode>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type Snapshot = openraft::alias::SnapshotOf<TypeConfig, super::snapshot::SnapshotData>;
pub(crate) type Raft = openraft::Raft<TypeConfig, super::state_machine::StateMachine>;

/// What applying an entry gave back; empty for entries that carry no command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) reply: Option<Result<Reply, Rejection>>,
}
