//! `controller list|add|remove|transfer-leadership`.

use clap::Args;

use super::output::{OutputArgs, WatchArgs};
use crate::consent::Consent;

#[derive(Debug, Default, Args)]
pub(crate) struct ControllerStatusArgs {
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The new controller listens until it has caught up, then it votes. Three survive the loss of one,\n\
    five the loss of two. Each gets a number that is never used again."
)]
pub(crate) struct ControllerAddArgs {
    /// How long the token can be used [default: 1h]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) ttl: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Its number is never used again: a machine that was removed or lost its disk joins anew. It is refused\n\
    where those that stay could not decide any more. The leader hands over before it goes."
)]
pub(crate) struct ControllerRemoveArgs {
    /// Its number, as `fleet controller list` shows it
    #[arg(value_name = "ID")]
    pub(crate) id: u64,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// The controller that is to lead [default: the one that is furthest]
    #[arg(value_name = "ID")]
    pub(crate) to: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
