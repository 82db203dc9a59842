//! How `reserve` repeats a reservation.

use clap::Args;

/// A rule and its exceptions. The end of the series is `--until` of `reserve`, or `--times`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SeriesArgs {
    /// Repeat the reservation: daily, weekly, monthly, "2 weeks"; needs --times or --until
    #[arg(long, value_name = "HOW OFTEN", requires = "from", conflicts_with_all = ["adopt", "wait"])]
    pub(crate) every: Option<String>,
    /// Weekdays of a weekly series: mon,wed [default: the weekday of --from]
    #[arg(long, value_name = "DAY,...", value_delimiter = ',', requires = "every")]
    pub(crate) on: Vec<String>,
    /// How many dates, instead of --until; those of --skip count
    #[arg(long, value_name = "N", requires = "every")]
    pub(crate) times: Option<u32>,
    /// Leave out these days: 2026-12-24,2026-12-31
    #[arg(long, value_name = "DATE,...", value_delimiter = ',', requires = "every")]
    pub(crate) skip: Vec<String>,
    /// Time zone of all times of the command, like Europe/Berlin [default: the zone of this machine]
    #[arg(long, value_name = "ZONE", requires = "every")]
    pub(crate) zone: Option<String>,
    /// If dates are taken, reserve the other dates instead of none
    #[arg(long, requires = "every")]
    pub(crate) skip_conflicts: bool,
}
