//! Takes what nodes measured of their GPUs, each part of an hour once.
//!
//! The state keeps one time for each node: until when its reports were counted. What begins before that is known already:
//! the answer was lost, or the node has it from before a change of leader. The rows are in the event alone, never in the
//! state.

use std::collections::BTreeMap;

use super::{Fsm, Turn};
use crate::event::Event;
use crate::gpu_use::{
    GpuUse, MeasuredUse, NodeUse, USE_AGE_MAX, USE_AHEAD_MAX, USE_ROWS_MAX, USE_SLOT_MAX, UseRow,
    hour_of,
};
use crate::name::{GpuUuid, NodeName};
use crate::node::Node;
use crate::rejection::Rejection;
use crate::time::{Millis, Timestamp};

impl Fsm {
    /// Refuses what no node can have measured.
    pub(super) fn check_use(&self, seen: &NodeUse) -> Result<(), Rejection> {
        let NodeUse { from, until, rows } = seen;
        let bad = |field: &str, problem: String| {
            Err(Rejection::field(format!("gpu_use.{field}"), problem))
        };
        if until <= from || hour_of(*from) != hour_of(*until - Millis(1)) {
            return bad("until", "must be later than from, in the same hour".to_owned());
        }
        if *until > self.now + USE_AHEAD_MAX {
            return bad("until", format!("is more than {USE_AHEAD_MAX} in the future"));
        }
        if *from + USE_AGE_MAX < self.now {
            return bad("from", format!("is more than {USE_AGE_MAX} ago"));
        }
        if rows.len() > USE_ROWS_MAX {
            let what = "rows of measured use in one report".to_owned();
            return Err(Rejection::LimitReached { what, limit: USE_ROWS_MAX as u64 });
        }
        let length = until.since(*from).min(USE_SLOT_MAX);
        let mut of_gpus: BTreeMap<&GpuUuid, Millis> = BTreeMap::new();
        for row in rows {
            let measured = of_gpus.entry(&row.gpu).or_default();
            *measured = Millis(measured.0.saturating_add(row.measured_ms.0));
            if *measured > length {
                return bad("measured_ms", format!("of {} is more than {length}", row.gpu));
            }
            if let Some(field) = too_much(row) {
                return bad(field, format!("of {} is more than was measured", row.gpu));
            }
        }
        Ok(())
    }

    /// The clock was set back: what is measured from now on is not known yet.
    pub(super) fn forget_use_after(&mut self, now: Timestamp) {
        let later = |node: &&Node| node.use_counted > now;
        let names: Vec<NodeName> =
            self.nodes.values().filter(later).map(|node| node.name.clone()).collect();
        for name in names {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.use_counted = now;
            }
        }
    }

    /// Counts it, unless it is known. Rows of GPUs that are not this node's are left out: a card may have moved since.
    pub(super) fn use_measured(&mut self, turn: &mut Turn<'_>, name: &NodeName, seen: &NodeUse) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if seen.from < node.use_counted {
            return;
        }
        node.use_counted = seen.until;
        let rows: Vec<UseRow> = seen
            .rows
            .iter()
            .filter_map(|row| {
                let gpu = self.gpus.get(&row.gpu).filter(|gpu| gpu.node == *name)?;
                Some(UseRow { model: gpu.model.clone(), seen: row.clone() })
            })
            .collect();
        if !rows.is_empty() {
            let (node, from, until) = (name.clone(), seen.from, seen.until);
            turn.say(Event::GpuUseMeasured(Box::new(MeasuredUse { node, from, until, rows })));
        }
    }
}

/// The first value that cannot be, if there is one.
fn too_much(row: &GpuUse) -> Option<&'static str> {
    let GpuUse { measured_ms, busy_ms, occupied_ms, utilization, .. } = row;
    [
        ("busy_ms", busy_ms > measured_ms),
        ("occupied_ms", occupied_ms > measured_ms),
        ("utilization", *utilization > measured_ms.0.saturating_mul(100)),
    ]
    .into_iter()
    .find_map(|(field, wrong)| wrong.then_some(field))
}
