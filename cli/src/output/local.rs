//! Shows a node as its own agent knows it: what there is to see while no controller answers.

use fleet_core::view::GpuState;
use fleet_proto::json::local::NodeStatus;
use fleet_proto::json::values::Time;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

impl Row for NodeStatus {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |s: &Self, _| s.node.clone()),
            Column::new("HEARD", |s: &Self, clock| {
                or_dash(s.heard_at.map(|at| clock.second(at.0)))
            }),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let minute = |at: Option<Time>| or_dash(at.map(|at| clock.day_and_minute(at.0)));
        let mut lines = vec![
            ("Node", format!("{}, by its own agent: {}", self.node, self.age())),
            ("Fleet's time", or_dash(self.fleet_now.map(|now| clock.second(now.0)))),
        ];
        let why = self.enforcement_reason.as_ref().map(|why| format!(": {why}"));
        lines.push(("Root's switch", format!("{}{}", self.enforcement, why.unwrap_or_default())));
        lines.push(("Enforced", or_dash(self.enforced.as_ref())));
        for gpu in &self.gpus {
            let held = gpu.held_by.as_ref().map_or(String::new(), |by| format!(" {by}"));
            let what = gpu.job.as_ref().or(gpu.reservation.as_ref());
            let what = what.map_or(String::new(), |what| format!(" ({what})"));
            let until = gpu.held_until.map(|_| format!(" until {}", minute(gpu.held_until)));
            let (until, name) = (until.unwrap_or_default(), format!("{}:{}", self.node, gpu.index));
            let otherwise =
                gpu.driver_index.filter(|i| *i != gpu.index && !gpu.state.is(GpuState::Lost));
            let there = otherwise.map_or(String::new(), |i| format!(" (`nvidia-smi`: {i})"));
            lines.push(("GPU", format!("{name}  {}{held}{what}{until}{there}", gpu.state)));
        }
        for window in &self.windows {
            let (from, until) = (minute(window.starts_at), minute(window.ends_at));
            let granted = match (&window.granted_by, &window.reason) {
                (Some(by), Some(why)) => format!(", granted by {by}: {why}"),
                _ => String::new(),
            };
            let (id, owner, gpus) = (&window.reservation, &window.owner, window.gpus.join(","));
            let state = &window.state;
            lines.push((
                "Reservation",
                format!("{id}  {owner} {gpus} from {from} until {until}, {state}{granted}"),
            ));
        }
        for job in &self.jobs {
            let gpus = if job.gpus.is_empty() { "no GPU".to_owned() } else { job.gpus.join(",") };
            lines.push(("Job", format!("{}  {} {gpus} {}", job.job, job.owner, job.state)));
        }
        lines.extend(self.warnings.iter().map(|warning| ("Warning", warning.clone())));
        lines
    }
}
