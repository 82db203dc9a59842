//! The command line: what can be typed. Daily verbs first, then nouns.
//!
//! One file per noun. Only shape is checked here; texts such as times are read by the command, which
//! knows the clock and the time zone. Help texts are held by golden tests.

mod audit;
mod authority;
mod checkpoint;
mod class;
mod controller;
mod dev;
mod docker;
mod doctor;
mod feed;
mod help;
mod image;
mod job;
mod login;
mod node;
mod notify;
mod operations;
mod output;
mod project;
mod reservation;
mod run;
mod series;
mod snapshot;
mod typed;
mod usage;
mod user;
mod web;
mod wrong;

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Parser, Subcommand};

use crate::client::RequestId;

pub(crate) use audit::{AuditArgs, AuditFormat, AuditPruneArgs, AuditVerb, ExportArgs, VerifyArgs};
pub(crate) use authority::{
    AbortArgs, AuthorityArgs, AuthorityStatusArgs, AuthorityVerb, RotateArgs, SkipArgs,
};
pub(crate) use checkpoint::{
    CheckpointArgs, CheckpointListArgs, CheckpointNowArgs, CheckpointVerb, JobRestartArgs, Retry,
    RunCheckpointArgs, Switch,
};
pub(crate) use class::{
    ClassArgs, ClassCreateArgs, ClassListArgs, ClassRmArgs, ClassRules, ClassSetArgs,
    ClassShowArgs, ClassVerb,
};
pub(crate) use controller::{
    ControllerAddArgs, ControllerRemoveArgs, ControllerStatusArgs, TransferArgs,
};
pub(crate) use dev::{AgentArgs, DEV_GPUS, DEV_NODES, DevArgs, DevGpus, DevVerb, FaultArgs};
pub(crate) use docker::{DockerArgs, DockerRunArgs, DockerVerb};
pub(crate) use doctor::DoctorArgs;
pub(crate) use feed::{CalendarVerb, FeedCreateArgs, FeedListArgs, FeedRmArgs, FeedVerb};
pub(crate) use image::{
    ImageArgs, ImageListArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs, ImageVerb,
};
pub(crate) use job::{
    CancelArgs, JobArgs, JobDefaultsArgs, JobHoldArgs, JobListArgs, JobReleaseArgs, JobRmArgs,
    JobSetArgs, JobShowArgs, JobVerb, LogsArgs, PsArgs, WhyArgs,
};
pub(crate) use login::LoginArgs;
pub(crate) use node::{
    ClearArgs, ControllerArgs, ControllerVerb, CordonArgs, DeclareFreeArgs, DrainArgs, Enforce,
    EnforceArgs, ForgetArgs, GpuArgs, GpuHistoryArgs, GpuListArgs, GpuVerb, HeldArgs, NodeArgs,
    NodeLeaveArgs, NodeListArgs, NodeShowArgs, NodeVerb, RebootArgs, ResetClockArgs, StatusArgs,
    ThawArgs, TokenCreateArgs, TokenListArgs, TokenVerb, TokenWithdrawArgs, TopArgs, UncordonArgs,
    VouchArgs,
};
pub(crate) use notify::{
    NoticeKindArg, NotifyArgs, NotifySetArgs, NotifyShowArgs, NotifyTestArgs, NotifyVerb,
};
pub(crate) use operations::{DebugBundleArgs, LogLevelArgs};
pub(crate) use output::{Format, OutputArgs, OwnerArgs, WatchArgs};
pub(crate) use project::{
    ProjectArgs, ProjectCreateArgs, ProjectLimitArgs, ProjectListArgs, ProjectRmArgs,
    ProjectSetArgs, ProjectShowArgs, ProjectVerb, ShareArgs,
};
pub(crate) use reservation::{
    Adopted, AtEnd, CalendarArgs, CalendarShowArgs, ExtendArgs, ReleaseArgs, ReservationAcceptArgs,
    ReservationApproveArgs, ReservationApproversArgs, ReservationArgs, ReservationDeclineArgs,
    ReservationDenyArgs, ReservationExportArgs, ReservationImportArgs, ReservationLimitsArgs,
    ReservationListArgs, ReservationRulesArgs, ReservationSetArgs, ReservationShowArgs,
    ReservationVerb, ReserveArgs, SshArgs, WishArgs,
};
pub(crate) use run::{AttachArgs, CpArgs, ExecArgs, RunArgs};
pub(crate) use series::SeriesArgs;
pub(crate) use snapshot::{SnapshotArgs, SnapshotSaveArgs, SnapshotVerb};
pub(crate) use typed::put_right;
pub(crate) use usage::UsageArgs;
pub(crate) use user::{
    UserArgs, UserDisableArgs, UserEnableArgs, UserListArgs, UserRevokeArgs, UserShowArgs, UserVerb,
};
pub(crate) use web::WebArgs;
pub(crate) use wrong::failure as wrong;

/// Share the lab's GPU machines: reserve GPUs, run jobs, see what happened.
#[derive(Debug, Parser)]
#[command(
    name = "fleet",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    help_template = help::TEMPLATE,
    before_help = help::overview(),
    after_help = "Times: now, +2h, noon, 14:00, tomorrow 09:00, monday 09:00, 2026-11-22 09:00, RFC 3339. \
                  Lengths: 8h, 90m, 1d12h, 1-12:00:00.\n\n\
                  You can shorten an id while it stays unique. @last is your newest job or reservation.\n\n\
                  Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 denied, 5 conflict. More of them: \
                  6 no capacity, 7 timeout, 8 controller unreachable. run and exec return the program's code."
)]
pub(crate) struct Cli {
    /// Configuration file [default: $FLEET_CONFIG, or /etc/fleet/fleet.toml]
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
    /// Print JSON, same as -o json
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Repeat a command that got no answer; the message has the id, and nothing is done twice
    #[arg(long, global = true, value_name = "ID", hide = true, help_heading = "Everywhere")]
    pub(crate) request_id: Option<RequestId>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Reserve GPUs for yourself, now or later
    Reserve(ReserveArgs),
    /// End a reservation now
    Release(ReleaseArgs),
    /// Change the end of a reservation
    Extend(ExtendArgs),
    /// Log in to the node of your reservation
    Ssh(SshArgs),
    /// Run a program as a job
    Run(Box<RunArgs>),
    /// Run a program inside a running job
    Exec(ExecArgs),
    /// Show a job's output, and type to it
    #[command(
        after_help = "Ctrl-P Ctrl-Q leaves the job running. A job with a terminal gets every other key, also Ctrl-C.\n\nExamples:\n  fleet attach @last"
    )]
    Attach(AttachArgs),
    /// Copy files to or from a running job
    #[command(
        after_help = "Paths in the job are as its program sees them; relative paths start in its folder. The job needs \
                            tar. fleet cp replaces an existing file.\n\n\
                            Examples:\n  \
                            fleet cp job-4k7wq2:runs/a.log .\n  \
                            fleet cp data/ job-4k7wq2:/tmp/"
    )]
    Cp(CpArgs),
    /// Run `docker` here with your reserved GPUs
    Docker(DockerArgs),
    /// Show your jobs
    Ps(PsArgs),
    /// Show what a job printed
    Logs(LogsArgs),
    /// Stop a job; it does not start again
    Cancel(CancelArgs),
    /// Show what happened to a job or node, and why
    Why(WhyArgs),
    /// Show who uses which GPU, and what is free
    Status(StatusArgs),
    /// Show who has which GPU when
    Calendar(CalendarArgs),
    /// Show who had how much, and who is next
    Share(ShareArgs),
    /// Show who held how many GPU-hours in a month
    Usage(UsageArgs),
    /// Log a browser in to fleet's web page
    Web(WebArgs),
    /// Show and set what fleet mails to you
    Notify(NotifyArgs),
    /// Show your GPUs on this machine
    Held(HeldArgs),
    /// Watch GPUs and jobs live
    Top(TopArgs),
    /// Find problems of this machine and the fleet
    Doctor(DoctorArgs),
    /// List, drain, reboot, add and remove nodes
    Node(NodeArgs),
    /// List GPUs and their history, clear faults
    Gpu(GpuArgs),
    /// List, change, restart and remove jobs
    Job(JobArgs),
    /// List, set, import, export reservations; rules
    Reservation(ReservationArgs),
    /// Images stored on nodes: list, pull, remove
    Image(ImageArgs),
    /// List checkpoints, or ask a job for one
    Checkpoint(CheckpointArgs),
    /// List, create and change projects
    Project(ProjectArgs),
    /// List, create and change classes of jobs
    Class(ClassArgs),
    /// List, disable and enable users
    User(UserArgs),
    /// Get a certificate now (rarely needed)
    Login(LoginArgs),
    /// Export, verify and prune the audit log
    Audit(AuditArgs),
    /// List, add, remove and back up controllers
    Controller(ControllerArgs),
    /// Try fleet here, with simulated GPUs
    Dev(DevArgs),
    /// Print a shell's completion script
    #[command(
        after_help = "Examples:\n  fleet completion bash > ~/.local/share/bash-completion/completions/fleet"
    )]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder
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
            Verb::Audit(args) => !matches!(args.verb, AuditVerb::Verify(_)),
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
            | Verb::Calendar(_)
            | Verb::Share(_)
            | Verb::Usage(_)
            | Verb::Project(_)
            | Verb::Class(_)
            | Verb::Web(_)
            | Verb::Notify(_)
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
