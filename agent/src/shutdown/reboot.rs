//! Reboots this machine, because an admin ordered that once nothing is on it.
//!
//! The reconcile task calls it once nothing is on the machine. It must never touch a machine that this agent shares
//! with others, as agents of `fleet dev` do, nor ignore a lock that blocks shutdowns.

use std::time::Duration;

use fleet_daemon::doctor::look::{Answer, ask};
use tokio::task::spawn_blocking;

use crate::chain::chain;
use crate::unit::logind::{Logind, LogindError};
use crate::unit::systemd_is_running;

/// How long `systemctl` may take to pass it on.
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(30);

/// Why the machine does not reboot, for the admin who ordered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The obstacle goes away by itself: the agent tries again.
    Waits(String),
    /// An admin has to fix it.
    Cannot(String),
}

/// Asks systemd, unless other agents run on this machine too.
pub(crate) async fn reboot(is_shared: bool) -> Result<(), Refusal> {
    if is_shared {
        let why = "its agent is one of several on one machine (machine_id is set)";
        return Err(Refusal::Cannot(why.to_owned()));
    }
    if !systemd_is_running() {
        let why = "there is no systemd on this machine to ask; reboot it by hand";
        return Err(Refusal::Cannot(why.to_owned()));
    }
    let asked = async { Logind::connect().await?.reboot().await };
    let Err(error) = asked.await else { return Ok(()) };
    otherwise(&error, || ask("systemctl", &["reboot"], SYSTEMCTL_LIMIT)).await
}

/// The login manager did not. What ails it does not matter, but `systemctl` as root knows of no lock.
async fn otherwise(
    error: &LogindError,
    systemctl: impl FnOnce() -> Answer + Send + 'static,
) -> Result<(), Refusal> {
    let why = chain(error);
    if matches!(error, LogindError::Blocked { .. }) {
        return Err(Refusal::Waits(why));
    }
    tracing::warn!(
        error = why,
        "the login manager does not reboot this machine; systemctl is tried"
    );
    let problem = match spawn_blocking(systemctl).await {
        Ok(Answer::Said { ok: true, .. }) => return Ok(()),
        Ok(Answer::Said { ok: false, .. } | Answer::Missing) | Err(_) => {
            format!("neither logind nor systemctl reboots it: {why}")
        }
        Ok(Answer::Silent(silent)) => format!("logind: {why}; systemctl: {silent}"),
    };
    Err(Refusal::Cannot(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_ails_the_login_manager_is_gone_past_and_a_lock_is_not() {
        let blocked = LogindError::Blocked { by: "APT".to_owned() };
        let asked = otherwise(&blocked, || unreachable!("systemctl"));
        let why = "shutdowns are held up by APT".to_owned();
        assert_eq!(asked.await, Err(Refusal::Waits(why)));
        let answered = |ok| move || Answer::Said { ok, text: String::new() };
        assert_eq!(otherwise(&LogindError::Timeout, answered(true)).await, Ok(()));
        let no = otherwise(&LogindError::Timeout, answered(false)).await;
        assert!(matches!(no, Err(Refusal::Cannot(_))), "{no:?}");
    }
}
