//! The attempts of this node by id, for those who only look: heartbeats, tunnels, the inventory.
//!
//! The reconcile task writes; everybody else reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_core::id::AllocationId;
use fleet_core::name::{GpuUuid, UserName};
use fleet_node::AttemptPhase;
use tokio::sync::watch;

use super::record::AllocationDir;

/// One attempt as others see it.
#[derive(Debug, Clone)]
pub struct Shown {
    pub phase: watch::Receiver<AttemptPhase>,
    pub gpus: Vec<GpuUuid>,
    pub owner: Option<UserName>,
    /// What the job said last of itself.
    pub status: watch::Receiver<String>,
}

impl Shown {
    /// One of which there is nothing here.
    pub fn ended() -> Self {
        let (_, phase) = watch::channel(AttemptPhase::Ended);
        let (_, status) = watch::channel(String::new());
        Self { phase, gpus: Vec::new(), owner: None, status }
    }
}

/// Handle on the table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    allocations: Arc<PathBuf>,
    table: Arc<Mutex<BTreeMap<AllocationId, Shown>>>,
    /// How many attempts were removed since the list was last sent to the controller.
    gone: Arc<AtomicUsize>,
}

impl Registry {
    /// `allocations`: the directory of all attempts.
    pub fn new(allocations: &Path) -> Self {
        let (table, gone) = (Arc::default(), Arc::default());
        Self { allocations: Arc::new(allocations.to_owned()), table, gone }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<AllocationId, Shown>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, id: AllocationId, shown: Shown) {
        self.table().insert(id, shown);
    }

    pub fn remove(&self, id: &AllocationId) {
        if self.table().remove(id).is_some() {
            self.gone.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Attempts that the controller has not forgotten yet.
    pub fn ids(&self) -> Vec<AllocationId> {
        self.table().keys().cloned().collect()
    }

    /// The same, for a report to the controller.
    pub fn tell_ids(&self) -> Vec<AllocationId> {
        self.gone.store(0, Ordering::Relaxed);
        self.ids()
    }

    /// How many attempts of the list that was last sent no longer exist.
    pub fn gone_since_told(&self) -> usize {
        self.gone.load(Ordering::Relaxed)
    }

    pub fn get(&self, id: &AllocationId) -> Option<Shown> {
        self.table().get(id).cloned()
    }

    /// Whether any attempt has not ended.
    pub fn has_live(&self) -> bool {
        self.table().values().any(|shown| *shown.phase.borrow() != AttemptPhase::Ended)
    }

    /// What the live attempts say of themselves.
    pub fn statuses(&self) -> Vec<(AllocationId, String)> {
        let table = self.table();
        let live = table.iter().filter(|(_, shown)| *shown.phase.borrow() != AttemptPhase::Ended);
        let said = live.map(|(id, shown)| (id.clone(), shown.status.borrow().clone()));
        said.filter(|(_, text)| !text.is_empty()).collect()
    }

    /// Live attempts on a GPU.
    pub fn on_gpu(&self, gpu: &GpuUuid) -> Vec<AllocationId> {
        let live = |shown: &Shown| *shown.phase.borrow() != AttemptPhase::Ended;
        let table = self.table();
        let on = table.iter().filter(|(_, shown)| shown.gpus.contains(gpu) && live(shown));
        on.map(|(id, _)| id.clone()).collect()
    }

    /// The directory of all attempts.
    pub fn folder(&self) -> &Path {
        &self.allocations
    }

    /// The directory of an attempt, also of one that was forgotten.
    pub fn dir(&self, id: &AllocationId) -> AllocationDir {
        AllocationDir::new(&self.allocations, id)
    }
}
