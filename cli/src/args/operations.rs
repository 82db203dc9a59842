//! `controller log-level` and `controller debug-bundle`: looking after the controller itself.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "A level is error, warn, info, debug, trace or off, for all of it or for a part: MODULE=LEVEL,\n\
    several with commas between, as in info,fleet_controller::leader=debug. It holds for the\n\
    controller that answers, until its next start. On a node: fleet-agent log-level"
)]
pub(crate) struct LogLevelArgs {
    /// What to log from now on, or default [default: only show]
    #[arg(value_name = "LEVEL")]
    pub(crate) level: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Configuration, version, state, Raft's figures, metrics and the last lines of the log. Without\n\
    command lines, environments and output of jobs, keys and tokens. Look through it before you\n\
    send it: names of users and machines are in it. On a node: fleet-agent debug-bundle FILE"
)]
pub(crate) struct DebugBundleArgs {
    /// Where to write it, a .tar.gz; must not be there yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}
