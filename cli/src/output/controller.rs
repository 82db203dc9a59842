//! Shows the controllers, and how each stands.

use fleet_proto::json::controller::{Controller, ControllerStatus};

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

impl Row for Controller {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("ID", |c: &Self, _| c.id.to_string()).right(),
            Column::new("ADDRESS", |c: &Self, _| c.addr.clone()),
            Column::new("ROLE", |c: &Self, _| c.role.clone()),
            Column::new("VOTES", |c: &Self, _| if c.voter { "yes" } else { "no" }.to_owned()),
            Column::new("TERM", |c: &Self, _| or_dash(c.term.map(|n| n.to_string())))
                .right()
                .rank(2),
            Column::new("LOG", |c: &Self, _| or_dash(c.last_log_index.map(|n| n.to_string())))
                .right()
                .rank(4),
            Column::new("APPLIED", |c: &Self, _| or_dash(c.applied_index.map(|n| n.to_string())))
                .right()
                .rank(3),
            Column::new("PROBLEM", |c: &Self, _| or_dash(c.problem.clone())).clip(),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Controller", self.id.to_string()),
            ("Address", self.addr.clone()),
            ("Role", self.role.clone()),
        ]
    }
}

impl Row for ControllerStatus {
    fn columns() -> Vec<Column<Self>> {
        vec![Column::new("CLUSTER", |s: &Self, _| s.status.cluster_id.clone())]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        self.status.lines(clock)
    }
}
