//! `dev`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use fleet_fake_nvml_control::Profile;

/// More GPUs than a node of `dev` may pretend to have.
const DEV_GPUS_MAX: u32 = 16;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "It stays in the foreground until Ctrl-C, then stops all it started and cleans up. Every node is\n\
    a real agent with pretended GPUs; jobs are real containers. It needs root, for cgroups and mounts.\n\n\
    Profiles: titan-x, titan-x-pascal, v100-pcie, v100-sxm2, a100."
)]
pub(crate) struct DevArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<DevVerb>,
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) nodes: u16,
    /// What each node pretends to have
    #[arg(long, value_name = "PROFILE:COUNT", default_value = "v100-pcie:2")]
    pub(crate) gpus: DevGpus,
    /// How many controllers: 1, 3 or 5
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = controllers)]
    pub(crate) controllers: u16,
    /// How long a controller waits for a silent leader, in milliseconds; more on a busy machine
    #[arg(long, value_name = "MS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(200..=5_000))]
    pub(crate) election_timeout: u64,
    /// Where to keep everything [default: a new folder that is removed at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Keep that new folder
    #[arg(long)]
    pub(crate) keep: bool,
}

fn controllers(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(count @ (1 | 3 | 5)) => Ok(count),
        Ok(_) | Err(_) => Err("1, 3 or 5".to_owned()),
    }
}

/// `PROFILE:COUNT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DevGpus {
    pub(crate) profile: Profile,
    pub(crate) count: u32,
}

impl FromStr for DevGpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (profile, count) = text.rsplit_once(':').unwrap_or((text, "1"));
        let profile = profile.parse().map_err(|error| format!("{error}"))?;
        match count.parse() {
            Ok(count @ 0..=DEV_GPUS_MAX) => Ok(DevGpus { profile, count }),
            Ok(_) | Err(_) => Err(format!("{count:?} is not a number from 0 to {DEV_GPUS_MAX}")),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevVerb {
    /// Break a pretended GPU, or heal it
    Fault(FaultArgs),
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("fault").required(true).multiple(false)
    .args(["xid", "temperature", "lost", "hang", "retired_pages", "clear"]))]
pub(crate) struct FaultArgs {
    /// The node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// The GPU's number there
    #[arg(long, value_name = "INDEX")]
    pub(crate) gpu: usize,
    /// An XID event with this number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1023))]
    pub(crate) xid: Option<u64>,
    /// This temperature, in degrees Celsius
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(0..=200))]
    pub(crate) temperature: Option<u32>,
    /// Fell off the bus
    #[arg(long)]
    pub(crate) lost: bool,
    /// Calls about it never return
    #[arg(long)]
    pub(crate) hang: bool,
    /// So many memory pages wait for retirement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) retired_pages: Option<u32>,
    /// Healthy again
    #[arg(long)]
    pub(crate) clear: bool,
    /// The cluster's folder [default: where FLEET_CONFIG is]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}
