//! Root's commands to the running agent: the log's level, the debug bundle.
//!
//! Called by `main`. Where no agent runs, the bundle holds what is on disk, and says so.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use fleet_daemon::http::{ask, unix_seconds};
use fleet_daemon::process;
use fleet_proto::transport::files::{MODE_PRIVATE, write_atomic};

use super::{inside, socket_path};
use crate::config::Config;

/// `fleet-agent log-level [LEVEL]`: says the level, after changing it.
pub async fn log_level(config: &Config, level: Option<&str>) -> anyhow::Result<()> {
    let socket = socket_path(config);
    let (method, body) = match level {
        Some(level) => ("PUT", level),
        None => ("GET", ""),
    };
    let (status, answer) = ask(&socket, method, "/log-level", body).await.with_context(|| {
        format!("ask the agent at {} (does it run, and are you root?)", socket.display())
    })?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if status != 200 {
        bail!("{}", answer.trim_end());
    }
    std::io::stdout().write_all(answer.as_bytes())?;
    Ok(())
}

/// `fleet-agent debug-bundle FILE`.
pub async fn debug_bundle(config: &Config, path: &Path, file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!("{} is there already; name another file", file.display());
    }
    let bytes = match ask(&socket_path(config), "GET", "/debug-bundle", "").await {
        Ok((200, bytes)) => bytes,
        Ok((status, answer)) => {
            bail!("the agent answers {status}: {}", String::from_utf8_lossy(&answer).trim_end())
        }
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "no agent answers, so the bundle has only what is on disk");
            let mut bundle = inside::from_disk(config, path);
            bundle.text("not-running.txt", &format!("{error}\n"));
            bundle.archive("fleet-agent", unix_seconds())?
        }
    };
    write_atomic(file, &bytes, MODE_PRIVATE)?;
    let (file, bytes) = (file.display(), bytes.len());
    process::answer(format_args!(
        "wrote {file}, {bytes} bytes; look through it before you send it"
    ))?;
    Ok(())
}
