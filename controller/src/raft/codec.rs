//! What the log and the snapshot files contain, as JSON: our own types, so that an openraft that
//! changes its structs cannot change our files.
//!
//! Old files must stay readable: fields and variants are only ever added (with a default), and
//! golden files under `controller/testdata/` keep us to it.

use std::collections::{BTreeMap, BTreeSet};

use openraft::vote::RaftLeaderId;
use openraft::{BasicNode, EntryPayload};
use serde::{Deserialize, Serialize};

use super::logged::Logged;
use super::types::{Entry, LogId, Membership, Payload, StoredMembership, Vote};

/// Position of an entry: who proposed it, in which term, at which index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct StoredLogId {
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) index: u64,
}

/// A vote given, or a leadership recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredVote {
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) committed: bool,
}

/// One line of a group frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record<P> {
    Vote(StoredVote),
    Entry(StoredEntry<P>),
    /// All entries behind `keep` are gone (all of them if absent).
    TruncateAfter {
        keep: Option<StoredLogId>,
    },
    /// All entries up to and including this one are in a snapshot and may be deleted.
    Purge(StoredLogId),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredEntry<P> {
    pub(crate) log_id: StoredLogId,
    pub(crate) payload: P,
}

/// Stands for a payload while a log is opened.
pub(crate) type AnyPayload = serde::de::IgnoredAny;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredPayload {
    Blank,
    Command(Logged),
    Membership(StoredConfig),
}

/// Voters and learners. Two sets of voters while a change of membership is under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredConfig {
    pub(crate) voters: Vec<BTreeSet<u64>>,
    /// Address of every member by node id.
    pub(crate) nodes: BTreeMap<u64, String>,
}

/// First record of a segment file: whose it is, and the state before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHeader {
    pub(crate) v: u32,
    pub(crate) cluster: String,
    pub(crate) node: u64,
    pub(crate) segment: u64,
    pub(crate) vote: Option<StoredVote>,
    pub(crate) purged: Option<StoredLogId>,
    /// Last entry before this segment.
    pub(crate) last: Option<StoredLogId>,
}

impl From<LogId> for StoredLogId {
    fn from(id: LogId) -> Self {
        let leader = id.committed_leader_id();
        StoredLogId { term: leader.term, node: leader.node_id, index: id.index() }
    }
}

impl From<StoredLogId> for LogId {
    fn from(id: StoredLogId) -> Self {
        LogId::new(RaftLeaderId::new(id.term, id.node), id.index)
    }
}

impl From<&Vote> for StoredVote {
    fn from(vote: &Vote) -> Self {
        let leader = vote.leader_id();
        StoredVote { term: leader.term, node: leader.node_id, committed: vote.is_committed() }
    }
}

impl From<StoredVote> for Vote {
    fn from(vote: StoredVote) -> Self {
        if vote.committed {
            Vote::new_committed(vote.term, vote.node)
        } else {
            Vote::new(vote.term, vote.node)
        }
    }
}

impl From<&Membership> for StoredConfig {
    fn from(membership: &Membership) -> Self {
        StoredConfig {
            voters: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
        }
    }
}

impl StoredConfig {
    /// Back to openraft's type; an error if it is no legal membership.
    pub(crate) fn to_membership(&self) -> Result<Membership, String> {
        if self.voters.is_empty() && self.nodes.is_empty() {
            return Ok(Membership::default());
        }
        let nodes: BTreeMap<u64, BasicNode> =
            self.nodes.iter().map(|(id, addr)| (*id, BasicNode::new(addr))).collect();
        Membership::new(self.voters.clone(), nodes).map_err(|e| e.to_string())
    }
}

/// The membership in force at some entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredMembershipAt {
    pub(crate) log_id: Option<StoredLogId>,
    pub(crate) config: StoredConfig,
}

impl From<&StoredMembership> for StoredMembershipAt {
    fn from(stored: &StoredMembership) -> Self {
        StoredMembershipAt {
            log_id: stored.log_id().map(StoredLogId::from),
            config: stored.membership().into(),
        }
    }
}

impl StoredMembershipAt {
    pub(crate) fn to_membership(&self) -> Result<StoredMembership, String> {
        Ok(StoredMembership::new(self.log_id.map(LogId::from), self.config.to_membership()?))
    }
}

/// One entry as a line of a group, line end included.
pub(crate) fn encode_entry(entry: &Entry) -> Result<Vec<u8>, serde_json::Error> {
    let payload = match &entry.payload {
        EntryPayload::Blank => StoredPayload::Blank,
        EntryPayload::Normal(command) => StoredPayload::Command(command.clone()),
        EntryPayload::Membership(membership) => {
            StoredPayload::Membership(StoredConfig::from(membership))
        }
    };
    encode(&Record::Entry(StoredEntry { log_id: entry.log_id.into(), payload }))
}

/// Any record as a line of a group, line end included.
pub(crate) fn encode<P: Serialize>(record: &Record<P>) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads back what [`encode_entry`] wrote. An unknown command is an error: it stops the node.
pub(crate) fn decode_entry(line: &[u8]) -> Result<Entry, String> {
    let record: Record<StoredPayload> = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let Record::Entry(StoredEntry { log_id, payload }) = record else {
        return Err("the record is not an entry".to_owned());
    };
    let payload: Payload = match payload {
        StoredPayload::Blank => EntryPayload::Blank,
        StoredPayload::Command(command) => EntryPayload::Normal(command),
        StoredPayload::Membership(config) => EntryPayload::Membership(config.to_membership()?),
    };
    Ok(Entry { log_id: log_id.into(), payload })
}
