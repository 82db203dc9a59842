//! Commands: the only payload of the replicated log.
//!
//! One file for each noun. Each command is imperative and carries everything it needs, ids and time included. Commands
//! and fields are only ever added; a new one is proposed only after [`ClusterCommand::SetVersion`] says that every
//! member knows it. Who may give a command, and what it does, is in `fsm/commands`, in the file of the same noun.

use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::time::Timestamp;

mod access;
mod audit;
mod authority;
mod classes;
mod cluster;
mod controllers;
mod ending;
mod gpus;
mod jobs;
mod limits;
mod nodes;
mod notices;
mod projects;
mod reboot;
mod report;
mod reservations;
mod tokens;

pub use access::{AccessCommand, CreateFeed};
pub use audit::{AuditCommand, RefusedRequests};
pub use authority::AuthorityCommand;
pub use classes::ClassCommand;
pub use cluster::ClusterCommand;
pub use controllers::{AdmitController, ControllerCommand};
pub use ending::EndingCommand;
pub use gpus::GpuCommand;
pub use jobs::{JobCommand, JobDefaultsChange, KeptPlace, Placement, Preempt};
pub use limits::LimitsCommand;
pub use nodes::NodeCommand;
pub use notices::NoticeCommand;
pub use projects::ProjectCommand;
pub use reboot::RebootCommand;
pub use report::Report;
pub use reservations::{
    AskForApproval, CreateReservation, ReservationChange, ReservationCommand, SeriesChange,
};
pub use tokens::{CreateControllerToken, CreateJoinToken, TokenCommand};

/// Highest cluster version this build can run at.
pub const CLUSTER_VERSION_MAX: u32 = 1;
/// Version of the envelope and of the commands in it that this build writes.
pub const ENVELOPE_VERSION: u32 = 1;

/// Makes a retry harmless: the same id with the same body gives the first answer again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// Random, drawn by the client.
    pub id: String,
    /// When the client made it; requests older than the table's window are refused.
    pub made_at: Timestamp,
    /// SHA-256 of what the client sent, hexadecimal.
    pub body_sha256: String,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    pub v: u32,
    pub actor: Actor,
    /// The leader's time when it proposed; the FSM never goes back behind what it has seen.
    pub proposed_at: Timestamp,
    pub request: Option<RequestKey>,
    pub command: Command,
}

impl std::fmt::Display for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {}", self.command.name(), self.actor.principal())
    }
}

/// What is decided or reported, by noun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// About the cluster as a whole.
    Cluster(ClusterCommand),
    /// Who is a controller.
    Controller(ControllerCommand),
    /// The right to join.
    Token(TokenCommand),
    /// Nodes: what admins decide, what the leader sees, what agents report.
    Node(NodeCommand),
    /// Single GPUs.
    Gpu(GpuCommand),
    /// Reservations.
    Reservation(ReservationCommand),
    /// Jobs.
    Job(JobCommand),
    /// Who may come in: certificates, accounts.
    Access(AccessCommand),
    /// The exchange of the certificate authority.
    Authority(AuthorityCommand),
    /// How windows end.
    Ending(EndingCommand),
    /// A node reboots once it is empty.
    Reboot(RebootCommand),
    /// How much people may reserve.
    Limits(LimitsCommand),
    /// Projects, and the shares that they are due.
    Project(ProjectCommand),
    /// Classes of jobs.
    Class(ClassCommand),
    /// The audit log itself.
    Audit(AuditCommand),
    /// Notices by mail.
    Notice(NoticeCommand),
}

impl Command {
    /// Stable name for logs and the audit.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Cluster(command) => command.name(),
            Command::Controller(command) => command.name(),
            Command::Token(command) => command.name(),
            Command::Node(command) => command.name(),
            Command::Gpu(command) => command.name(),
            Command::Reservation(command) => command.name(),
            Command::Job(command) => command.name(),
            Command::Access(command) => command.name(),
            Command::Authority(command) => command.name(),
            Command::Ending(command) => command.name(),
            Command::Reboot(command) => command.name(),
            Command::Limits(command) => command.name(),
            Command::Project(command) => command.name(),
            Command::Class(command) => command.name(),
            Command::Audit(command) => command.name(),
            Command::Notice(command) => command.name(),
        }
    }

    /// The cluster version from which on it may be proposed: then every member knows it. What comes after 0.1 gets a new
    /// version here, and [`CLUSTER_VERSION_MAX`] rises with it.
    pub fn since_version(&self) -> u32 {
        1
    }
}
