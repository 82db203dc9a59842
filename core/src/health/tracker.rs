//! Folds signals into the conditions that hold now. Time is passed in; the whole tracker is
//! persisted by the agent, so that its restart neither heals nor forgets anything.
//!
//! * A value that jitters counts when it is bad in several of the last samples, and is lifted after a
//!   run of clean ones; a state the card keeps counts at once.
//! * What has destroyed work, or is known from one event only, is sticky: it stays until somebody
//!   clears it, the GPU is reset, or the machine was rebooted.
//! * A value that is missing from a sample improves nothing: a condition that held continues to hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::readings::{Finding, Found, findings};
use super::signal::{Known, Reading, Signal};
use super::xid::{self, Verdict};
use super::{
    CONDITIONS_PER_NODE_MAX, Condition, ConditionStatus, Severity, Shortage, Subject, limits,
};
use crate::gpu::{Architecture, GPUS_PER_NODE_MAX};
use crate::name::GpuUuid;
use crate::time::Timestamp;

const TRACKER_VERSION: u32 = 1;
/// Points of the corrected-error history per GPU: one per 1/12 of [`limits::ECC_WINDOW`].
const ECC_POINTS_MAX: usize = 13;

/// Kinds that are not in the tables.
const LOST: &str = "gpu_lost";
/// The driver does not say how one GPU is.
pub const NOT_ANSWERING: &str = "not_answering";
const TELEMETRY_MISSING: &str = "telemetry_missing";
const ECC_UNCORRECTED: &str = "ecc_uncorrected";
const ECC_CORRECTED: &str = "ecc_corrected_rising";
const DRIVER_SILENT: &str = "driver_not_answering";
/// Kinds of conditions of a GPU after which a program on it ends; XIDs have a column of their own.
pub(super) const ENDS_PROGRAMS: [&str; 3] = [LOST, NOT_ANSWERING, ECC_UNCORRECTED];
const UNNAMED: &str = "gpu_inventory_incomplete";

/// The health of one node: what was seen, and what follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthTracker {
    v: u32,
    boot_id: String,
    gpus: BTreeMap<GpuUuid, GpuHealth>,
    node: BTreeMap<String, Tracked>,
}

/// A condition of one subject, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Tracked {
    status: ConditionStatus,
    severity: Severity,
    reason: String,
    message: String,
    since: Timestamp,
    sticky: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct GpuHealth {
    held: BTreeMap<String, Tracked>,
    windows: BTreeMap<String, Window>,
    /// Beginnings of the bursts of each XID within the window, oldest first.
    xids: BTreeMap<u32, Vec<Timestamp>>,
    /// (when, count of corrected errors), oldest first.
    corrected: Vec<(Timestamp, u64)>,
    /// Uncorrected errors at the last sample.
    uncorrected: Option<u64>,
    sampled_at: Option<Timestamp>,
}

/// The last samples of one check: severity of each bad one, `None` for a clean one; newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Window {
    samples: Vec<Option<Severity>>,
}

impl Window {
    fn push(&mut self, sample: Option<Severity>) {
        self.samples.push(sample);
        let excess = self.samples.len().saturating_sub(limits::RECOVERY_SAMPLES);
        self.samples.drain(..excess);
    }

    /// The worst severity that enough of the latest samples reached.
    fn reached(&self) -> Option<Severity> {
        let latest = || self.samples.iter().rev().take(limits::WINDOW_SAMPLES);
        let often = |severity: Severity| {
            let bad = latest().filter(|sample| **sample >= Some(severity)).count();
            bad >= limits::WINDOW_BAD_SAMPLES
        };
        [Severity::Fatal, Severity::Degraded, Severity::Notice].into_iter().find(|s| often(*s))
    }

    /// The worst of a full window: what held before and was worse than this is over. `None` while the
    /// window is not full.
    fn worst(&self) -> Option<Option<Severity>> {
        let full = self.samples.len() >= limits::RECOVERY_SAMPLES;
        full.then(|| self.samples.iter().copied().max().flatten())
    }
}

impl HealthTracker {
    pub fn new(boot_id: &str) -> Self {
        let boot_id = boot_id.to_owned();
        Self { v: TRACKER_VERSION, boot_id, gpus: BTreeMap::new(), node: BTreeMap::new() }
    }

    /// To be called when a tracker was read back: after a new boot sticky conditions are gone, while the
    /// counts of repeats stay.
    pub fn booted(&mut self, boot_id: &str) {
        if self.boot_id == boot_id {
            return;
        }
        boot_id.clone_into(&mut self.boot_id);
        self.node.clear();
        for gpu in self.gpus.values_mut() {
            gpu.reset();
        }
    }

    /// To be called when a GPU was reset.
    pub fn gpu_reset(&mut self, gpu: &GpuUuid) {
        if let Some(gpu) = self.gpus.get_mut(gpu) {
            gpu.reset();
        }
    }

    /// Lifts the condition of this kind and age, by somebody's decision. A condition that has changed since
    /// stays: nobody decided about it. A fault that still exists is raised again. Says whether it was lifted.
    pub fn clear(&mut self, gpu: &GpuUuid, kind: &str, since: Timestamp) -> bool {
        let Some(gpu) = self.gpus.get_mut(gpu) else { return false };
        if gpu.held.get(kind).is_none_or(|held| held.since != since) {
            return false;
        }
        gpu.held.remove(kind);
        gpu.windows.remove(kind);
        let code = kind.strip_prefix("xid_").and_then(|code| code.parse().ok());
        code.and_then(|code: u32| gpu.xids.remove(&code));
        true
    }

    /// Nothing is known of this GPU any more: an admin forgot it. Says whether there was anything.
    pub fn forget(&mut self, gpu: &GpuUuid) -> bool {
        self.gpus.remove(gpu).is_some()
    }

    /// Takes in one thing seen.
    pub fn observe(&mut self, now: Timestamp, signal: &Signal) {
        match signal {
            Signal::Measured { gpu, reading } => self.with(gpu, |gpu| gpu.measured(now, reading)),
            Signal::Lost { gpu, reason } => self.with(gpu, |gpu| gpu.lost(now, reason)),
            Signal::NotAnswering { gpu, reason } => {
                self.with(gpu, |gpu| gpu.not_answering(now, reason));
            }
            Signal::Xid { gpu, architecture, code } => {
                self.with(gpu, |gpu| gpu.xid(now, *architecture, *code));
            }
            Signal::DoubleBitEcc { gpu } => self.with(gpu, |gpu| {
                gpu.double_bit(now, Severity::Fatal, "the driver told of a double-bit error");
            }),
            Signal::DriverAnswers => drop(self.node.remove(DRIVER_SILENT)),
            Signal::DriverSilent { reason } => {
                let held = unknown(now, Severity::Degraded, reason, "the driver does not answer");
                raise(&mut self.node, DRIVER_SILENT, held);
            }
            Signal::Unnamed { problems } if problems.is_empty() => {
                self.node.remove(UNNAMED);
            }
            Signal::Unnamed { problems } => {
                let reason = problems.join("; ");
                // A Notice: the other GPUs of the node are as good as before.
                let held = unknown(now, Severity::Notice, &reason, "GPUs that cannot be named");
                raise(&mut self.node, UNNAMED, held);
            }
            Signal::Short { of } => self.short(now, of),
        }
        for gpu in self.gpus.values_mut() {
            gpu.expire(now);
        }
    }

    /// A Notice each: what runs is as good as before.
    fn short(&mut self, now: Timestamp, of: &[(Shortage, String)]) {
        for shortage in Shortage::ALL {
            let Some((_, reason)) = of.iter().find(|(short, _)| *short == shortage) else {
                self.node.remove(shortage.kind());
                continue;
            };
            let held = bad(now, Severity::Notice, reason, shortage.message(), false);
            raise(&mut self.node, shortage.kind(), held);
        }
    }

    /// The conditions that hold or are unknown, worst first within the limit of a report.
    pub fn conditions(&self) -> Vec<Condition> {
        let node = self.node.iter().map(|(kind, held)| held.condition(Subject::Node, kind));
        let gpus = self.gpus.iter().flat_map(|(uuid, gpu)| {
            let named = gpu.held.iter();
            named.map(|(kind, held)| held.condition(Subject::Gpu(uuid.clone()), kind))
        });
        let mut all: Vec<Condition> = node.chain(gpus).collect();
        all.sort_by(|a, b| {
            (b.severity, &a.subject, &a.kind).cmp(&(a.severity, &b.subject, &b.kind))
        });
        all.truncate(CONDITIONS_PER_NODE_MAX);
        all
    }

    fn with(&mut self, uuid: &GpuUuid, act: impl FnOnce(&mut GpuHealth)) {
        if self.gpus.len() >= GPUS_PER_NODE_MAX && !self.gpus.contains_key(uuid) {
            // No machine has as many; a driver that invents UUIDs must not fill the memory.
            return;
        }
        act(self.gpus.entry(uuid.clone()).or_default());
    }
}

impl Tracked {
    fn condition(&self, subject: Subject, kind: &str) -> Condition {
        Condition {
            subject,
            kind: kind.to_owned(),
            status: self.status,
            severity: self.severity,
            reason: self.reason.clone(),
            message: self.message.clone(),
            since: self.since,
            sticky: self.sticky,
        }
    }
}

fn bad(now: Timestamp, severity: Severity, reason: &str, message: &str, sticky: bool) -> Tracked {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    Tracked { status: ConditionStatus::True, severity, reason, message, since: now, sticky }
}

fn unknown(now: Timestamp, severity: Severity, reason: &str, message: &str) -> Tracked {
    let status = ConditionStatus::Unknown;
    Tracked { status, ..bad(now, severity, reason, message, false) }
}

/// Puts a condition in, or makes the one that is there worse; its age stays while it stays the same.
fn raise(held: &mut BTreeMap<String, Tracked>, kind: &str, new: Tracked) {
    match held.get_mut(kind) {
        None => {
            held.insert(kind.to_owned(), new);
        }
        Some(old) => {
            let rank = |held: &Tracked| (held.severity, held.status == ConditionStatus::True);
            let since = if rank(&new) > rank(old) { new.since } else { old.since };
            if rank(&new) >= rank(old) {
                let sticky = old.sticky || new.sticky;
                *old = Tracked { since, sticky, ..new };
            }
        }
    }
}

impl GpuHealth {
    fn reset(&mut self) {
        let xids = std::mem::take(&mut self.xids);
        *self = Self { xids, ..Self::default() };
    }

    fn raise(&mut self, kind: &str, held: Tracked) {
        raise(&mut self.held, kind, held);
    }

    fn lost(&mut self, now: Timestamp, reason: &str) {
        self.held.remove(NOT_ANSWERING);
        let message = "the GPU is gone: reboot, and power-cycle if it returns";
        self.raise(LOST, bad(now, Severity::Fatal, reason, message, true));
    }

    fn not_answering(&mut self, now: Timestamp, reason: &str) {
        let since = self.held.get(NOT_ANSWERING).map_or(now, |held| held.since);
        let message = "the driver does not say how the GPU is";
        let mut held = unknown(now, Severity::Degraded, reason, message);
        if now.since(since) >= limits::NOT_ANSWERING_DEGRADED {
            held.status = ConditionStatus::True;
        }
        self.raise(NOT_ANSWERING, held);
    }

    fn double_bit(&mut self, now: Timestamp, severity: Severity, reason: &str) {
        let message = "what the GPU computed is not to be trusted: reset it, check retired pages";
        self.raise(ECC_UNCORRECTED, bad(now, severity, reason, message, true));
    }

    fn xid(&mut self, now: Timestamp, architecture: Architecture, code: Option<u32>) {
        let Some(code) = code else {
            let message = "the driver did not say which error: see the kernel log";
            let held = bad(now, Severity::Notice, "unknown XID", message, false);
            return self.raise("xid_unknown", held);
        };
        let verdict = xid::verdict(code, architecture);
        let Some(severity) = verdict.severity() else { return };
        let repeats = self.count(now, code);
        let many = match verdict {
            Verdict::Program => repeats >= limits::XID_REPEATS_PROGRAM,
            Verdict::Device | Verdict::NotApplicable => repeats >= limits::XID_REPEATS_DEVICE,
            Verdict::Ignored | Verdict::Notice | Verdict::Degraded | Verdict::Fatal => false,
        };
        let severity = if many { severity.max(Severity::Degraded) } else { severity };
        let row = xid::find(code);
        let meaning = row.map_or("an error this version does not know", |row| row.meaning);
        let times = if repeats > 1 { format!(", {repeats} times in a day") } else { String::new() };
        let reason = format!("XID {code}: {meaning}{times}");
        let advice = row.map_or(xid::KERNEL_LOG, |row| row.advice);
        let sticky = severity > Severity::Notice;
        let kind = format!("xid_{code}");
        let full = self.xids.len() > limits::XID_CODES_MAX;
        let kind = if full && !self.held.contains_key(&kind) { "xid_other" } else { &kind };
        self.raise(kind, bad(now, severity, &reason, advice, sticky));
    }

    /// Notes one XID and says how many bursts of its code there were within the window.
    fn count(&mut self, now: Timestamp, code: u32) -> usize {
        if self.xids.len() > limits::XID_CODES_MAX && !self.xids.contains_key(&code) {
            return 1;
        }
        let bursts = self.xids.entry(code).or_default();
        bursts.retain(|at| now.since(*at) < limits::XID_WINDOW);
        if bursts.last().is_none_or(|at| now.since(*at) >= limits::XID_BURST) {
            bursts.push(now);
        }
        let excess = bursts.len().saturating_sub(limits::XID_BURSTS_MAX);
        bursts.drain(..excess);
        bursts.len()
    }

    /// Notices from events have no clean sample that lifts them: they go after a day without repeats.
    fn expire(&mut self, now: Timestamp) {
        let old = |at: Timestamp| now.since(at) >= limits::XID_WINDOW;
        for bursts in self.xids.values_mut() {
            bursts.retain(|at| !old(*at));
        }
        self.xids.retain(|_, bursts| !bursts.is_empty());
        let xids = &self.xids;
        self.held.retain(|kind, held| {
            let Some(code) = kind.strip_prefix("xid_") else { return true };
            let repeated = code.parse().is_ok_and(|code: u32| xids.contains_key(&code));
            held.sticky || repeated || !old(held.since)
        });
    }

    fn measured(&mut self, now: Timestamp, reading: &Reading) {
        if self.sampled_at.is_some_and(|last| reading.sampled_at <= last) {
            return;
        }
        self.sampled_at = Some(reading.sampled_at);
        self.held.remove(NOT_ANSWERING);
        let mut missing = Vec::new();
        for finding in findings(reading) {
            let kind = finding.kind;
            if finding.result == Found::Unknown {
                missing.push(kind);
            }
            self.judge(now, finding);
        }
        missing.extend(self.ecc(now, reading));
        self.telemetry(now, &missing);
    }

    fn judge(&mut self, now: Timestamp, finding: Finding) {
        let Finding { kind, result, at_once } = finding;
        let (severity, reason, message) = match result {
            Found::NotApplicable | Found::Unknown => return,
            Found::Good => (None, String::new(), ""),
            Found::Bad { severity, reason, message } => (Some(severity), reason, message),
        };
        let window = self.windows.entry(kind.to_owned()).or_default();
        window.push(severity);
        let reached =
            if at_once { severity } else { window.reached().filter(|_| severity.is_some()) };
        let worst = window.worst();
        if let Some(reached) = reached {
            self.raise(kind, bad(now, reached, &reason, message, false));
        }
        if let Some(worst) = worst {
            self.lower(now, kind, worst);
        }
    }

    /// Ends a condition, or makes it milder, after a full window of better samples.
    fn lower(&mut self, now: Timestamp, kind: &str, worst: Option<Severity>) {
        let Some(held) = self.held.get_mut(kind).filter(|held| !held.sticky) else { return };
        match worst {
            None => drop(self.held.remove(kind)),
            Some(worst) if worst < held.severity => {
                held.severity = worst;
                held.since = now;
            }
            Some(_) => {}
        }
    }

    /// Compares error counts with earlier samples. Returns the kinds whose counts are missing.
    fn ecc(&mut self, now: Timestamp, reading: &Reading) -> Vec<&'static str> {
        let mut missing = Vec::new();
        match reading.ecc_uncorrected {
            Known::Value(count) => {
                let reason = format!("{count} uncorrected errors since the driver was loaded");
                match self.uncorrected {
                    // They happened under the eyes of the agent, so under the running work.
                    Some(before) if count > before => {
                        self.double_bit(now, Severity::Fatal, &reason);
                    }
                    // Nobody knows how old these errors are: the programs that run now may not have met them.
                    None if count > 0 => self.double_bit(now, Severity::Degraded, &reason),
                    Some(_) | None => {}
                }
                self.uncorrected = Some(count);
            }
            Known::Unknown => missing.push(ECC_UNCORRECTED),
            Known::NotApplicable => {}
        }
        match reading.ecc_corrected {
            Known::Value(count) => self.corrected(now, count),
            Known::Unknown => missing.push(ECC_CORRECTED),
            Known::NotApplicable => {}
        }
        missing
    }

    fn corrected(&mut self, now: Timestamp, count: u64) {
        // The counter starts again with the driver.
        self.corrected.retain(|(at, was)| now.since(*at) < limits::ECC_WINDOW && *was <= count);
        let risen = count - self.corrected.first().map_or(count, |(_, was)| *was);
        let step = limits::ECC_WINDOW.0 / 12;
        let due = self.corrected.last().is_none_or(|(at, _)| now.since(*at).0 >= step);
        if due && self.corrected.len() < ECC_POINTS_MAX {
            self.corrected.push((now, count));
        }
        let severity = match risen {
            limits::ECC_CORRECTED_DEGRADED.. => Some(Severity::Degraded),
            limits::ECC_CORRECTED_NOTICE.. => Some(Severity::Notice),
            _ => None,
        };
        let result = match severity {
            None => Found::Good,
            Some(severity) => Found::Bad {
                severity,
                reason: format!("{risen} corrected errors within an hour"),
                message: "the memory wears out: watch the retired pages",
            },
        };
        self.judge(now, Finding { kind: ECC_CORRECTED, result, at_once: true });
    }

    fn telemetry(&mut self, now: Timestamp, missing: &[&'static str]) {
        if missing.is_empty() {
            self.held.remove(TELEMETRY_MISSING);
            return;
        }
        let reason = format!("not told: {}", missing.join(", "));
        let message = "some values are missing, so nobody knows whether these hold";
        self.raise(TELEMETRY_MISSING, unknown(now, Severity::Notice, &reason, message));
    }
}

#[cfg(test)]
mod tests;
