//! Shows what would become of a job. People read `run --dry-run` in sentences; programs read its JSON.

use fleet_proto::json::forecast::JobForecast;
use fleet_proto::json::values::gpu_names;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

impl Row for JobForecast {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::when("START", |f: &Self| f.starts_at),
            Column::new("GPUS", |f: &Self, _| match f.gpus.as_slice() {
                [] => or_dash(f.node.as_ref()),
                gpus => gpu_names(gpus),
            }),
            Column::new("PLACE", |f: &Self, _| or_dash(f.place)).right(),
            Column::new("REASON", |f: &Self, _| or_dash(f.reason.as_ref())).clip(),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let optional = [
            ("Start", self.starts_at.map(|at| clock.second(at.0))),
            ("Node", self.node.clone()),
            ("GPUs", (!self.gpus.is_empty()).then(|| gpu_names(&self.gpus))),
            ("Reservation", self.reservation.clone()),
            ("Place", self.place.map(|place| place.to_string())),
            ("Reason", self.reason.clone()),
        ];
        optional.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}
