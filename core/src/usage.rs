//! Adds up who held which GPUs in a window of time, and how much of that was used: what `fleet usage` shows.
//!
//! Pure, and in whole GPU-milliseconds. The controller gives it what was measured ([`measured`]), then one stay after
//! another, those that are over and those that last. It keeps sums and the ids of what it counted, never the stays.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use self::measured::Measured;
use crate::event::Event;
use crate::gpu_use::MeasuredUse;
use crate::id::ReservationId;
use crate::lease::LeaseHolder;
use crate::name::UserName;
use crate::stay::Stay;
use crate::time::{Millis, Window};
use crate::word::words;

mod measured;

pub use self::measured::HourUse;

/// Longest window of one report: a year, and the month around it.
pub const USAGE_WINDOW_MAX: Millis = Millis::days(400);
/// Most rows of one report. What is beyond them is in the total.
pub const USAGE_ROWS_MAX: usize = 10_000;

/// What ended by this event, if something did.
pub fn stay_ended_by(event: &Event) -> Option<&Stay> {
    match event {
        Event::GpusReleased { stay, .. } | Event::ServedByNode(stay) => Some(stay),
        _ => None,
    }
}

/// What was measured by this event, if something was.
pub fn use_measured_by(event: &Event) -> Option<&MeasuredUse> {
    match event {
        Event::GpuUseMeasured(seen) => Some(seen),
        _ => None,
    }
}

/// What the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    User,
    Project,
    Node,
    Model,
    /// Reservations have no class: they share one row.
    Class,
}

words!(UsageBy {
    User => "user",
    Project => "project",
    Node => "node",
    Model => "model",
    Class => "class",
});

/// What is to be added up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub window: Window,
    pub by: UsageBy,
    /// Of this user only.
    pub owner: Option<UserName>,
}

/// GPUs times milliseconds, and how many jobs and reservations that was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Held by reservations, used or not.
    pub reserved: u64,
    /// Of that: held by attempts of jobs within them.
    pub in_jobs: u64,
    /// Held by attempts of jobs outside of reservations.
    pub jobs: u64,
    /// Of both kinds of attempts: what a fault of the node or an eviction destroyed.
    pub lost: u64,
    /// Of all that was held: how much of it was used.
    pub seen: Seen,
    pub job_count: u64,
    pub reservation_count: u64,
}

/// What was measured of what somebody held, in GPU-milliseconds. The rest of what they held is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The node measured.
    pub measured: u64,
    /// Of that: the GPU was busy.
    pub busy: u64,
    /// Of that: a process was on the GPU, busy or not.
    pub occupied: u64,
}

impl Seen {
    /// What was measured and not busy. What was not measured is no part of it.
    pub fn idle(&self) -> u64 {
        self.measured.saturating_sub(self.busy)
    }

    fn add(&mut self, more: Seen) {
        self.measured = self.measured.saturating_add(more.measured);
        self.busy = self.busy.saturating_add(more.busy);
        self.occupied = self.occupied.saturating_add(more.occupied);
    }
}

impl Sums {
    /// All that was held. A job within a reservation is in it once.
    pub fn held(&self) -> u64 {
        self.reserved.saturating_add(self.jobs)
    }

    /// Nobody measured it: the node was off, its agent stopped, or the driver gives no utilisation.
    pub fn unknown(&self) -> u64 {
        self.held().saturating_sub(self.seen.measured)
    }

    fn add(&mut self, stay: &Stay, (held, lost): (u64, u64), seen: Seen) {
        let kind = match (&stay.holder, &stay.within) {
            (LeaseHolder::Reservation(_), _) => &mut self.reserved,
            (LeaseHolder::Allocation(_), Some(_)) => &mut self.in_jobs,
            (LeaseHolder::Allocation(_), None) => &mut self.jobs,
        };
        *kind = kind.saturating_add(held);
        self.lost = self.lost.saturating_add(lost);
        self.seen.add(seen);
    }

    fn count(&mut self, id: &str) {
        match id.starts_with(ReservationId::PREFIX) {
            true => self.reservation_count += 1,
            false => self.job_count += 1,
        }
    }
}

/// What was added up by now.
#[derive(Debug, Clone)]
pub struct Usage {
    question: Question,
    /// What no stay has claimed yet.
    measured: Measured,
    /// With a number for each row.
    rows: BTreeMap<String, (u32, Sums)>,
    total: Sums,
    /// Jobs and reservations, with the number of the row in which each is counted. A job has many attempts.
    counted: BTreeSet<(Box<str>, u32)>,
}

impl Usage {
    pub fn of(question: Question) -> Self {
        Self {
            question,
            measured: Measured::default(),
            rows: BTreeMap::new(),
            total: Sums::default(),
            counted: BTreeSet::new(),
        }
    }

    /// Forgets what was measured: there is too much of it for one report, and all that was held counts as unknown.
    pub fn forget_measured(&mut self) {
        self.measured = Measured::default();
    }

    /// Notes what was measured in an hour that has a part in the window. Before the stays: each takes what was measured of
    /// it, and what no stay takes counts for nobody.
    pub fn note(&mut self, hour: &HourUse) {
        self.measured.note(hour);
    }

    /// Counts the part of the stay that is in the window.
    pub fn add(&mut self, stay: &Stay) {
        let of_somebody_else = |owner: &UserName| *owner != stay.owner;
        if self.question.owner.as_ref().is_some_and(of_somebody_else) {
            return;
        }
        let window = self.question.window;
        let held = length_within(window, Window { starts_at: stay.from, ends_at: stay.until });
        if held == 0 {
            return;
        }
        let lost = stay.lost.map_or(0, |lost| length_within(window, lost));
        let class = stay.account.class.as_ref().map_or("", |class| class.as_str());
        for (model, count) in &stay.models {
            let row = match self.question.by {
                UsageBy::Model => model,
                UsageBy::User => stay.owner.as_str(),
                UsageBy::Project => stay.account.project.as_str(),
                UsageBy::Node => stay.node.as_str(),
                UsageBy::Class => class,
            };
            self.add_to(row, stay, (model, u64::from(*count)), (held, lost));
        }
    }

    fn add_to(
        &mut self,
        row: &str,
        stay: &Stay,
        (model, gpus): (&str, u64),
        (held, lost): (u64, u64),
    ) {
        let lengths = (held.saturating_mul(gpus), lost.saturating_mul(gpus));
        // The GPUs of a job within a reservation are counted with the reservation.
        let seen = match &stay.within {
            None => self.measured.take(stay, (model, gpus), self.question.window),
            Some(_) => Seen::default(),
        };
        let next = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        if !self.rows.contains_key(row) {
            self.rows.insert(row.to_owned(), (next, Sums::default()));
        }
        let Some((number, sums)) = self.rows.get_mut(row) else { return };
        sums.add(stay, lengths, seen);
        self.total.add(stay, lengths, seen);
        if self.counted.insert((stay.of().into(), *number)) {
            sums.count(stay.of());
        }
    }

    /// The rows, those that held most first, then by name; and all together.
    pub fn rows(mut self) -> (Vec<(String, Sums)>, Sums) {
        // A job that ran on two nodes is one job of all.
        let mut ids: Vec<&str> = self.counted.iter().map(|(id, _)| id.as_ref()).collect();
        ids.dedup();
        for id in ids {
            self.total.count(id);
        }
        let rows = self.rows.into_iter().map(|(name, (_, sums))| (name, sums));
        let mut rows: Vec<(String, Sums)> = rows.collect();
        rows.sort_by(|(a, had), (b, other)| (other.held(), a).cmp(&(had.held(), b)));
        (rows, self.total)
    }
}

/// Milliseconds of `part` that are in the window.
fn length_within(window: Window, part: Window) -> u64 {
    part.ends_at.min(window.ends_at).since(part.starts_at.max(window.starts_at)).0
}

#[cfg(test)]
mod tests;
