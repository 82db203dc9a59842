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
    after_help = "The new controller first copies all data, then it votes. Three controllers survive the loss of one, five \
    survive the loss of two. Each gets a number that is never used again.\n\n\
    Examples:\n  \
    fleet controller add"
)]
pub(crate) struct ControllerAddArgs {
    /// How long the token is valid [default: 1h]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) ttl: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The number is never used again: a machine that you removed, or that lost its disk, joins again with a new \
    token. fleet refuses if the other controllers would have no majority. A leader hands over before it leaves.\n\n\
    Examples:\n  \
    fleet controller remove 3"
)]
pub(crate) struct ControllerRemoveArgs {
    /// The controller's number, see `fleet controller list`
    #[arg(value_name = "ID")]
    pub(crate) id: u64,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// Number of the new leader [default: the most up-to-date controller]
    #[arg(value_name = "ID")]
    pub(crate) to: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
