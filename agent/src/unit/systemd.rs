//! Transient units over D-Bus.
//!
//! Properties, and why: `Delegate` (the shim makes cgroups below), `KillMode=mixed` (a stop, as at
//! shutdown, signals the shim, which stops the job with its grace; when the shim goes, what is left is
//! killed), `CollectMode=inactive-or-failed` (no dead units stay), no dependency on the agent's unit (its
//! restart or stop must not reach here), `OOMPolicy=continue` (the job's OOM is the job's), `After` (a
//! shutdown stops units in the reverse order: a job that saves in its grace still has its home, the network
//! and its name), `TasksMax` (the manager's usual limit would count before the job's own).

use std::path::Path;

use zbus::{Connection, Variant};

use super::{ANSWER_TIMEOUT, LaunchError};
use fleet_shim::order::SHIM_LOG_FILE;

/// Time for the shim to stop its job when the unit is stopped, in microseconds. The shim's own grace is
/// normally shorter; this is the service manager's patience.
const STOP_TIMEOUT_US: u64 = 600 * 1_000_000;

/// What a job writes its checkpoints through, and is to outlast it at a shutdown. Order alone: nothing is started.
const OUTLASTED_BY: [&str; 3] = ["remote-fs.target", "network.target", "nss-user-lookup.target"];

/// The signal that systemd sends to what is left of a lost shim.
const SIGKILL: i32 = 9;

const BUS_NAME: Option<&str> = Some("org.freedesktop.systemd1");
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: Option<&str> = Some("org.freedesktop.systemd1.Manager");

/// A connection to process 1.
#[derive(Debug, Clone)]
pub struct Manager {
    connection: Connection,
    slice: String,
}

fn failed(action: &'static str, unit: &str) -> impl FnOnce(zbus::Error) -> LaunchError {
    let unit = unit.to_owned();
    move |source| LaunchError::Systemd { action, unit, source: Box::new(source) }
}

impl Manager {
    pub(super) async fn connect(slice: &str) -> Result<Self, LaunchError> {
        let connection = tokio::time::timeout(ANSWER_TIMEOUT, Connection::system())
            .await
            .map_err(|_| LaunchError::Timeout)?
            .map_err(failed("connect to the system bus for", slice))?;
        Ok(Self { connection, slice: slice.to_owned() })
    }

    /// StartTransientUnit. Returns when systemd has queued the start.
    pub(super) async fn start(
        &self,
        shim: &Path,
        dir: &Path,
        unit: &str,
        what: &str,
    ) -> Result<(), LaunchError> {
        let text = |path: &Path| {
            path.to_str()
                .map(str::to_owned)
                .ok_or_else(|| LaunchError::Path { path: path.to_owned() })
        };
        let (shim, log, dir) = (text(shim)?, text(&dir.join(SHIM_LOG_FILE))?, text(dir)?);
        // (path, arguments with argv[0], ignore failure)
        let command = vec![(shim.clone(), vec![shim, dir], false)];
        let properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", Variant::from(what)),
            ("Slice", Variant::from(self.slice.as_str())),
            ("ExecStart", Variant::from(command)),
            ("Type", Variant::from("exec")),
            ("Delegate", Variant::from(true)),
            ("KillMode", Variant::from("mixed")),
            ("CollectMode", Variant::from("inactive-or-failed")),
            ("TimeoutStopUSec", Variant::from(STOP_TIMEOUT_US)),
            ("OOMPolicy", Variant::from("continue")),
            ("After", Variant::from(OUTLASTED_BY.to_vec())),
            ("TasksMax", Variant::from(u64::MAX)),
            ("StandardInput", Variant::from("null")),
            ("StandardOutput", Variant::from("null")),
            ("StandardErrorFileToAppend", Variant::from(log)),
        ];
        // Auxiliary units: none.
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let body = (unit, "fail", properties, auxiliary);
        let start =
            self.connection.call_method(BUS_NAME, PATH, MANAGER, "StartTransientUnit", &body);
        match tokio::time::timeout(ANSWER_TIMEOUT, start).await {
            Ok(Ok(_)) => Ok(()),
            // An earlier order for the same allocation got through: that is the same start.
            Ok(Err(error)) if is_named(&error, "org.freedesktop.systemd1.UnitExists") => Ok(()),
            Ok(Err(error)) => Err(failed("start", unit)(error)),
            Err(_) => Err(LaunchError::Timeout),
        }
    }

    /// StartUnit of a slice, which needs no file. Returns when systemd has queued it.
    pub(super) async fn open_slice(&self, slice: &str) -> Result<(), LaunchError> {
        let body = (slice, "replace");
        let start = self.connection.call_method(BUS_NAME, PATH, MANAGER, "StartUnit", &body);
        match tokio::time::timeout(ANSWER_TIMEOUT, start).await {
            Ok(started) => started.map(drop).map_err(failed("start", slice)),
            Err(_) => Err(LaunchError::Timeout),
        }
    }

    /// SIGKILL to everything in the unit. A unit that is gone is no error.
    pub(super) async fn kill(&self, unit: &str) -> Result<(), LaunchError> {
        let body = (unit, "all", SIGKILL);
        let kill = self.connection.call_method(BUS_NAME, PATH, MANAGER, "KillUnit", &body);
        match tokio::time::timeout(ANSWER_TIMEOUT, kill).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if is_named(&error, "org.freedesktop.systemd1.NoSuchUnit") => Ok(()),
            Ok(Err(error)) => Err(failed("kill", unit)(error)),
            Err(_) => Err(LaunchError::Timeout),
        }
    }
}

fn is_named(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, _, _) if found.as_str() == name)
}
