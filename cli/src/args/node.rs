//! `status`, `top`, `node`, `gpu`, `controller`: the machines, and who runs them.

use clap::{Args, Subcommand, ValueEnum};

use super::controller::{
    ControllerAddArgs, ControllerRemoveArgs, ControllerStatusArgs, TransferArgs,
};
use super::operations::{DebugBundleArgs, LogLevelArgs};
use super::output::{OutputArgs, StaleArgs, WatchArgs};
use crate::consent::Consent;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HeldArgs {
    /// For login scripts: print the UUIDs if the node enforces reservations; the line for the user goes to stderr
    #[arg(long)]
    pub(crate) login: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) every: u64,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<NodeVerb>,
    #[command(flatten)]
    pub(crate) list: NodeListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeVerb {
    /// List nodes
    List(NodeListArgs),
    /// Show one node
    Show(NodeShowArgs),
    /// Allow no new work on a node
    Cordon(CordonArgs),
    /// Allow new work again; also ends a drain
    Uncordon(UncordonArgs),
    /// Allow no new work, and move the jobs away at their next checkpoints
    Drain(DrainArgs),
    /// Reboot a node once it is empty; admins only
    Reboot(RebootArgs),
    /// Block GPU access without a reservation, or only observe; admins only
    Enforce(EnforceArgs),
    /// Tokens for nodes that join: create, list, withdraw
    Token(TokenArgs),
    /// End a node's certificates, as after a break-in; its jobs keep running
    Revoke(NodeLeaveArgs),
    /// Remove an empty node from the fleet
    Remove(NodeLeaveArgs),
    /// Set which users of a node get certificates from its agent
    Vouch(VouchArgs),
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NodeListArgs {
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NodeShowArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CordonArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Why, for others to read; required
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UncordonArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Jobs that save checkpoints move at their next checkpoint. Jobs without checkpoints may finish; fleet \
    stops them at --deadline. Reservations that start within seven days move to other GPUs; those that have started \
    last until their end. `fleet node uncordon` ends the drain.\n\n\
    Examples:\n  \
    fleet node drain titan01 --dry-run\n  \
    fleet node drain titan01 --reason \"new fan\" --deadline \"friday 18:00\""
)]
pub(crate) struct DrainArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Why, for others to read; required (optional with --dry-run)
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// When the node must be empty; a day alone means its end: friday, 2026-11-27 [default: never]
    #[arg(long, value_name = "WHEN")]
    pub(crate) deadline: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Only show what the drain would affect
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "fleet first drains the node: jobs that save checkpoints move, other jobs finish, reservations last \
    until their end. fleet also waits for users on a GPU without a reservation. `fleet node show` lists what the \
    reboot waits for.\n\n\
    Then the agent asks systemd for the reboot. A lock on shutdowns (`systemd-inhibit --list`) delays it. After the \
    reboot the node takes new work again, unless it was cordoned or drained before.\n\n\
    Examples:\n  \
    fleet node reboot titan01 --when-empty --reason \"new kernel\"\n  \
    fleet node reboot titan01 --cancel"
)]
pub(crate) struct RebootArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Required: wait until no job, reservation or user is left on the node
    #[arg(long, conflicts_with = "cancel")]
    pub(crate) when_empty: bool,
    /// Cancel a planned reboot, and allow new work again
    #[arg(long)]
    pub(crate) cancel: bool,
    /// Why, for others to read
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a node holds people to their reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Enforce {
    /// All users may open every GPU
    Off,
    /// All users may open every GPU; fleet counts and warns users without a reservation
    Warn,
    /// The kernel blocks users without a reservation
    On,
}

impl Enforce {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Enforce::Off => "off",
            Enforce::Warn => "warn",
            Enforce::On => "on",
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "A new node only observes (off). Use `warn` first: it shows who would be blocked. `on` blocks users who \
    open a GPU from then on; it does not close GPUs that are open. Root, jobs, and the exempt users in the node's \
    configuration always pass. fleet cannot block root, and so it cannot block members of the docker group.\n\n\
    Examples:\n  \
    fleet node enforce titan[01-12] warn\n  \
    fleet node enforce titan01 on --dry-run"
)]
pub(crate) struct EnforceArgs {
    /// Node names: titan01, titan01,titan02 or titan[01-12]
    #[arg(value_name = "NODES")]
    pub(crate) nodes: String,
    /// What fleet does about users without a reservation
    #[arg(value_enum, value_name = "MODE")]
    pub(crate) mode: Enforce,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Only show who would be affected now
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NodeLeaveArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Why, for others to read
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Vouches {
    /// No user
    Off,
    /// All users of the node, without admin rights
    Users,
    /// All users of the node; admins keep their rights
    Admins,
}

impl Vouches {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Vouches::Off => "off",
            Vouches::Users => "users",
            Vouches::Admins => "admins",
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "A user who is logged in on a node gets a certificate, because the node's kernel names the user. But root on \
    that node can claim to be any user. Therefore nobody gets admin rights this way, unless you choose `admins`.\n\n\
    Examples:\n  \
    fleet node vouch titan01 users"
)]
pub(crate) struct VouchArgs {
    /// Node name
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Which users the node vouches for
    #[arg(value_enum, value_name = "USERS")]
    pub(crate) vouches: Vouches,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) verb: TokenVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Create a token for new nodes; prints the command to type there
    Create(TokenCreateArgs),
    /// List the tokens that are still valid, for nodes and controllers
    List(TokenListArgs),
    /// Withdraw a token; nodes that have joined stay
    Withdraw(TokenWithdrawArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenWithdrawArgs {
    /// The token's id, see `fleet node token list`
    #[arg(value_name = "TOKEN")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenCreateArgs {
    /// Nodes that may join: titan01,titan02 or titan[01-12]
    #[arg(long, required = true, value_name = "NODES")]
    pub(crate) names: Vec<String>,
    /// How long the token is valid [default: set on the controller]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) ttl: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GpuArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<GpuVerb>,
    #[command(flatten)]
    pub(crate) list: GpuListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GpuVerb {
    /// List GPUs, who holds them, and their health
    List(GpuListArgs),
    /// Show who had a GPU, and how busy it was each minute
    History(GpuHistoryArgs),
    /// Clear old fault marks from a GPU; admins only
    Clear(ClearArgs),
    /// Force a GPU to "free" (its machine is gone); admins only
    DeclareFree(DeclareFreeArgs),
    /// Forget a lost card: the new card in its slot takes its number; admins only
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "With --on the picture below the list has a line for each hour and a character for each minute: how \
    busy the GPU was. The GPU's node keeps this for 30 days and is asked. Minutes of which it has nothing are unknown, \
    not idle. `--minutes -o json` prints all that is known of each minute. Names of processes are for their holder and \
    admins."
)]
pub(crate) struct GpuHistoryArgs {
    /// The GPU: titan01:3
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// Only this day: today, yesterday, tuesday (the last one), 2026-11-22
    #[arg(long, value_name = "DAY", conflicts_with_all = ["from", "until"])]
    pub(crate) on: Option<String>,
    /// From this time on: 2h (ago), 09:00, tuesday, 2026-11-22 [default: 7d]
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// Until this time [default: now]
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) until: Option<String>,
    /// Print each minute of the day: holder, use, memory, processes
    #[arg(long, requires = "on")]
    pub(crate) minutes: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GpuListArgs {
    /// Only GPUs of this node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Only GPUs of this model
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Only GPUs that are free now
    #[arg(long)]
    pub(crate) free: bool,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Some faults leave a mark: an error that the driver reported once, a GPU that was gone. Check the GPU, \
    reset it if its condition says so, then clear the mark. You cannot clear a fault that the node still measures; it \
    ends by itself. The audit log keeps who cleared which mark, and why.\n\n\
    Examples:\n  \
    fleet gpu clear titan01:3 --reason \"GPU reset\""
)]
pub(crate) struct ClearArgs {
    /// The GPU: titan01:3
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// What you did about the fault
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Use it only if the machine is off or gone for good. If a process still uses the GPU, two users will share \
    it. fleet refuses while the node reports a job or a process on the GPU. The audit log keeps who did it, and why.\n\n\
    Examples:\n  \
    fleet gpu declare-free titan01:3 --reason \"titan01 is switched off\""
)]
pub(crate) struct DeclareFreeArgs {
    /// The GPU: titan01:3
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// How you know that no program uses the GPU
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A lost card keeps its number until you forget it, so `titan01:3` never silently becomes another card. \
    Then the new card in the slot takes the number. It also takes the reservations, if it is the same model. fleet \
    refuses while somebody holds the card, or while a reservation has no other place.\n\n\
    With --replace, type it before you swap the card: fleet waits until it finds the new card. If the node boots with \
    the old card still in its slot, fleet cancels this.\n\n\
    Examples:\n  \
    fleet gpu forget titan01:3 --reason \"sent back\"\n  \
    fleet gpu forget titan01:3 --replace --reason \"swap for a new card\""
)]
pub(crate) struct ForgetArgs {
    /// The GPU: titan01:3
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// What happened to the card
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Wait until another card is in the slot
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ControllerVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ControllerVerb {
    /// Show the controller's state
    Status(ControllerStatusArgs),
    /// List the controllers and their state
    List(OutputArgs),
    /// Create a token for one more controller; prints the command to type there
    Add(ControllerAddArgs),
    /// Remove a controller for good
    Remove(ControllerRemoveArgs),
    /// Make another controller the leader, for example before work on this one
    TransferLeadership(TransferArgs),
    /// Show or replace the certificate authority
    Ca(super::AuthorityArgs),
    /// Allow evictions again after too many faults at once stopped them
    ThawEvictions(ThawArgs),
    /// Correct the fleet's time after a clock was wrong
    ResetClock(ResetClockArgs),
    /// Back up the controllers
    Snapshot(super::SnapshotArgs),
    /// Show or change the controller's log level, until its next start
    LogLevel(LogLevelArgs),
    /// Write a file for support: configuration, state, log, metrics; no secrets
    DebugBundle(DebugBundleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ThawArgs {
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct ResetClockArgs {
    /// The correct time [default: this machine's]
    #[arg(long, value_name = "WHEN")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
