//! `run` and `exec`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::checkpoint::RunCheckpointArgs;
use super::reservation::WishArgs;
use crate::consent::NewUsers;

/// `SRC:DST[:ro]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) read_only: bool,
}

impl FromStr for Volume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, destination, read_only) = match parts.as_slice() {
            [source, destination] | [source, destination, "rw"] => (source, destination, false),
            [source, destination, "ro"] => (source, destination, true),
            _ => return Err("write SRC:DST or SRC:DST:ro".to_owned()),
        };
        if source.is_empty() {
            return Err("the source is empty; write SRC:DST".to_owned());
        }
        if !destination.starts_with('/') {
            return Err(format!("{destination:?} must be a whole path, beginning with /"));
        }
        let (source, destination) = ((*source).to_owned(), (*destination).to_owned());
        Ok(Volume { source, destination, read_only })
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The job runs as you. With --image host it runs in your current directory, with your environment. With \
    any other image it runs in the image's directory, with only the variables that -e names.\n\n\
    Without -d, fleet shows the output here and returns the job's exit code: 128 + n after signal n, 125 if fleet \
    itself failed.\n\n\
    Ctrl-C on a terminal asks whether to detach or to cancel; a second Ctrl-C cancels. Without a terminal, SIGINT \
    cancels the job. SIGTERM, SIGHUP and a closed laptop never cancel it: the job keeps running, and `fleet logs -f` \
    shows it again. In a terminal session (-i --tty), Ctrl-P Ctrl-Q detaches.\n\n\
    Examples:\n  \
    fleet run -G 1 -- python3 train.py\n  \
    fleet run -d -G v100:2 -t 20h --checkpoint-dir runs/a -- python3 train.py\n  \
    fleet run -G 4 -t 20h --dry-run -- python3 train.py\n  \
    fleet run -G 1 -i --tty -- bash"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) wish: WishArgs,
    /// Time limit of the job [default: 24h, less where others wait; in a reservation, until its end]
    #[arg(short = 't', long = "time", value_name = "LENGTH")]
    pub(crate) time: Option<String>,
    /// Do not start the job before this time
    #[arg(long, value_name = "TIME", conflicts_with = "immediate")]
    pub(crate) begin: Option<String>,
    /// `host` (the node's own system), a registry's NAME[:TAG], an OCI archive or folder on the node, or
    /// docker-daemon:NAME[:TAG]
    #[allow(rustdoc::broken_intra_doc_links, reason = "clap prints the brackets as they are")]
    #[arg(long, value_name = "IMAGE", default_value = "host")]
    pub(crate) image: String,
    /// Run within this reservation
    #[arg(long, value_name = "RESERVATION")]
    pub(crate) reservation: Option<String>,
    /// CPU cores [default: as much of the node as the job has of its GPUs; without GPUs: 1]
    #[arg(short, long, value_name = "CPUS", value_parser = crate::sizes::parse_cores)]
    pub(crate) cpus: Option<u64>,
    /// Host memory, like 16G [default: as much of the node as the job has of its GPUs; without GPUs: the part of one core]
    #[arg(long, value_name = "SIZE", value_parser = crate::sizes::parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Set a variable, or pass on the one you have
    #[arg(short, long, value_name = "K[=V]")]
    pub(crate) env: Vec<String>,
    /// Mount a path of the node into the job
    #[arg(short, long = "volume", value_name = "SRC:DST[:ro]")]
    pub(crate) volumes: Vec<Volume>,
    /// Directory the job starts in [default: this one; with an image, the image's]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    #[command(flatten)]
    pub(crate) checkpoint: RunCheckpointArgs,
    /// If the GPU degrades or the node drains, wait at most this long for the next checkpoint, then move the job
    /// [default: 24h]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) max_deferral: Option<String>,
    /// How often to restart the job after a node or GPU has failed; moves at a checkpoint do not count [default: 3 with
    /// checkpoints, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) restarts: Option<u32>,
    /// Time between SIGTERM and SIGKILL [default: 30s]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) stop_grace: Option<String>,
    /// If the node is silent this long, stop the job there and restart it elsewhere; or `never` [default: see
    /// `fleet job defaults`]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) stop_after: Option<String>,
    /// Job name, at most 64 bytes, or 21 letters like 日 [default: the program's]
    #[arg(short = 'J', long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Project that the job counts for
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
    /// Class of the job: what comes first, and what may take whose place; see `fleet class list` [default: normal]
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Run the job for another user; admins only
    #[arg(long = "for", value_name = "USER")]
    pub(crate) owner: Option<String>,
    #[command(flatten)]
    pub(crate) new_users: NewUsers,
    /// Pass your standard input to the program
    #[arg(short, long, conflicts_with = "detach")]
    pub(crate) interactive: bool,
    /// Give the program a terminal. -it works as in docker; -t alone is --time
    #[arg(long)]
    pub(crate) tty: bool,
    /// Do not wait for the job: print its id
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// File for the output of a detached job, or `none` [default: NAME-JOB.log in the job's directory]
    #[arg(long = "output", value_name = "FILE", requires = "detach")]
    pub(crate) output_file: Option<PathBuf>,
    /// Fail if the GPUs are not free now, instead of waiting
    #[arg(long)]
    pub(crate) immediate: bool,
    /// Hold the job: it waits until you type `fleet job release`
    #[arg(long, conflicts_with = "immediate")]
    pub(crate) hold: bool,
    /// Only show where and when the job would start, and what would leave for it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The program and its arguments [default with --image: the image's own program]
    #[arg(required_unless_present = "image", trailing_var_arg = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Only watch: what you type does not reach the job
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// First show the last N lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) tail: u32,
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// A file or folder here, or JOB:PATH
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// An existing folder, or the new name
    #[arg(value_name = "TO")]
    pub(crate) to: String,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Pass your standard input to the program
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the program a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Set a variable, or pass on the one you have
    #[arg(short, long, value_name = "K[=V]")]
    pub(crate) env: Vec<String>,
    /// Directory the program starts in [default: the job's]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}
