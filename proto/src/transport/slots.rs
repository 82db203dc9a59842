//! How many there may be at a time, in all and per key: connections of the listeners, requests of one user at an
//! agent.
//!
//! A slot is taken when one begins and released when it is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// A bounded count per key and over all keys.
#[derive(Debug)]
pub struct Slots<K: Eq + Hash + Clone> {
    per_key_max: usize,
    total_max: usize,
    used: Mutex<HashMap<K, usize>>,
}

/// One taken place; dropping it gives it back.
#[derive(Debug)]
pub struct Slot<K: Eq + Hash + Clone> {
    slots: Arc<Slots<K>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Slots<K> {
    pub fn new(per_key_max: usize, total_max: usize) -> Arc<Self> {
        Arc::new(Self { per_key_max, total_max, used: Mutex::default() })
    }

    /// Takes a place for `key`, unless it has as many as it may, or all are taken.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Slot<K>> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.values().sum::<usize>() >= self.total_max {
            return None;
        }
        let count = used.get(&key).copied().unwrap_or(0);
        if count >= self.per_key_max {
            return None;
        }
        used.insert(key.clone(), count + 1);
        Some(Slot { slots: self.clone(), key })
    }
}

impl<K: Eq + Hash + Clone> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut used = self.slots.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = used.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                used.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let slots = Slots::new(2, 3);
        let first = slots.take("a");
        let _second = slots.take("a");
        assert!(first.is_some());
        assert!(slots.take("a").is_none(), "two per key");
        let _third = slots.take("b");
        assert!(slots.take("c").is_none(), "three in all");
        drop(first);
        assert!(slots.take("a").is_some());
    }
}
