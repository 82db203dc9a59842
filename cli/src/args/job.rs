//! `ps`, `logs`, `cancel`, `why`, `job`.

use clap::{Args, Subcommand};

use super::checkpoint::JobRestartArgs;
use super::output::{OutputArgs, OwnerArgs, StaleArgs, WatchArgs};
use crate::consent::Consent;

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) list: JobListArgs,
    /// Everybody's
    #[arg(short = 'A', long, conflicts_with_all = ["me", "user"])]
    pub(crate) everybody: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// Go on until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<u32>,
    /// Only this attempt [default: the newest, and with -f those that follow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The jobs
    #[arg(required_unless_present_any = ["mine", "name", "queued"], value_name = "JOB")]
    pub(crate) ids: Vec<String>,
    /// All of mine that have not ended
    #[arg(long, conflicts_with = "ids")]
    pub(crate) mine: bool,
    /// All of mine with this name
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    pub(crate) name: Option<String>,
    /// Only those of mine that have not begun
    #[arg(long, conflicts_with = "ids")]
    pub(crate) queued: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// A job, reservation, GPU or node
    #[arg(value_name = "THING")]
    pub(crate) id: String,
    /// What happened from this time on: 2h, 09:00, tuesday, 2026-11-22
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// What happened before this time
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) until: Option<String>,
    /// The newest N lines of its story [default: 200, at most 1000]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) lines: Option<u32>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<JobVerb>,
    #[command(flatten)]
    pub(crate) list: JobListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// List jobs that have not ended
    List(JobListArgs),
    /// Show one
    Show(JobShowArgs),
    /// Change the time limit of a job that waits or runs
    Set(JobSetArgs),
    /// Queue an ended job again, or answer one that waits for your decision
    Restart(JobRestartArgs),
    /// Remove ended jobs from the list
    Rm(JobRmArgs),
    /// Show the fleet's defaults for jobs; admins can change them
    Defaults(JobDefaultsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "The defaults count for jobs submitted from then on. An option of `fleet run` goes before them. \
    Without this default, a job of a dead node stays `running` until an admin types `fleet gpu declare-free`. \
    A network failure that lasts longer than the default stops the jobs on the nodes behind it.\n\n\
    Examples:\n  \
    fleet job defaults\n  \
    fleet job defaults --stop-after 30m\n  \
    fleet job defaults --stop-after never"
)]
pub(crate) struct JobDefaultsArgs {
    /// If a node is unreachable this long, its jobs stop there and restart elsewhere; or `never` [initially: never]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) stop_after: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Checkpoints stay. fleet removes what it wrote beside them: the marker, the lists, the kept copies (.fleet/JOB/kept).\n\
    The job cannot be restarted after that. A new one continues from a checkpoint: fleet run --resume-from PATH.\n\
    The audit log still has its story."
)]
pub(crate) struct JobRmArgs {
    /// Jobs that have ended
    #[arg(value_name = "JOB", required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The limit counts from the job's start, over all its attempts. It cannot stop a job: fleet refuses a limit \
    that the job has passed already. Fleet also refuses a limit that overlaps a reservation of the job's GPUs. Jobs that \
    wait may start later than expected when you make a limit longer."
)]
pub(crate) struct JobSetArgs {
    /// A job that has not ended
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// How long it may run at most
    #[arg(short = 't', long = "time", value_name = "LENGTH", required = true)]
    pub(crate) time: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobListArgs {
    /// Ended ones too
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
    /// Only on this node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct JobShowArgs {
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
