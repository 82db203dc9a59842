//! What this node holds, for controllers that were restored from a backup: every attempt that runs or is about
//! to, and every one that ended since the backup and whose record is still there. Reads only.
//!
//! Called by the reconcile task, off the async threads. What it leaves out the controllers take for not
//! being here: an attempt that could still start must never be left out.

use std::collections::BTreeMap;

use fleet_core::allocation::EndReport;
use fleet_core::holdings::FoundAttempt;
use fleet_core::id::AllocationId;
use fleet_core::time::{Millis, Timestamp};

use crate::allocations::of_exit;
use crate::attempts::{self, AllocationDir, RecordError, Registry};
use crate::chain::chain;
use crate::clock;
use fleet_node::Row;
use fleet_shim::order::ExitRecord;

/// Clocks of node and controllers may differ by this much.
const CLOCKS_APART_MAX: Millis = Millis::hours(1);
/// Most ended attempts in an answer: the newest ones.
const ENDED_MAX: usize = 1_000;

/// Everything this node knows of, older grants first. `rows` is the table as it is.
pub(super) fn found(
    registry: &Registry,
    rows: &BTreeMap<AllocationId, Row>,
    since: Timestamp,
) -> Result<Vec<FoundAttempt>, RecordError> {
    let mut records = Vec::new();
    for id in attempts::list(registry.folder())? {
        let dir = registry.dir(&id);
        match dir.record() {
            Ok(Some(record)) => records.push(FoundAttempt {
                allocation: id,
                epoch: record.epoch,
                lease: record.lease,
                order: record.order,
                accepted_at: record.accepted_at,
                end: end_of(&dir),
            }),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%id, error = chain(&error), "an attempt's record is unreadable");
            }
        }
    }
    Ok(answer(rows, records, since, clock::now()))
}

/// The attempts to report, of the table and of the `records` on the disk; older grants first.
pub fn answer(
    rows: &BTreeMap<AllocationId, Row>,
    records: Vec<FoundAttempt>,
    since: Timestamp,
    now: Timestamp,
) -> Vec<FoundAttempt> {
    let mut records: BTreeMap<AllocationId, FoundAttempt> =
        records.into_iter().map(|one| (one.allocation.clone(), one)).collect();
    let mut all = Vec::new();
    // The table says what is to run here, also while nothing of it is on the disk yet. A record that is there
    // already may be of an earlier grant of the same id.
    for (id, row) in rows.iter().filter(|(_, row)| row.is_live()) {
        let record = records.remove(id);
        let Some(order) = &row.order else { continue };
        let record = record.filter(|record| record.epoch == row.epoch);
        all.push(FoundAttempt {
            allocation: id.clone(),
            epoch: row.epoch,
            lease: row.lease.clone(),
            order: (**order).clone(),
            accepted_at: record.map_or(now, |record| record.accepted_at),
            end: None,
        });
    }
    // How one ended may not be known: then nothing is said of it.
    let late = |end: &EndReport| end.ended_at + CLOCKS_APART_MAX >= since;
    let mut ended: Vec<FoundAttempt> =
        records.into_values().filter(|one| one.end.as_ref().is_some_and(late)).collect();
    for one in &mut ended {
        // It continued under another grant, which the record may not have.
        if let Some(row) = rows.get(&one.allocation).filter(|row| row.order.is_some()) {
            (one.epoch, one.lease) = (row.epoch, row.lease.clone());
        }
    }
    ended.sort_by_key(|one| one.epoch);
    let excess = ended.len().saturating_sub(ENDED_MAX);
    all.extend(ended.split_off(excess));
    all.sort_by_key(|one| one.epoch);
    all
}

/// How an attempt ended, from what its shim or the agent wrote down.
fn end_of(dir: &AllocationDir) -> Option<EndReport> {
    let exit = ExitRecord::read(dir.path()).ok().flatten();
    exit.map(|exit| of_exit(&exit, dir.stop_was_ordered())).or_else(|| dir.end().ok().flatten())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::allocation::AttemptEnd;
    use fleet_core::lease::Epoch;

    use super::*;
    use fleet_node::AttemptPhase;
    use fleet_node::testing::order;

    const NOW: Timestamp = Timestamp(100_000_000);

    fn epoch(index: u64) -> Epoch {
        Epoch { incarnation: 1, index }
    }

    fn id(n: u64) -> AllocationId {
        AllocationId::parse(&format!("alloc-{n}-1")).unwrap()
    }

    fn row(index: u64, phase: AttemptPhase) -> Row {
        Row { phase, ..Row::starting(epoch(index), None, order(&[])) }
    }

    fn record(n: u64, index: u64, ended: Option<Timestamp>) -> FoundAttempt {
        let end = ended
            .map(|at| crate::allocations::without_exit(AttemptEnd::Exited { code: 0 }, false, at));
        FoundAttempt {
            allocation: id(n),
            epoch: epoch(index),
            lease: None,
            order: order(&[]),
            accepted_at: Timestamp(1),
            end,
        }
    }

    fn told(rows: &[(u64, Row)], records: Vec<FoundAttempt>) -> Vec<FoundAttempt> {
        let rows = rows.iter().map(|(n, row)| (id(*n), row.clone())).collect();
        answer(&rows, records, NOW, NOW)
    }

    #[test]
    fn what_is_about_to_start_is_told_before_its_record_is_on_the_disk() {
        let told = told(&[(1, row(9, AttemptPhase::Starting))], Vec::new());
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].epoch, told[0].accepted_at), (epoch(9), NOW));
        assert!(told[0].end.is_none());
    }

    #[test]
    fn a_record_of_an_earlier_grant_says_nothing_of_the_one_that_starts() {
        let mut earlier = record(1, 3, Some(NOW));
        earlier.order.cpu_millis += 1;
        let told = told(&[(1, row(9, AttemptPhase::Starting))], vec![earlier]);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].epoch, told[0].accepted_at), (epoch(9), NOW));
        assert_eq!(told[0].order, order(&[]));
        assert!(told[0].end.is_none(), "the earlier one ended, not this one");
        // An end that was only said, of a grant that never began, is not that of the earlier grant either.
        let never = Row::never_started(epoch(9), None);
        let rows = BTreeMap::from([(id(1), never)]);
        let told = answer(&rows, vec![record(1, 3, Some(NOW))], NOW, NOW);
        assert_eq!(told[0].epoch, epoch(3));
    }

    #[test]
    fn what_ended_long_before_the_backup_or_nobody_knows_how_is_left_out() {
        let old = NOW - Millis::hours(2);
        let records = vec![record(1, 1, Some(old)), record(2, 2, None), record(3, 4, Some(NOW))];
        let told =
            told(&[(3, row(5, AttemptPhase::Ended)), (4, row(3, AttemptPhase::Running))], records);
        let said: Vec<_> = told.iter().map(|one| (one.allocation.clone(), one.epoch)).collect();
        assert_eq!(said, [(id(4), epoch(3)), (id(3), epoch(5))], "as the grants came");
    }
}
