//! `controller ca status|rotate|skip|abort`.

use clap::{Args, Subcommand};

use super::output::{OutputArgs, WatchArgs};
use crate::consent::Consent;

#[derive(Debug, Args)]
pub(crate) struct AuthorityArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<AuthorityVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuthorityVerb {
    /// Show which authority signs, how far its exchange is, and who is waited for
    Status(AuthorityStatusArgs),
    /// Exchange the certificate authority for a new one
    Rotate(RotateArgs),
    /// Go on without nodes that are away, or without waiting for users' certificates to end
    Skip(SkipArgs),
    /// Go back to the authority before
    Abort(AbortArgs),
}

#[derive(Debug, Default, Args)]
pub(crate) struct AuthorityStatusArgs {
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "It goes on by itself from here: every controller gets the new key, then the new authority signs, and\n\
    controllers, nodes and users exchange their certificates. Both are trusted until nobody needs the old one:\n\
    some 12 hours, while users' certificates run out. No connection, job or reservation is touched. Saying it\n\
    again changes nothing. Make a backup when it has ended: an older one cannot reach the nodes any more."
)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A node that is back before the exchange ends moves like the others. After that it is locked out until it\n\
    joins again: fleet node token create, and there fleet-agent join ... --replace. What runs on it goes on.\n\
    Users whose certificate ends early get another one with their next command but one."
)]
pub(crate) struct SkipArgs {
    /// Nodes that are not waited for
    #[arg(value_name = "NODE", required_unless_present = "users")]
    pub(crate) nodes: Vec<String>,
    /// Do not wait for users' certificates to end
    #[arg(long)]
    pub(crate) users: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Before the new authority signs, the old one simply stays. Afterwards the way back is an exchange as well:\n\
    the old one signs again at once, and whoever moved moves back."
)]
pub(crate) struct AbortArgs {
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
