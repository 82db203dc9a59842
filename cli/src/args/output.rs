//! Flags that many verbs share: how to print, whose, how often.

use clap::{Args, ValueEnum};

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    #[default]
    Table,
    /// More columns
    Wide,
    /// One object with `schema` and `items`
    Json,
    /// One object a line
    Jsonl,
    /// Comma-separated values with a header
    Csv,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutputArgs {
    /// How to print
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true,
        help = "Output format: table, wide, json, jsonl, csv"
    )]
    pub(crate) format: Option<Format>,
    /// Print tables and CSV without a header
    #[arg(long)]
    pub(crate) no_header: bool,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OwnerArgs {
    /// Only your own
    #[arg(long, conflicts_with = "user")]
    pub(crate) me: bool,
    /// Only this user's
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct WatchArgs {
    /// Refresh every two seconds, until q or Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct StaleArgs {
    /// Read from any controller, even one that is out of date
    #[arg(long)]
    pub(crate) stale: bool,
}
