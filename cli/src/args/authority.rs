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
    /// Show which authority signs, and what its exchange waits for
    Status(AuthorityStatusArgs),
    /// Replace the certificate authority
    Rotate(RotateArgs),
    /// Continue without absent nodes, or before users' certificates end
    Skip(SkipArgs),
    /// Return to the previous authority
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
    after_help = "The exchange runs by itself. Every controller gets the new key, then the new authority signs. Controllers, \
    nodes and users get new certificates. fleet trusts both authorities until nobody needs the old one: about 12 \
    hours, until the users' certificates end.\n\n\
    No connection, job or reservation is affected. Make a backup at the end: an older one cannot reach the nodes \
    any more."
)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A node that returns before the exchange ends gets a new certificate like the others. A node that returns \
    later is locked out until it joins again: `fleet node token create`, and on the node `fleet-agent join … --replace`. \
    Its jobs keep running. After --users, a user's next command may fail once; the one after it gets a new certificate."
)]
pub(crate) struct SkipArgs {
    /// Nodes that the exchange does not wait for
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
    after_help = "Before the new authority signs, the old one simply stays. Afterwards this starts an exchange back: the old \
    authority signs again at once, and all new certificates are exchanged again."
)]
pub(crate) struct AbortArgs {
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
