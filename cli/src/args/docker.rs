//! `docker`: containers of this machine's dockerd.

use std::ffi::OsString;

use clap::{ArgAction, Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct DockerArgs {
    #[command(subcommand)]
    pub(crate) verb: DockerVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DockerVerb {
    /// Run a container here with your reserved GPUs
    Run(DockerRunArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Calls `docker run` with the GPUs of your reservations on this machine. When a reservation ends, the \
    container loses its GPUs. All arguments are passed to docker.\n\n\
    A job (`fleet run --image IMAGE`) needs no rights in docker, and fleet can restart it on another node.\n\n\
    Examples:\n  \
    fleet docker run --rm -it pytorch/pytorch bash\n  \
    fleet docker run --rm nvidia/cuda:12.4.1-base-ubuntu22.04 nvidia-smi -L"
)]
#[command(disable_help_flag = true)]
pub(crate) struct DockerRunArgs {
    /// Print help (`-h` is docker's option for the host name)
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Options of `docker run`, the image, the command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub(crate) arguments: Vec<OsString>,
}
