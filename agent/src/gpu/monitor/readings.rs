//! What the monitor has been told so far, folded into one picture. Pure: no child, no clock.
//!
//! A GPU once seen stays in the picture: it is present, lost, or unknown with a reason, never
//! silently gone.

use fleet_core::gpu::Presence;
use fleet_core::name::GpuUuid;
use fleet_core::time::Timestamp;

use super::HUNG_RETRIES_MAX;
use crate::gpu::report::{
    DriverInfo, DriverState, GpuInfo, GpuSnapshot, GpuState, Link, Telemetry,
};

/// An agent that starts, or takes the driver up again, forgets what hung.
const NOT_TRIED_AGAIN: &str =
    "not tried again until the node is drained and uncordoned, or its agent restarts";
const NOT_SAMPLED: &str = "not measured yet";

#[derive(Debug)]
pub(super) struct Readings {
    seen: GpuSnapshot,
    /// GPUs the driver counts, hanging ones included.
    count: u32,
    /// UUIDs of the inventory being read, or of the last one.
    listed: Vec<GpuUuid>,
    /// Indices of it that could not be read: (index, lost, reason).
    unread: Vec<(u32, bool, String)>,
    hung: Vec<Hung>,
    /// Number of the latest sample asked for.
    asked: u64,
    /// An inventory is being read: what is shown meanwhile is the last picture.
    open: bool,
}

/// A GPU that hung in the driver, by index: it may never have told its UUID.
#[derive(Debug)]
struct Hung {
    index: u32,
    uuid: Option<GpuUuid>,
    reason: String,
    /// Left out of the next inventory.
    skip: bool,
    retries: u32,
    /// When it is tried again, in words; empty while the next probe starts.
    next: String,
}

impl Hung {
    fn why(&self) -> String {
        match self.next.as_str() {
            "" => self.reason.clone(),
            next => format!("{}; {next}", self.reason),
        }
    }
}

impl Readings {
    pub(super) fn new(known: &[GpuInfo], now: Timestamp) -> Self {
        let mut seen = GpuSnapshot::empty(DriverState::Starting);
        seen.gpus = known
            .iter()
            .map(|info| GpuState {
                info: info.clone(),
                presence: Presence::Unknown,
                reason: Some(NOT_SAMPLED.to_owned()),
                telemetry: Telemetry::unknown(NOT_SAMPLED),
                since: now,
                sampled_at: None,
            })
            .collect();
        Self {
            seen,
            count: 0,
            listed: Vec::new(),
            unread: Vec::new(),
            hung: Vec::new(),
            asked: 0,
            open: false,
        }
    }

    pub(super) fn snapshot(&self, stuck_probes: usize) -> GpuSnapshot {
        GpuSnapshot { stuck_probes, ..self.seen.clone() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn begin_inventory(&mut self) {
        self.open = true;
        self.listed.clear();
        self.unread.clear();
    }

    pub(super) fn driver(&mut self, info: DriverInfo, count: u32) {
        if count != self.count {
            // Indices mean other GPUs now, and the probe has skipped none.
            self.hung.clear();
        }
        self.count = count;
        self.seen.driver = Some(info);
    }

    pub(super) fn gpu(&mut self, info: GpuInfo, now: Timestamp) {
        self.listed.push(info.uuid.clone());
        match self.position(&info.uuid) {
            Some(at) => {
                let gpu = &mut self.seen.gpus[at];
                gpu.info = info;
                if gpu.presence != Presence::Present {
                    gpu.telemetry = Telemetry::unknown(NOT_SAMPLED);
                    gpu.since = now;
                    gpu.sampled_at = None;
                }
                gpu.presence = Presence::Present;
                gpu.reason = None;
            }
            None => self.seen.gpus.push(GpuState {
                info,
                presence: Presence::Present,
                reason: None,
                telemetry: Telemetry::unknown(NOT_SAMPLED),
                since: now,
                sampled_at: None,
            }),
        }
    }

    pub(super) fn gpu_failed(&mut self, index: u32, lost: bool, reason: String) {
        self.unread.push((index, lost, reason));
    }

    pub(super) fn links(&mut self, links: Vec<Link>) {
        // Links of a GPU that is left out now are still true.
        let listed = &self.listed;
        let both = |link: &Link| listed.contains(&link.a) && listed.contains(&link.b);
        self.seen.links.retain(|link| !both(link));
        self.seen.links.extend(links);
        self.seen.links.sort_by(|x, y| (&x.a, &x.b).cmp(&(&y.a, &y.b)));
    }

    /// What was known and did not show up is lost, unless it is known to hang.
    /// `next` is when those that hang are tried again, as it is shown.
    pub(super) fn end_inventory(&mut self, now: Timestamp, next: &str) {
        self.open = false;
        for hung in self.hung.iter_mut().filter(|hung| hung.skip) {
            hung.next = match hung.retries {
                HUNG_RETRIES_MAX.. => NOT_TRIED_AGAIN.to_owned(),
                _ => format!("tried again at {next}"),
            };
        }
        self.seen.driver_state = DriverState::Running;
        for at in 0..self.seen.gpus.len() {
            let gpu = &self.seen.gpus[at];
            if self.listed.contains(&gpu.info.uuid) {
                continue;
            }
            let index = gpu.info.index;
            let uuid = Some(&gpu.info.uuid);
            let hangs = self.hung.iter().find(|hung| hung.skip && hung.uuid.as_ref() == uuid);
            let unread = self.unread.iter().find(|(unread, ..)| *unread == index);
            let (presence, reason) = match (hangs, unread) {
                (Some(hung), _) => (Presence::Unknown, hung.why()),
                (None, Some((_, false, reason))) => (Presence::Unknown, reason.clone()),
                (None, Some((_, true, reason))) => (Presence::Lost, reason.clone()),
                (None, None) => (Presence::Lost, "the driver no longer lists it".to_owned()),
            };
            self.set(at, presence, &reason, now);
        }
        self.seen
            .gpus
            .sort_by(|a, b| (a.info.index, &a.info.uuid).cmp(&(b.info.index, &b.info.uuid)));
        self.note_problems();
    }

    pub(super) fn sample(&mut self, uuid: &GpuUuid, telemetry: Telemetry, now: Timestamp) {
        if let Some(at) = self.position(uuid) {
            let gpu = &mut self.seen.gpus[at];
            let index = gpu.info.index;
            if gpu.presence != Presence::Present {
                gpu.since = now;
            }
            gpu.presence = Presence::Present;
            gpu.reason = None;
            gpu.telemetry = telemetry;
            gpu.sampled_at = Some(now);
            // The GPU answers again: if it hangs once more, its retries start from zero.
            self.hung.retain(|hung| hung.index != index);
        }
    }

    pub(super) fn lost(&mut self, uuid: &GpuUuid, reason: &str, now: Timestamp) {
        if let Some(at) = self.position(uuid) {
            self.set(at, Presence::Lost, reason, now);
        }
    }

    pub(super) fn hung(&mut self, index: u32, reason: &str, now: Timestamp) {
        // A lost GPU may have had this index before.
        let at = self.seen.gpus.iter().position(|gpu| {
            let listed = self.listed.contains(&gpu.info.uuid);
            gpu.info.index == index && (listed || gpu.presence != Presence::Lost)
        });
        let uuid = at.map(|at| self.seen.gpus[at].info.uuid.clone());
        let retries = self.hung.iter().find(|hung| hung.index == index).map(|hung| hung.retries);
        self.hung.retain(|hung| hung.index != index);
        let (reason_kept, retries) = (reason.to_owned(), retries.unwrap_or(0));
        self.hung.push(Hung {
            index,
            uuid,
            reason: reason_kept,
            skip: true,
            retries,
            next: String::new(),
        });
        if let Some(at) = at {
            self.set(at, Presence::Unknown, reason, now);
        }
        self.open = false;
        self.note_problems();
    }

    /// An inventory ended early: of GPUs it did not come to, nothing is known.
    pub(super) fn not_reached(&mut self, now: Timestamp) {
        for at in 0..self.seen.gpus.len() {
            let gpu = &self.seen.gpus[at];
            if gpu.presence == Presence::Present && !self.listed.contains(&gpu.info.uuid) {
                self.set(at, Presence::Unknown, "the driver hangs on another GPU", now);
            }
        }
    }

    /// The whole driver cannot be asked: nothing is known of any GPU that was not lost before.
    pub(super) fn driver_fails(&mut self, state: DriverState, now: Timestamp) {
        let reason = match &state {
            DriverState::Absent { reason }
            | DriverState::Failed { reason }
            | DriverState::NotAnswering { reason } => reason.clone(),
            DriverState::Released => "the driver is released".to_owned(),
            DriverState::Starting | DriverState::Running => NOT_SAMPLED.to_owned(),
        };
        self.open = false;
        self.seen.driver_state = state;
        for at in 0..self.seen.gpus.len() {
            if self.seen.gpus[at].presence != Presence::Lost {
                self.set(at, Presence::Unknown, &reason, now);
            }
        }
    }

    /// Indices the next probe leaves alone, and for which number of GPUs that holds.
    pub(super) fn skipped(&self) -> (Vec<u32>, u32) {
        let skipped = self.hung.iter().filter(|hung| hung.skip).map(|hung| hung.index);
        (skipped.collect(), self.count)
    }

    /// Whether a new probe might find more GPUs than this one.
    pub(super) fn wants_retry(&self) -> bool {
        let hung = self.hung.iter().any(|hung| hung.skip && hung.retries < HUNG_RETRIES_MAX);
        let gone = |gpu: &GpuState| {
            gpu.presence == Presence::Lost && !self.listed.contains(&gpu.info.uuid)
        };
        hung || self.seen.gpus.iter().any(gone)
    }

    pub(super) fn retry_hung(&mut self) {
        for hung in self.hung.iter_mut().filter(|hung| hung.retries < HUNG_RETRIES_MAX) {
            hung.retries += 1;
            hung.skip = false;
        }
    }

    pub(super) fn forget_hangs(&mut self) {
        self.hung.clear();
    }

    pub(super) fn next_sample(&self) -> u64 {
        self.asked + 1
    }

    /// Takes the next number for a sample.
    pub(super) fn ask_sample(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    pub(super) fn sampled(&mut self, id: u64) {
        self.seen.sample = id;
    }

    fn position(&self, uuid: &GpuUuid) -> Option<usize> {
        self.seen.gpus.iter().position(|gpu| gpu.info.uuid == *uuid)
    }

    fn set(&mut self, at: usize, presence: Presence, reason: &str, now: Timestamp) {
        let gpu = &mut self.seen.gpus[at];
        if gpu.presence == presence && gpu.reason.as_deref() == Some(reason) {
            return;
        }
        if gpu.presence != presence {
            gpu.since = now;
        }
        gpu.presence = presence;
        gpu.reason = Some(reason.to_owned());
        gpu.telemetry = Telemetry::unknown(reason);
        gpu.sampled_at = None;
    }

    /// Says of each index that could not be read and has no known GPU why.
    fn note_problems(&mut self) {
        let known = |index: u32| self.seen.gpus.iter().any(|gpu| gpu.info.index == index);
        let hung = self.hung.iter().filter(|hung| hung.skip && hung.uuid.is_none());
        let hung = hung.map(|hung| (hung.index, hung.why()));
        let unread = self.unread.iter().map(|(index, _, reason)| (*index, reason.clone()));
        let mut all: Vec<(u32, String)> =
            hung.chain(unread.filter(|(index, _)| !known(*index))).collect();
        all.sort();
        all.dedup_by_key(|(index, _)| *index);
        let said = all.into_iter().map(|(index, reason)| format!("GPU {index}: {reason}"));
        self.seen.problems = said.collect();
    }
}

#[cfg(test)]
mod tests;
