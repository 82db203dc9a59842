//! Things that are each on one node: all of them by their key, those of a node, and the nodes where something changed.
//!
//! Used by the state machine for nodes, GPUs, leases and attempts, so that what concerns one node costs the same in a
//! fleet of any size. It decides nothing. Every change goes through here, so that the calendar's index hears
//! of each node that it has to look at again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use serde::{Deserialize, Serialize, Serializer};

use crate::allocation::Allocation;
use crate::gpu::Gpu;
use crate::lease::Lease;
use crate::name::NodeName;
use crate::node::Node;

/// Something that is on one node for as long as it is kept.
pub(crate) trait OnNode {
    fn node(&self) -> &NodeName;
}

impl OnNode for Node {
    fn node(&self) -> &NodeName {
        &self.name
    }
}

impl OnNode for Gpu {
    fn node(&self) -> &NodeName {
        &self.node
    }
}

impl OnNode for Lease {
    fn node(&self) -> &NodeName {
        &self.node
    }
}

impl OnNode for Allocation {
    fn node(&self) -> &NodeName {
        &self.node
    }
}

/// Read as the map that it is; stored as that map alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<K, V>")]
#[serde(bound(deserialize = "K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + OnNode"))]
pub(crate) struct OnNodes<K: Ord, V> {
    all: BTreeMap<K, V>,
    by_node: BTreeMap<NodeName, BTreeSet<K>>,
    /// Nodes where something came, went or may have changed since the last [`Self::take_touched`].
    touched: BTreeSet<NodeName>,
}

impl<K: Ord, V> Default for OnNodes<K, V> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), by_node: BTreeMap::new(), touched: BTreeSet::new() }
    }
}

impl<K: Ord + Clone, V: OnNode> From<BTreeMap<K, V>> for OnNodes<K, V> {
    fn from(all: BTreeMap<K, V>) -> Self {
        let mut by_node: BTreeMap<NodeName, BTreeSet<K>> = BTreeMap::new();
        for (key, thing) in &all {
            by_node.entry(thing.node().clone()).or_default().insert(key.clone());
        }
        let touched = by_node.keys().cloned().collect();
        Self { all, by_node, touched }
    }
}

impl<K: Ord + Serialize, V: Serialize> Serialize for OnNodes<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl<K: Ord, V> Deref for OnNodes<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.all
    }
}

impl<K: Ord + Clone, V: OnNode> OnNodes<K, V> {
    /// Those of one node, by key.
    pub(crate) fn on(&self, node: &NodeName) -> impl Iterator<Item = &V> {
        let keys = self.by_node.get(node).into_iter().flatten();
        keys.filter_map(|key| self.all.get(key))
    }

    /// Their keys.
    pub(crate) fn keys_on(&self, node: &NodeName) -> Vec<K> {
        self.by_node.get(node).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn insert(&mut self, key: K, thing: V) {
        self.remove(&key);
        let node = thing.node().clone();
        self.by_node.entry(node.clone()).or_default().insert(key.clone());
        self.touched.insert(node);
        self.all.insert(key, thing);
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let thing = self.all.remove(key)?;
        if let Some(there) = self.by_node.get_mut(thing.node()) {
            there.remove(key);
            if there.is_empty() {
                self.by_node.remove(thing.node());
            }
        }
        self.touched.insert(thing.node().clone());
        Some(thing)
    }

    /// One of them, to change it in place; its node stays what it is.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let thing = self.all.get_mut(key)?;
        if !self.touched.contains(thing.node()) {
            self.touched.insert(thing.node().clone());
        }
        Some(thing)
    }

    pub(crate) fn touched(&self) -> &BTreeSet<NodeName> {
        &self.touched
    }

    pub(crate) fn take_touched(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.touched)
    }

    /// Whether each is listed where it is.
    pub(crate) fn is_in_order(&self) -> bool {
        let listed: usize = self.by_node.values().map(BTreeSet::len).sum();
        let there = |(key, thing): (&K, &V)| {
            self.by_node.get(thing.node()).is_some_and(|keys| keys.contains(key))
        };
        listed == self.all.len() && self.all.iter().all(there)
    }
}
