//! `doctor`.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Checks this machine (as a node, as a controller, or both) and the fleet as seen from here. It works \
    while agent and controller are down, and changes nothing. The exit code is 1 if there is a problem. As root it \
    checks more; it lists the checks that it had to skip.\n\n\
    Examples:\n  \
    sudo fleet doctor"
)]
pub(crate) struct DoctorArgs {
    /// Configuration file of this node's agent [default: /etc/fleet/agent.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_config: Option<PathBuf>,
    /// Configuration file of this machine's controller [default: /etc/fleet/controller.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) controller_config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
