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

/// See the module's doc. A month of a thousand nodes is about 40 MiB.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// By holder, then by node.
    hours: BTreeMap<Box<str>, BTreeMap<NodeName, Vec<Hour>>>,
    models: Vec<Box<str>>,
}

#[derive(Debug, Clone)]
struct Hour {
    hour: Timestamp,
    model: usize,
    /// Not taken by a stay yet.
    left: Seen,
}

impl Measured {
    pub(super) fn note(&mut self, one: &HourUse) {
        let model = self.models.iter().position(|known| **known == *one.model);
        let model = model.unwrap_or_else(|| {
            self.models.push(one.model.as_str().into());
            self.models.len() - 1
        });
        if !self.hours.contains_key(one.holder.as_str()) {
            self.hours.insert(one.holder.as_str().into(), BTreeMap::new());
        }
        let Some(nodes) = self.hours.get_mut(one.holder.as_str()) else { return };
        let hours = nodes.entry(one.node.clone()).or_default();
        // In the order of the hours: parts of one hour follow each other.
        let same = |known: &&mut Hour| known.hour == one.hour && known.model == model;
        match hours.iter_mut().rev().take(self.models.len()).find(same) {
            Some(known) => known.left.add(one.seen),
            None => hours.push(Hour { hour: one.hour, model, left: one.seen }),
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
        let model = self.models.iter().position(|known| **known == *model);
        let hours = self.hours.get_mut(holder).and_then(|nodes| nodes.get_mut(&stay.node));
        let (Some(model), Some(hours)) = (model, hours) else { return taken };
        let held = Window { starts_at: stay.from, ends_at: stay.until };
        let asked = Window {
            starts_at: stay.from.max(window.starts_at),
            ends_at: stay.until.min(window.ends_at),
        };
        for hour in hours.iter_mut().filter(|hour| hour.model == model) {
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
