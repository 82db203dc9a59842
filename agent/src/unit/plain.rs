//! A shim without a service manager: its own session, no relation to the agent but the parent's id, which
//! goes to process 1 (or the nearest subreaper) when the agent dies.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, path::Path, process::Stdio};

use super::LaunchError;
use fleet_shim::order::SHIM_LOG_FILE;

pub(super) async fn start(shim: &Path, dir: &Path) -> Result<(), LaunchError> {
    let path = dir.join(SHIM_LOG_FILE);
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let log = log.map_err(|source| LaunchError::Log { path, source })?;
    // The first thing the shim does is to make its own session, so that a signal to the agent's group
    // (Ctrl-C in `fleet dev`) does not reach it. Before that there is no job to lose.
    let child = tokio::process::Command::new(shim)
        .arg(dir)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .kill_on_drop(false)
        .spawn();
    let mut child = child.map_err(|source| LaunchError::Spawn { path: shim.to_owned(), source })?;
    // Only to reap it while this agent lives; how the job ended is in the shim's files.
    tokio::spawn(async move { child.wait().await });
    Ok(())
}
