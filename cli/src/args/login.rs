//! `login`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "You rarely need this: commands get and renew certificates by themselves. On a node they ask its agent. \
    On your own machine they use ssh to the machine that `login` in fleet.toml names. `fleet login` may ask for \
    your ssh password."
)]
pub(crate) struct LoginArgs {
    /// Sign a request that comes on standard input; for `fleet login` elsewhere
    #[arg(long, hide = true)]
    pub(crate) sign: bool,
}
