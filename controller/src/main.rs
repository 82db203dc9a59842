//! `fleet-controller`: arguments, logging, exit code. Everything else is in the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fleet_controller::config::{self, Config};
use fleet_controller::join::{self, Invitation};
use fleet_controller::raft::{EXIT_STORE_REFUSED, StartError};
use fleet_controller::{server, telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

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
    /// Become one more controller of a cluster, by a token from `fleet controller add`.
    Join(JoinArgs),
    /// Run the controller in the foreground.
    #[command(alias = "serve")]
    Run(ConfigArg),
    /// Check the configuration and say what is wrong with it.
    CheckConfig(ConfigArg),
}

#[derive(Debug, clap::Args)]
struct ConfigArg {
    /// The configuration file.
    #[arg(long, default_value = config::DEFAULT_PATH)]
    config: PathBuf,
}

#[derive(Debug, clap::Args)]
struct JoinArgs {
    /// TOKEN@HOST:PORT, as `fleet controller add` printed it. It holds a secret.
    #[arg(value_name = "TOKEN@ADDRESS")]
    invitation: String,
    #[command(flatten)]
    config: ConfigArg,
}

fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init();
    match run(args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            exit_code(&error)
        }
    }
}

/// A store that was refused, by this program or by the fleet, has its own code: restarting does not help, so nobody should.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(|e| e.is::<server::Removed>()) {
        return u8::try_from(EXIT_STORE_REFUSED).map_or(ExitCode::FAILURE, ExitCode::from);
    }
    let store = error.chain().find_map(|e| e.downcast_ref::<StartError>());
    let code = store.and_then(|e| u8::try_from(e.exit_code()).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::CheckConfig(arg) => {
            Config::load(&arg.config)?;
            Ok(())
        }
        Verb::Init(arg) => {
            let config = Config::load(&arg.config)?;
            runtime()?.block_on(server::init(&config))?;
            tracing::info!(data_dir = %config.data_dir.display(), "cluster made; start it with `fleet-controller run`");
            Ok(())
        }
        Verb::Join(args) => {
            let config = Config::load(&args.config.config)?;
            // Not by clap: its message would repeat the secret.
            let invitation: Invitation = args.invitation.parse()?;
            let joined = runtime()?.block_on(join::join(&config, &invitation))?;
            tracing::info!(data_dir = %config.data_dir.display(), "{joined}");
            Ok(())
        }
        Verb::Run(arg) => {
            let config = Config::load(&arg.config)?;
            runtime()?.block_on(async {
                let stop = CancellationToken::new();
                let on_signal = stop.clone();
                let mut terminate = signal(SignalKind::terminate())?;
                let mut interrupt = signal(SignalKind::interrupt())?;
                tokio::spawn(async move {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    tracing::info!("stopping");
                    on_signal.cancel();
                });
                Box::pin(server::serve(config, stop)).await
            })
        }
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
