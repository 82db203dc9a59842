//! `fleet-controller`: arguments, logging, exit code. Everything else is in the library.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use fleet_controller::config::{self, Config};
use fleet_controller::join::{self, Invitation};
use fleet_controller::raft::{EXIT_STORE_REFUSED, StartError};
use fleet_controller::superseded::Superseded;
use fleet_controller::{backup, doctor, read_only, server};
use fleet_daemon::completion::{self, Shell};
use fleet_daemon::logging::{self, Logging};
use fleet_daemon::manual::{self, ConfigFile};
use fleet_daemon::process::{self, Process, watch_signals};
use fleet_proto::json::values::Time;

/// Many threads allocate what others free, for every change: the C library's allocator took a sixth of the
/// controllers' processor time under load (ADR 24).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The reference and the example are the files that a test holds to what is read.
const CONFIG_FILE: ConfigFile<'_> = ConfigFile {
    name: "controller.toml",
    about: "configuration of fleet-controller",
    program: "fleet-controller",
    reference: include_str!("../../docs/configuration.md"),
    example: include_str!("../../packaging/examples/controller.toml"),
};

/// The controller of a fleet: inventory, reservations, jobs and the audit log, replicated.
#[derive(Debug, Parser)]
#[command(name = "fleet-controller", version)]
struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a new cluster on this machine: certificate authority, keys, empty store.
    Init(ConfigArg),
    /// Join a cluster as one more controller, with a token from `fleet controller add`.
    Join(JoinArgs),
    /// Run the controller in the foreground.
    #[command(alias = "serve")]
    Run(ConfigArg),
    /// Check the configuration and say what is wrong with it.
    CheckConfig(ConfigArg),
    /// Restore the cluster from a backup, in an empty data folder.
    ///
    /// The certificate authority stays and the incarnation rises. Agents and users reconnect by themselves, and
    /// running jobs are adopted. Run it as the owner of that folder, and start the service afterwards.
    Restore(RestoreArg),
    /// Write a backup of this controller while it is stopped, with its whole log.
    ///
    /// Use it if too few controllers are left: on the controller with the newest log.
    Backup(BackupArg),
    /// Check that a backup is whole, and say what is in it.
    Verify {
        /// The backup.
        file: PathBuf,
        /// As JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Print what is wrong with this controller (started by `fleet doctor`, for which it is JSON).
    #[command(hide = true)]
    Doctor(ConfigArg),
    /// Write the manual pages into a folder, which is made where it is missing.
    #[command(hide = true)]
    Manual { dir: PathBuf },
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completion { shell: Shell },
}

#[derive(Debug, clap::Args)]
struct RestoreArg {
    /// The backup.
    file: PathBuf,
    /// Only check whether the backup is whole.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    config: ConfigArg,
}

#[derive(Debug, clap::Args)]
struct BackupArg {
    /// The file to write; it must not exist yet. The backup has secrets.
    file: PathBuf,
    #[command(flatten)]
    config: ConfigArg,
}

#[derive(Debug, clap::Args)]
struct ConfigArg {
    /// The configuration file.
    #[arg(long, default_value = config::DEFAULT_PATH)]
    config: PathBuf,
}

#[derive(Debug, clap::Args)]
struct JoinArgs {
    /// TOKEN@HOST:PORT, as `fleet controller add` printed it. The token is a secret.
    #[arg(value_name = "TOKEN@ADDRESS")]
    invitation: String,
    #[command(flatten)]
    config: ConfigArg,
}

fn main() -> ExitCode {
    let verb = Args::parse().command;
    if let Verb::Run(arg) = verb {
        let logging = logging::init(config::LOG_LEVEL);
        return process::finish(&serve(arg, logging), exit_code);
    }
    logging::for_command();
    process::finish_command(&run(verb), exit_code)
}

/// A store that was refused, by this program or by the fleet, has its own code: restarting does not help, so nobody should.
fn exit_code(error: &anyhow::Error) -> Option<u8> {
    if error.chain().any(|e| e.is::<server::Removed>() || e.is::<Superseded>()) {
        return u8::try_from(EXIT_STORE_REFUSED).ok();
    }
    let store = error.chain().find_map(|e| e.downcast_ref::<StartError>())?;
    u8::try_from(store.exit_code()).ok()
}

/// The daemon itself.
fn serve(arg: ConfigArg, logging: Logging) -> anyhow::Result<()> {
    let config = Config::load(&arg.config)?;
    logging.configure(&config.log_level);
    let served = runtime()?.block_on(async {
        let process = Process { config_path: arg.config, logging, signals: watch_signals()? };
        Box::pin(server::serve(config, process)).await
    });
    served.map_err(|error| read_only::explained(error, "FOLDER"))
}

/// What a person types, or a script: it answers in plain lines.
fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Run(_) => unreachable!("`main` runs it itself"),
        Verb::CheckConfig(arg) => {
            if let Some(mail) = Config::load(&arg.config)?.mail {
                mail.check_files()?;
            }
            process::answer(format_args!("{}: no problem found", arg.config.display()))?;
            Ok(())
        }
        Verb::Init(arg) => {
            let config = Config::load(&arg.config)?;
            runtime()?.block_on(server::init(&config))?;
            process::answer(format_args!(
                "made a new cluster in {}\nstart it: systemctl enable --now fleet-controller",
                config.data_dir.display()
            ))?;
            Ok(())
        }
        Verb::Join(args) => {
            let config = Config::load(&args.config.config)?;
            // Not by clap: its message would repeat the secret.
            let invitation: Invitation = args.invitation.parse()?;
            let joined = runtime()?.block_on(join::join(&config, &invitation))?;
            process::answer(joined)?;
            Ok(())
        }
        Verb::Verify { file, json: false } => verify(&file),
        Verb::Verify { file, json: true } => verify_as_json(&file),
        Verb::Doctor(arg) => runtime()?.block_on(doctor::run(&arg.config)),
        Verb::Manual { dir } => manual::write(Args::command(), &CONFIG_FILE, &dir),
        Verb::Completion { shell } => completion::print(Args::command(), shell),
        Verb::Restore(arg) if arg.check => verify(&arg.file),
        Verb::Restore(arg) => {
            let config = Config::load(&arg.config.config)?;
            let restored = runtime()?.block_on(backup::restore(&config, &arg.file))?;
            process::answer(format_args!(
                "restored {} in {}, as controller {} with incarnation {}\n\
                 be sure that no controller of the old cluster runs, then start this one: \
                 systemctl start fleet-controller",
                restored.manifest.cluster,
                config.data_dir.display(),
                restored.node,
                restored.incarnation,
            ))?;
            Ok(())
        }
        Verb::Backup(arg) => {
            let config = Config::load(&arg.config.config)?;
            let written = runtime()?.block_on(backup::read_out_to(&config, &arg.file))?;
            process::answer(format_args!(
                "wrote {}, {} bytes, up to log index {}\n\
                 it holds the key of the certificate authority: keep it as you keep root's keys",
                arg.file.display(),
                written.bytes,
                written.manifest.index,
            ))?;
            Ok(())
        }
    }
}

/// Says what the backup holds.
fn verify(file: &Path) -> anyhow::Result<()> {
    let checked = backup::check(file)?;
    let manifest = &checked.manifest;
    let controllers: Vec<String> =
        manifest.controllers.iter().map(|(id, address)| format!("{id} ({address})")).collect();
    let (jobs, reservations) = (checked.fsm.jobs().len(), checked.fsm.reservations().count());
    process::answer(format_args!("{} is whole", file.display()))?;
    for (name, value) in [
        ("Cluster", format!("{}, incarnation {}", manifest.cluster, manifest.incarnation)),
        ("Made", Time(manifest.made_at.0).to_string()),
        ("By", format!("controller {}, fleet {}", manifest.controller, manifest.fleet)),
        ("Controllers", controllers.join(", ")),
        ("Log index", manifest.index.to_string()),
        ("Nodes", checked.fsm.nodes().len().to_string()),
        ("Jobs", jobs.to_string()),
        ("Reservations", reservations.to_string()),
        ("Audit records", manifest.audit_records_here().to_string()),
        ("Files", manifest.files.join(", ")),
    ] {
        process::answer(format_args!("{name:<15}{value}"))?;
    }
    Ok(())
}

fn verify_as_json(file: &Path) -> anyhow::Result<()> {
    let checked = backup::check(file)?;
    let text = serde_json::json!({
        "schema": "fleet.backup/v1",
        "whole": true,
        "cluster": checked.manifest.cluster,
        "incarnation": checked.manifest.incarnation,
        "made_at_unix_ms": checked.manifest.made_at.0,
        "fleet": checked.manifest.fleet,
        "controller": checked.manifest.controller,
        "controllers": checked.manifest.controllers,
        "log_index": checked.manifest.index,
        "nodes": checked.fsm.nodes().len(),
        "jobs": checked.fsm.jobs().len(),
        "reservations": checked.fsm.reservations().count(),
        "audit_records": checked.manifest.audit_records_here(),
        "files": checked.manifest.files,
    });
    process::answer(format_args!("{text:#}"))?;
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_the_pages_can_be_typed() {
        fleet_page_commands::all_can_be_typed(Args::command(), (7, 12), |words| words);
    }
}
