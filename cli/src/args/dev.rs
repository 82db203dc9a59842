//! `dev`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use fleet_fake_nvml_control::{Profile, Throttle};

/// What a new cluster has where nothing else is said; the help names the same.
pub(crate) const DEV_NODES: u16 = 2;
pub(crate) const DEV_GPUS: DevGpus = DevGpus { profile: Profile::V100Pcie, count: 2 };
/// More GPUs than a node of `dev` may pretend to have.
const DEV_GPUS_MAX: u32 = 16;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "`fleet dev` runs until Ctrl-C, then stops all that it started and cleans up. Every node is a real agent \
    with simulated GPUs; jobs are real containers. It needs root, for cgroups and mounts. With --state, the cluster \
    keeps its nodes, controllers and GPUs until the next start.\n\n\
    Profiles: titan-x, titan-x-pascal, v100-pcie, v100-sxm2, a100.\n\n\
    Examples:\n  \
    sudo fleet dev --gpus v100-pcie:4\n  \
    sudo fleet dev --nodes 3 --controllers 3 --state /tmp/lab"
)]
pub(crate) struct DevArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<DevVerb>,
    /// How many nodes [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) nodes: Option<u16>,
    /// GPUs of each node [default: v100-pcie:2]
    #[arg(long, value_name = "PROFILE:COUNT")]
    pub(crate) gpus: Option<DevGpus>,
    /// How many controllers: 1, 3 or 5 [default: 1]
    #[arg(long, value_name = "N", value_parser = controllers)]
    pub(crate) controllers: Option<u16>,
    /// How long controllers wait for a silent leader, in milliseconds; use more on a busy machine
    #[arg(long, value_name = "MS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(200..=5_000))]
    pub(crate) election_timeout: u64,
    /// Folder of the cluster [default: a new one, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Do not remove the new folder at the end
    #[arg(long)]
    pub(crate) keep: bool,
    /// Connect the agents to the controllers directly; `fleet dev fault --network` needs the relay between them
    #[arg(long)]
    pub(crate) direct: bool,
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

impl fmt::Display for DevGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.profile, self.count)
    }
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
    /// Break a simulated GPU or the network of a node, or heal it
    Fault(FaultArgs),
    /// Stop, kill or start the agent of a node
    Agent(AgentArgs),
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(false).args(["stop", "kill", "start"]))]
#[command(
    after_help = "Jobs keep running while their agent is away.\n\nExamples:\n  fleet dev agent --node titan01 --kill"
)]
pub(crate) struct AgentArgs {
    /// Node name
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// Send SIGTERM: the agent ends by itself
    #[arg(long)]
    pub(crate) stop: bool,
    /// Send SIGKILL: the agent saves nothing
    #[arg(long)]
    pub(crate) kill: bool,
    /// Start an agent that was stopped or killed
    #[arg(long)]
    pub(crate) start: bool,
    /// Folder of the cluster [default: the folder of $FLEET_CONFIG]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// Why the clocks of a GPU are lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ThrottleReason {
    /// The card is too hot
    Thermal,
    /// The power supply asks for less
    PowerBrake,
    /// The hardware lowers them by half or more
    Hardware,
}

impl ThrottleReason {
    pub(crate) fn of_driver(self) -> Throttle {
        match self {
            Self::Thermal => Throttle::HwThermalSlowdown,
            Self::PowerBrake => Throttle::HwPowerBrakeSlowdown,
            Self::Hardware => Throttle::HwSlowdown,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Thermal => "the card is too hot",
            Self::PowerBrake => "the power supply asks for less",
            Self::Hardware => "by the hardware",
        }
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("fault").required(true).multiple(false)
    .args(["xid", "temperature", "lost", "missing", "hang", "retired_pages", "ecc", "pcie_width", "nvlink_down",
        "throttle", "no_driver", "network", "clear"]))]
#[command(
    after_help = "Faults add up until --clear. To let the whole driver hang, use --hang without --gpu.\n\n\
    With --network the connections between the node and the controllers stay open, but nothing arrives, as with a broken \
    switch. The agent and its jobs keep running. The node is suspect after 10 seconds and unreachable after a minute. To \
    break the agent itself, use `fleet dev agent`.\n\n\
    Examples:\n  \
    fleet dev fault --node titan01 --gpu 0 --retired-pages 2\n  \
    fleet dev fault --node titan02 --network\n  \
    fleet dev fault --node titan02 --clear"
)]
pub(crate) struct FaultArgs {
    /// Node name
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// Number of the GPU on the node [default: all its GPUs]
    #[arg(long, value_name = "INDEX")]
    pub(crate) gpu: Option<usize>,
    /// Report an XID event with this number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1023))]
    pub(crate) xid: Option<u64>,
    /// Report this temperature, in degrees Celsius
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(0..=200))]
    pub(crate) temperature: Option<u32>,
    /// The GPU fell off the bus
    #[arg(long)]
    pub(crate) lost: bool,
    /// The GPU is missing when the driver starts again
    #[arg(long)]
    pub(crate) missing: bool,
    /// Calls to the driver about the GPU never return
    #[arg(long)]
    pub(crate) hang: bool,
    /// This many memory pages wait for retirement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) retired_pages: Option<u32>,
    /// Report this many uncorrectable ECC errors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) ecc: Option<u64>,
    /// Report this PCIe width, in lanes
    #[arg(long, value_name = "LANES", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) pcie_width: Option<u32>,
    /// The NVLink with this number is down
    #[arg(long, value_name = "LINK")]
    pub(crate) nvlink_down: Option<u32>,
    /// Lower the clocks for this reason
    #[arg(long, value_name = "REASON")]
    pub(crate) throttle: Option<ThrottleReason>,
    /// The driver of the node is not loaded
    #[arg(long, conflicts_with = "gpu")]
    pub(crate) no_driver: bool,
    /// The node and the controllers cannot reach each other
    #[arg(long, conflicts_with = "gpu")]
    pub(crate) network: bool,
    /// End all faults; without --gpu, of all GPUs, the driver and the network
    #[arg(long)]
    pub(crate) clear: bool,
    /// Folder of the cluster [default: the folder of $FLEET_CONFIG]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}
