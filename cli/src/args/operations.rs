//! `controller log-level` and `controller debug-bundle`: looking after the controller itself.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Levels: error, warn, info, debug, trace, off. MODULE=LEVEL sets the level of one part; separate several \
    with commas. The change applies to the controller that answers, until its next start. On a node: \
    `fleet-agent log-level`.\n\n\
    Examples:\n  \
    fleet controller log-level info,fleet_controller::leader=debug\n  \
    fleet controller log-level default"
)]
pub(crate) struct LogLevelArgs {
    /// The new level, or `default` [default: show the level]
    #[arg(value_name = "LEVEL")]
    pub(crate) level: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The file has configuration, version, state, figures of Raft, metrics and the last lines of the log. It has \
    no command lines, environments or output of jobs, no keys and no tokens. Read it before you send it: it has the \
    names of users and machines. On a node: `fleet-agent debug-bundle FILE`.\n\n\
    Examples:\n  \
    fleet controller debug-bundle controller.tar.gz"
)]
pub(crate) struct DebugBundleArgs {
    /// The .tar.gz file to write; it must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}
