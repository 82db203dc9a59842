//! `login`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Rarely needed: commands get and renew certificates by themselves, on a node from its agent, on\n\
    your own machine by ssh to the machine that `login` in fleet.toml names. This one may ask for\n\
    ssh's password."
)]
pub(crate) struct LoginArgs {
    /// Sign a request that comes on standard input; for `fleet login` elsewhere
    #[arg(long, hide = true)]
    pub(crate) sign: bool,
}
