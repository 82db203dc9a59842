//! SIGHUP: the configuration is read again, and what can change at run time changes.
//!
//! A file that is wrong changes nothing; what only a restart takes over is named. The service manager
//! sees the whole of it.

use std::path::Path;

use crate::config_file::{self, ConfigError};
use crate::process::Process;
use crate::systemd;

/// What a program has to say about its configuration.
pub struct Reload<C> {
    /// Reads and checks the file.
    pub load: fn(&Path) -> Result<C, ConfigError>,
    /// The file that may be missing.
    pub default_path: &'static str,
    /// Keys that are taken over at run time.
    pub live_keys: &'static [&'static str],
}

impl<C> std::fmt::Debug for Reload<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reload").field("live_keys", &self.live_keys).finish_non_exhaustive()
    }
}

impl<C> Reload<C> {
    /// Waits for signals and hands each good new configuration to `take`. Runs until dropped.
    pub async fn follow(
        &self,
        mut process: Process,
        take: impl Fn(C),
        status_line: impl Fn() -> String,
    ) {
        let path = process.config_path.clone();
        let read = || config_file::read(&path, self.default_path).unwrap_or_default();
        let mut text = read();
        while process.signals.reload.changed().await.is_ok() {
            systemd::reloading();
            match (self.load)(&path) {
                Ok(config) => {
                    let now = read();
                    let changed = config_file::changed_keys(&text, &now);
                    let (live, rest): (Vec<String>, Vec<String>) =
                        changed.into_iter().partition(|key| self.live_keys.contains(&key.as_str()));
                    take(config);
                    tracing::info!(path = %path.display(), changed = ?live, "configuration read again");
                    if !rest.is_empty() {
                        tracing::warn!(keys = ?rest, "these take effect at the next start");
                    }
                    // What waits for a restart is named again at the next signal.
                    text = keep_old(&text, &now, &rest);
                }
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::error!(
                        error,
                        "configuration not taken; the former one stays in force"
                    );
                }
            }
            systemd::ready(&status_line());
        }
    }
}

/// The text to compare with next: the new one once nothing in it waits for a restart.
fn keep_old(old: &str, new: &str, waiting: &[String]) -> String {
    if waiting.is_empty() { new.to_owned() } else { old.to_owned() }
}
