//! Who this controller is: `controller.json`, written last when a cluster is made or joined.
//!
//! Without it there is no membership, and what was cut short is started over. The number in it is
//! never chosen by this controller again: a disk that lost it has lost the controller.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fleet_core::controller::Controller;
use fleet_core::name::NodeName;
use fleet_core::state::{FORMAT, check_format};
use fleet_proto::transport::files::{self, MODE_PRIVATE};
use serde::{Deserialize, Serialize};

const FILE: &str = "controller.json";
/// Version of the file that this build writes.
const VERSION: u32 = 1;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerIdentity {
    v: u32,
    /// What the stores beside it are written in.
    #[serde(default)]
    format: Option<String>,
    pub cluster: String,
    pub node: u64,
    /// Address of the controller that admitted this one. This one asks there until it has heard of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_through: Option<String>,
}

impl ControllerIdentity {
    pub fn new(cluster: String, node: u64) -> Self {
        Self { v: VERSION, format: Some(FORMAT.to_owned()), cluster, node, joined_through: None }
    }

    /// The name in its certificate.
    pub fn name(&self) -> anyhow::Result<NodeName> {
        Ok(NodeName::parse(&Controller::name(self.node))?)
    }

    /// Where the file is.
    pub fn path(data_dir: &Path) -> PathBuf {
        data_dir.join(FILE)
    }

    /// The stored identity, if there is one.
    pub fn find(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = Self::path(data_dir);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let read: Self =
            serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?;
        if read.v > VERSION {
            let found = read.v;
            anyhow::bail!("{} was written by a newer version of fleet (v{found})", path.display());
        }
        check_format(read.format.as_deref())
            .map_err(|other| {
                let folder = data_dir.display();
                anyhow::anyhow!(
                    "{folder} {other}. Install the build that wrote it; or remove {folder}, and make a cluster or join one again"
                )
            })?;
        Ok(Some(read))
    }

    /// The stored identity, which must be there.
    pub fn load(data_dir: &Path) -> anyhow::Result<Self> {
        Self::find(data_dir)?.with_context(|| {
            let path = Self::path(data_dir);
            format!(
                "{} is not there: make a cluster with `fleet-controller init`, or join one with `fleet-controller join`",
                path.display()
            )
        })
    }

    pub fn store(&self, data_dir: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        files::write_atomic(&Self::path(data_dir), &text, MODE_PRIVATE)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_a_build_of_another_format_stored_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        ControllerIdentity::new("fleet-a".to_owned(), 1).store(dir.path()).unwrap();
        assert_eq!(ControllerIdentity::load(dir.path()).unwrap().cluster, "fleet-a");
        let path = ControllerIdentity::path(dir.path());
        let stored = std::fs::read_to_string(&path).unwrap();
        for (format, found) in [("0123", "is of format 0123"), ("", "is of format none")] {
            let key = if format.is_empty() { "before" } else { "format" };
            let other = stored.replace("\"format\"", &format!("{key:?}")).replace(FORMAT, format);
            std::fs::write(&path, other).unwrap();
            let said = ControllerIdentity::load(dir.path()).unwrap_err().to_string();
            assert!(said.contains(found) && said.contains("Install the build"), "{said}");
        }
    }
}
