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
    /// Run a container of this machine's dockerd, with the GPUs that you hold here
    Run(DockerRunArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "It is `docker run` with the GPUs of your reservations on this machine, in a control group that is held to them:\n\
    when a reservation ends, its GPUs are gone for the container as for who is logged in. All that follows is docker's.\n\n\
    A container that is not to outlive its terminal, goes on elsewhere or needs no rights in docker is a job:\n\
    fleet run --image.\n\n\
    Examples:\n  \
    fleet docker run --rm -it pytorch/pytorch bash\n  \
    fleet docker run --rm -v \"$PWD:/work\" -w /work nvidia/cuda:12.4.1-base-ubuntu22.04 nvidia-smi -L"
)]
#[command(disable_help_flag = true)]
pub(crate) struct DockerRunArgs {
    /// Print help; `-h` is docker's, and names a host
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Options of `docker run`, the image, its command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub(crate) arguments: Vec<OsString>,
}
