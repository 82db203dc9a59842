//! Judges what nodes open, and when: a GPU for those of one reservation only, and each confirmed reservation on time, for
//! all who share it.
//!
//! It takes what agents open, and what the records say that they should. A node that was down, or one of whose GPUs was
//! dead, owes nothing; nor does one that has not confirmed the newest order.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::id::ReservationId;
use fleet_core::name::{GpuUuid, UserName};

use super::records::{Record, moment};
use super::{Open, Week};

/// How much later than its start a reservation may be open: a leader may have to be elected first, and a node that
/// hears nobody takes six seconds to notice.
const LATE_MAX_US: u64 = 30_000_000;
/// A node that was down so shortly before is just back.
const BACK_US: u64 = 30_000_000;

/// What was ever open for one reservation.
#[derive(Debug, Default)]
pub(super) struct Opened {
    users: BTreeSet<UserName>,
    gpus: BTreeSet<GpuUuid>,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// What each node has open.
    open: BTreeMap<usize, Vec<Open>>,
    /// When it was down last, and when each GPU was dead last.
    down_us: BTreeMap<usize, u64>,
    dead_us: BTreeMap<GpuUuid, u64>,
}

impl Week {
    /// Those nodes are down.
    pub(crate) fn down(&mut self, nodes: &[usize], now_us: u64) {
        self.gates.down_us.extend(nodes.iter().map(|at| (*at, now_us)));
    }

    /// Those GPUs are not well.
    pub(crate) fn ailing<'a>(&mut self, gpus: impl Iterator<Item = &'a GpuUuid>, now_us: u64) {
        self.gates.dead_us.extend(gpus.map(|gpu| (gpu.clone(), now_us)));
    }

    /// That is what the node has open now.
    pub(crate) fn opened(&mut self, at: usize, open: Vec<Open>) -> Result<(), String> {
        if self.gates.open.get(&at) == Some(&open) {
            return Ok(());
        }
        for (nth, one) in open.iter().enumerate() {
            let shares = |other: &&Open| other.gpus.iter().any(|gpu| one.gpus.contains(gpu));
            if let Some(other) = open.iter().skip(nth + 1).find(shares) {
                return Err(format!("{one:?} and {other:?} are open on the same GPU"));
            }
            let Some(record) = self.records.get(&one.id) else {
                return Err(format!("{} is open, and nobody reserved it", one.id));
            };
            if let Some(stranger) = one.users.iter().find(|user| !record.ever.contains(*user)) {
                return Err(format!("{} is open for {stranger}, who has no part in it", one.id));
            }
            let opened = self.opened.entry(one.id.clone()).or_default();
            opened.users.extend(one.users.iter().cloned());
            opened.gpus.extend(one.gpus.iter().cloned());
        }
        self.gates.open.insert(at, open);
        Ok(())
    }

    /// Whether all is open that should be by now.
    pub(crate) fn judge_due(&mut self, now_us: u64) -> Result<(), String> {
        for (id, record) in &mut self.records {
            let waits = record.judged || record.leaves || record.next.is_some();
            let from = if waits { None } else { from_us(record) };
            let Some(from) = from.filter(|from| now_us >= from + LATE_MAX_US) else { continue };
            record.judged = true;
            let too_short = moment(record.place.window.ends_at) < from + LATE_MAX_US;
            if too_short || self.gates.owes_nothing(record, from) {
                continue;
            }
            let is_open = |id: &ReservationId| {
                self.opened.get(id).is_some_and(|opened| {
                    opened.users.is_superset(&record.users())
                        && opened.gpus.len() >= record.place.gpus.len()
                })
            };
            if !is_open(id) && !record.twin.as_ref().is_some_and(is_open) {
                let open = self.opened.get(id);
                let (users, place) = (record.users(), &record.place);
                return Err(format!(
                    "{id} of {users:?} was to be open at {place:?}, and has {open:?}"
                ));
            }
        }
        Ok(())
    }
}

/// From when on the node owes it: it has begun, the node knows it as it is now.
fn from_us(record: &Record) -> Option<u64> {
    let starts = moment(record.place.window.starts_at);
    Some(starts.max(record.changed_us).max(record.taken_us?))
}

impl Gates {
    fn owes_nothing(&self, record: &Record, from_us: u64) -> bool {
        let lately = |at: &u64| *at + BACK_US > from_us;
        let at = record.place.node.trim_start_matches("gpu").parse::<usize>().map(|n| n - 1);
        let is_down = at.ok().and_then(|at| self.down_us.get(&at)).is_some_and(lately);
        let is_dead = |gpu: &GpuUuid| self.dead_us.get(gpu).is_some_and(lately);
        is_down || record.place.gpus.iter().any(is_dead)
    }
}
