//! Shows who had a GPU.

use fleet_proto::json::gpu_stay::GpuStay;
use fleet_proto::json::values::Time;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

/// With the day: a weekday in a table is one that comes, and these were.
fn past(at: Option<Time>, clock: &Clock, none: &str) -> String {
    at.map_or_else(|| none.to_owned(), |at| clock.past(at.0))
}

impl Row for GpuStay {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GPU", |s: &Self, _| or_dash(s.gpu.as_ref())).wide(),
            Column::new("FROM", |s: &Self, clock| past(s.from, clock, "before")),
            Column::new("UNTIL", |s: &Self, clock| past(s.until, clock, "now")),
            Column::new("OWNER", |s: &Self, _| or_dash(s.owner.as_ref())).clip_to(8),
            Column::new("WITH", |s: &Self, _| s.holder.clone()),
            Column::new("END", |s: &Self, _| or_dash(s.end.as_ref())).clip_to(5),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let at = |at: Option<Time>| or_dash(at.map(|at| clock.second(at.0)));
        vec![
            ("GPU", or_dash(self.gpu.as_ref())),
            ("From", at(self.from)),
            ("Until", at(self.until)),
            ("Owner", or_dash(self.owner.as_ref())),
            ("With", self.holder.clone()),
            ("End", or_dash(self.end.as_ref())),
        ]
    }
}
