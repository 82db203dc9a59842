//! Consensus: the replicated log, its disk, its network, and the handle everybody else uses.
//!
//! The only module that names openraft. `server.rs` calls [`start_at_pace`] once and hands out the
//! [`RaftHandle`]: propose a command, read the state, learn who leads. One voter or three is a
//! matter of configuration. From the bottom up:
//!
//! * `frame`, `watermark`, `journal`: the log's files, how they are checked and refused;
//! * `writer`, `log_store`: one thread that writes and syncs in groups, and openraft's view of it;
//! * `snapshot`, `state_machine`: the FSM, its snapshots, its audit records;
//! * `offline`: making a store from a backup, reading out one that is left over;
//! * `network`, `pipeline`, `service`: the two ends of the gRPC between controllers;
//! * `about`, `divergence`, `space`, `fitness`: what members can do, whether their states agree, room on their disks,
//!   whether they could lead;
//! * `measures`: what it counts of itself;
//! * `handle`, `members`: what the rest of the controller sees.
//!
//! Nothing here may skip a log entry, retry a failed fsync, or repair a store.

mod called;
mod codec;
mod divergence;
mod fitness;
mod frame;
mod handle;
mod journal;
mod log_store;
mod logged;
mod measures;
mod member_report;
mod members;
mod network;
pub mod offline;
mod pipeline;
mod purge;
mod service;
mod snapshot;
mod snapshot_due;
mod space;
mod start;
mod state_age;
mod state_machine;
mod types;
mod versions;
mod watermark;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::disk::{Disk, DiskError, DiskFile};
pub use crate::fatal::{EXIT_DIVERGED, EXIT_STORE_FAILED, EXIT_STORE_REFUSED, Fatal, FatalHook};
pub use fitness::{Fitness, Look, OwnFitness};
pub use handle::{
    Applied, Leadership, MemberError, Peer, ProposeError, RaftHandle, RaftStatus, ReadError,
};
pub use journal::JournalError;
pub use measures::{LogMeasures, ProposalMeasures};
pub(crate) use members::THERE_WITHIN;
pub use members::{Members, Progress};
pub use network::{NoPeers, PeerConnector, PlaintextConnector};
pub use service::{PeerCheck, RaftService};
pub use snapshot::SnapshotFileError;
pub use start::{ELECTION_MS, Foundation, RaftConfig, StartError, start, start_at_pace, start_on};
pub use state_machine::{Apply, RestoreError};
pub use versions::Versions;
pub use writer::Pace;
