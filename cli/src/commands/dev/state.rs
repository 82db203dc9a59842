//! `dev.json`: what a `fleet dev` cluster consists of, for people and programs that want to break it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// The file's name in the cluster's folder.
pub(super) const DEV_FILE: &str = "dev.json";

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevState {
    pub(super) schema: String,
    pub(super) config: PathBuf,
    pub(super) processes: Vec<Process>,
    pub(super) nodes: Vec<DevNode>,
}

/// A process that `fleet dev` started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    /// `controller-1`, `titan01`.
    pub(super) name: String,
    /// The controller's number or the node's name.
    pub(super) id: String,
    /// `controller` or `agent`.
    pub(super) role: String,
    pub(super) pid: u32,
    pub(super) log: PathBuf,
    pub(super) config: PathBuf,
    /// The whole command, to start it again by hand.
    pub(super) argv: Vec<String>,
    pub(super) env: std::collections::BTreeMap<String, String>,
    /// How it ended, once it has.
    pub(super) exited: Option<String>,
}

/// A pretended machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevNode {
    pub(super) name: String,
    /// The control file of its fake NVML.
    pub(super) gpu_control: PathBuf,
    pub(super) state_dir: PathBuf,
}

impl DevState {
    pub(super) const SCHEMA: &'static str = "fleet.dev/v1";

    pub(super) fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(DEV_FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let message = format!("cannot read {}: {error}", path.display());
            Failure::new(Exit::NotFound, message)
                .hint("is that the folder of a `fleet dev` cluster? Name it with --state")
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Failure::new(Exit::Failed, format!("{} is damaged: {error}", path.display()))
        })
    }

    /// Replaces the file as a whole: others read it at any time.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Failure> {
        let path = folder.join(DEV_FILE);
        let new = folder.join(format!("{DEV_FILE}.new"));
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Failed, format!("cannot write {}: {error}", path.display()))
        };
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| failed(std::io::Error::other(error)))?;
        std::fs::write(&new, text + "\n").map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)
    }
}
