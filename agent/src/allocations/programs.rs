//! What makes the containers of this node: its programs, the OCI runtime, and the settings that each container gets.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fleet_core::id::AllocationId;
use fleet_core::name::NodeName;
use fleet_kernel::cgroup::CgroupPlan;
use fleet_kernel::filter::NvidiaMajors;

use crate::config::Config;
use crate::headroom::processes_for_a_job;
use crate::runtime::{DiscoverError, NodeSettings, Runtime, discover};
use crate::unit::{LaunchError, Launcher, unit_name};

/// See the module's doc. Made once by `server`.
#[derive(Debug)]
pub struct Programs {
    node: NodeName,
    config: Config,
    /// The programs of the shim and of the containers' init.
    shim: PathBuf,
    init: PathBuf,
    launcher: Launcher,
    runtime: Mutex<Option<Runtime>>,
}

impl Programs {
    pub fn new(
        node: NodeName,
        config: Config,
        (shim, init): (PathBuf, PathBuf),
        launcher: Launcher,
    ) -> Self {
        Self { node, config, shim, init, launcher, runtime: Mutex::default() }
    }

    /// The OCI runtime. Looked for until there is one: a node without can still be observed. Blocks
    /// while it asks the program for its version.
    pub(super) fn runtime(&self) -> Result<Runtime, DiscoverError> {
        let mut known = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = known.as_ref() {
            return Ok(runtime.clone());
        }
        let found = discover(self.config.runtime.as_deref())?;
        let Runtime { path, version, seccomp, .. } = &found;
        tracing::info!(runtime = %path.display(), version, seccomp, "OCI runtime");
        Ok(known.insert(found).clone())
    }

    /// What is the same for every attempt of this node.
    pub(super) fn settings(&self, runtime: &Runtime, majors: NvidiaMajors) -> NodeSettings {
        let config = &self.config;
        NodeSettings {
            node_name: self.node.to_string(),
            runtime: runtime.choice(),
            seccomp: runtime.seccomp,
            shim_path: self.shim.clone(),
            init_path: self.init.clone(),
            cgroup_parent: config.cgroup_parent.clone(),
            systemd: self.launcher.is_systemd(),
            majors,
            device_dir: config.gpu.device_dir.clone(),
            driver: config.gpu.driver.clone(),
            hidden: vec![config.state_dir.clone(), config.run_dir.clone()],
            rlimits: Vec::new(),
            log: config.logs,
            pids_max: Some(processes_for_a_job(config.pids_max)),
            disks: config.disks,
        }
    }

    /// Starts the shim of what was prepared in this directory.
    pub(super) async fn launch(
        &self,
        dir: &Path,
        id: &AllocationId,
        described: &str,
    ) -> Result<(), LaunchError> {
        self.launcher.launch(&self.shim, dir, id.as_str(), described).await
    }

    /// Ends the unit of an attempt whose shim is lost.
    pub(super) async fn end(&self, id: &AllocationId) -> Result<(), LaunchError> {
        self.launcher.end(id.as_str()).await
    }

    /// Where the group of an attempt would be, of which no record is left.
    pub(super) fn group_of(&self, id: &AllocationId) -> CgroupPlan {
        let parent = self.config.cgroup_parent.clone();
        match self.launcher.is_systemd() {
            true => CgroupPlan::OwnUnit { slice: parent, unit: unit_name(id.as_str()) },
            false => CgroupPlan::Path { parent, name: id.to_string() },
        }
    }
}
