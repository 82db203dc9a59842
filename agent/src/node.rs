//! What every attempt of this node needs: made once by `server`, shared by the attempts' tasks and those that start them.
//!
//! Only the attempts, the reconcile task, the inventory and the local socket take all of it. Code that needs a few
//! handles takes only those.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use fleet_core::health::Condition;
use fleet_core::name::NodeName;
use tokio::sync::{Semaphore, watch};

use crate::attempts::{allocations_dir, volatile_dir};
use crate::checkpoint::Timings;
use crate::config::Config;
use crate::fence::Epochs;
use crate::gate;
use crate::gpu;
use crate::health::Looks;
use crate::holders::{self, Observers};
use crate::runtime::{DiscoverError, Runtime, discover};
use crate::shutdown;
use crate::terminals;
use crate::unit::Launcher;
use fleet_image::ImageStore;
use fleet_user::{AsUser, Users};

/// Starts that are prepared at the same time; more wait.
const STARTS_AT_ONCE_MAX: usize = 16;

/// See the module's doc.
#[derive(Debug)]
pub struct NodeContext {
    pub name: NodeName,
    pub config: Config,
    pub boot_id: String,
    /// The programs of the shim and of the containers' init.
    pub shim: PathBuf,
    pub init: PathBuf,
    pub launcher: Launcher,
    pub users: Users,
    pub as_user: AsUser,
    pub images: ImageStore,
    pub gpus: gpu::Handle,
    pub gate: gate::Handle,
    pub holders: holders::Handle,
    pub observers: Observers,
    pub terminals: terminals::Handle,
    pub shutdown: shutdown::Handle,
    pub epochs: Epochs,
    pub starts: Semaphore,
    /// The conditions that hold, as the health task says them.
    pub conditions: watch::Sender<Vec<Condition>>,
    pub(crate) looks: Arc<Looks>,
    runtime: Mutex<Option<Runtime>>,
}

/// The parts of a [`NodeContext`].
#[derive(Debug)]
pub struct Parts {
    pub name: NodeName,
    pub config: Config,
    pub boot_id: String,
    pub shim: PathBuf,
    pub init: PathBuf,
    pub launcher: Launcher,
    pub users: Users,
    pub as_user: AsUser,
    pub images: ImageStore,
    pub gpus: gpu::Handle,
    pub gate: gate::Handle,
    pub epochs: Epochs,
}

impl NodeContext {
    pub fn new(parts: Parts) -> Self {
        let Parts {
            name,
            config,
            boot_id,
            shim,
            init,
            launcher,
            users,
            as_user,
            images,
            gpus,
            gate,
            epochs,
        } = parts;
        Self {
            name,
            observers: Observers::new(gate.clone(), &config),
            config,
            boot_id,
            shim,
            init,
            launcher,
            users,
            as_user,
            images,
            gpus,
            gate,
            holders: holders::Handle::default(),
            terminals: terminals::Handle::default(),
            shutdown: shutdown::Handle::default(),
            epochs,
            conditions: watch::channel(Vec::new()).0,
            looks: Arc::default(),
            starts: Semaphore::new(STARTS_AT_ONCE_MAX),
            runtime: Mutex::default(),
        }
    }

    /// The OCI runtime. Looked for until there is one: a node without can still be observed. Blocks
    /// while it asks the program for its version.
    pub fn runtime(&self) -> Result<Runtime, DiscoverError> {
        let mut known = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = known.as_ref() {
            return Ok(runtime.clone());
        }
        let found = discover(self.config.runtime.as_deref())?;
        let Runtime { path, version, seccomp, .. } = &found;
        tracing::info!(runtime = %path.display(), version, seccomp, "OCI runtime");
        Ok(known.insert(found).clone())
    }

    /// The directory of all attempts.
    pub fn allocations_dir(&self) -> PathBuf {
        allocations_dir(&self.config)
    }

    /// Where attempts keep what means nothing once they have ended.
    pub fn volatile_dir(&self) -> PathBuf {
        volatile_dir(&self.config)
    }

    pub fn timings(&self) -> Timings {
        self.config.checkpoints
    }
}
