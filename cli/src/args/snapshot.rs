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
    /// Write a backup of the controllers to a file
    ///
    /// The backup has the state, the audit log and the certificate authority of one moment; everything keeps
    /// running. The file has the key of the certificate authority: a reader of the file can let anyone into the
    /// fleet. Only admins can write it, and only on a controller's own machine. `fleet-controller restore FILE`
    /// starts again from it.
    Save(SnapshotSaveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotSaveArgs {
    /// The file to write; it must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Back up this controller's own state, even without a quorum; the newest changes may be missing
    #[arg(long)]
    pub(crate) stale: bool,
}
