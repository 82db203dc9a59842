//! Shows who held how many GPUs for how long, and how much of that was used.

use fleet_core::fair_share::gpu_hours;
use fleet_proto::json::usage::UsageRow;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

fn name(row: &UsageRow) -> String {
    match row.total {
        true => "total".to_owned(),
        // Reservations among classes.
        false => or_dash(row.name.as_ref()),
    }
}

impl Row for UsageRow {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NAME", |r: &Self, _| name(r)).clip_to(8),
            Column::new("HELD", |r: &Self, _| gpu_hours(r.held_gpu_ms)).right(),
            Column::new("USED", |r: &Self, _| gpu_hours(r.used_gpu_ms)).right(),
            Column::new("IDLE", |r: &Self, _| gpu_hours(r.idle_gpu_ms)).right(),
            Column::new("UNKNOWN", |r: &Self, _| gpu_hours(r.unknown_gpu_ms)).right(),
            Column::new("RESERVED", |r: &Self, _| gpu_hours(r.reserved_gpu_ms)).right(),
            Column::new("IN JOBS", |r: &Self, _| gpu_hours(r.in_jobs_gpu_ms)).right().rank(1),
            Column::new("JOBS", |r: &Self, _| gpu_hours(r.jobs_gpu_ms)).right(),
            Column::new("LOST", |r: &Self, _| gpu_hours(r.lost_gpu_ms)).right(),
            Column::new("#JOBS", |r: &Self, _| r.jobs.to_string()).right().rank(1),
            Column::new("#RES", |r: &Self, _| r.reservations.to_string()).right().rank(1),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let hours = |gpu_ms| format!("{} GPU-hours", gpu_hours(gpu_ms));
        vec![
            ("Name", name(self)),
            ("From", or_dash(self.from.map(|at| clock.second(at.0)))),
            ("Until", or_dash(self.until.map(|at| clock.second(at.0)))),
            ("Held", hours(self.held_gpu_ms)),
            ("Used", hours(self.used_gpu_ms)),
            ("Idle", hours(self.idle_gpu_ms)),
            ("Unknown", hours(self.unknown_gpu_ms)),
            ("Occupied", hours(self.occupied_gpu_ms)),
            ("Reserved", hours(self.reserved_gpu_ms)),
            ("In jobs", hours(self.in_jobs_gpu_ms)),
            ("Jobs", hours(self.jobs_gpu_ms)),
            ("Lost", hours(self.lost_gpu_ms)),
        ]
    }
}
