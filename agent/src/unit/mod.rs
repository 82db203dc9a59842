//! Starting a shim so that nothing the agent does or suffers can touch it; what systemd says of shutdowns ([`logind`]).
//!
//! With systemd as process 1 each shim is the main process of a transient unit of its own
//! ([`systemd`]); elsewhere it is a daemon of its own session, re-parented away from the agent
//! ([`plain`]). The agent chooses once, at its start. This is the only module that knows systemd.

pub mod logind;
mod plain;
mod systemd;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long the service manager may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// How shims are started on this node.
#[derive(Debug, Clone)]
pub enum Launcher {
    /// A transient unit each, in this slice.
    Systemd(systemd::Manager),
    /// A detached process each.
    Plain,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("start {}", path.display())]
    Spawn { path: PathBuf, source: io::Error },
    #[error("open {}", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("{action} {unit}")]
    Systemd { action: &'static str, unit: String, source: Box<zbus::Error> },
    #[error("systemd did not answer within {ANSWER_TIMEOUT:?}")]
    Timeout,
    #[error("{} is not valid UTF-8", path.display())]
    Path { path: PathBuf },
    #[error("systemd is not process 1 here, so there are no slices")]
    NoSlices,
}

/// Name of an allocation's unit.
#[must_use]
pub fn unit_name(allocation_id: &str) -> String {
    format!("fleet-{allocation_id}.service")
}

/// Where the group of all jobs is below the root of each hierarchy: systemd nests slices by the dashes in their names.
#[must_use]
pub fn group_path(parent: &str) -> PathBuf {
    match parent.strip_suffix(".slice").filter(|_| systemd_is_running()) {
        Some(name) => nested(name),
        None => PathBuf::from(parent),
    }
}

/// `a-b` is `a.slice/a-b.slice`.
fn nested(name: &str) -> PathBuf {
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("{}.slice", &name[..end])).collect()
}

/// True where systemd is process 1 (what `sd_booted(3)` asks).
#[must_use]
pub fn systemd_is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

impl Launcher {
    /// Chooses by what process 1 is. `slice` is where units go (`fleet.slice`).
    pub async fn choose(slice: &str) -> Result<Self, LaunchError> {
        if systemd_is_running() {
            Ok(Self::Systemd(systemd::Manager::connect(slice).await?))
        } else {
            Ok(Self::Plain)
        }
    }

    #[must_use]
    pub fn is_systemd(&self) -> bool {
        matches!(self, Self::Systemd(_))
    }

    /// Starts `shim DIR`. Returns once it has been started, not once the job runs; the shim's socket and
    /// files tell the rest. A second launch of a directory is harmless: the shim takes a lock. `what` is for people who
    /// read `systemctl status` or the journal.
    pub async fn launch(
        &self,
        shim: &Path,
        dir: &Path,
        allocation_id: &str,
        what: &str,
    ) -> Result<(), LaunchError> {
        match self {
            Self::Systemd(manager) => {
                manager.start(shim, dir, &unit_name(allocation_id), what).await
            }
            Self::Plain => plain::start(shim, dir).await,
        }
    }

    /// Makes a slice for processes that are not started here. One that is there stays.
    pub async fn open_slice(&self, slice: &str) -> Result<(), LaunchError> {
        match self {
            Self::Systemd(manager) => manager.open_slice(slice).await,
            Self::Plain => Err(LaunchError::NoSlices),
        }
    }

    /// Ends a unit whose shim is lost, with whatever is in it. Nothing to do without systemd: there the
    /// cgroup is killed directly.
    pub async fn end(&self, allocation_id: &str) -> Result<(), LaunchError> {
        match self {
            Self::Systemd(manager) => manager.kill(&unit_name(allocation_id)).await,
            Self::Plain => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_nested_by_their_dashes() {
        assert_eq!(nested("fleet"), Path::new("fleet.slice"));
        let deep = Path::new("fleet.slice/fleet-dev1.slice/fleet-dev1-titan01.slice");
        assert_eq!(nested("fleet-dev1-titan01"), deep);
    }
}
