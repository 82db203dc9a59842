//! One lock for each name, for tasks: a task that asks for a thing waits for the task that makes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The names that somebody is at.
#[derive(Debug, Default)]
pub(super) struct NameLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl NameLocks {
    /// The lock of this name.
    pub(super) fn of(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody is at them any more.
        all.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(all.entry(name.to_owned()).or_default())
    }
}
