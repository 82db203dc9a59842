//! Shows what a GPU did in each minute, a line each.

use fleet_proto::json::gpu_minute::{GpuMinute, Process};

use super::values::or_dash;
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

/// Nothing was measured in it.
fn is_unknown(minute: &GpuMinute) -> bool {
    minute.measured_ms == 0
}

fn used(minute: &GpuMinute) -> String {
    match minute.utilization_percent {
        Some(percent) => format!("{percent}%"),
        None if is_unknown(minute) => "unknown".to_owned(),
        None => "-".to_owned(),
    }
}

/// `ada python3`.
fn process(process: &Process) -> String {
    let user = process.user.clone().unwrap_or_else(|| process.uid.to_string());
    format!("{user} {}", process.name.as_deref().unwrap_or("?"))
}

fn processes(minute: &GpuMinute) -> String {
    let mut all: Vec<String> = minute.processes.iter().map(process).collect();
    if minute.more_processes > 0 {
        all.push(format!("+{} more", minute.more_processes));
    }
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn seconds(ms: u32) -> String {
    format!("{}s", (ms + 500) / 1_000)
}

impl Row for GpuMinute {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("TIME", |m: &Self, clock| or_dash(m.from.map(|at| clock.of_day(at.0)))),
            Column::new("HOLDER", |m: &Self, _| or_dash(m.holder.as_ref())),
            Column::new("OWNER", |m: &Self, _| or_dash(m.owner.as_ref())).clip_to(8),
            Column::new("USE", |m: &Self, _| used(m)).right(),
            Column::new("MEMORY", |m: &Self, _| or_dash(m.memory_peak_bytes.map(Bytes))).right(),
            Column::new("PROCESSES", |m: &Self, _| processes(m)).clip_to(12),
            Column::new("MEASURED", |m: &Self, _| seconds(m.measured_ms)).right().wide(),
            Column::new("BUSY", |m: &Self, _| seconds(m.busy_ms)).right().wide(),
            Column::new("OCCUPIED", |m: &Self, _| seconds(m.occupied_ms)).right().wide(),
            Column::new("POWER", |m: &Self, _| {
                or_dash(m.power_watts.map(|watts| format!("{watts} W")))
            })
            .right()
            .wide(),
            Column::new("HOTTEST", |m: &Self, _| {
                or_dash(m.temperature_peak_celsius.map(|celsius| format!("{celsius}°C")))
            })
            .right()
            .wide(),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Minute", or_dash(self.from.map(|at| clock.minute(at.0)))),
            ("Holder", or_dash(self.holder.as_ref())),
            ("Reservation", or_dash(self.reservation.as_ref())),
            ("Owner", or_dash(self.owner.as_ref())),
            ("Measured", seconds(self.measured_ms)),
            ("Busy", seconds(self.busy_ms)),
            ("Occupied", seconds(self.occupied_ms)),
            ("Use", used(self)),
            ("Memory", or_dash(self.memory_peak_bytes.map(Bytes))),
            ("Power", or_dash(self.power_watts.map(|watts| format!("{watts} W")))),
            ("Hottest", or_dash(self.temperature_peak_celsius.map(|c| format!("{c}°C")))),
            ("Processes", processes(self)),
        ]
    }
}
