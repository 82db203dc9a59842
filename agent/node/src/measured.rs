//! Adds up what each holder used of each GPU, from samples.
//!
//! A sample stands for the time to the next one of its GPU, at most [`SAMPLE_MAX`]: longer pauses are unknown, which is
//! not idle. Time is cut into slots that are each a part of one hour of UTC, in the fleet's time. No moment of a GPU counts
//! twice, even where that time steps back. Lengths come from the time since boot, which never steps.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::gpu_use::{GpuUse, NodeUse, USE_ROWS_MAX};
use fleet_core::id::ReservationId;
use fleet_core::lease::LeaseHolder;
use fleet_core::name::GpuUuid;
use fleet_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// The longest time that one sample stands for.
pub const SAMPLE_MAX: Millis = Millis::secs(15);
/// The fleet's time was set back on purpose if it steps back by more than this. Smaller steps are waited for.
const BACK_MAX: Millis = Millis::hours(2);

/// Who has a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub holder: LeaseHolder,
    /// The reservation that an attempt is in.
    pub within: Option<ReservationId>,
}

/// What one look at a GPU showed. A GPU without a utilisation has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub gpu: GpuUuid,
    /// `None`: nobody has it, and nothing is counted.
    pub holding: Option<Holding>,
    pub utilization_percent: u32,
    pub occupied: bool,
    pub memory_used_bytes: u64,
    pub details: Details,
}

/// What only the minutes of a GPU show ([`crate::minutes`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub power_milliwatts: Option<u32>,
    pub temperature_celsius: Option<u32>,
    pub processes: Vec<Program>,
}

/// A program on a GPU: who runs it, and what its executable is called. Never a command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    #[serde(rename = "u")]
    pub uid: u32,
    #[serde(rename = "n")]
    pub name: String,
}

/// A time for which a sample was counted. No two spans of a GPU overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub from: Timestamp,
    pub until: Timestamp,
    pub sample: Sample,
}

/// One moment, by two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub since_boot: Duration,
    pub fleet: Timestamp,
}

/// What was measured in a part of an hour, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    #[serde(flatten)]
    pub seen: NodeUse,
    /// All that was measured before this is counted, of each GPU.
    pub through: Timestamp,
}

/// See the module's doc.
#[derive(Debug)]
pub struct Meter {
    /// Length of a slot; an hour is a multiple of it.
    every: Millis,
    /// The last sample of each GPU, and when it was.
    open: BTreeMap<GpuUuid, (Moment, Sample)>,
    /// Until when each GPU was counted.
    counted: BTreeMap<GpuUuid, Timestamp>,
    /// What an agent before this one counted, and slots that were taken.
    floor: Timestamp,
    /// One after the other, none of them empty. Of those that are over, samples may still be open.
    slots: Vec<Slot>,
}

impl Meter {
    /// Continues with what an earlier agent stored, those that are over too. `every`: the length of a slot.
    pub fn resume(every: Millis, mut slots: Vec<Slot>) -> Self {
        slots.sort_by_key(|slot| slot.seen.from);
        let floor = slots.iter().map(|slot| slot.through).max().unwrap_or_default();
        Self { every, open: BTreeMap::new(), counted: BTreeMap::new(), floor, slots }
    }

    /// Takes new samples, one of each GPU that has one. The spans that it counted, and those in which nobody had the GPU.
    pub fn look(&mut self, now: Moment, samples: Vec<Sample>) -> Vec<Span> {
        let mut spans = Vec::new();
        let latest = self.counted.values().copied().max().unwrap_or_default().max(self.floor);
        if latest > now.fleet + BACK_MAX {
            (self.open, self.counted, self.floor) = Default::default();
            // Controllers refuse what is in the future.
            self.slots.retain(|slot| slot.seen.until <= now.fleet);
        }
        // A GPU that gives no further sample: its last one ends here.
        let most = Duration::from_millis(SAMPLE_MAX.0);
        let old: Vec<GpuUuid> = self
            .open
            .iter()
            .filter(|(_, (at, _))| now.since_boot.saturating_sub(at.since_boot) >= most)
            .map(|(gpu, _)| gpu.clone())
            .collect();
        for gpu in old {
            self.close(&gpu, now, &mut spans);
        }
        for sample in samples {
            self.close(&sample.gpu, now, &mut spans);
            self.open.insert(sample.gpu.clone(), (now, sample));
        }
        self.cut_where_full(now.fleet);
        spans
    }

    /// Counts the last samples until now: the agent stops.
    pub fn stop(&mut self, now: Moment) -> Vec<Span> {
        let mut spans = Vec::new();
        let all: Vec<GpuUuid> = self.open.keys().cloned().collect();
        for gpu in all {
            self.close(&gpu, now, &mut spans);
        }
        spans
    }

    /// The slots in which nothing is counted any more, without those of `self`.
    pub fn take_finished(&mut self, now: Timestamp) -> Vec<Slot> {
        let over = self.slots.iter().take_while(|slot| slot.seen.until + SAMPLE_MAX <= now);
        let over = over.count();
        let taken: Vec<Slot> = self.slots.drain(..over).collect();
        if let Some(last) = taken.last() {
            self.floor = self.floor.max(last.seen.until);
        }
        taken
    }

    /// What is being counted, to be stored.
    pub fn unfinished(&self) -> &[Slot] {
        &self.slots
    }

    /// Ends the last sample of a GPU.
    fn close(&mut self, gpu: &GpuUuid, now: Moment, spans: &mut Vec<Span>) {
        let Some((at, sample)) = self.open.remove(gpu) else { return };
        let passed = now.since_boot.saturating_sub(at.since_boot).as_millis();
        let length = Millis(u64::try_from(passed).unwrap_or(u64::MAX)).min(SAMPLE_MAX);
        let until = at.fleet + length;
        let counted = self.counted.entry(gpu.clone()).or_default();
        let mut from = at.fleet.max(*counted).max(self.floor);
        *counted = until.max(*counted);
        let Some(holding) = &sample.holding else {
            if from < until {
                spans.push(Span { from, until, sample });
            }
            return;
        };
        while from < until {
            let slot = self.slot_at(from);
            from = from.max(slot.seen.from);
            let to = until.min(slot.seen.until);
            let part = to.since(from);
            if part > Millis::ZERO {
                count(slot, &sample, holding, part);
                slot.through = slot.through.max(to);
                spans.push(Span { from, until: to, sample: sample.clone() });
            }
            from = to;
        }
    }

    /// The slot of a moment, or the first one after it.
    ///
    /// A slot begins with what was measured first in it. Controllers count nothing that begins before what they know, and after
    /// a step back or another length of slots they know a part of the hour.
    fn slot_at(&mut self, at: Timestamp) -> &mut Slot {
        let known = self.slots.iter().position(|slot| at < slot.seen.until);
        let begins = Timestamp(at.0 - at.0 % self.every.0);
        let known = known.unwrap_or_else(|| {
            let seen = NodeUse { from: at, until: begins + self.every, rows: Vec::new() };
            self.slots.push(Slot { through: at, seen });
            self.slots.len() - 1
        });
        let last = known.checked_sub(1).map(|before| self.slots[before].seen.until);
        let earliest = last.unwrap_or_default().max(self.floor).max(at);
        let slot = &mut self.slots[known];
        // Another GPU may have been measured a little earlier.
        if earliest < slot.seen.from && slot.seen.from < begins + self.every {
            slot.seen.from = earliest;
        }
        slot
    }

    /// A report has a limit. Beyond it the slot ends here, and the next one begins. The samples that are open may still add
    /// a row each.
    fn cut_where_full(&mut self, now: Timestamp) {
        let room = USE_ROWS_MAX.saturating_sub(2 * self.open.len());
        if let Some(slot) = self.slots.last_mut()
            && slot.seen.rows.len() >= room
            && (slot.through..slot.seen.until).contains(&now)
            && now > slot.seen.from
        {
            slot.seen.until = now;
        }
    }
}

fn count(slot: &mut Slot, sample: &Sample, holding: &Holding, length: Millis) {
    let rows = &mut slot.seen.rows;
    let same = |row: &GpuUse| {
        row.gpu == sample.gpu && row.holder == holding.holder && row.within == holding.within
    };
    let at = rows.iter().position(same).unwrap_or_else(|| {
        rows.push(GpuUse {
            gpu: sample.gpu.clone(),
            holder: holding.holder.clone(),
            within: holding.within.clone(),
            measured_ms: Millis::ZERO,
            busy_ms: Millis::ZERO,
            occupied_ms: Millis::ZERO,
            utilization: 0,
            memory_peak_bytes: 0,
        });
        rows.len() - 1
    });
    let row = &mut rows[at];
    row.measured_ms = row.measured_ms + length;
    if sample.utilization_percent > 0 {
        row.busy_ms = row.busy_ms + length;
    }
    if sample.occupied {
        row.occupied_ms = row.occupied_ms + length;
    }
    row.utilization += u64::from(sample.utilization_percent.min(100)) * length.0;
    row.memory_peak_bytes = row.memory_peak_bytes.max(sample.memory_used_bytes);
}

/// Nodes report within a sixth of a slot after its end: ten minutes after an hour.
const SPREAD: u64 = 6;

/// How long a node waits after the end of a slot before it reports the slot: other nodes wait for other times.
#[must_use]
pub fn pause_of(node: &str, every: Millis) -> Millis {
    // FNV-1a: the same on every build, and spread well enough.
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Millis(hash % (every.0 / SPREAD).max(1))
}

#[cfg(test)]
mod tests;
