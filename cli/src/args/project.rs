//! `project` and `share`: who shares the fleet, and who had how much of it.

use clap::{ArgGroup, Args, Subcommand};
use fleet_core::project::WEIGHT_MAX;

use super::output::{OutputArgs, StaleArgs};
use crate::consent::Consent;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ProjectArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ProjectVerb>,
    #[command(flatten)]
    pub(crate) list: ProjectListArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProjectVerb {
    /// List projects
    List(ProjectListArgs),
    /// Show one project with its people
    Show(ProjectShowArgs),
    /// Create a project (admins only)
    Create(ProjectCreateArgs),
    /// Change the members, the weight or the limits of a project (admins only)
    Set(ProjectSetArgs),
    /// Remove a project that no open job or reservation names (admins only)
    Rm(ProjectRmArgs),
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ProjectListArgs {
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ProjectShowArgs {
    /// The project
    #[arg(value_name = "PROJECT")]
    pub(crate) project: String,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How much a project may have, and each person in it.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ProjectLimitArgs {
    /// Most GPUs that its jobs and reservations have at once; 0: no limit
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<u32>,
    /// Most GPUs that one person has at once in it; 0: no limit
    #[arg(long, value_name = "N")]
    pub(crate) gpus_each: Option<u32>,
    /// Most GPU-hours: past use as it fades, and what is held or booked; 0: no limit
    #[arg(long, value_name = "N")]
    pub(crate) gpu_hours: Option<u32>,
    /// Most GPU-hours of one person in it; 0: no limit
    #[arg(long, value_name = "N")]
    pub(crate) gpu_hours_each: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Only members may name the project with --project; admins may name any. Without a weight, a project \
    counts for the number of its people who used something in the last 30 days.\n\n\
    Examples:\n  \
    fleet project create vision --member ada --member bob\n  \
    fleet project create speech --group speechlab --weight 2"
)]
pub(crate) struct ProjectCreateArgs {
    /// Its name: a-z, 0-9, '.', '_' and '-'
    #[arg(value_name = "PROJECT")]
    pub(crate) project: String,
    /// A member; can be given several times
    #[arg(long = "member", value_name = "USER")]
    pub(crate) members: Vec<String>,
    /// A Unix group of the controllers' machines whose members are in it; can be given several times
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// Its part of the fleet beside other projects, 1 to 10000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))]
    pub(crate) weight: Option<u32>,
    #[command(flatten)]
    pub(crate) limits: ProjectLimitArgs,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Everybody is in the project `default`: it has a weight and limits, and no members. A limit stops \
    nothing that runs: jobs that would pass it wait, and reservations are refused, but not to an admin.\n\n\
    Examples:\n  \
    fleet project set vision --add-member cyd --remove-member bob\n  \
    fleet project set vision --weight 3\n  \
    fleet project set vision --gpus 16 --gpus-each 4 --gpu-hours 2000\n  \
    fleet project set vision --weight people"
)]
#[command(group = ArgGroup::new("what").multiple(true).required(true).args(["add_members", "remove_members", "add_groups", "remove_groups", "weight", "gpus", "gpus_each", "gpu_hours", "gpu_hours_each"]))]
pub(crate) struct ProjectSetArgs {
    /// The project
    #[arg(value_name = "PROJECT")]
    pub(crate) project: String,
    /// A new member; can be given several times
    #[arg(long = "add-member", value_name = "USER")]
    pub(crate) add_members: Vec<String>,
    /// Who is a member no longer; their jobs and reservations stay
    #[arg(long = "remove-member", value_name = "USER")]
    pub(crate) remove_members: Vec<String>,
    /// A Unix group whose members are in it from now on
    #[arg(long = "add-group", value_name = "GROUP")]
    pub(crate) add_groups: Vec<String>,
    /// A Unix group whose members are in it no longer
    #[arg(long = "remove-group", value_name = "GROUP")]
    pub(crate) remove_groups: Vec<String>,
    /// Its part of the fleet beside other projects, 1 to 10000; or `people`: the number of its people
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<String>,
    #[command(flatten)]
    pub(crate) limits: ProjectLimitArgs,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ProjectRmArgs {
    /// The project
    #[arg(value_name = "PROJECT")]
    pub(crate) project: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
#[command(
    after_help = "New jobs start in the order of what people had: projects by their weight, people within a project equally. \
    What somebody used counts half after the half-life; what they hold counts ahead, for one half-life at most. A reservation \
    counts from its start to its release, used or not. Interrupted jobs, and jobs that have waited for 7 days, come first.\n\n\
    Examples:\n  \
    fleet share\n  \
    fleet share --half-life 14d"
)]
pub(crate) struct ShareArgs {
    /// Change the time after which use counts half, 1h to 90d (admins only)
    #[arg(long, value_name = "LENGTH")]
    pub(crate) half_life: Option<String>,
    #[command(flatten)]
    pub(crate) stale: StaleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
