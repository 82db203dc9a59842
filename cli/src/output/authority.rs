//! Shows the certificate authority, and how far its exchange is.

use fleet_proto::json::authority::AuthorityStatus;
use fleet_proto::json::values::Time;

use super::{Column, Row};
use crate::times::Clock;

/// Names on one line; the rest is counted.
const NAMED_MAX: usize = 12;

/// What happens now, in words.
fn doing(status: &AuthorityStatus) -> String {
    let what = match status.stage.as_str() {
        "settled" => "there is one authority",
        "spreading" => "every controller gets the new key; the old authority signs",
        "moving" => "the new authority signs; who has a certificate of the old one gets another",
        _ => return status.stage.clone(),
    };
    format!("{}: {what}", status.stage)
}

fn waiting_users(status: &AuthorityStatus, clock: &Clock) -> String {
    match (status.user_certificates, status.users_until) {
        (0, _) => String::new(),
        (count, None) => format!("{count} certificates"),
        (count, Some(until)) => {
            format!("{count} certificates, the last until {}", clock.minute(until.0))
        }
    }
}

fn names(all: &[String]) -> String {
    let shown = all.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(NAMED_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}, and {more} more"),
    }
}

impl Row for AuthorityStatus {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("STAGE", |s: &Self, _| s.stage.clone()),
            Column::new("SIGNING", |s: &Self, _| s.signing.clone()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let at = |time: Option<Time>| time.map(|at| clock.minute(at.0)).unwrap_or_default();
        let controllers: Vec<String> =
            self.controllers.iter().map(|one| format!("{}: {}", one.id, one.why)).collect();
        let started = self.started_by.as_ref().map(|by| format!("{} by {by}", at(self.started_at)));
        let moved =
            if self.stage == "moving" { self.moved_nodes.to_string() } else { String::new() };
        vec![
            ("Stage", doing(self)),
            ("Signs", self.signing.clone()),
            ("Signs until", at(self.signing_until)),
            ("Trusted too", self.also_trusted.clone().unwrap_or_default()),
            ("Started", started.unwrap_or_default()),
            ("Moving since", at(self.moving_since)),
            ("Nodes that moved", moved),
            ("Waits for controllers", controllers.join("; ")),
            ("Waits for nodes", names(&self.nodes)),
            ("Waits for users", waiting_users(self, clock)),
            ("Does not wait for", names(&self.skipped_nodes)),
        ]
    }
}
