//! The gRPC edge: who calls, what they ask, what they are told.
//!
//! Each request becomes a command for the log or a look at the state. Nothing here decides anything
//! about the fleet; the only caller is tonic's router, built in `server.rs`.

mod agents;
mod attach;
mod audit_export;
mod caller;
mod controllers;
mod enrollment;
mod exec;
mod explain;
mod fleet;
mod link;
mod members;
mod propose;
mod refusals;
mod resolve;
mod views;
mod writes;

use std::sync::Arc;

use fleet_core::scheduler::Plan;
use fleet_proto::transport::Revocations;
use fleet_proto::transport::client::Address;
use tokio::sync::watch;

pub use agents::AgentsService;
pub use caller::{Admins, Callers};
pub use controllers::{ControllersService, peer_check};
pub use enrollment::EnrollmentService;
pub use fleet::FleetService;
pub use refusals::RefusalLog;

use crate::audit::AuditStore;
use crate::clock::LeaderClock;
use crate::peers::Peers;
use crate::pki::{AuditSigner, Authority};
use crate::raft::RaftHandle;
use crate::sessions::Sessions;
use crate::tunnels::Tunnels;

/// Everything the services share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    pub raft: RaftHandle,
    pub clock: LeaderClock,
    pub sessions: Sessions,
    pub tunnels: Tunnels,
    /// The newest plan: places and reasons of what waits.
    pub plan: watch::Receiver<Arc<Plan>>,
    pub callers: Callers,
    pub authority: Arc<Authority>,
    pub signer: Arc<AuditSigner>,
    pub revocations: Revocations,
    pub advertise: Arc<Vec<Address>>,
    pub peers: Peers,
    pub refusals: RefusalLog,
}

impl Context {
    fn audit(&self) -> &AuditStore {
        self.raft.audit()
    }
}
