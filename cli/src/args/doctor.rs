//! `doctor`.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "It looks at this machine as a node, as a controller, or both, whichever is installed, and at the\n\
    fleet from here. It works while agent and controller are down, changes nothing, and ends with 1 if\n\
    there is a problem. As root it sees more; what it could not look at it says."
)]
pub(crate) struct DoctorArgs {
    /// Configuration of this node's agent [default: /etc/fleet/agent.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_config: Option<PathBuf>,
    /// Configuration of this machine's controller [default: /etc/fleet/controller.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) controller_config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
