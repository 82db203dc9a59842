//! `usage`: who held how many GPUs for how long, and how much of that was used.

use clap::Args;

use super::output::OutputArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Numbers are GPU-hours: two GPUs for three hours are 6.0. JSON and CSV have GPU-milliseconds. RESERVED is what reservations held, used or not; \
    IN JOBS is the part of it that jobs within them held. JOBS is what jobs outside of reservations held. HELD is RESERVED \
    and JOBS together. LOST is work of jobs that a fault or an eviction destroyed.\n\n\
    USED, IDLE and UNKNOWN together are HELD. USED is time with a utilisation above zero. IDLE is time without: a notebook \
    that only keeps memory is IDLE. UNKNOWN was not measured: the node was off, its agent stopped, or the driver gives no \
    utilisation. Nodes report once an hour, so the last hour is UNKNOWN for up to 70 minutes.\n\n\
    A GPU is held until it is proven empty. --by class has one row for all reservations, which have no class.\n\n\
    Examples:\n  \
    fleet usage\n  \
    fleet usage --month 2026-11 --by project\n  \
    fleet usage --month last -o csv > november.csv\n  \
    fleet usage --from monday --mine"
)]
pub(crate) struct UsageArgs {
    /// A calendar month of your time zone: 2026-11, or last [default: this one]
    #[arg(long, value_name = "MONTH", conflicts_with_all = ["from", "until"])]
    pub(crate) month: Option<String>,
    /// From this time on: 7d (ago), monday, 2026-11-01
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// Until this time [default: now]
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, requires = "from")]
    pub(crate) until: Option<String>,
    /// Rows: user, project, node, model or class [default: user]
    #[arg(long, value_name = "WHAT")]
    pub(crate) by: Option<String>,
    /// Only what you held
    #[arg(long, visible_alias = "me", conflicts_with = "user")]
    pub(crate) mine: bool,
    /// Only what this user held
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
