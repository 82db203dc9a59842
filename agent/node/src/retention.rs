//! How long ended attempts' records and logs stay on this node: so many days, and so many at most.

use std::collections::VecDeque;
use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_core::time::{Millis, Timestamp};

/// How long records of ended attempts stay, logs included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub age: Duration,
    pub count: usize,
}

/// Removals begun at once; the rest follows with the next look.
const REMOVALS_MAX: usize = 200;

/// Forgotten attempts, oldest first.
#[derive(Debug)]
pub struct Forgotten {
    keep: Retention,
    order: VecDeque<(Timestamp, AllocationId)>,
}

impl Forgotten {
    /// `known`: those from before, in any order.
    pub fn new(keep: Retention, mut known: Vec<(Timestamp, AllocationId)>) -> Self {
        known.sort();
        Self { keep, order: known.into() }
    }

    pub fn add(&mut self, at: Timestamp, id: AllocationId) {
        self.order.push_back((at, id));
    }

    /// The same id runs again: its directory is in use.
    pub fn take_back(&mut self, id: &AllocationId) {
        self.order.retain(|(_, known)| known != id);
    }

    /// Those whose time is over.
    pub fn due(&mut self, now: Timestamp) -> Vec<AllocationId> {
        let age = Millis(u64::try_from(self.keep.age.as_millis()).unwrap_or(u64::MAX));
        let mut due = Vec::new();
        while due.len() < REMOVALS_MAX
            && let Some((at, _)) = self.order.front()
            && (self.order.len() > self.keep.count || now.since(*at) > age)
        {
            due.extend(self.order.pop_front().map(|(_, id)| id));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn age_and_count_both_limit_what_is_kept() {
        let id = |n: u64| AllocationId::parse(&format!("alloc-{n}-1")).unwrap();
        let keep = Retention { age: Duration::from_secs(1), count: 2 };
        let known = (0..4).rev().map(|n| (Timestamp(n * 100), id(n))).collect();
        let mut forgotten = Forgotten::new(keep, known);
        assert_eq!(forgotten.due(Timestamp(300)), [id(0), id(1)]);
        assert!(forgotten.due(Timestamp(300)).is_empty());
        forgotten.take_back(&id(3));
        assert_eq!(forgotten.due(Timestamp(1_201)), [id(2)]);
    }
}
