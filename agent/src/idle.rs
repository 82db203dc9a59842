//! Which windows are idle, on the way from where GPUs are measured to the terminals.
//!
//! `crate::gpu_use` says it after each look at the GPUs, and `crate::terminals` looks what people are to read of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_node::idle_due::IdleWindows;

/// What was measured last. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct IdleNow(Arc<Mutex<IdleWindows>>);

impl IdleNow {
    fn windows(&self) -> MutexGuard<'_, IdleWindows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, windows: IdleWindows) {
        *self.windows() = windows;
    }

    pub(crate) fn get(&self) -> IdleWindows {
        self.windows().clone()
    }
}
