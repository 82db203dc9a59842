//! `dev.json`: what `fleet dev` says of the processes it started. A copy of the format on purpose: it is an interface.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub struct DevFile {
    pub schema: String,
    /// For `FLEET_CONFIG`.
    pub config: PathBuf,
    pub processes: Vec<DevProcess>,
    pub nodes: Vec<DevNode>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DevProcess {
    pub name: String,
    /// The controller's number or the node's name.
    pub id: String,
    /// `controller` or `agent`.
    pub role: String,
    pub pid: i32,
    pub log: PathBuf,
    pub config: PathBuf,
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DevNode {
    pub name: String,
    /// The control file of its fake NVML.
    pub gpu_control: PathBuf,
    pub state_dir: PathBuf,
}

impl DevFile {
    pub fn read(state: &Path) -> Result<Self> {
        let path = state.join("dev.json");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let file: Self =
            serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?;
        ensure!(file.schema == "fleet.dev/v1", "{}: schema {:?}", path.display(), file.schema);
        Ok(file)
    }

    /// The process of this role and id; `controller` has the id 1 where there is one.
    pub fn process(&self, role: &str, id: &str) -> Result<&DevProcess> {
        let found = self.processes.iter().find(|process| process.role == role && process.id == id);
        found.with_context(|| format!("dev.json has no {role} {id:?}: {:?}", self.processes))
    }

    pub fn node(&self, name: &str) -> Result<&DevNode> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.with_context(|| format!("dev.json has no node {name:?}"))
    }
}
