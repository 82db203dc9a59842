//! `reserve`, `release`, `extend`, `reservation`.

use clap::{Args, Subcommand, ValueEnum};
use fleet_core::ending::EndPolicy;

use super::feed::CalendarVerb;
use super::output::{OutputArgs, OwnerArgs, StaleArgs, WatchArgs};
use super::series::SeriesArgs;
use crate::consent::{Consent, NewUsers};
use crate::gpu_wish::GpuWish;
use crate::spreadsheet::DateOrder;
use crate::times::OpenHours;

/// Most nodes of which one command reserves GPUs.
const NODES_AT_ONCE_MAX: i64 = fleet_core::reservation::NODES_AT_ONCE_MAX as i64;

/// Which GPUs; `reserve` and `run` share it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WishArgs {
    /// How many GPUs, of any model or of one: 2, v100:2
    #[arg(short = 'G', long, value_name = "[MODEL:]N")]
    pub(crate) gpus: Option<GpuWish>,
    /// A specific GPU: titan01:3 or its UUID; may be repeated
    #[arg(long, value_name = "GPU", conflicts_with = "gpus")]
    pub(crate) gpu: Vec<String>,
    /// Only GPUs with at least this much memory
    #[arg(long, value_name = "SIZE", value_parser = crate::sizes::parse_bytes)]
    pub(crate) gpu_memory: Option<u64>,
    /// Only on this node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

/// What `--adopt` takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adopted {
    All,
    Process(u32),
}

impl std::str::FromStr for Adopted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("all", _) => Ok(Adopted::All),
            (_, Ok(pid)) if pid > 0 => Ok(Adopted::Process(pid)),
            _ => Err("write the numbers of processes, or all".to_owned()),
        }
    }
}

/// What happens at the end of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AtEnd {
    /// Extended by 15 minutes at a time while you use it and nobody else reserved its GPUs
    ExtendIfFree,
    /// The reservation ends, and fleet stops the programs left on its GPUs
    Stop,
    /// The reservation ends; programs left on its GPUs run until another user's reservation begins
    Warn,
}

impl AtEnd {
    pub(crate) fn word(self) -> &'static str {
        match self {
            AtEnd::ExtendIfFree => EndPolicy::ExtendIfFree.word(),
            AtEnd::Stop => EndPolicy::Stop.word(),
            AtEnd::Warn => EndPolicy::Warn.word(),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    fleet reserve -G v100:2 -t 8h\n  \
    fleet reserve -G 1 --from \"tomorrow 09:00\" -t 4h --note \"for the paper\"\n  \
    fleet reserve --gpu titan01:3 --until 18:00\n  \
    fleet reserve -N 2 -G v100:8 -t 4h\n  \
    fleet reserve -G 2 -t 4h --wait 12h --detach\n  \
    fleet reserve -G 4 -t 1d --wait 3d --offer 8-22\n  \
    fleet reserve -G v100:8 -t 10d --ask \"the deadline on December 1\"\n  \
    fleet reserve --adopt all -t 2d\n  \
    fleet reserve -G 2 --from \"mon 10:00\" -t 2h --every weekly --times 12")]
#[command(group = clap::ArgGroup::new("waits").multiple(true).args(["wait", "ask"]))]
pub(crate) struct ReserveArgs {
    #[command(flatten)]
    pub(crate) wish: WishArgs,
    /// Spread the GPUs of -G evenly over this many nodes: all of them at the same time, or nothing
    #[arg(short = 'N', long, value_name = "N", requires = "gpus",
        conflicts_with_all = ["gpu", "node", "adopt", "wait"],
        value_parser = clap::value_parser!(u32).range(1..=NODES_AT_ONCE_MAX))]
    pub(crate) nodes: Option<u32>,
    /// Reserve the GPUs that your running processes use (PIDs, or `all`); they keep running
    #[arg(long, value_name = "PID,...|all", value_delimiter = ',',
        conflicts_with_all = ["gpus", "gpu", "gpu_memory", "from", "wait"])]
    pub(crate) adopt: Vec<Adopted>,
    /// Length: 90m, 8h, 1d (24 hours) [default: 8h]
    #[arg(short = 't', long = "time", value_name = "LENGTH")]
    pub(crate) time: Option<String>,
    /// End, instead of a length: 18:00, "friday 09:00"; a day alone means its end: friday, 2026-11-27.
    /// With --every, the last day of the series
    // `reserve` refuses it beside --time itself: only with --every both make sense.
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<String>,
    /// Start: 14:00, "monday 09:00"; a day alone means its beginning [default: now]
    #[arg(long, value_name = "WHEN")]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) series: SeriesArgs,
    /// How much later it may start. If no GPUs are free in time, the waiting list has it, also after this
    /// command ends; `fleet release` takes it off
    #[arg(long, value_name = "LENGTH", conflicts_with = "until")]
    pub(crate) wait: Option<String>,
    /// With --wait: offer free GPUs instead of taking them, between these hours. Each offer is open for
    /// 30 minutes; accept it with `fleet reservation accept` [default: 8-22]
    #[arg(long, value_name = "HOURS", requires = "wait", num_args = 0..=1, default_missing_value = "8-22")]
    pub(crate) offer: Option<OpenHours>,
    /// With --wait or --ask: return at once
    #[arg(short, long, requires = "waits")]
    pub(crate) detach: bool,
    /// If a limit refuses the reservation, ask for approval with this reason, at most 512 bytes. Without --from
    /// and --wait the reservation may then start within 7 days
    #[arg(long, value_name = "REASON", value_parser = clap::builder::NonEmptyStringValueParser::new(), conflicts_with_all = ["adopt", "nodes", "every", "dry_run"])]
    pub(crate) ask: Option<String>,
    /// Only show which GPUs you would get, or when they become available
    #[arg(long, conflicts_with = "wait")]
    pub(crate) dry_run: bool,
    /// What happens at the end [default: see `fleet reservation rules`]
    #[arg(long, value_name = "POLICY")]
    pub(crate) at_end: Option<AtEnd>,
    /// What the reservation is for, at most 512 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Project that the reservation counts for
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
    /// Reserve for another user; admins only
    #[arg(long = "for", value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Other users who may use the GPUs by ssh; only you may run jobs in the reservation
    #[arg(long, value_name = "USER,...", value_delimiter = ',')]
    pub(crate) with: Vec<String>,
    #[command(flatten)]
    pub(crate) new_users: NewUsers,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    fleet ssh\n  \
    fleet ssh res-k3v9 -- nvidia-smi -L")]
pub(crate) struct SshArgs {
    /// The reservation [default: your open one, if it is the only one]
    #[arg(value_name = "RESERVATION")]
    pub(crate) id: Option<String>,
    /// Command to run there, instead of a shell
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    fleet release res-k3v9\n  \
    fleet release res-k3v9 --following\n  \
    fleet release ser-7h2k")]
pub(crate) struct ReleaseArgs {
    /// The reservations, or a series: all dates that have not started. If it is one date on several nodes, all of it
    #[arg(required = true, value_name = "RESERVATION")]
    pub(crate) ids: Vec<String>,
    /// Release the later reservations of the same series too
    #[arg(long)]
    pub(crate) following: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("end").required(true).multiple(true).args(["time", "until", "at_end"]))]
pub(crate) struct ExtendArgs {
    /// The reservation
    #[arg(value_name = "RESERVATION")]
    pub(crate) id: String,
    /// How much longer: 90m, 8h, 1d (24 hours)
    #[arg(short = 't', long = "time", value_name = "LENGTH")]
    pub(crate) time: Option<String>,
    /// New end; an earlier one shortens the reservation. A day alone means its end: friday, 2026-11-27
    #[arg(long, value_name = "WHEN", conflicts_with = "time")]
    pub(crate) until: Option<String>,
    /// What happens at the end
    #[arg(long, value_name = "POLICY")]
    pub(crate) at_end: Option<AtEnd>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReservationArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ReservationVerb>,
    #[command(flatten)]
    pub(crate) list: ReservationListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReservationVerb {
    /// List reservations that have not ended
    List(ReservationListArgs),
    /// Show one reservation
    Show(ReservationShowArgs),
    /// Move a reservation to another time or other GPUs, or change its note or who shares it
    Set(ReservationSetArgs),
    /// Import a spreadsheet: all its lines, or none
    Import(ReservationImportArgs),
    /// Write the calendar as CSV that `import` reads
    Export(ReservationExportArgs),
    /// Show how reservations end, or change it (admins only)
    Rules(ReservationRulesArgs),
    /// Show how much people may reserve, or change it for a Unix group (admins only)
    Limits(ReservationLimitsArgs),
    /// Accept GPUs that are offered to a reservation on the waiting list
    Accept(ReservationAcceptArgs),
    /// Decline GPUs that are offered to a reservation; it stays on the waiting list
    Decline(ReservationDeclineArgs),
    /// Approve reservations above a limit (approvers and admins only)
    Approve(ReservationApproveArgs),
    /// Deny a reservation above a limit (approvers and admins only)
    Deny(ReservationDenyArgs),
    /// Show who may approve reservations above a limit, or change who may (admins only)
    Approvers(ReservationApproversArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "`fleet reserve --wait LENGTH --offer` asks for offers. An accepted reservation starts earlier if it can.\n\n\
    Examples:\n  \
    fleet reservation accept res-k3v9"
)]
pub(crate) struct ReservationAcceptArgs {
    /// The reservations
    #[arg(required = true, value_name = "RESERVATION")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The reservation keeps its place on the waiting list. The next offer comes 4 hours later at the earliest; \
    after 3 offers that you did not accept, the reservation is off the list. To take it off the list at once, \
    use `fleet release`.\n\n\
    Examples:\n  \
    fleet reservation decline res-k3v9"
)]
pub(crate) struct ReservationDeclineArgs {
    /// The reservations
    #[arg(required = true, value_name = "RESERVATION")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "`fleet reservation show` shows the reason and how many GPUs stay free for others. If no GPUs are free, the \
    reservation waits on the waiting list. Only an admin may approve a reservation that is their own or shared with them.\n\n\
    Examples:\n  \
    fleet reservation approve res-k3v9"
)]
pub(crate) struct ReservationApproveArgs {
    /// The reservations
    #[arg(required = true, value_name = "RESERVATION")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    fleet reservation deny res-k3v9 --reason \"too many before the deadline\"")]
pub(crate) struct ReservationDenyArgs {
    /// The reservation
    #[arg(value_name = "RESERVATION")]
    pub(crate) id: String,
    /// Why, for its owner; at most 512 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Admins may always approve. `fleet reserve --ask` asks for approval.\n\n\
    Examples:\n  \
    fleet reservation approvers\n  \
    fleet reservation approvers --add-member prof --add-group staff")]
#[command(group = clap::ArgGroup::new("what").multiple(true)
    .args(["add_members", "remove_members", "add_groups", "remove_groups"]))]
pub(crate) struct ReservationApproversArgs {
    /// A user who may approve from now on; can be given several times
    #[arg(long = "add-member", value_name = "USER")]
    pub(crate) add_members: Vec<String>,
    /// A user who may no longer approve
    #[arg(long = "remove-member", value_name = "USER")]
    pub(crate) remove_members: Vec<String>,
    /// A Unix group of the controllers' machines whose members may approve from now on
    #[arg(long = "add-group", value_name = "GROUP")]
    pub(crate) add_groups: Vec<String>,
    /// A Unix group whose members may no longer approve
    #[arg(long = "remove-group", value_name = "GROUP")]
    pub(crate) remove_groups: Vec<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "fleet does the whole change or refuses it. The reservation keeps its GPUs if they are free at the new time. \
    If the node already has the reservation, the reservation moves when the node has released it; \
    until then both places stay taken. A reservation that has started keeps its start and its GPUs.\n\n\
    Of several dates --from, --until and --time are those of the first; the others move as much, by the clock on the wall.\n\n\
    Examples:\n  \
    fleet reservation set res-k3v9 --from \"tomorrow 14:00\"\n  \
    fleet reservation set res-k3v9 --from 14:00 --until 18:00 -G 2\n  \
    fleet reservation set res-k3v9 --add-with eve --note \"for the paper\"\n  \
    fleet reservation set res-c8w2 --following --from \"tue 14:00\"\n  \
    fleet reservation set ser-7h2k -t 3h"
)]
#[command(override_usage = "fleet reservation set [OPTIONS] <RESERVATION>")]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true)
    .args(["from", "until", "time", "gpus", "gpu", "gpu_memory", "node", "with", "add_with", "remove_with", "note"]))]
pub(crate) struct ReservationSetArgs {
    /// The reservation, or a series: all dates that have not started
    #[arg(value_name = "RESERVATION")]
    pub(crate) id: String,
    /// Change the later reservations of the same series too: all, or none
    #[arg(long)]
    pub(crate) following: bool,
    /// New start: 14:00, "monday 09:00"; without a new end the length stays
    #[arg(long, value_name = "WHEN")]
    pub(crate) from: Option<String>,
    /// New end: 18:00, "friday 09:00"; a day alone means its end
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<String>,
    /// New length from the start: 90m, 8h, 1d (24 hours)
    #[arg(short = 't', long = "time", value_name = "LENGTH", conflicts_with = "until")]
    pub(crate) time: Option<String>,
    #[command(flatten)]
    pub(crate) wish: WishArgs,
    /// All other users who may use the GPUs by ssh, instead of those who may now
    #[arg(long, value_name = "USER,...", value_delimiter = ',', conflicts_with_all = ["add_with", "remove_with"])]
    pub(crate) with: Vec<String>,
    /// More users who may use the GPUs by ssh
    #[arg(long, value_name = "USER,...", value_delimiter = ',')]
    pub(crate) add_with: Vec<String>,
    /// Users who may no longer use the GPUs by ssh
    #[arg(long, value_name = "USER,...", value_delimiter = ',')]
    pub(crate) remove_with: Vec<String>,
    /// What the reservation is for, at most 512 bytes; "" removes the note
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Only show what the change would do
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A user in several groups has the most generous limit of each kind. Admins have no limits. Existing reservations stay.\n\n\
    Examples:\n  \
    fleet reservation limits\n  \
    fleet reservation limits students --gpus 2 --time 3d --ahead 14d\n  \
    fleet reservation limits students --time none\n  \
    fleet reservation limits '*' --gpus 1"
)]
#[command(group = clap::ArgGroup::new("what").multiple(true).args(["gpus", "time", "ahead", "remove"]))]
pub(crate) struct ReservationLimitsArgs {
    /// A group of the controllers' machines; '*' means users who are in no group with limits
    #[arg(value_name = "GROUP", requires = "what")]
    pub(crate) group: Option<String>,
    /// How many GPUs a user may have reserved at the same time, or `none`
    #[arg(long, value_name = "N", requires = "group")]
    pub(crate) gpus: Option<String>,
    /// How long a reservation may be, or `none`
    #[arg(short = 't', long = "time", value_name = "LENGTH", requires = "group")]
    pub(crate) time: Option<String>,
    /// How far ahead a reservation may begin, or `none`
    #[arg(long, value_name = "LENGTH", requires = "group")]
    pub(crate) ahead: Option<String>,
    /// Remove the group's limits
    #[arg(long, requires = "group", conflicts_with_all = ["gpus", "time", "ahead"])]
    pub(crate) remove: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "fleet stops programs only on nodes with `fleet node enforce NODE on`.\n\n\
    Examples:\n  \
    fleet reservation rules\n  \
    fleet reservation rules --at-end stop --grace 5m\n  \
    fleet reservation rules --no-show never\n  \
    fleet reservation rules --idle-after 2h --idle-below 5\n  \
    fleet reservation rules --idle-release 4h")]
pub(crate) struct ReservationRulesArgs {
    /// What happens at the end of reservations without an --at-end of their own
    #[arg(long, value_name = "POLICY")]
    pub(crate) at_end: Option<AtEnd>,
    /// Release a reservation that nobody used this long after its start, or `never`
    #[arg(long, value_name = "LENGTH")]
    pub(crate) no_show: Option<String>,
    /// Time between the request to stop and the kill
    #[arg(long, value_name = "LENGTH")]
    pub(crate) grace: Option<String>,
    /// Call a reservation idle if its GPUs computed nothing this long, or `never`
    #[arg(long, value_name = "LENGTH")]
    pub(crate) idle_after: Option<String>,
    /// A GPU computes nothing if its utilisation is below this many percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) idle_below: Option<u32>,
    /// Release a reservation that is idle this long, or `never`
    #[arg(long, value_name = "LENGTH")]
    pub(crate) idle_release: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ReservationListArgs {
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
    /// Only those with GPUs of this node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Only those with this GPU: titan01:3 or its UUID
    #[arg(long, value_name = "GPU")]
    pub(crate) gpu: Option<String>,
    /// Only those that touch this day: today, friday, 2026-12-01
    #[arg(long, value_name = "DAY")]
    pub(crate) day: Option<String>,
    /// Only those of this series
    #[arg(long, value_name = "SERIES")]
    pub(crate) series: Option<String>,
    /// Show ended and cancelled reservations too
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(mut_arg("yes", |yes| yes.requires("undo")))]
#[command(
    after_help = "The header names the columns, in English or German: user, gpus (2 or v100:2) or gpu (0-1, titan01:0, all), \
    node, start, end, note, project. Other columns are ignored. An end without a time is the end of that day. Lines that \
    an earlier import made, and lines that are over, are left out: an import may be repeated.\n\n\
    Examples:\n  \
    fleet reservation import gpus.xlsx --dry-run\n  \
    fleet reservation import gpus.csv --dates mdy --columns \"Email=user\"\n  \
    fleet reservation import timetable.ods --grid --sheet November\n  \
    fleet reservation import --undo imp-k3v9"
)]
pub(crate) struct ReservationImportArgs {
    /// The spreadsheet: .xlsx, .ods or CSV; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "undo")]
    pub(crate) file: Option<std::path::PathBuf>,
    /// Only show what the import would do
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Which sheet of a workbook, if several have text
    #[arg(long, value_name = "NAME")]
    pub(crate) sheet: Option<String>,
    /// Order of day, month and year, if the sheet leaves it open
    #[arg(long, value_name = "ORDER")]
    pub(crate) dates: Option<DateOrder>,
    /// What the columns of the sheet are, if fleet does not know them: Person=user,Von=from
    #[arg(long, value_name = "HEADER=COLUMN,...")]
    pub(crate) columns: Vec<String>,
    /// The sheet is a timetable: GPUs as columns, times as rows, names in the cells
    #[arg(long, conflicts_with = "columns")]
    pub(crate) grid: bool,
    /// Only these lines of the file: 2-2001
    #[arg(long, value_name = "FROM-TO", value_parser = line_range)]
    pub(crate) lines: Option<std::ops::RangeInclusive<u64>>,
    /// Allow users that neither fleet nor the controller's machine knows
    #[arg(long)]
    pub(crate) new_users: bool,
    /// Release all reservations that this import made
    #[arg(long, value_name = "IMPORT",
        conflicts_with_all = ["file", "sheet", "dates", "columns", "grid", "lines", "new_users"])]
    pub(crate) undo: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn line_range(text: &str) -> Result<std::ops::RangeInclusive<u64>, String> {
    let range = text.split_once('-').and_then(|(from, to)| {
        let (from, to): (u64, u64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        (from >= 1 && from <= to).then_some(from..=to)
    });
    range.ok_or_else(|| "write the first and the last line, as 2-2001".to_owned())
}

#[derive(Debug, Args)]
#[command(
    after_help = "The file lists the reservations that have not ended, with their GPUs. Importing it again changes nothing.\n\n\
    Examples:\n  \
    fleet reservation export > gpus.csv"
)]
pub(crate) struct ReservationExportArgs {
    /// Only this user's
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Each line is a GPU, or several of a node that are the same. A column is a span of time; the wider the \
    terminal, the shorter. -o wide writes sentences instead, -o json the exact times.\n\n\
    Examples:\n  \
    fleet calendar\n  \
    fleet calendar -t 7d --model v100\n  \
    fleet calendar --from monday -t 5d --node titan01\n  \
    fleet calendar feed create"
)]
pub(crate) struct CalendarArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<CalendarVerb>,
    #[command(flatten)]
    pub(crate) show: CalendarShowArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CalendarShowArgs {
    /// Start of the picture: 14:00, monday, 2026-12-01 [default: now]
    #[arg(long, value_name = "WHEN")]
    pub(crate) from: Option<String>,
    /// How much time it shows: 8h, 7d, 30d [default: 1d]
    #[arg(short = 't', long = "time", value_name = "LENGTH")]
    pub(crate) time: Option<String>,
    /// Only GPUs of this node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Only GPUs of this model
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReservationShowArgs {
    /// The reservation
    #[arg(value_name = "RESERVATION")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
