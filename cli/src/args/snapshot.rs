//! `fleet controller snapshot …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) verb: SnapshotVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Write a backup of the whole control plane into a file
    ///
    /// State, audit log and certificate authority, of one moment, while everything goes on. The file
    /// holds the key of the certificate authority: whoever reads it can let anybody into the fleet.
    /// It is given out on a controller's own machine only, to admins.
    /// `fleet-controller restore FILE` begins anew from it.
    Save(SnapshotSaveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotSaveArgs {
    /// Where it is written; must not be there yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Take this controller's own state, also when there is no quorum: it may lack the newest changes
    #[arg(long)]
    pub(crate) stale: bool,
}
