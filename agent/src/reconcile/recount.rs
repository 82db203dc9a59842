//! What this node holds, for controllers that were restored from a backup: every attempt that runs, and every
//! one that ended since the backup and whose record is still there. Reads only.
//!
//! Called by the reconcile task, off the async threads.

use std::collections::BTreeMap;

use fleet_core::allocation::EndReport;
use fleet_core::holdings::FoundAttempt;
use fleet_core::id::AllocationId;
use fleet_core::time::{Millis, Timestamp};

use super::table::{Phase, Row};
use crate::allocations::{self, AllocationDir, RecordError, Registry, chain, of_exit};
use crate::shim::order::ExitRecord;

/// Clocks of node and controllers may differ by this much.
const CLOCKS_APART_MAX: Millis = Millis::hours(1);
/// Most ended attempts that are told; the newest are.
const ENDED_MAX: usize = 1_000;

/// Everything this node knows of, older grants first. `rows` is the table as it is.
pub(super) fn found(
    registry: &Registry,
    folder: &std::path::Path,
    rows: &BTreeMap<AllocationId, Row>,
    since: Timestamp,
) -> Result<Vec<FoundAttempt>, RecordError> {
    let (mut live, mut ended) = (Vec::new(), Vec::new());
    for id in allocations::list(folder)? {
        let dir = registry.dir(&id);
        let row = rows.get(&id);
        let runs = row.is_some_and(|row| row.phase != Phase::Ended);
        let end = if runs { None } else { end_of(&dir) };
        let record = match dir.record() {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            Err(error) => {
                tracing::error!(%id, error = chain(&error), "an attempt's record is unreadable");
                continue;
            }
        };
        // How it ended is not known: then nothing is said of it.
        if !runs && end.as_ref().is_none_or(|end| end.ended_at + CLOCKS_APART_MAX < since) {
            continue;
        }
        let one = FoundAttempt {
            allocation: id,
            epoch: row.map_or(record.epoch, |row| row.epoch),
            lease: row.map_or(record.lease, |row| row.lease.clone()),
            order: record.order,
            accepted_at: record.accepted_at,
            end,
        };
        if runs { live.push(one) } else { ended.push(one) }
    }
    ended.sort_by_key(|one| one.epoch);
    let excess = ended.len().saturating_sub(ENDED_MAX);
    let mut all = ended.split_off(excess);
    all.extend(live);
    all.sort_by_key(|one| one.epoch);
    Ok(all)
}

/// How an attempt ended, from what its shim or the agent wrote down.
fn end_of(dir: &AllocationDir) -> Option<EndReport> {
    let exit = ExitRecord::read(dir.path()).ok().flatten();
    exit.map(|exit| of_exit(&exit, dir.stop_was_ordered())).or_else(|| dir.end().ok().flatten())
}
