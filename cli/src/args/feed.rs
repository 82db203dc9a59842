//! `calendar feed`: secret addresses for programs that show calendars.

use clap::{Args, Subcommand};

use super::output::OutputArgs;
use crate::consent::Consent;

#[derive(Debug, Subcommand)]
pub(crate) enum CalendarVerb {
    /// Show reservations in your own calendar: create, list, remove secret addresses
    Feed(FeedArgs),
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct FeedArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<FeedVerb>,
    #[command(flatten)]
    pub(crate) list: FeedListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FeedVerb {
    /// Create a feed and print its address
    Create(FeedCreateArgs),
    /// List your feeds; admins see those of all users
    List(FeedListArgs),
    /// Remove a feed: its address ends
    Rm(FeedRmArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Subscribe to the address in your calendar: \"From URL\" in Google Calendar, \"New calendar subscription\" in \
    Apple Calendar. Anyone who has the address can read the feed; fleet shows it once. The feed ends when you are revoked or \
    disabled.\n\n\
    Google Calendar asks for changes only once or twice a day. Others ask every 15 minutes if you let them.\n\n\
    Examples:\n  \
    fleet calendar feed create\n  \
    fleet calendar feed create --node titan01\n  \
    fleet calendar feed create --project vision"
)]
pub(crate) struct FeedCreateArgs {
    /// Reservations that you own or may use (the default)
    #[arg(long, conflicts_with_all = ["node", "project"])]
    pub(crate) mine: bool,
    /// All reservations on this node
    #[arg(long, value_name = "NODE", conflicts_with = "project")]
    pub(crate) node: Option<String>,
    /// All reservations of this project
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FeedListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fleet calendar feed rm feed-4k7wq2")]
pub(crate) struct FeedRmArgs {
    /// The feed, by its id
    #[arg(value_name = "FEED")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
