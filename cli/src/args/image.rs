//! `image`: the images in the nodes' image stores.

use clap::{Args, Subcommand};

use super::output::OutputArgs;
use crate::consent::Consent;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ImageVerb>,
    #[command(flatten)]
    pub(crate) list: ImageListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageVerb {
    /// List the images stored on nodes, and the jobs that use them
    List(ImageListArgs),
    /// Pull an image from a registry to nodes, so that jobs need not wait
    Pull(ImagePullArgs),
    /// Remove an image from nodes; admins only
    Rm(ImageRmArgs),
    /// Remove all unused images from nodes; admins only
    Prune(ImagePruneArgs),
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ImageListArgs {
    /// Only these nodes: titan01, titan01,titan02 or titan[01-12] [default: all that answer]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The nodes pull the image, with their own credentials and mirrors. Ctrl-C stops the pull; the next pull \
    resumes where this one stopped. You never need this command: `fleet run --image` pulls a missing image.\n\n\
    Examples:\n  \
    fleet image pull python:3.12 --node titan[01-12]"
)]
pub(crate) struct ImagePullArgs {
    /// The image, as in docker: python:3.12, ghcr.io/org/name@sha256:…
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// Node names: titan01, titan01,titan02 or titan[01-12]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "This removes all names of the image. fleet keeps an image that a job uses or that a node is pulling. A \
    later job pulls the image again.\n\n\
    Examples:\n  \
    fleet image rm python:3.12 --node titan01"
)]
pub(crate) struct ImageRmArgs {
    /// Name, file, or at least 6 digits of the digest, see `fleet image list`
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// Node names: titan01, titan01,titan02 or titan[01-12]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePruneArgs {
    /// Node names: titan01, titan01,titan02 or titan[01-12]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: String,
    /// Only show what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
