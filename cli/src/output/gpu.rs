//! Shows GPUs.

use fleet_core::health::ConditionStatus;
use fleet_proto::json::gpu::{Gpu, Process};

use super::tone::Tone;
use super::values::{condition_line, or_dash};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

fn used(gpu: &Gpu) -> String {
    let Some(measured) = &gpu.in_use else { return "-".to_owned() };
    let percent = measured.utilization_percent.map(|percent| format!("{percent}%"));
    let memory = measured.memory_used_bytes.map(|bytes| Bytes(bytes).to_string());
    let parts: Vec<String> = [percent, memory].into_iter().flatten().collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
}

/// Who is on it, and for how long without a lease.
fn used_by(gpu: &Gpu, clock: &Clock) -> String {
    gpu.processes().map(|process| process_line(process, clock)).collect::<Vec<_>>().join(", ")
}

/// Why it is in its state, else what is wrong with it.
fn reason_shown(gpu: &Gpu) -> String {
    let wrong =
        gpu.conditions.iter().filter(|condition| !condition.status.is(ConditionStatus::False));
    let wrong = wrong.filter_map(|c| c.reason.clone().or_else(|| c.message.clone()));
    gpu.reason.clone().unwrap_or_else(|| wrong.collect::<Vec<_>>().join("; "))
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
            Column::new("MODEL", |g: &Self, _| or_dash(g.model.as_ref())),
            Column::new("MEMORY", |g: &Self, _| or_dash(g.memory_bytes.map(Bytes))).right(),
            Column::new("STATE", |g: &Self, _| g.state.to_string()).state(|g| Tone::of(&g.state)),
            Column::new("HELD BY", |g: &Self, _| or_dash(g.held_by.as_ref())),
            Column::new("FOR", |g: &Self, _| or_dash(g.holder())),
            Column::new("UNTIL", |g: &Self, clock| {
                or_dash(g.held_until.map(|until| clock.minute(until.0)))
            }),
            Column::new("USE", |g: &Self, _| used(g)).right(),
            Column::new("TEMP", |g: &Self, _| or_dash(temperature(g))).right().wide(),
            Column::new("ENFORCED", |g: &Self, _| or_dash(g.enforced.as_ref())).wide(),
            Column::new("USED BY", |g: &Self, clock| {
                or_dash(Some(used_by(g, clock)).filter(|text| !text.is_empty()))
            })
            .wide(),
            Column::new("HEALTH", |g: &Self, _| or_dash(g.health.as_ref()))
                .state(|g| g.health.as_ref().map_or(Tone::Plain, Tone::of)),
            Column::new("DRIVER", |g: &Self, _| or_dash(g.driver_index)).right().wide(),
            Column::new("UUID", |g: &Self, _| g.uuid.clone()).wide(),
            Column::new("REASON", |g: &Self, _| reason_shown(g)),
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
            ("Use", self.in_use.as_ref().map(|_| used(self))),
            ("Temperature", temperature(self)),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines.extend(self.processes().map(|process| ("Process", process_line(process, clock))));
        lines.extend(self.conditions.iter().map(|c| ("Condition", condition_line(c))));
        lines
    }
}
