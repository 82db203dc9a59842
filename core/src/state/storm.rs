//! The brake on evictions: when a large share of the fleet goes bad at once, the reports are more
//! likely wrong (a driver roll-out, a broken probe) than the machines. Automatic evictions stop
//! until an operator says otherwise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::NodeName;
use crate::time::{Millis, Timestamp};

/// Conditions within this time count as one storm.
pub(crate) const STORM_WINDOW: Millis = Millis::minutes(10);
/// Fewer bad nodes than this are never a storm: small fleets lose a node now and then.
pub(crate) const STORM_NODES_MIN: usize = 3;
/// Share of the fleet's nodes, in percent, from which it is one.
pub(crate) const STORM_PERCENT: usize = 34;

/// Whether so many bad nodes of a fleet are one.
pub(crate) fn is_storm(bad: usize, nodes: usize) -> bool {
    bad >= STORM_NODES_MIN && bad * 100 >= nodes * STORM_PERCENT
}

/// Automatic evictions are frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    pub since: Timestamp,
    pub affected: u32,
    pub of: u32,
}

/// Which nodes went bad lately.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StormWatch {
    bad_since: BTreeMap<NodeName, Timestamp>,
    freeze: Option<Freeze>,
}

impl StormWatch {
    /// Notes a node that got a condition from which work must leave. Returns the freeze if this
    /// one began it.
    pub(crate) fn note(&mut self, node: &NodeName, nodes: usize, now: Timestamp) -> Option<Freeze> {
        self.bad_since.retain(|_, at| now.since(*at) <= STORM_WINDOW);
        self.bad_since.insert(node.clone(), now);
        let bad = self.bad_since.len();
        if self.freeze.is_some() || !is_storm(bad, nodes) {
            return None;
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.freeze = Some(Freeze { since: now, affected: count(bad), of: count(nodes) });
        self.freeze.clone()
    }

    pub(crate) fn frozen(&self) -> Option<&Freeze> {
        self.freeze.as_ref()
    }

    /// Lifts the freeze; says whether there was one.
    pub(crate) fn thaw(&mut self) -> bool {
        self.bad_since.clear();
        self.freeze.take().is_some()
    }
}
