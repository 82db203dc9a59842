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
    /// For a login: the UUIDs to standard output where the node holds people to their reservations, a line for the
    /// user to standard error, and nothing where the agent does not answer at once
    #[arg(long)]
    pub(crate) login: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
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
    /// Show one
    Show(NodeShowArgs),
    /// No new work on a node
    Cordon(CordonArgs),
    /// New work again; also ends a drain
    Uncordon(UncordonArgs),
    /// No new work, and move its jobs away at their next checkpoints
    Drain(DrainArgs),
    /// Boot a node anew once nothing is on it; admins only
    Reboot(RebootArgs),
    /// Hold people to their reservations, or only observe; admins only
    Enforce(EnforceArgs),
    /// Let nodes join
    Token(TokenArgs),
    /// End a node's certificates, as after a break-in; what runs there goes on
    Revoke(NodeLeaveArgs),
    /// Take a node out of the fleet; nothing may be left on it
    Remove(NodeLeaveArgs),
    /// Say whether a node's word is enough to let its users in
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
    #[arg(value_name = "NODE")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CordonArgs {
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Why, for others to read; it has to be said
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UncordonArgs {
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Jobs that save checkpoints move at their next one. Jobs that save nothing may finish,\n\
    or are stopped at --deadline. `fleet node uncordon` takes it back."
)]
pub(crate) struct DrainArgs {
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Why, for others to read; only --dry-run does without
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// When everything has to be gone; a day alone is its end: friday, 2026-11-27 [default: never]
    #[arg(long, value_name = "WHEN")]
    pub(crate) deadline: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Only show what it would affect
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The node is drained: jobs that save checkpoints move at their next one, others finish, reservations\n\
    last until their end, and who is on a GPU without one is waited for. Then its agent has systemd\n\
    reboot it, unless somebody holds shutdowns up (`systemd-inhibit --list`), and it takes new work\n\
    again, unless it was cordoned or drained before. `fleet node show` says what it waits for."
)]
pub(crate) struct RebootArgs {
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Once no job, reservation or lease is left on it and nobody is on its GPUs; there is no other way to ask
    #[arg(long, conflicts_with = "cancel")]
    pub(crate) when_empty: bool,
    /// It is not wanted any more; the node takes new work again
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
    /// Everybody may open every GPU
    Off,
    /// The same, and who has no reservation is counted and told
    Warn,
    /// The kernel keeps those out who have no reservation
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
    after_help = "A fresh node only observes (off). Before `on`, and for as long as you like, `warn` shows who would be\n\
    kept out. `on` concerns who opens a GPU from then on; root, jobs and the exempt users of the node's\n\
    configuration pass. What a device filter cannot hold: root itself, and with it the docker group."
)]
pub(crate) struct EnforceArgs {
    /// The nodes: titan01, titan01,titan02 or titan[01-12]
    #[arg(value_name = "NODES")]
    pub(crate) nodes: String,
    #[arg(value_enum, value_name = "MODE")]
    pub(crate) mode: Enforce,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Only show whom it would affect now
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NodeLeaveArgs {
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
    /// For nobody
    Off,
    /// For its users, without the rights of admins
    Users,
    /// For its users, admins as such
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
    after_help = "A user who is logged in on a node gets a certificate because the node's kernel says who it is.\n\
    Whoever is root there can claim to be any user: hence never an admin, unless you say so."
)]
pub(crate) struct VouchArgs {
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// For whom
    #[arg(value_enum, value_name = "WHOM")]
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
    /// Make a token that lets the named nodes join; prints the line to type there
    Create(TokenCreateArgs),
    /// List the tokens that a node or a controller could still join with
    List(TokenListArgs),
    /// Withdraw a token: nobody joins with it any more, and who has joined stays
    Withdraw(TokenWithdrawArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenWithdrawArgs {
    #[arg(value_name = "TOKEN")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenCreateArgs {
    /// The nodes it is for: titan01,titan02 or titan[01-12]
    #[arg(long, required = true, value_name = "NODES")]
    pub(crate) names: Vec<String>,
    /// How long it can be used [default: the controller's]
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
    /// Show who had a GPU, from when to when
    History(GpuHistoryArgs),
    /// Clear what a GPU still carries of a fault that is over; admins only
    Clear(ClearArgs),
    /// Say that a GPU is free though its node cannot prove it; admins only
    DeclareFree(DeclareFreeArgs),
    /// Take a lost card out of the inventory, and give its number to the card in its slot; admins only
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GpuHistoryArgs {
    /// The GPU: titan01:3
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// One day: today, yesterday, tuesday (the last one), 2026-11-22
    #[arg(long, value_name = "DAY", conflicts_with_all = ["from", "until"])]
    pub(crate) on: Option<String>,
    /// From this time on: 2h, 09:00, tuesday, 2026-11-22 [default: 7d]
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// Until this time [default: now]
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) until: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GpuListArgs {
    /// Only this node's
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Only this model's
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Only those that are free now
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
    after_help = "Some faults leave a mark that stays: an error the driver told of once, a GPU that was gone. Look at\n\
    the GPU, reset it if its condition says so, then clear it. What is still measured cannot be cleared; it\n\
    goes away by itself. The audit log keeps who cleared what and why."
)]
pub(crate) struct ClearArgs {
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// What was done about it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Only for a GPU whose node is gone for good. Should a process still use it, two users would share it.\n\
    While the node answers, a GPU on which it reports a job or a process is refused. The audit log keeps\n\
    who said so and why."
)]
pub(crate) struct DeclareFreeArgs {
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// How you know
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A card that is lost keeps its number until you forget it, so `titan01:3` never becomes another\n\
    card by itself. Then the card in its slot takes the number, and the reservations too if it is the\n\
    same model. It is refused while somebody holds the card, or a reservation has no other place.\n\
    With --replace, before you swap a card, this happens when the new one is found; a boot with the old\n\
    card still in its slot calls that off."
)]
pub(crate) struct ForgetArgs {
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,
    /// What became of the card
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// As soon as another card is in its slot, not before
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
    /// List the controllers and how each stands
    List(OutputArgs),
    /// Make a token for one more controller; prints the line to type there
    Add(ControllerAddArgs),
    /// Take a controller away for good
    Remove(ControllerRemoveArgs),
    /// Let another controller lead, before work on this one
    TransferLeadership(TransferArgs),
    /// The certificate authority, and its exchange for a new one
    Ca(super::AuthorityArgs),
    /// Let evictions go on after too many faults at once froze them
    ThawEvictions(ThawArgs),
    /// Set the fleet's time after it ran wrong
    ResetClock(ResetClockArgs),
    /// Backups of the whole control plane
    Snapshot(super::SnapshotArgs),
    /// Show or change what the controller logs, until its next start
    LogLevel(LogLevelArgs),
    /// Write a file for those who help: configuration, state, log, metrics; without secrets
    DebugBundle(DebugBundleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ThawArgs {
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct ResetClockArgs {
    /// The right time [default: this machine's]
    #[arg(long, value_name = "WHEN")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
