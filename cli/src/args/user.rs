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
    /// List users; only admins see others
    List(UserListArgs),
    /// Show one user
    Show(UserShowArgs),
    /// Close an account: nothing new, and its jobs stop at their next checkpoints; admins only
    Disable(UserDisableArgs),
    /// Open an account again; admins only
    Enable(UserEnableArgs),
    /// End all certificates of a user, as after a lost laptop; the user can get new ones
    Revoke(UserRevokeArgs),
}

/// What `last seen` says.
const SEEN: &str = "Seen: when the user last typed a command or logged in. It can be an hour late if the user asked another \
    controller, or if this controller has just started.";

#[derive(Debug, Clone, Default, Args)]
#[command(after_help = SEEN)]
pub(crate) struct UserListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = SEEN)]
pub(crate) struct UserShowArgs {
    /// User name
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "At once, fleet ends the user's certificates, and cancels queued jobs and reservations that have not begun. \
    With --transfer-to, another user gets those reservations. Running jobs stop at their next checkpoint; jobs without \
    checkpoints may finish.\n\n\
    Examples:\n  \
    fleet user disable ada --reason \"left the lab\" --transfer-to grace"
)]
pub(crate) struct UserDisableArgs {
    /// User name
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    /// Why, for others to read
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// User who gets the reservations that have not begun
    #[arg(long, value_name = "USER")]
    pub(crate) transfer_to: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UserEnableArgs {
    /// User name
    #[arg(value_name = "USER")]
    pub(crate) user: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UserRevokeArgs {
    /// User name
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
