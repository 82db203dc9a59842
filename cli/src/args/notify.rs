//! `notify`: what a user hears by mail, and where.

use clap::{Args, Subcommand, ValueEnum};
use fleet_core::notice::NoticeKind;

use super::output::OutputArgs;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct NotifyArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<NotifyVerb>,
    #[command(flatten)]
    pub(crate) show: NotifyShowArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotifyVerb {
    /// Show what is mailed to you, and where
    Show(NotifyShowArgs),
    /// Change your address, or what is mailed
    Set(NotifySetArgs),
    /// Send one mail now
    Test(NotifyTestArgs),
}

/// What mails are about.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum NoticeKindArg {
    /// Your reservations: a place from the waiting list, moved, changed, released
    Reservation,
    /// Your jobs: failed, moved, finished after 10 minutes or more
    Job,
    /// Nodes and GPUs that need an admin (admins only)
    Fleet,
}

impl NoticeKindArg {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Reservation => NoticeKind::Reservation.word(),
            Self::Job => NoticeKind::Job.word(),
            Self::Fleet => NoticeKind::Fleet.word(),
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NotifyShowArgs {
    /// Another user (admins only)
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nobody is mailed about their own commands. What happens within half a minute is one mail, and a user gets at \
    most 20 mails in an hour; the rest waits for the next one.\n\n\
    Examples:\n  \
    fleet notify set --mail ada@lab.example\n  \
    fleet notify set --off job\n  \
    fleet notify set --no-mail"
)]
pub(crate) struct NotifySetArgs {
    /// Another user (admins only)
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Send mail to this address
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["no_mail", "default_mail"])]
    pub(crate) mail: Option<String>,
    /// Send no mail
    #[arg(long, conflicts_with = "default_mail")]
    pub(crate) no_mail: bool,
    /// Send mail to the user name at the site's mail domain
    #[arg(long)]
    pub(crate) default_mail: bool,
    /// Mail these kinds of news
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    pub(crate) on: Vec<NoticeKindArg>,
    /// Do not mail these kinds of news
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    pub(crate) off: Vec<NoticeKindArg>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prints what the mail server answered, or why no mail was sent.\n\nExamples:\n  fleet notify test"
)]
pub(crate) struct NotifyTestArgs {
    /// Another user (admins only)
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}
