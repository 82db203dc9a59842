//! The command line: what can be typed. Daily verbs first, then nouns.
//!
//! One file per noun. Only shape is checked here; texts such as times are read by the command, which
//! knows the clock and the time zone. Help texts are held by golden tests.

mod audit;
mod authority;
mod checkpoint;
mod controller;
mod dev;
mod docker;
mod doctor;
mod image;
mod job;
mod login;
mod node;
mod operations;
mod output;
mod reservation;
mod run;
mod snapshot;
mod typed;
mod user;
mod wrong;

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Parser, Subcommand};

use crate::client::RequestId;

pub(crate) use audit::{AuditArgs, AuditFormat, AuditVerb, ExportArgs, VerifyArgs};
pub(crate) use authority::{
    AbortArgs, AuthorityArgs, AuthorityStatusArgs, AuthorityVerb, RotateArgs, SkipArgs,
};
pub(crate) use checkpoint::{
    CheckpointArgs, CheckpointListArgs, CheckpointNowArgs, CheckpointVerb, JobRestartArgs, Retry,
    RunCheckpointArgs, Switch,
};
pub(crate) use controller::{
    ControllerAddArgs, ControllerRemoveArgs, ControllerStatusArgs, TransferArgs,
};
pub(crate) use dev::{AgentArgs, DEV_GPUS, DEV_NODES, DevArgs, DevGpus, DevVerb, FaultArgs};
pub(crate) use docker::{DockerArgs, DockerRunArgs, DockerVerb};
pub(crate) use doctor::DoctorArgs;
pub(crate) use image::{
    ImageArgs, ImageListArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs, ImageVerb,
};
pub(crate) use job::{
    CancelArgs, JobArgs, JobDefaultsArgs, JobListArgs, JobRmArgs, JobSetArgs, JobShowArgs, JobVerb,
    LogsArgs, PsArgs, WhyArgs,
};
pub(crate) use login::LoginArgs;
pub(crate) use node::{
    ClearArgs, ControllerArgs, ControllerVerb, CordonArgs, DeclareFreeArgs, DrainArgs, Enforce,
    EnforceArgs, ForgetArgs, GpuArgs, GpuHistoryArgs, GpuListArgs, GpuVerb, HeldArgs, NodeArgs,
    NodeLeaveArgs, NodeListArgs, NodeShowArgs, NodeVerb, RebootArgs, ResetClockArgs, StatusArgs,
    ThawArgs, TokenCreateArgs, TokenListArgs, TokenVerb, TokenWithdrawArgs, TopArgs, UncordonArgs,
    VouchArgs,
};
pub(crate) use operations::{DebugBundleArgs, LogLevelArgs};
pub(crate) use output::{Format, OutputArgs, OwnerArgs, WatchArgs};
pub(crate) use reservation::{
    Adopted, AtEnd, ExtendArgs, ReleaseArgs, ReservationArgs, ReservationExportArgs,
    ReservationImportArgs, ReservationLimitsArgs, ReservationListArgs, ReservationRulesArgs,
    ReservationShowArgs, ReservationVerb, ReserveArgs, SshArgs, WishArgs,
};
pub(crate) use run::{AttachArgs, CpArgs, ExecArgs, RunArgs};
pub(crate) use snapshot::{SnapshotArgs, SnapshotSaveArgs, SnapshotVerb};
pub(crate) use typed::put_right;
pub(crate) use user::{
    UserArgs, UserDisableArgs, UserEnableArgs, UserListArgs, UserRevokeArgs, UserShowArgs, UserVerb,
};
pub(crate) use wrong::failure as wrong;

/// Share the lab's GPU machines: reserve GPUs, run jobs, see what happened.
#[derive(Debug, Parser)]
#[command(
    name = "fleet",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Times: now, +2h, noon, 14:00, tomorrow 09:00, monday 09:00, 2026-11-22 09:00, RFC 3339.\n\
                  Lengths: 8h, 90m, 1d12h, 1-12:00:00. Ids may be shortened while they stay unique;\n\
                  @last is your newest job or reservation.\n\
                  Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 denied, 5 conflict,\n\
                  6 no capacity, 7 timeout, 8 controller unreachable; run and exec pass on the program's."
)]
pub(crate) struct Cli {
    /// Where the controller is; otherwise FLEET_CONFIG, /etc/fleet/fleet.toml, or the socket in /run/fleet
    // The variable is read by `commands::run`: clap would show the option in each usage line as if it had to be there.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        // An empty variable is as good as none.
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        help_heading = "Everywhere"
    )]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON, the same as -o json
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Repeat a command that got no answer: the id is in its message, and nothing is done twice
    #[arg(long, global = true, value_name = "ID", hide = true, help_heading = "Everywhere")]
    pub(crate) request_id: Option<RequestId>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Reserve GPUs for yourself, now or later
    Reserve(ReserveArgs),
    /// Give a reservation back
    Release(ReleaseArgs),
    /// Move the end of a reservation
    Extend(ExtendArgs),
    /// Log in where a reservation is, with its GPUs
    Ssh(SshArgs),
    /// Run a program as a job
    Run(Box<RunArgs>),
    /// Run a program inside a running job
    Exec(ExecArgs),
    /// Return to a job: see its output, and type to it if it was started with -i
    #[command(
        after_help = "Ctrl-P Ctrl-Q leaves the job running. A job with a terminal gets every other key, also Ctrl-C."
    )]
    Attach(AttachArgs),
    /// Copy files and folders to or from a running job
    #[command(
        after_help = "Paths in the job are as its program sees them, relative ones from its folder. The job needs tar.\n\
                            An existing file is replaced.\n\n\
                            Examples:\n  \
                            fleet cp job-4k7wq2:runs/a.log .\n  \
                            fleet cp data/ job-4k7wq2:/tmp/"
    )]
    Cp(CpArgs),
    /// Containers of this machine's dockerd, with the GPUs that you hold here
    Docker(DockerArgs),
    /// Show your jobs
    Ps(PsArgs),
    /// Show what a job printed
    Logs(LogsArgs),
    /// Stop a job for good
    Cancel(CancelArgs),
    /// Tell what happened to a job, reservation, GPU or node, and why
    Why(WhyArgs),
    /// Show who has what, and what is free
    Status(StatusArgs),
    /// Show which GPUs of this machine you hold now
    Held(HeldArgs),
    /// Watch GPUs and jobs
    Top(TopArgs),
    /// Find what is wrong with this machine and the fleet, and what to do
    Doctor(DoctorArgs),
    /// Nodes: list, show, cordon, drain, let join, remove
    Node(NodeArgs),
    /// GPUs: list, declare free
    Gpu(GpuArgs),
    /// Jobs of everybody: list, show
    Job(JobArgs),
    /// Reservations of everybody: list, show, import, export, rules
    Reservation(ReservationArgs),
    /// Images that lie on nodes: list, pull, remove
    Image(ImageArgs),
    /// Checkpoints that were seen
    Checkpoint(CheckpointArgs),
    /// Users: list, show, disable
    User(UserArgs),
    /// Get a certificate now
    Login(LoginArgs),
    /// The audit log: export it, verify an export
    Audit(AuditArgs),
    /// The controllers: list, add, remove, look after
    Controller(ControllerArgs),
    /// A small cluster of real processes on this machine, to play with
    Dev(DevArgs),
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
    /// Write the manual pages into a folder, which is made where it is missing
    #[command(hide = true)]
    Manual { dir: PathBuf },
}

impl Verb {
    /// Whether it talks to the controllers of the settings, and so may need a certificate.
    pub(crate) fn asks_controllers(&self) -> bool {
        match self {
            Verb::Dev(_)
            | Verb::Completion { .. }
            | Verb::Manual { .. }
            | Verb::Login(_)
            | Verb::Docker(_)
            | Verb::Held(_) => false,
            Verb::Audit(args) => matches!(args.verb, AuditVerb::Export(_)),
            Verb::Reserve(_)
            | Verb::Release(_)
            | Verb::Extend(_)
            | Verb::Ssh(_)
            | Verb::Run(_)
            | Verb::Exec(_)
            | Verb::Attach(_)
            | Verb::Cp(_)
            | Verb::Ps(_)
            | Verb::Logs(_)
            | Verb::Cancel(_)
            | Verb::Why(_)
            | Verb::Status(_)
            | Verb::Top(_)
            | Verb::Doctor(_)
            | Verb::Node(_)
            | Verb::Gpu(_)
            | Verb::Job(_)
            | Verb::Reservation(_)
            | Verb::Image(_)
            | Verb::Checkpoint(_)
            | Verb::User(_)
            | Verb::Controller(_) => true,
        }
    }
}

#[cfg(test)]
mod tests;
