//! Commands: the only payload of the replicated log.
//!
//! Each variant is imperative and carries everything it needs, ids and time included. Variants and
//! fields are only ever added; a new variant is proposed only after `SetClusterVersion` says that
//! every member knows it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::access::AccessCommand;
use crate::actor::Actor;
use crate::allocation::{EndReport, StopWhy};
use crate::audit::prune::Prune;
use crate::authority::AuthorityCommand;
use crate::checkpoint::{CheckpointNote, Content, Facts, Presence, RestartFrom, Resumed};
use crate::ending::{EndPolicy, EndingCommand, GpuHolder, HolderStep, WindowUse};
use crate::health::Condition;
use crate::holdings::{FoundAttempt, HeldReservation};
use crate::id::{AllocationId, ClusterId, ImportId, JobId, LeaseId, ReservationId, TokenId};
use crate::image::ImageUsed;
use crate::job::SubmitJob;
use crate::lease::Epoch;
use crate::limits::LimitsCommand;
use crate::name::{GpuUuid, NodeName, ProjectName, UserName};
use crate::node::{Liveness, MachineIdentity, NodeFacts};
use crate::reboot::RebootCommand;
use crate::reservation::GpuRequest;
use crate::stored::is_default;
use crate::time::{Millis, Timestamp, Window};
use crate::window::{Enforcement, EnforcementSwitch, WindowReport};

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

/// A promise of GPUs for a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateReservation {
    pub id: ReservationId,
    /// Who gets it; only an admin may name somebody else than themselves.
    pub owner: UserName,
    pub project: ProjectName,
    pub gpus: GpuRequest,
    pub window: Window,
    pub note: String,
    /// The fleet's rule where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_end: Option<EndPolicy>,
    /// Who else may use the GPUs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
    /// The GPUs it names are used without a lease by nobody but those who get it, as the leader saw: that is no
    /// obstacle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopts: bool,
}

impl CreateReservation {
    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }
}

/// A right to join, for the named nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateJoinToken {
    pub id: TokenId,
    pub secret_sha256: String,
    pub names: Vec<NodeName>,
    pub ttl: Millis,
}

/// A right to join, for one more controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateControllerToken {
    pub id: TokenId,
    pub secret_sha256: String,
    pub ttl: Millis,
}

/// A controller that joins; the first one shows no token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmitController {
    /// Never given before.
    pub id: u64,
    pub address: String,
    pub token: Option<TokenId>,
    /// SHA-256 of its public key, hexadecimal: a retry is recognised by it.
    pub key_sha256: String,
}

/// One line of a scheduler's plan; the FSM checks it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub job: JobId,
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
}

/// One fact an agent reports. Reports may arrive again and in any order between allocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Started {
        allocation: AllocationId,
        epoch: Epoch,
        at: Timestamp,
        /// What the name of its image in a registry meant; none for other images.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<ImageUsed>,
    },
    /// The agent took deferral order `order` when its checkpoint number was `checkpoint_seq`.
    DeferralTaken {
        allocation: AllocationId,
        order: u32,
        checkpoint_seq: u64,
    },
    Checkpoint {
        allocation: AllocationId,
        seq: u64,
        path: String,
        size_bytes: u64,
        completed_at: Timestamp,
        /// Time since it was found complete and checked, on the agent's own clock, so that no clocks are compared.
        age: Millis,
        #[serde(default, skip_serializing_if = "is_default")]
        facts: Facts,
    },
    /// A checkpoint that was reported is gone, or was found to be something else.
    CheckpointChanged {
        allocation: AllocationId,
        seq: u64,
        /// The earlier attempt of the job whose checkpoint it is; absent: the allocation's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Content>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        presence: Option<Presence>,
    },
    /// Something that the owner should know about the job's checkpoints.
    CheckpointNoted {
        allocation: AllocationId,
        note: CheckpointNote,
    },
    /// What the attempt resumes from, said before it starts.
    Resumed {
        allocation: AllocationId,
        epoch: Epoch,
        resumed: Resumed,
    },
    /// Whether an attempt that must leave another node could continue here, by the directory in which it saves.
    Probed {
        allocation: AllocationId,
        /// Why not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// What fleet wrote beside a job's checkpoints is gone.
    FilesRemoved {
        job: JobId,
        /// Why some of it is left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    Ended {
        allocation: AllocationId,
        epoch: Epoch,
        report: EndReport,
    },
    /// The GPUs of a lease are proven empty.
    Released {
        lease: LeaseId,
        epoch: Epoch,
    },
    /// All conditions of the node, each time.
    Conditions {
        conditions: Vec<Condition>,
    },
    /// The inventory changed after registration.
    Facts {
        facts: NodeFacts,
    },
    /// An attempt the node has a record of: said only when asked, after a restore.
    Found(Box<FoundAttempt>),
    /// The node has reported all attempts it has a record of; the reservations that controllers sent it.
    Holdings {
        allocations: Vec<AllocationId>,
        reservations: Vec<HeldReservation>,
    },
    /// Which order the node has for a window, and what it did with it on its own.
    Window(Box<WindowReport>),
    /// While no controller answered, the node kept a promise to somebody else.
    StoppedAlone {
        allocation: AllocationId,
        epoch: Epoch,
        why: StopWhy,
        at: Timestamp,
    },
    /// Root set the node's emergency switch.
    Enforcement(EnforcementSwitch),
    /// What is seen on the GPUs of an open window.
    Use {
        reservation: ReservationId,
        seen: WindowUse,
        /// Somebody was there at any time.
        came: bool,
    },
    /// Who holds GPUs that are not theirs, or not any more, and what was done about it.
    Holders {
        /// Whose time is over; none where nobody leased the GPU to them.
        reservation: Option<ReservationId>,
        step: HolderStep,
        holders: Vec<GpuHolder>,
    },
    /// What became of the order to reboot that was given with the wish of `since`.
    Reboot {
        since: Timestamp,
        /// Why the machine does not go down.
        problem: Option<String>,
    },
}

/// Refused requests, in batches, so that a flood cannot fill the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequests {
    pub principal: String,
    pub action: String,
    pub code: String,
    pub count: u64,
}

/// What is decided or reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// First entry of a cluster, and again with a higher incarnation after a restore.
    InitCluster {
        cluster: ClusterId,
        incarnation: u64,
    },
    SetClusterVersion {
        version: u32,
    },

    CreateReservation(CreateReservation),
    /// A spreadsheet's lines: all of them, or none.
    ImportReservations {
        reservations: Vec<CreateReservation>,
        /// Under this id it can be undone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        import: Option<ImportId>,
    },
    /// Releases what an import made.
    UndoImport {
        id: ImportId,
    },
    ExtendReservation {
        id: ReservationId,
        ends_at: Timestamp,
    },
    ReleaseReservation {
        id: ReservationId,
    },
    SubmitJob(Box<SubmitJob>),
    CancelJob {
        id: JobId,
    },
    /// An ended job, or one that asks its owner, is queued again.
    RestartJob {
        id: JobId,
        from: RestartFrom,
        /// A new limit; as long as the old one where it is not said.
        time_limit: Option<Millis>,
    },
    /// A job that waits or runs gets another time limit.
    SetJobTimeLimit {
        id: JobId,
        time_limit: Millis,
    },
    /// Removes an ended job, and what fleet wrote beside its checkpoints.
    RemoveJob {
        id: JobId,
    },
    /// Asks the running attempt of a job for a checkpoint.
    AskCheckpoint {
        id: JobId,
    },

    CordonNode {
        node: NodeName,
        reason: String,
    },
    /// Also ends a drain and lifts a suspension.
    UncordonNode {
        node: NodeName,
    },
    DrainNode {
        node: NodeName,
        reason: String,
        deadline: Option<Timestamp>,
    },
    /// An operator vouches that nothing runs on the GPU any more.
    DeclareGpuFree {
        gpu: GpuUuid,
        reason: String,
    },
    /// What the GPU still carries of a fault that is over does not count any more.
    ClearGpu {
        gpu: GpuUuid,
        reason: String,
    },
    /// A lost card does not come back; with `replace`, as soon as another one is in its slot.
    ForgetGpu {
        gpu: GpuUuid,
        reason: String,
        replace: bool,
    },
    /// On record before the node hears of it: one image of the node, or all that nothing needs.
    OrderImagesRemoval {
        node: NodeName,
        image: Option<String>,
    },
    /// Nobody joins with it any more. Machines that have joined stay.
    WithdrawToken {
        token: TokenId,
    },
    /// Evictions frozen by a storm of conditions continue.
    ThawEvictions,
    /// Time is set back to `to`: only after a clock ran ahead.
    ResetClock {
        to: Timestamp,
    },

    CreateJoinToken(CreateJoinToken),
    RedeemJoinToken {
        id: TokenId,
        node: NodeName,
        machine: MachineIdentity,
    },

    CreateControllerToken(CreateControllerToken),
    AdmitController(AdmitController),
    RemoveController {
        id: u64,
    },

    RegisterNode {
        node: NodeName,
        facts: Box<NodeFacts>,
    },
    ReportNode {
        node: NodeName,
        reports: Vec<Report>,
    },

    PlaceJobs {
        placements: Vec<Placement>,
    },
    /// Runs every transition that is due.
    AdvanceTime,
    /// `silent_for` is how long the leader has heard nothing, on its monotonic clock.
    SetLiveness {
        node: NodeName,
        liveness: Liveness,
        silent_for: Millis,
    },
    SuspendNode {
        node: NodeName,
        reason: String,
    },
    RecordRefusals {
        refusals: Vec<RefusedRequests>,
    },
    /// Each replica takes its state's digest after this entry; those who had another `digest` after entry
    /// `index` than most stop. Compared only by controllers that are built with the same `core`.
    CheckState {
        index: u64,
        core: String,
        /// Absent where nothing is to be compared yet.
        digest: Option<String>,
    },
    /// Who may come in: certificates, accounts.
    Access(AccessCommand),
    /// The exchange of the certificate authority.
    Authority(AuthorityCommand),
    /// How a node holds people to their reservations.
    EnforceNode {
        node: NodeName,
        mode: Enforcement,
    },
    /// How windows end.
    Ending(EndingCommand),
    /// A node reboots once it is empty.
    Reboot(RebootCommand),
    /// How much people may reserve.
    Limits(LimitsCommand),
    /// Defaults for jobs that say nothing themselves; a value that is absent stays.
    SetJobDefaults {
        /// Zero: never.
        stop_after: Option<Millis>,
        without_gpus_percent: Option<u8>,
    },
    /// The oldest audit records leave the controllers.
    PruneAudit(Prune),
}

impl Command {
    /// Stable name for logs and the audit.
    pub fn name(&self) -> &'static str {
        match self {
            Command::InitCluster { .. } => "init_cluster",
            Command::SetClusterVersion { .. } => "set_cluster_version",
            Command::CreateReservation(_) => "create_reservation",
            Command::ImportReservations { .. } => "import_reservations",
            Command::UndoImport { .. } => "undo_import",
            Command::ExtendReservation { .. } => "extend_reservation",
            Command::ReleaseReservation { .. } => "release_reservation",
            Command::SubmitJob(_) => "submit_job",
            Command::CancelJob { .. } => "cancel_job",
            Command::RestartJob { .. } => "restart_job",
            Command::SetJobTimeLimit { .. } => "set_job_time_limit",
            Command::RemoveJob { .. } => "remove_job",
            Command::AskCheckpoint { .. } => "ask_checkpoint",
            Command::CordonNode { .. } => "cordon_node",
            Command::UncordonNode { .. } => "uncordon_node",
            Command::DrainNode { .. } => "drain_node",
            Command::DeclareGpuFree { .. } => "declare_gpu_free",
            Command::ClearGpu { .. } => "clear_gpu",
            Command::ForgetGpu { .. } => "forget_gpu",
            Command::OrderImagesRemoval { .. } => "order_images_removal",
            Command::WithdrawToken { .. } => "withdraw_token",
            Command::ThawEvictions => "thaw_evictions",
            Command::ResetClock { .. } => "reset_clock",
            Command::CreateJoinToken(_) => "create_join_token",
            Command::RedeemJoinToken { .. } => "redeem_join_token",
            Command::CreateControllerToken(_) => "create_controller_token",
            Command::AdmitController(_) => "admit_controller",
            Command::RemoveController { .. } => "remove_controller",
            Command::RegisterNode { .. } => "register_node",
            Command::ReportNode { .. } => "report_node",
            Command::PlaceJobs { .. } => "place_jobs",
            Command::AdvanceTime => "advance_time",
            Command::SetLiveness { .. } => "set_liveness",
            Command::SuspendNode { .. } => "suspend_node",
            Command::RecordRefusals { .. } => "record_refusals",
            Command::CheckState { .. } => "check_state",
            Command::Access(command) => command.name(),
            Command::Authority(command) => command.name(),
            Command::EnforceNode { .. } => "enforce_node",
            Command::Ending(command) => command.name(),
            Command::Reboot(command) => command.name(),
            Command::Limits(command) => command.name(),
            Command::SetJobDefaults { .. } => "set_job_defaults",
            Command::PruneAudit(_) => "prune_audit",
        }
    }

    /// The cluster version from which on it may be proposed: then every member knows it. What comes after 0.1 gets a new
    /// version here, and [`CLUSTER_VERSION_MAX`] rises with it.
    pub fn since_version(&self) -> u32 {
        1
    }

    /// Whether something may be placed after it that could not before, or the reverse.
    pub fn may_change_the_plan(&self) -> bool {
        match self {
            Command::ReportNode { reports, .. } => reports.iter().any(|report| match report {
                Report::Ended { .. }
                | Report::Released { .. }
                | Report::Conditions { .. }
                | Report::Found(_)
                | Report::Holdings { .. }
                | Report::Facts { .. }
                | Report::Window(_)
                | Report::StoppedAlone { .. } => true,
                Report::Enforcement(_)
                | Report::Reboot { .. }
                | Report::Use { .. }
                | Report::Holders { .. }
                | Report::Started { .. }
                | Report::DeferralTaken { .. }
                | Report::Checkpoint { .. }
                | Report::CheckpointChanged { .. }
                | Report::CheckpointNoted { .. }
                | Report::FilesRemoved { .. }
                | Report::Resumed { .. } => false,
                // A place that is held for it may not be one.
                Report::Probed { problem, .. } => problem.is_some(),
            }),
            Command::Access(command) => command.may_change_the_plan(),
            // Clearing changes the plan when the node reports that it is done.
            Command::ClearGpu { .. }
            | Command::InitCluster { .. }
            | Command::SetClusterVersion { .. }
            | Command::CreateJoinToken(_)
            | Command::RedeemJoinToken { .. }
            | Command::CreateControllerToken(_)
            | Command::AdmitController(_)
            | Command::RemoveController { .. }
            | Command::CheckState { .. }
            | Command::Authority(_)
            | Command::EnforceNode { .. }
            | Command::Ending(_)
            | Command::Limits(_)
            | Command::SetJobDefaults { .. }
            | Command::PruneAudit(_)
            | Command::RemoveJob { .. }
            | Command::AskCheckpoint { .. }
            | Command::WithdrawToken { .. }
            | Command::OrderImagesRemoval { .. }
            | Command::RecordRefusals { .. } => false,
            Command::CreateReservation(_)
            | Command::ImportReservations { .. }
            | Command::UndoImport { .. }
            | Command::ExtendReservation { .. }
            | Command::ReleaseReservation { .. }
            | Command::SubmitJob(_)
            | Command::CancelJob { .. }
            | Command::RestartJob { .. }
            | Command::SetJobTimeLimit { .. }
            | Command::CordonNode { .. }
            | Command::UncordonNode { .. }
            | Command::DrainNode { .. }
            | Command::Reboot(_)
            | Command::DeclareGpuFree { .. }
            | Command::ForgetGpu { .. }
            | Command::ThawEvictions
            | Command::ResetClock { .. }
            | Command::RegisterNode { .. }
            | Command::PlaceJobs { .. }
            | Command::AdvanceTime
            | Command::SetLiveness { .. }
            | Command::SuspendNode { .. } => true,
        }
    }
}
