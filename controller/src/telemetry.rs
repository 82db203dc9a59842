//! Logging: fields on standard error, as text for a terminal and as JSON lines for everything else.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// What is logged when `FLEET_LOG` says nothing. openraft's chatter is for debugging it: it warns of an
/// absent peer several times a second; the leader's membership loop says so once.
const DEFAULT_FILTER: &str = "info,openraft=error";

/// Called once, first thing in `main`.
pub fn init() {
    let filter = EnvFilter::try_from_env("FLEET_LOG").unwrap_or_else(|_| DEFAULT_FILTER.into());
    let to_stderr = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        to_stderr.init();
    } else {
        to_stderr.json().init();
    }
}
