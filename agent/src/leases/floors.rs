//! How much memory each GPU shows in use when nobody uses it: learned, kept on disk, bounded.
//!
//! The driver reserves some, differently per card and version. The floor is the least that was ever seen
//! with no process on the GPU; a first look at a GPU that somebody left dirty must not make that normal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_core::name::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::gpu::{GpuInfo, GpuSnapshot};
use crate::state_file::{self, StateFileError};

const FILE: &str = "gpus.json";
const VERSION: u32 = 1;
/// An idle GPU shows a little more from time to time.
const SLACK_BYTES: u64 = 16 << 20;
/// No idle GPU holds more than this, or than a twentieth of its memory, whichever is more.
const FLOOR_BYTES_MAX: u64 = 512 << 20;
const FLOOR_DIVISOR: u64 = 20;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    v: u32,
    /// The GPUs seen so far: those that do not show up are lost, not forgotten.
    #[serde(default)]
    known: Vec<GpuInfo>,
    #[serde(default)]
    floors: BTreeMap<GpuUuid, u64>,
}

/// Handle on what was learned. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Floors {
    path: Arc<PathBuf>,
    stored: Arc<Mutex<Stored>>,
}

impl Floors {
    /// Reads what was learned before.
    pub fn open(state_dir: &Path) -> Result<Self, StateFileError> {
        let path = state_dir.join(FILE);
        let stored = state_file::read(&path, VERSION)?;
        let stored = stored.unwrap_or_else(|| Stored { v: VERSION, ..Stored::default() });
        Ok(Self { path: Arc::new(path), stored: Arc::new(Mutex::new(stored)) })
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPUs this node had before.
    pub fn known(&self) -> Vec<GpuInfo> {
        self.stored().known.clone()
    }

    /// Most bytes in use on an idle GPU.
    pub fn of(&self, info: &GpuInfo) -> u64 {
        let bound = FLOOR_BYTES_MAX.max(info.memory_bytes / FLOOR_DIVISOR);
        let learned = self.stored().floors.get(&info.uuid).copied();
        learned.unwrap_or(bound).min(bound) + SLACK_BYTES
    }

    /// Takes a picture in; writes the file when something new was learned. Small and rare, so it blocks.
    pub fn learn(&self, snapshot: &GpuSnapshot) -> Result<(), StateFileError> {
        let mut stored = self.stored();
        let mut changed = false;
        for gpu in &snapshot.gpus {
            let idle = gpu.telemetry.processes.value().is_some_and(Vec::is_empty);
            if let (true, Some(used)) = (idle, gpu.telemetry.memory_used_bytes.value()) {
                let floor = stored.floors.entry(gpu.info.uuid.clone()).or_insert(u64::MAX);
                changed |= *used < *floor;
                *floor = (*floor).min(*used);
            }
        }
        let seen: Vec<GpuInfo> = snapshot.gpus.iter().map(|gpu| gpu.info.clone()).collect();
        if seen != stored.known && !seen.is_empty() {
            stored.known = seen;
            changed = true;
        }
        if !changed {
            return Ok(());
        }
        state_file::replace(&self.path, &*stored)
    }
}
