//! `class`: which jobs come first, and which may take the place of others.

use clap::{ArgAction, ArgGroup, Args, Subcommand, ValueEnum};
use fleet_core::class::Preemptible;

use super::output::{OutputArgs, StaleArgs};
use crate::consent::Consent;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ClassArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ClassVerb>,
    #[command(flatten)]
    pub(crate) list: ClassListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClassVerb {
    /// List classes, the highest first
    List(ClassListArgs),
    /// Show one class
    Show(ClassShowArgs),
    /// Create a class (admins only)
    Create(ClassCreateArgs),
    /// Change a class (admins only)
    Set(ClassSetArgs),
    /// Remove a class that no open job is of (admins only)
    Rm(ClassRmArgs),
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClassListArgs {
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClassShowArgs {
    /// The class
    #[arg(value_name = "CLASS")]
    pub(crate) class: String,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How jobs of a class may be preempted.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PreemptibleArg {
    /// They never leave for another job
    Never,
    /// Those that declare checkpoints leave at one
    Checkpoint,
    /// Those that declare none leave too, and lose their work
    Always,
}

impl PreemptibleArg {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Never => Preemptible::Never.word(),
            Self::Checkpoint => Preemptible::Checkpoint.word(),
            Self::Always => Preemptible::Always.word(),
        }
    }
}

/// What can be said of a new class and of one that is there.
#[derive(Debug, Args)]
pub(crate) struct ClassRules {
    /// Jobs of a class with a higher one come first, 0 to 1000000
    #[arg(long, value_name = "N")]
    pub(crate) priority: Option<u32>,
    /// Everybody may use it; `--everybody=false`: only its members and admins
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) everybody: Option<bool>,
    /// Its jobs may take the place of jobs of lower classes; or `--preempts=false`
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) preempts: Option<bool>,
    /// Which of its jobs leave for a job of a higher class
    #[arg(long, value_name = "WHICH", value_enum)]
    pub(crate) preemptible: Option<PreemptibleArg>,
    /// No job of it leaves before it ran this long, up to 7d; 0: at once
    #[arg(long, value_name = "LENGTH")]
    pub(crate) min_run: Option<String>,
    /// How long one that leaves is waited for to save, 1m to 24h
    #[arg(long, value_name = "LENGTH")]
    pub(crate) save_limit: Option<String>,
    /// Most GPUs that one person's jobs of it hold at once; 0: no limit
    #[arg(long, value_name = "N")]
    pub(crate) gpus_each: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without other words a new class has priority 100, its members and admins use it, its jobs take nobody's \
    place, and leave at a checkpoint for a higher class once they ran for 2h and saved once.\n\n\
    Examples:\n  \
    fleet class create deadline --priority 150 --preempts --member ada"
)]
pub(crate) struct ClassCreateArgs {
    /// Its name: a-z, 0-9, '.', '_' and '-'
    #[arg(value_name = "CLASS")]
    pub(crate) class: String,
    #[command(flatten)]
    pub(crate) rules: ClassRules,
    /// Somebody who may use it; can be given several times
    #[arg(long = "member", value_name = "USER")]
    pub(crate) members: Vec<String>,
    /// A Unix group of the controllers' machines whose members may use it; can be given several times
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "The change counts at once, also for jobs that wait or run.\n\n\
    Examples:\n  \
    fleet class set urgent --add-member ada --gpus-each 2\n  \
    fleet class set normal --preemptible never\n  \
    fleet class set scavenger --min-run 1h")]
#[command(group = ArgGroup::new("what").multiple(true).required(true).args([
    "priority", "everybody", "preempts", "preemptible", "min_run", "save_limit", "gpus_each",
    "add_members", "remove_members", "add_groups", "remove_groups",
]))]
pub(crate) struct ClassSetArgs {
    /// The class
    #[arg(value_name = "CLASS")]
    pub(crate) class: String,
    #[command(flatten)]
    pub(crate) rules: ClassRules,
    /// Somebody who may use it from now on; can be given several times
    #[arg(long = "add-member", value_name = "USER")]
    pub(crate) add_members: Vec<String>,
    /// Somebody who may use it no longer; their jobs stay
    #[arg(long = "remove-member", value_name = "USER")]
    pub(crate) remove_members: Vec<String>,
    /// A Unix group whose members may use it from now on
    #[arg(long = "add-group", value_name = "GROUP")]
    pub(crate) add_groups: Vec<String>,
    /// A Unix group whose members may use it no longer
    #[arg(long = "remove-group", value_name = "GROUP")]
    pub(crate) remove_groups: Vec<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClassRmArgs {
    /// The class
    #[arg(value_name = "CLASS")]
    pub(crate) class: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
