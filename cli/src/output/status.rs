//! Shows the fleet as a whole.

use fleet_proto::json::status::Status;

use super::values::or_dash;
use super::{Column, Printer, Row};
use crate::times::Clock;

/// The few lines on top of `status` and `top`.
pub(crate) fn summary(status: &Status, printer: &Printer) -> String {
    let mut text = printer.flow(&[
        format!("Nodes: {} of {} ready", status.nodes_ready, status.nodes),
        format!("GPUs: {} of {} free", status.gpus_free, status.gpus),
        format!("Jobs: {} running, {} queued", status.jobs_running, status.jobs_queued),
        format!("Reservations: {} active", status.reservations_active),
    ]);
    for warning in &status.warnings {
        text.push_str(&format!("Warning: {}\n", super::text::harmless(warning)));
    }
    text
}

impl Row for Status {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("CLUSTER", |s: &Self, _| s.cluster_id.clone()),
            Column::new("CONTROLLER", |s: &Self, _| s.controller_id.to_string()),
            Column::new("ROLE", |s: &Self, _| s.role.clone()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let admin = if self.caller_is_admin { ", an admin" } else { "" };
        let caller = self.caller.as_ref().map(|caller| format!("{caller}{admin}"));
        let mut lines = vec![
            ("Cluster", format!("{} (incarnation {})", self.cluster_id, self.incarnation)),
            (
                "Controller",
                format!("{}, {}, version {}", self.controller_id, self.role, self.version),
            ),
            ("Cluster version", self.cluster_version.to_string()),
            ("Term", self.term.to_string()),
            ("Applied index", self.applied_index.to_string()),
            ("Fleet's time", or_dash(self.now.map(|now| clock.second(now.0)))),
            ("You are", or_dash(caller)),
        ];
        lines.extend(self.warnings.iter().map(|warning| ("Warning", warning.clone())));
        lines
    }
}
