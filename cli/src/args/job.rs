//! `ps`, `logs`, `cancel`, `why`, `job`.

use clap::{ArgGroup, Args, Subcommand};

use super::checkpoint::JobRestartArgs;
use super::output::{OutputArgs, OwnerArgs, StaleArgs, WatchArgs};
use crate::consent::Consent;

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) list: JobListArgs,
    /// Show the jobs of all users
    #[arg(short = 'A', long, conflicts_with_all = ["me", "user"])]
    pub(crate) everybody: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// Keep printing until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<u32>,
    /// Only this attempt [default: the newest; with -f also later ones]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The jobs
    #[arg(required_unless_present_any = ["mine", "name", "queued"], value_name = "JOB")]
    pub(crate) ids: Vec<String>,
    /// All your jobs that have not ended
    #[arg(long, conflicts_with = "ids")]
    pub(crate) mine: bool,
    /// All your jobs with this name
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    pub(crate) name: Option<String>,
    /// Only your jobs that have not started
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
    /// Show events from this time on: 2h (ago), 09:00, tuesday, 2026-11-22
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// Show events before this time
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) until: Option<String>,
    /// Show the newest N events [default: 200, at most 1000]
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
    /// Show one job
    Show(JobShowArgs),
    /// Change the time limit of a job that waits or runs
    Set(JobSetArgs),
    /// Keep queued jobs from starting until they are released
    Hold(JobHoldArgs),
    /// Let held jobs start again
    Release(JobReleaseArgs),
    /// Queue an ended job again, or answer one that waits for your decision
    Restart(JobRestartArgs),
    /// Remove ended jobs from the list
    Rm(JobRmArgs),
    /// Show the fleet's defaults for jobs; admins can change them
    Defaults(JobDefaultsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "--stop-after counts for jobs submitted from then on. An option of `fleet run` goes before it. \
    Without this default, a job of a dead node stays `running` until an admin types `fleet gpu declare-free`. \
    A network failure that lasts longer than the default stops the jobs on the nodes behind it.\n\n\
    --without-gpus counts for jobs that start from then on. The rest of the node stays for its GPUs, so that work on \
    cores alone leaves no GPU without cores. A job on GPUs that names neither -c nor --memory gets its GPUs' portion of \
    the node. If the cores are taken it gets less, but never less than what stays for its GPUs.\n\n\
    --places-kept: for so many of the jobs that wait, at most one of each user, fleet keeps the place where they can start \
    first. Later jobs may run there if they end before, or fit beside. More places help large jobs.\n\n\
    Examples:\n  \
    fleet job defaults\n  \
    fleet job defaults --stop-after 30m\n  \
    fleet job defaults --stop-after never\n  \
    fleet job defaults --without-gpus 30%\n  \
    fleet job defaults --places-kept 8"
)]
pub(crate) struct JobDefaultsArgs {
    /// If a node is unreachable this long, its jobs stop there and restart elsewhere; or `never` [initially: never]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) stop_after: Option<String>,
    /// Most cores and memory of a node with GPUs for all its jobs without GPUs, 0% to 90% [initially: 50%]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) without_gpus: Option<u32>,
    /// For how many waiting jobs places are kept, 1 to 64 [initially: 16]
    #[arg(long, value_name = "N")]
    pub(crate) places_kept: Option<u32>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `30%` or `30`.
fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number.parse().map_err(|_| format!("\"{text}\" is not a percentage such as 30%"))
}

#[derive(Debug, Args)]
#[command(
    after_help = "Checkpoints stay. fleet removes only its own files beside them: the marker, the lists, the kept copies \
    (.fleet/JOB/kept). Afterwards you cannot restart the job. A new job can continue from a checkpoint: \
    `fleet run --resume-from PATH`. The audit log keeps the job's story.\n\n\
    Examples:\n  \
    fleet job rm @last"
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
    after_help = "A held job keeps its place in the order of submission, and other jobs do not wait for it. The time of \
    the hold does not count as waiting. Only queued jobs can be held: to stop a running job, type `fleet cancel`, then \
    `fleet job restart`. If an admin holds the job of another user, only an admin can release it.\n\n\
    Examples:\n  \
    fleet job hold @last\n  \
    fleet run --hold -d -G 1 -- python3 train.py"
)]
pub(crate) struct JobHoldArgs {
    /// Jobs that wait
    #[arg(value_name = "JOB", required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The job returns to its place in the order of submission. A job with --begin still waits until that \
    time.\n\n\
    Examples:\n  \
    fleet job release @last"
)]
pub(crate) struct JobReleaseArgs {
    /// Jobs that are held
    #[arg(value_name = "JOB", required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The limit counts from the job's start, over all its attempts. It cannot stop a job: fleet refuses a limit \
    that the job has passed already. fleet also refuses a limit that overlaps a reservation of the job's GPUs. A longer \
    limit may delay waiting jobs. The class changes at once, also while the job runs.\n\n\
    Examples:\n  \
    fleet job set @last -t 12h\n  \
    fleet job set @last --class scavenger"
)]
#[command(group = ArgGroup::new("what").required(true).args(["time", "class"]))]
pub(crate) struct JobSetArgs {
    /// A job that has not ended
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// The new time limit, like 12h
    #[arg(short = 't', long = "time", value_name = "LENGTH")]
    pub(crate) time: Option<String>,
    /// The class that it is of from now on
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobListArgs {
    /// Show ended jobs too
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
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
