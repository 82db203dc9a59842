//! The numbers in the names of this node's GPUs (`titan01:3`), as the controllers give them.
//!
//! They differ from the driver's, which counts again at each boot: see `fsm/numbers.rs` of the core. They are kept on
//! the disk, so that people on the node see the same names while no controller answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_core::desired::DesiredNode;
use fleet_core::name::GpuUuid;
use serde::{Deserialize, Serialize};

use super::report::GpuInfo;
use crate::chain::chain;
use crate::state_file::{self, StateFileError};

const FILE: &str = "gpu-numbers.json";
const VERSION: u32 = 1;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    v: u32,
    numbers: BTreeMap<GpuUuid, u32>,
    /// Cards that an admin forgot: they are not lost any more.
    forgotten: BTreeSet<GpuUuid>,
}

/// What the controllers said last. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// Missing where nothing is kept.
    path: Option<Arc<PathBuf>>,
    stored: Arc<Mutex<Stored>>,
}

impl Numbers {
    /// Reads what was said before. It is for people's eyes: a file that cannot be read keeps no agent from starting, and a
    /// controller says all of it again.
    pub fn open(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let stored = state_file::read(&path, VERSION).unwrap_or_else(|error| {
            let error = chain(&error);
            tracing::warn!(error, "the GPUs have the driver's numbers until a controller answers");
            None
        });
        let stored: Stored = stored.unwrap_or_default();
        Self { path: Some(Arc::new(path)), stored: Arc::new(Mutex::new(stored)) }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what a controller says; after a restore it says nothing yet. Writes a small file when something is new,
    /// which is rare, so it blocks.
    pub fn take(&self, desired: &DesiredNode) -> Result<(), StateFileError> {
        if desired.numbers.is_empty() && desired.forgotten.is_empty() {
            return Ok(());
        }
        let said = Stored {
            v: VERSION,
            numbers: desired.numbers.clone(),
            forgotten: desired.forgotten.clone(),
        };
        let mut stored = self.stored();
        if *stored != said {
            // What could not be written is tried again with the next document.
            if let Some(path) = &self.path {
                state_file::replace(path, &said)?;
            }
            *stored = said;
        }
        Ok(())
    }

    /// The number of a card. One that no controller has given a number yet has the driver's, where no other card has it.
    pub fn of(&self, info: &GpuInfo) -> u32 {
        let numbers = &self.stored().numbers;
        numbers.get(&info.uuid).copied().unwrap_or_else(|| {
            let others: BTreeSet<u32> = numbers.values().copied().collect();
            let above = others.last().map_or(0, |last| last + 1);
            if others.contains(&info.index) { above.max(info.index) } else { info.index }
        })
    }

    pub(super) fn is_forgotten(&self, uuid: &GpuUuid) -> bool {
        self.stored().forgotten.contains(uuid)
    }
}
