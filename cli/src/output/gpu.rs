//! Shows GPUs.

use fleet_proto::json::gpu::{Gpu, Process};

use super::node_gpus::beside;
use super::tone::Tone;
use super::values::{condition_line, or_dash};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

fn utilization(gpu: &Gpu) -> Option<String> {
    Some(format!("{}%", gpu.in_use.as_ref()?.utilization_percent?))
}

fn memory_used(gpu: &Gpu) -> Option<Bytes> {
    gpu.in_use.as_ref()?.memory_used_bytes.map(Bytes)
}

/// Who is on it, and for how long without a lease.
fn used_by(gpu: &Gpu, clock: &Clock) -> String {
    gpu.processes().map(|process| process_line(process, clock)).collect::<Vec<_>>().join(", ")
}

/// Why it is in its state, else what is wrong with it, the worst first.
fn reasons(gpu: &Gpu) -> Vec<String> {
    if let Some(reason) = &gpu.reason {
        return vec![reason.clone()];
    }
    let wrong = gpu.wrong().into_iter();
    wrong.filter_map(|c| c.reason.clone().or_else(|| c.message.clone())).collect()
}

/// All of them.
fn reason_shown(gpu: &Gpu) -> String {
    let reasons: Vec<String> =
        reasons(gpu).iter().map(|reason| beside(&gpu.node, reason).to_owned()).collect();
    reasons.join("; ")
}

/// The worst, and how many more there are: a line of a table has no room for eight.
fn worst_reason(gpu: &Gpu) -> String {
    match reasons(gpu).as_slice() {
        [] => String::new(),
        [one] => beside(&gpu.node, one).to_owned(),
        [worst, more @ ..] => format!("{}; +{} more", beside(&gpu.node, worst), more.len()),
    }
}

fn temperature(gpu: &Gpu) -> Option<String> {
    let celsius = gpu.in_use.as_ref().and_then(|measured| measured.temperature_celsius);
    celsius.map(|celsius| format!("{celsius}°C"))
}

/// `ada python3 (4242)`, and since when without a lease.
pub(crate) fn process_line(process: &Process, clock: &Clock) -> String {
    let user = process.user.as_deref().unwrap_or("?");
    let name = process.name.as_deref().unwrap_or("?");
    let since = process.foreign_since.map(|at| format!(" without a lease for {}", clock.ago(at.0)));
    format!("{user} {name} ({}){}", process.pid, since.unwrap_or_default())
}

impl Row for Gpu {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GPU", |g: &Self, _| g.name()),
            Column::new("MODEL", |g: &Self, _| or_dash(g.model.as_ref())).rank(5),
            Column::new("MEMORY", |g: &Self, _| or_dash(g.memory_bytes.map(Bytes))).right().rank(7),
            Column::new("STATE", |g: &Self, _| g.state.to_string()).state(|g| Tone::of(&g.state)),
            Column::new("HELD BY", |g: &Self, _| or_dash(g.held_by.as_ref())).clip_to(8),
            Column::new("FOR", |g: &Self, _| or_dash(g.holder())).rank(3),
            Column::when("UNTIL", |g: &Self| g.held_until),
            Column::new("UTIL", |g: &Self, _| or_dash(utilization(g))).right().rank(4),
            Column::new("MEM USED", |g: &Self, _| or_dash(memory_used(g))).right().rank(6),
            Column::new("TEMP", |g: &Self, _| or_dash(temperature(g))).right().wide(),
            Column::new("ENFORCED", |g: &Self, _| or_dash(g.enforced.as_ref())).wide(),
            Column::new("USED BY", |g: &Self, clock| {
                or_dash(Some(used_by(g, clock)).filter(|text| !text.is_empty()))
            })
            .wide(),
            Column::new("HEALTH", |g: &Self, _| or_dash(g.health.as_ref()))
                .state(|g| g.health.as_ref().map_or(Tone::Plain, Tone::of))
                .rank(2),
            Column::new("DRIVER", |g: &Self, _| or_dash(g.driver_index)).right().wide(),
            Column::new("UUID", |g: &Self, _| g.uuid.clone()).wide(),
            Column::new("REASON", |g: &Self, _| reason_shown(g)).short(worst_reason).clip().rank(1),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("GPU", self.name()),
            ("UUID", self.uuid.clone()),
            ("Model", or_dash(self.product.as_ref().or(self.model.as_ref()))),
            ("Memory", or_dash(self.memory_bytes.map(Bytes))),
            ("State", self.state.to_string()),
        ];
        let optional = [
            ("Driver's index", self.driver_index.map(|index| index.to_string())),
            ("Reason", self.reason.clone()),
            ("Held by", self.held_by.clone()),
            ("Reservation", self.reservation.clone()),
            ("Job", self.job.clone()),
            ("Until", self.held_until.map(|until| clock.minute(until.0))),
            ("Health", self.health.as_ref().map(ToString::to_string)),
            ("Utilization", utilization(self)),
            ("Memory used", memory_used(self).map(|bytes| bytes.to_string())),
            ("Temperature", temperature(self)),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines.extend(self.processes().map(|process| ("Process", process_line(process, clock))));
        lines.extend(self.conditions.iter().map(|c| ("Condition", condition_line(c))));
        lines
    }
}
