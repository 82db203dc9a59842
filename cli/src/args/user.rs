//! `user`: accounts.

use clap::{Args, Subcommand};

use super::output::OutputArgs;
use crate::consent::Consent;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<UserVerb>,
    #[command(flatten)]
    pub(crate) list: UserListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserVerb {
    /// List users; all of them for admins, others see themselves
    List(UserListArgs),
    /// Show one
    Show(UserShowArgs),
    /// Close an account: nothing new, and its jobs end at their next checkpoints; admins only
    Disable(UserDisableArgs),
    /// Open an account again; admins only
    Enable(UserEnableArgs),
    /// End all certificates of a user, as after a lost laptop; new ones can be had
    Revoke(UserRevokeArgs),
}

/// What `last seen` says.
const SEEN: &str = "Seen: when the user last typed a command or logged in. It is up to an hour old for what came in by\n\
    another controller, or before this one started.";

#[derive(Debug, Clone, Default, Args)]
#[command(after_help = SEEN)]
pub(crate) struct UserListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = SEEN)]
pub(crate) struct UserShowArgs {
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "At once: certificates end, queued jobs and reservations that have not begun are cancelled\n\
    (--transfer-to gives those reservations to somebody else). Running jobs go on to their next\n\
    checkpoint; those that save nothing may finish."
)]
pub(crate) struct UserDisableArgs {
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    /// Why, for others to read
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Who gets the reservations that have not begun
    #[arg(long, value_name = "USER")]
    pub(crate) transfer_to: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UserEnableArgs {
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UserRevokeArgs {
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    /// Why, for others to read
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
