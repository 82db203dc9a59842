//! `audit`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::output::StaleArgs;
use crate::consent::Consent;

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) verb: AuditVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditVerb {
    /// Print the audit log
    Export(ExportArgs),
    /// Check that nobody changed an export, or compare two exports; works without a controller
    Verify(VerifyArgs),
    /// Delete the oldest records from the controllers, if you have them in an export
    Prune(AuditPruneArgs),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditFormat {
    /// One record a line; this is what verify reads
    #[default]
    Jsonl,
    /// For a spreadsheet
    Csv,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "jsonl",
        hide_possible_values = true,
        help = "Output format: jsonl or csv"
    )]
    pub(crate) format: AuditFormat,
    /// Records from this time on
    #[arg(long, value_name = "WHEN")]
    pub(crate) from: Option<String>,
    /// Records before this time
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<String>,
    /// From this record number on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) from_seq: Option<u64>,
    /// Until this record number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) to_seq: Option<u64>,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "With two files the command says whether one is the beginning of the other. After a restore two exports can \
    fork: each is whole, and they differ from one record on. Then the command names that record and ends with 1.\n\n\
    Examples:\n  \
    fleet audit verify audit.jsonl\n  \
    fleet audit verify before.jsonl after.jsonl"
)]
pub(crate) struct VerifyArgs {
    /// The exported file; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Another export, to compare with the first
    #[arg(value_name = "OTHER")]
    pub(crate) other: Option<PathBuf>,
    /// The fleet's CA certificate, to check the signature too [default: the one in fleet.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command checks FILE first, as `fleet audit verify` does. It deletes only records that are in FILE and the \
    same in the controllers, and none that is younger than 30 days. One record about this stays, so that later exports are \
    checked as before. Keep FILE: it is the only copy.\n\n\
    Examples:\n  \
    fleet audit export --file audit-2026.jsonl\n  \
    fleet audit prune --before 90d --dry-run audit-2026.jsonl\n  \
    fleet audit prune --before 2026-09-01 audit-2026.jsonl"
)]
pub(crate) struct AuditPruneArgs {
    /// An export of the audit log, with all records that the controllers have from before this time
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Delete records from before this time: 90d, 2026-09-01
    #[arg(long, value_name = "WHEN")]
    pub(crate) before: String,
    /// Only show what would be deleted
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
