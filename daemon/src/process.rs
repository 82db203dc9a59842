//! The process as its parent sees it: signals in, an exit code out.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config_file::ConfigError;
use crate::logging::Logging;

/// What a program's server gets from its `main`, beside its configuration.
#[derive(Debug, Clone)]
pub struct Process {
    /// Read again on SIGHUP.
    pub config_path: PathBuf,
    pub logging: Logging,
    pub signals: Signals,
}

/// What others ask of the process by signals.
#[derive(Debug, Clone)]
pub struct Signals {
    /// Cancelled by SIGTERM and SIGINT.
    pub stop: CancellationToken,
    /// Counts SIGHUP: read the configuration again.
    pub reload: watch::Receiver<u64>,
}

/// Listens for signals until the first that stops. Call it on the runtime, once.
pub fn watch_signals() -> io::Result<Signals> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let stop = CancellationToken::new();
    let (asked, reload) = watch::channel(0);
    let cancel = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => asked.send_modify(|times| *times += 1),
            }
        }
        cancel.cancel();
        // SIGHUP is still taken, and means nothing any more.
        while hangup.recv().await.is_some() {}
    });
    Ok(Signals { stop, reload })
}

/// A configuration file that cannot be read or taken (sysexits.h: `EX_CONFIG`). Starting again does not mend it.
pub const EXIT_CONFIG: u8 = 78;

/// How a daemon ends: what went wrong is an ERROR in its log. `code_of` knows a program's own errors that have an exit
/// code of their own.
pub fn finish(
    result: &anyhow::Result<()>,
    code_of: impl FnOnce(&anyhow::Error) -> Option<u8>,
) -> ExitCode {
    if let Err(error) = result {
        tracing::error!("{error:#}");
    }
    exit_code(result, code_of)
}

/// How a command that a person typed ends: what went wrong is `error: …` on standard error, whatever `FLEET_LOG` says.
/// The exit codes are those of the daemon.
pub fn finish_command(
    result: &anyhow::Result<()>,
    code_of: impl FnOnce(&anyhow::Error) -> Option<u8>,
) -> ExitCode {
    if let Err(error) = result {
        // Nobody is left to hear it where standard error is closed; the exit code says it too.
        writeln!(io::stderr(), "error: {error:#}").ok();
    }
    exit_code(result, code_of)
}

fn exit_code(
    result: &anyhow::Result<()>,
    code_of: impl FnOnce(&anyhow::Error) -> Option<u8>,
) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let config = error.chain().any(|cause| cause.is::<ConfigError>());
    let code = if config { Some(EXIT_CONFIG) } else { code_of(error) };
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Says on standard output what a command did.
///
/// # Errors
/// Standard output is closed, or full.
pub fn answer(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}
