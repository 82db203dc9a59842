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

/// What another `fleet dev` command asks of the one that runs, by a file in the cluster's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Start a node's agent.
    Start,
    /// Cut a node off from the controllers.
    Cut,
    /// Connect a node that was cut off.
    Connect,
}

impl Wish {
    pub(super) fn file(self, folder: &Path, node: &str) -> PathBuf {
        let word = match self {
            Self::Start => "start",
            Self::Cut => "cut",
            Self::Connect => "connect",
        };
        folder.join(format!("{word}-{node}"))
    }

    /// Whether the file was there. The program that removes it carries the wish out.
    pub(super) fn taken(self, folder: &Path, node: &str) -> bool {
        std::fs::remove_file(self.file(folder, node)).is_ok()
    }
}

/// Whether a node's agent reaches the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Network {
    Connected,
    Cut,
}

/// A pretended machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevNode {
    pub(super) name: String,
    /// The control file of its fake NVML.
    pub(super) gpu_control: PathBuf,
    pub(super) state_dir: PathBuf,
    /// `None`: the agent connects to the controllers directly, so nothing can cut it off.
    #[serde(default)]
    pub(super) network: Option<Network>,
}

impl DevState {
    pub(super) const SCHEMA: &'static str = "fleet.dev/v1";

    /// The node of this name, or an error that names those that exist.
    pub(super) fn node(&self, name: &str) -> Result<&DevNode, Failure> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let message = format!("there is no node {name:?} in this cluster");
            Failure::new(Exit::NotFound, message).hint(format!("there are {}", names.join(", ")))
        })
    }

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
