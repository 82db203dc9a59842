//! What was measured, hour by hour, until the stays that it belongs to take it.
//!
//! A node measures by hours, and a report's window may begin or end within one: in a zone with half hours, or by
//! `--from 13:20`. Of such an hour a stay counts in proportion, as if it had been used evenly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Seen, length_within};
use crate::gpu_use::{MeasuredUse, hour_of};
use crate::lease::LeaseHolder;
use crate::name::NodeName;
use crate::stay::Stay;
use crate::time::{Millis, Timestamp, Window};

/// What was measured of the GPUs of one model that counted for one holder on one node, in one hour of UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HourUse {
    pub hour: Timestamp,
    pub node: NodeName,
    /// The attempt or the reservation whose stay this is a part of.
    pub holder: String,
    pub model: String,
    pub seen: Seen,
}

impl HourUse {
    /// All of what an event says, each holder and model once.
    pub fn all_of(event: &MeasuredUse) -> Vec<HourUse> {
        let mut sums: BTreeMap<(&str, &str), Seen> = BTreeMap::new();
        for row in &event.rows {
            let (measured, busy) = (row.seen.measured_ms.0, row.seen.busy_ms.0);
            let seen = Seen { measured, busy, occupied: row.seen.occupied_ms.0 };
            sums.entry((row.seen.counts_for(), row.model.as_str())).or_default().add(seen);
        }
        let hour = hour_of(event.from);
        let one = |((holder, model), seen): ((&str, &str), Seen)| HourUse {
            hour,
            node: event.node.clone(),
            holder: holder.to_owned(),
            model: model.to_owned(),
            seen,
        };
        sums.into_iter().map(one).collect()
    }
}

/// See the module's doc. A holder of one hour takes about 250 bytes, each further hour 40.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// By holder.
    hours: BTreeMap<Box<str>, Vec<Hour>>,
    nodes: Numbers,
    models: Numbers,
}

#[derive(Debug, Clone)]
struct Hour {
    hour: Timestamp,
    node: u32,
    model: u32,
    /// Not taken by a stay yet.
    left: Seen,
}

/// Names, each with a number.
#[derive(Debug, Clone, Default)]
struct Numbers(BTreeMap<Box<str>, u32>);

impl Numbers {
    fn get_or_add(&mut self, name: &str) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        match self.0.get(name) {
            Some(number) => *number,
            None => *self.0.entry(name.into()).or_insert(next),
        }
    }
}

impl Measured {
    pub(super) fn note(&mut self, one: &HourUse) {
        let (node, model) =
            (self.nodes.get_or_add(one.node.as_str()), self.models.get_or_add(&one.model));
        if !self.hours.contains_key(one.holder.as_str()) {
            self.hours.insert(one.holder.as_str().into(), Vec::with_capacity(1));
        }
        let Some(hours) = self.hours.get_mut(one.holder.as_str()) else { return };
        // In the order of the hours: parts of one hour follow each other.
        let same =
            |known: &&mut Hour| (known.hour, known.node, known.model) == (one.hour, node, model);
        match hours.iter_mut().rev().take(self.models.0.len()).find(same) {
            Some(known) => known.left.add(one.seen),
            None => hours.push(Hour { hour: one.hour, node, model, left: one.seen }),
        }
    }

    /// What was measured of these GPUs in the part of the stay that is in the window. Of an hour no more than the stay's
    /// part of it: a node that heard late of the end has measured a little of what followed.
    pub(super) fn take(&mut self, stay: &Stay, (model, gpus): (&str, u64), window: Window) -> Seen {
        let mut taken = Seen::default();
        let holder = match &stay.holder {
            LeaseHolder::Allocation(id) => id.as_str(),
            LeaseHolder::Reservation(id) => id.as_str(),
        };
        let numbers = (self.nodes.0.get(stay.node.as_str()), self.models.0.get(model));
        let (Some(node), Some(model)) = numbers else { return taken };
        let Some(hours) = self.hours.get_mut(holder) else { return taken };
        let held = Window { starts_at: stay.from, ends_at: stay.until };
        let asked = Window {
            starts_at: stay.from.max(window.starts_at),
            ends_at: stay.until.min(window.ends_at),
        };
        for hour in hours.iter_mut().filter(|hour| (hour.node, hour.model) == (*node, *model)) {
            let all = Window { starts_at: hour.hour, ends_at: hour.hour + Millis::hours(1) };
            let held = length_within(all, held).saturating_mul(gpus);
            let asked = length_within(all, asked).saturating_mul(gpus);
            if held == 0 {
                continue;
            }
            let measured = hour.left.measured.min(held);
            let busy = hour.left.busy.min(measured);
            let occupied = hour.left.occupied.min(measured);
            // The holder may have another stay in this hour.
            hour.left.measured -= measured;
            hour.left.busy -= busy;
            hour.left.occupied -= occupied;
            let part = |of: u64| {
                let part = u128::from(of) * u128::from(asked) / u128::from(held);
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            let (measured, busy, occupied) = (part(measured), part(busy), part(occupied));
            taken.add(Seen { measured, busy, occupied });
        }
        taken
    }
}
