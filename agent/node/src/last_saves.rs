//! Decides which jobs a shutdown of this machine waits for. Pure: takes the table of attempts, returns their ids.
//!
//! No clocks are compared: an attempt has saved when the number of its newest checkpoint is higher than it was when
//! it was asked, whether or not it saved because it was asked.

use std::collections::BTreeMap;

use fleet_core::id::AllocationId;

use crate::table::{AttemptPhase, Row};

/// The jobs that were asked, each with the number of the checkpoint that it had.
#[derive(Debug, Default)]
pub struct LastSaves {
    asked: BTreeMap<AllocationId, u64>,
}

impl LastSaves {
    /// All jobs that run and can save. A job that already got its stop signal is left out: it saves or not by itself.
    pub fn of(rows: &BTreeMap<AllocationId, Row>) -> Self {
        let saves = |row: &Row| {
            row.phase == AttemptPhase::Running
                && row.stop_grace.is_none()
                && row.order.as_ref().is_some_and(|order| order.spec.checkpoint.is_some())
        };
        let asked = rows.iter().filter(|(_, row)| saves(row));
        Self { asked: asked.map(|(id, row)| (id.clone(), row.checkpoint_seq)).collect() }
    }

    pub fn asked(&self) -> Vec<AllocationId> {
        self.asked.keys().cloned().collect()
    }

    /// Jobs that have neither saved since nor ended.
    pub fn open(&self, rows: &BTreeMap<AllocationId, Row>) -> Vec<AllocationId> {
        let is_open = |(id, had): &(&AllocationId, &u64)| {
            rows.get(*id).is_some_and(|row| row.is_live() && row.checkpoint_seq <= **had)
        };
        self.asked.iter().filter(is_open).map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_core::job::CheckpointPlan;
    use fleet_core::lease::Epoch;
    use fleet_core::time::Millis;

    use super::*;
    use crate::testing;

    fn id(name: &str) -> AllocationId {
        AllocationId::parse(name).unwrap()
    }

    fn row(plan: bool) -> Row {
        let mut order = testing::order(&[]);
        let saves = CheckpointPlan { dir: "/ck".to_owned(), ..CheckpointPlan::default() };
        order.spec.checkpoint = plan.then_some(saves);
        let row = Row::starting(Epoch { incarnation: 1, index: 3 }, None, order);
        Row { phase: AttemptPhase::Running, checkpoint_seq: 4, ..row }
    }

    fn rows() -> BTreeMap<AllocationId, Row> {
        let starting = Row { phase: AttemptPhase::Starting, ..row(true) };
        let stopped = Row { stop_grace: Some(Millis(9)), ..row(true) };
        let ended = Row { phase: AttemptPhase::Ended, ..row(true) };
        BTreeMap::from([
            (id("alloc-aa-1"), row(true)),
            (id("alloc-bb-1"), row(true)),
            (id("alloc-cc-1"), row(false)),
            (id("alloc-dd-1"), starting),
            (id("alloc-ee-1"), stopped),
            (id("alloc-ff-1"), ended),
        ])
    }

    #[test]
    fn who_runs_and_can_save_is_asked() {
        let last_saves = LastSaves::of(&rows());
        assert_eq!(last_saves.asked(), [id("alloc-aa-1"), id("alloc-bb-1")]);
        assert!(LastSaves::of(&BTreeMap::new()).asked().is_empty());
    }

    #[test]
    fn a_newer_checkpoint_or_an_end_is_what_is_waited_for() {
        let (last_saves, mut rows) = (LastSaves::of(&rows()), rows());
        assert_eq!(
            last_saves.open(&rows),
            last_saves.asked(),
            "the checkpoint it had does not count"
        );
        rows.get_mut(&id("alloc-aa-1")).unwrap().checkpoint_seq = 5;
        assert_eq!(last_saves.open(&rows), [id("alloc-bb-1")]);
        rows.get_mut(&id("alloc-bb-1")).unwrap().phase = AttemptPhase::Ended;
        assert!(last_saves.open(&rows).is_empty());
        assert!(last_saves.open(&BTreeMap::new()).is_empty(), "forgotten is over too");
    }
}
