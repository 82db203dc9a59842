//! `image`: what lies in the nodes' image stores.

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
    /// List the images that lie on nodes, and who uses them
    List(ImageListArgs),
    /// Have nodes pull an image of a registry, so that a job need not wait for it
    Pull(ImagePullArgs),
    /// Remove an image from nodes; admins only
    Rm(ImageRmArgs),
    /// Remove all images that nobody uses from nodes; admins only
    Prune(ImagePruneArgs),
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ImageListArgs {
    /// Only of these nodes: titan01, titan01,titan02 or titan[01-12]; all that answer unless said
    #[arg(long, value_name = "NODES")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The nodes pull, with their own credentials and mirrors. Ctrl-C stops it; what has come is gone on\n\
    with the next time. Nobody needs this: `fleet run --image` pulls what is missing."
)]
pub(crate) struct ImagePullArgs {
    /// The image, as docker's users write it: python:3.12, ghcr.io/org/name@sha256:…
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// Where to: titan01, titan01,titan02 or titan[01-12]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "All names of the image go with it. An image that a job has, or that is being pulled, is not removed.\n\
    A job that wants it later pulls it again."
)]
pub(crate) struct ImageRmArgs {
    /// A name, a file, or at least 6 digits of a digest, as `fleet image list` shows them
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// Where from: titan01, titan01,titan02 or titan[01-12]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePruneArgs {
    /// Where: titan01, titan01,titan02 or titan[01-12]
    #[arg(long, value_name = "NODES")]
    pub(crate) node: String,
    /// Only show what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
