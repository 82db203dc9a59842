//! The gRPC edge: finds out who calls, takes their requests, and answers them.
//!
//! Each request becomes a command for the log or a look at the state. Nothing here decides anything
//! about the fleet; the only caller is tonic's router, built in `server.rs`.

mod access;
mod adopt;
mod agents;
mod approval;
mod attach;
mod audit_export;
mod audit_prune;
mod checkpoints;
mod classes;
mod controllers;
mod edits;
mod enrollment;
mod exec;
mod explain;
mod feeds;
mod fleet;
mod free;
mod gpu_faults;
mod gpu_history;
mod gpu_minutes;
mod images;
mod import;
mod in_use;
mod issuing;
mod limits;
mod link;
mod lists;
mod login;
mod members;
mod names;
mod notices;
mod operations;
mod people;
mod plan;
mod projects;
mod propose;
mod resolve;
mod rotation;
mod series;
mod tokens;
mod trial;
mod unheard;
mod usage;
mod views;
mod warnings;
mod writes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fleet_proto::transport::Revocations;
use fleet_proto::transport::client::Address;
use tonic::Status;

pub use agents::AgentsService;
pub use controllers::{ControllersService, peer_check};
pub use enrollment::EnrollmentService;
pub(crate) use feeds::{FeedNow, FeedReservation};
pub use fleet::FleetService;
pub use plan::NewestPlan;
pub use trial::Trials;

use crate::audit::AuditStore;
use crate::callers::Callers;
use crate::clock::LeaderClock;
use crate::config::WebAddress;
use crate::figures::Figures;
use crate::login_log::LoginLog;
use crate::mail::Mail;
use crate::operations::Operations;
use crate::peers::Peers;
use crate::pki::{AuditSigner, Keyring};
use crate::raft::RaftHandle;
use crate::refusal_log::RefusalLog;
use crate::sessions::Sessions;
use crate::superseded;
use crate::tunnels::Tunnels;

/// A follower that was up to date this long ago gives out backups without being told `--stale`.
const FOLLOWER_AGE_MAX: Duration = Duration::from_secs(2);

/// Everything the services share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    pub raft: RaftHandle,
    pub clock: LeaderClock,
    pub sessions: Sessions,
    pub tunnels: Tunnels,
    /// Places and reasons of what waits.
    pub plan: NewestPlan,
    /// Whose turn it is to try a job.
    pub trials: Trials,
    pub callers: Callers,
    pub keyring: Keyring,
    pub signer: Arc<AuditSigner>,
    pub revocations: Revocations,
    pub advertise: Arc<Vec<Address>>,
    pub peers: Peers,
    pub refusals: RefusalLog,
    /// Folder of the certificate authority, for backups.
    pub pki_dir: Arc<Path>,
    pub operations: Operations,
    /// Learns from the handlers that the fleet continues under a higher incarnation.
    pub superseded: superseded::Notice,
    pub logins: LoginLog,
    pub mail: Mail,
    /// Where this controller's web page is, if it has one.
    pub web: Option<WebAddress>,
}

impl Context {
    fn figures(&self) -> Figures {
        let (raft, keyring, peers) = (self.raft.clone(), self.keyring.clone(), self.peers.clone());
        Figures { raft, keyring, peers }
    }

    fn audit(&self) -> &AuditStore {
        self.raft.audit()
    }

    /// What a backup is made of next is not older than this moment; says what to do where that cannot
    /// be known.
    pub(crate) async fn newest_for_backup(&self) -> Result<(), Status> {
        // Each controller writes its own; one that heard its leader a moment ago is as good as the leader.
        if self.raft.age().is_some_and(|age| age < FOLLOWER_AGE_MAX) {
            return Ok(());
        }
        self.newest().await.map_err(|status| {
            let problem = format!(
                "{}; --stale takes this controller's own state all the same",
                status.message()
            );
            Status::new(status.code(), problem)
        })
    }
}
