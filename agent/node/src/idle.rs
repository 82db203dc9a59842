//! Which windows are idle: their GPUs computed nothing for the time that the fleet's rules say. Pure.
//!
//! The agent calls it with each look at the GPUs and reports what it returns; [`crate::idle_due`] says who reads of it. A
//! sample stands for the time to the next one of its GPU, at most [`SAMPLE_MAX`]. What is not measured is unknown, and the
//! count starts again after it. Lengths come from the time since boot, which never steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleet_core::id::ReservationId;
use fleet_core::idle::{IdleRules, IdleSeen};
use fleet_core::name::GpuUuid;
use fleet_core::time::Millis;

use crate::measured::{SAMPLE_MAX, Sample};

/// How often it is said again that a window is idle: a controller that did not hear this node for a moment has forgotten it.
const AGAIN_AFTER: Millis = Millis::minutes(15);

/// A window that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub reservation: ReservationId,
    pub gpus: Vec<GpuUuid>,
    /// A job in it is being prepared: its image is fetched, say.
    pub prepares: bool,
}

/// How it is with a window now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing computed for this long, and for long enough.
    Idle {
        length: Millis,
    },
    Busy,
    /// Not for long enough, or not known.
    Neither,
}

/// What was reported of a window last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Idle,
    Busy,
    Unknown,
}

#[derive(Debug)]
struct Watched {
    /// The last sample of each GPU: when it was, and what was seen.
    samples: BTreeMap<GpuUuid, (Duration, Seen)>,
    /// Since when nothing computes.
    still: Option<Duration>,
    /// When a program came to one of the GPUs last.
    came: Option<Duration>,
    standing: Standing,
    said: Option<Said>,
    said_at: Duration,
    /// Since when the controllers ask whether it is idle.
    asked: Option<Duration>,
    /// They have the answer.
    confirmed: bool,
}

/// What a sample says of a GPU.
#[derive(Debug, Clone, Copy)]
struct Seen {
    computes: bool,
    /// A program is on it.
    occupied: bool,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            samples: BTreeMap::new(),
            still: None,
            came: None,
            standing: Standing::Neither,
            said: None,
            said_at: Duration::ZERO,
            asked: None,
            confirmed: false,
        }
    }
}

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Watch {
    windows: BTreeMap<ReservationId, Watched>,
    below_percent: u32,
}

impl Watch {
    /// Takes new samples, and returns what is to be reported. `confirm`: the windows of which the controllers ask.
    pub fn look(
        &mut self,
        now: Duration,
        rules: IdleRules,
        open: &[Open],
        confirm: &BTreeSet<ReservationId>,
        samples: &[Sample],
    ) -> Vec<(ReservationId, IdleSeen)> {
        self.windows.retain(|id, _| open.iter().any(|one| one.reservation == *id));
        if self.below_percent != rules.below_percent {
            // By another measure nothing is known yet.
            self.below_percent = rules.below_percent;
            for watched in self.windows.values_mut() {
                watched.samples.clear();
            }
        }
        let mut news = Vec::new();
        for one in open {
            let id = &one.reservation;
            let watched = self.windows.entry(id.clone()).or_default();
            watched.standing = watched.look(now, rules, one, samples);
            let seen = watched.news(now, confirm.contains(id));
            news.extend(seen.map(|seen| (id.clone(), seen)));
        }
        news
    }

    /// How it is with each window.
    pub fn standing(&self) -> impl Iterator<Item = (&ReservationId, Standing)> {
        self.windows.iter().map(|(id, watched)| (id, watched.standing))
    }
}

impl Watched {
    fn look(&mut self, now: Duration, rules: IdleRules, one: &Open, new: &[Sample]) -> Standing {
        let most = Duration::from_millis(SAMPLE_MAX.0);
        let fresh = |at: Duration| now.saturating_sub(at) <= most;
        // Each GPU must have been measured all the time, also up to its new sample.
        let mut known =
            one.gpus.iter().all(|gpu| self.samples.get(gpu).is_some_and(|(at, _)| fresh(*at)));
        for sample in new.iter().filter(|sample| one.gpus.contains(&sample.gpu)) {
            let computes = sample.utilization_percent >= rules.below_percent;
            let seen = Seen { computes, occupied: sample.occupied };
            let before = self.samples.insert(sample.gpu.clone(), (now, seen));
            if sample.occupied && before.is_none_or(|(_, before)| !before.occupied) {
                self.came = Some(now);
            }
        }
        if !known {
            // The count starts where all of them are measured again.
            self.still = None;
            known =
                one.gpus.iter().all(|gpu| self.samples.get(gpu).is_some_and(|(at, _)| fresh(*at)));
        }
        let busy = self.samples.values().any(|(at, seen)| seen.computes && fresh(*at));
        if busy || !known || one.prepares || !rules.watches() || one.gpus.is_empty() {
            self.still = None;
            return if busy { Standing::Busy } else { Standing::Neither };
        }
        let length = passed(*self.still.get_or_insert(now), now);
        // Programs take minutes to begin.
        let early = self.came.is_some_and(|came| passed(came, now) < rules.quiet());
        match length >= rules.after && !early {
            true => Standing::Idle { length },
            false => Standing::Neither,
        }
    }

    fn news(&mut self, now: Duration, confirm: bool) -> Option<IdleSeen> {
        self.confirmed &= confirm;
        self.asked = confirm.then(|| self.asked.unwrap_or(now));
        // What was measured before the question is no answer to it.
        let measured_since = |asked: Duration| self.samples.values().all(|(at, _)| *at > asked);
        let again = match self.asked.filter(|_| !self.confirmed) {
            Some(asked) => measured_since(asked),
            None => passed(self.said_at, now) >= AGAIN_AFTER,
        };
        let (said, seen) = match (self.standing, self.said) {
            (Standing::Idle { .. }, Some(Said::Idle)) if !again => return None,
            (Standing::Idle { length }, _) => (Said::Idle, IdleSeen::Idle { for_ms: length }),
            (Standing::Busy, Some(Said::Busy)) => return None,
            (Standing::Busy, _) => (Said::Busy, IdleSeen::Busy),
            (Standing::Neither, Some(Said::Idle)) => (Said::Unknown, IdleSeen::Unknown),
            (Standing::Neither, _) => return None,
        };
        self.confirmed = confirm && again && said == Said::Idle;
        (self.said, self.said_at) = (Some(said), now);
        Some(seen)
    }
}

fn passed(since: Duration, now: Duration) -> Millis {
    Millis(u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
