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
        help = "How to print: table, wide, json, jsonl, csv"
    )]
    pub(crate) format: Option<Format>,
    /// Leave out the header of tables and CSV
    #[arg(long)]
    pub(crate) no_header: bool,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OwnerArgs {
    /// Only mine
    #[arg(long, conflicts_with = "user")]
    pub(crate) me: bool,
    /// Only this user's
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct WatchArgs {
    /// Show it again every two seconds, until q or Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct StaleArgs {
    /// Any controller may answer, also without a quorum; says how old the answer may be
    #[arg(long)]
    pub(crate) stale: bool,
}
