//! `fleet-agent`: arguments, logging, exit code. Everything else is in the library.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use fleet_agent::config::{self, Config};
use fleet_agent::enroll::store::IdentityFolder;
use fleet_agent::enroll::{JoinOptions, Machine, identity_folder, join};
use fleet_agent::gpu::{ProbeOptions, run_probe};
use fleet_agent::operations::client;
use fleet_agent::{checkpoint, doctor, emergency, gate, server, stop_all};
use fleet_core::name::NodeName;
use fleet_core::time::Millis;
use fleet_daemon::completion::{self, Shell};
use fleet_daemon::logging::{self, Logging};
use fleet_daemon::manual::{self, ConfigFile};
use fleet_daemon::process::{self, Process, watch_signals};
use fleet_proto::transport::client::Address;
use fleet_proto::transport::token::JoinToken;

/// Threads for what blocks: files, `/proc`, name services. Idle ones end by themselves.
const BLOCKING_THREADS_MAX: usize = 32;

/// The reference and the example are the files that a test holds to what is read.
const CONFIG_FILE: ConfigFile<'_> = ConfigFile {
    name: "agent.toml",
    about: "configuration of fleet-agent",
    program: "fleet-agent",
    reference: include_str!("../../docs/configuration.md"),
    example: include_str!("../../packaging/examples/agent.toml"),
};

/// The agent of fleet: one per GPU node.
#[derive(Debug, Parser)]
#[command(name = "fleet-agent", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the agent in the foreground
    #[command(alias = "serve")]
    Run(ConfigArgument),
    /// Make this node a member of a fleet
    Join(JoinArguments),
    /// Check the configuration and say what is wrong with it
    CheckConfig(ConfigArgument),
    /// Stop every job of this node, while no agent runs
    StopAll(StopArguments),
    /// Show or change what the running agent logs, until it is started again
    LogLevel(LogLevelArguments),
    /// Write a file for support: configuration, state, log, metrics; no secrets
    DebugBundle(DebugBundleArguments),
    /// Give a user GPUs of this node for a while; only while no controller answers
    Grant(GrantArguments),
    /// End a grant of this node
    Revoke(RevokeArguments),
    /// Root's switch: weakens how this node enforces reservations
    Enforce(EnforceArguments),
    /// Load, show or remove the kernel's GPU filter, without an agent
    Gate(GateArguments),
    /// Print what is wrong with this node (started by `fleet doctor`, for which it is JSON)
    #[command(hide = true)]
    Doctor(ConfigArgument),
    /// Talk to the NVIDIA driver on behalf of the agent (started by the agent itself)
    #[command(hide = true)]
    NvmlProbe(ProbeOptions),
    /// Write the manual pages into a folder, which is made where it is missing
    #[command(hide = true)]
    Manual { dir: PathBuf },
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completion { shell: Shell },
}

#[derive(Debug, clap::Args)]
struct ConfigArgument {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
}

#[derive(Debug, clap::Args)]
struct JoinArguments {
    /// A controller's address
    #[arg(value_name = "HOST:PORT")]
    address: Address,
    /// The join token, from `fleet node token create`
    #[arg(long, value_name = "TOKEN")]
    token: String,
    /// This node's name
    #[arg(long, value_name = "NAME", value_parser = NodeName::parse)]
    name: NodeName,
    /// Leave the fleet or the name that this node has now
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct StopArguments {
    /// Seconds from the stop signal to SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3600))]
    grace: u64,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct LogLevelArguments {
    /// error, warn, info, debug, trace, off; MODULE=LEVEL; several with commas between; or default
    #[arg(value_name = "LEVEL")]
    level: Option<String>,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "For emergencies. If a controller answers, use `fleet reserve --for USER`. The node stores the grant. When \
    the controllers are back, they turn it into a reservation and record it in the audit log."
)]
struct GrantArguments {
    /// User who gets the GPUs
    #[arg(value_name = "USER")]
    user: String,
    /// GPUs of this node: `0,1`, `titan01:0` or UUIDs
    #[arg(long, required = true, value_name = "GPU", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Length of the grant: `30m`, `4h`, `2d`
    #[arg(short, long, value_name = "LENGTH", value_parser = emergency::parse_length)]
    time: Millis,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct DebugBundleArguments {
    /// The .tar.gz file to write; it must not exist yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct RevokeArguments {
    /// The id that `grant` printed
    #[arg(value_name = "RESERVATION")]
    reservation: String,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "on (the default): the node does what `fleet node enforce` ordered. While no controller answers, it stops \
    jobs in time for another user's reservation.\n\n\
    warn: the node only reports what it would do. off: it does nothing, and blocks nobody.\n\n\
    In every mode the node counts reservations, and stops jobs that a controller stops. The audit log gets the \
    change when the controllers are back."
)]
struct EnforceArguments {
    /// How the node enforces reservations
    #[arg(value_name = "MODE", value_parser = ["on", "warn", "off"])]
    mode: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Debug, clap::Args)]
struct GateArguments {
    #[command(subcommand)]
    verb: GateVerb,
}

#[derive(Debug, Subcommand)]
enum GateVerb {
    /// Load the last state again; runs at boot, before anyone can log in
    Load(ConfigArgument),
    /// Print the mode, who may pass, and how often the kernel denied a user
    Show(ConfigArgument),
    /// Remove the filter, so that all users may open every GPU; for removing fleet
    Remove(ConfigArgument),
}

// Not an async main: the helpers must stay small processes without a runtime.
fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|arg| arg == "as-user") {
        return fleet_user::helper::run(args, checkpoint::helper::perform);
    }
    let verb = Arguments::parse().verb;
    if let Verb::NvmlProbe(options) = &verb {
        return run_probe(options);
    }
    if let Verb::Run(arguments) = verb {
        let logging = logging::init(config::LOG_LEVEL);
        return process::finish(&serve(arguments, logging), |_| None);
    }
    logging::for_command();
    process::finish_command(&run(verb), |_| None)
}

/// The daemon itself.
fn serve(arguments: ConfigArgument, logging: Logging) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    logging.configure(&config.log_level);
    runtime()?.block_on(async {
        let (config_path, signals) = (arguments.config, watch_signals()?);
        server::serve(config, Process { config_path, logging, signals }).await
    })
}

/// What a person types, or a script: it answers in plain lines.
fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::NvmlProbe(_) | Verb::Run(_) => unreachable!("`main` runs these itself"),
        Verb::Manual { dir } => manual::write(Arguments::command(), &CONFIG_FILE, &dir),
        Verb::Completion { shell } => completion::print(Arguments::command(), shell),
        Verb::CheckConfig(arguments) => {
            Config::load(&arguments.config)?;
            process::answer(format_args!("{}: no problem found", arguments.config.display()))?;
            Ok(())
        }
        Verb::Doctor(arguments) => runtime()?.block_on(doctor::run(&arguments.config)),
        Verb::Join(arguments) => runtime()?.block_on(join_fleet(arguments)),
        Verb::StopAll(arguments) => {
            let config = Config::load(&arguments.config.config)?;
            let grace = Duration::from_secs(arguments.grace);
            runtime()?.block_on(stop_all::stop_all(&config, grace))
        }
        Verb::LogLevel(arguments) => {
            let config = Config::load(&arguments.config.config)?;
            runtime()?.block_on(client::log_level(&config, arguments.level.as_deref()))
        }
        Verb::DebugBundle(arguments) => {
            let path = arguments.config.config;
            let config = Config::load(&path)?;
            runtime()?.block_on(client::debug_bundle(&config, &path, &arguments.file))
        }
        Verb::Grant(arguments) => {
            let config = Config::load(&arguments.config.config)?;
            let GrantArguments { user, gpu, time, reason, .. } = arguments;
            runtime()?.block_on(emergency::grant(&config, user, gpu, time, reason))
        }
        Verb::Revoke(arguments) => {
            let config = Config::load(&arguments.config.config)?;
            runtime()?.block_on(emergency::revoke(&config, arguments.reservation))
        }
        Verb::Gate(arguments) => match arguments.verb {
            GateVerb::Load(file) => gate::command::load(&Config::load(&file.config)?),
            GateVerb::Show(file) => gate::command::show(&Config::load(&file.config)?),
            GateVerb::Remove(file) => gate::command::remove(&Config::load(&file.config)?),
        },
        Verb::Enforce(arguments) => {
            let config = Config::load(&arguments.config.config)?;
            runtime()?.block_on(emergency::enforce(&config, arguments.mode, arguments.reason))
        }
    }
}

async fn join_fleet(arguments: JoinArguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config.config)?;
    let token: JoinToken = arguments.token.parse().context("--token")?;
    let machine = Machine::read().or_configured(config.machine_id);
    let joined = join(&JoinOptions {
        address: arguments.address,
        token,
        name: arguments.name,
        machine,
        folder: IdentityFolder::new(&identity_folder(&config.state_dir)),
        replace: arguments.replace,
    })
    .await?;
    process::answer(joined)?;
    Ok(())
}

// One thread suffices: what blocks has threads of its own, and memory counts.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_the_pages_can_be_typed() {
        fleet_page_commands::all_can_be_typed(Arguments::command(), (6, 15), |words| words);
    }
}
