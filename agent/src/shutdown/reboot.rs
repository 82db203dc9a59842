//! Booting this machine anew, because an admin wanted that once nothing is on it.
//!
//! Called by the reconcile task, which knows that nothing is. It must never touch a machine that this agent shares
//! with others, as agents of `fleet dev` do.

use std::time::Duration;

use fleet_daemon::doctor::look::{Answer, ask};
use tokio::task::spawn_blocking;

use crate::allocations::chain;
use crate::config::Config;
use crate::unit::logind::Logind;
use crate::unit::systemd_is_running;

/// How long `systemctl` may take to pass it on.
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(30);

/// Asks systemd. Why the machine does not go down, for whoever wanted it.
pub(crate) async fn reboot(config: &Config) -> Result<(), String> {
    if config.machine_id.is_some() {
        return Err("its agent is one of several on one machine (machine_id is set)".to_owned());
    }
    if !systemd_is_running() {
        return Err("there is no systemd on this machine to ask; reboot it by hand".to_owned());
    }
    let asked = async { Logind::connect().await?.reboot().await };
    let Err(error) = asked.await else { return Ok(()) };
    let why = chain(&error);
    tracing::warn!(
        error = why,
        "the login manager does not reboot this machine; systemctl is tried"
    );
    let systemctl = || ask("systemctl", &["reboot"], SYSTEMCTL_LIMIT);
    match spawn_blocking(systemctl).await {
        Ok(Answer::Said { ok: true, .. }) => Ok(()),
        Ok(Answer::Said { ok: false, .. } | Answer::Missing) | Err(_) => {
            Err(format!("neither logind nor systemctl reboots it: {why}"))
        }
        Ok(Answer::Silent(silent)) => Err(format!("logind: {why}; systemctl: {silent}")),
    }
}
