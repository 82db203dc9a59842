//! The certificate authority, and how far its exchange is.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, text, time};
use super::{Column, Row};
use crate::times::Clock;

/// Names on one line; the rest is counted.
const NAMED_MAX: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct WaitingController {
    pub(crate) id: u64,
    pub(crate) why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct AuthorityStatus {
    /// `settled`, `spreading`, `moving`.
    pub(crate) stage: String,
    pub(crate) signing: String,
    pub(crate) signing_until: Option<Time>,
    pub(crate) also_trusted: Option<String>,
    pub(crate) started_by: Option<String>,
    pub(crate) started_at: Option<Time>,
    pub(crate) moving_since: Option<Time>,
    /// Who is waited for.
    pub(crate) controllers: Vec<WaitingController>,
    pub(crate) nodes: Vec<String>,
    pub(crate) user_certificates: u64,
    pub(crate) users_until: Option<Time>,
    pub(crate) moved_nodes: u64,
    pub(crate) skipped_nodes: Vec<String>,
    pub(crate) users_skipped: bool,
}

impl From<pb::AuthorityStatus> for AuthorityStatus {
    fn from(s: pb::AuthorityStatus) -> Self {
        let waiting = |one: pb::WaitingController| WaitingController { id: one.id, why: one.why };
        Self {
            signing_until: time(s.signing_until_unix_ms),
            also_trusted: text(&s.also_trusted),
            started_by: text(&s.started_by),
            started_at: s.started_at_unix_ms.map(Time),
            moving_since: s.moving_since_unix_ms.map(Time),
            controllers: s.controllers.into_iter().map(waiting).collect(),
            nodes: s.nodes,
            user_certificates: s.user_certificates,
            users_until: s.users_until_unix_ms.map(Time),
            moved_nodes: s.moved_nodes,
            skipped_nodes: s.skipped_nodes,
            users_skipped: s.users_skipped,
            stage: s.stage,
            signing: s.signing,
        }
    }
}

impl AuthorityStatus {
    /// What happens now, in words.
    fn doing(&self) -> String {
        let what = match self.stage.as_str() {
            "settled" => "there is one authority",
            "spreading" => "every controller gets the new key; the old authority signs",
            "moving" => {
                "the new authority signs; who has a certificate of the old one gets another"
            }
            _ => return self.stage.clone(),
        };
        format!("{}: {what}", self.stage)
    }

    fn waiting_users(&self, clock: &Clock) -> String {
        match (self.user_certificates, self.users_until) {
            (0, _) => String::new(),
            (count, None) => format!("{count} certificates"),
            (count, Some(until)) => {
                format!("{count} certificates, the last until {}", clock.minute(until.0))
            }
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
    const SCHEMA: &'static str = "fleet.authority/v1";
    const LIST_SCHEMA: &'static str = "fleet.authorities/v1";
    const FIELDS: &'static [&'static str] = &[
        "stage",
        "signing",
        "signing_until",
        "also_trusted",
        "started_by",
        "started_at",
        "moving_since",
        "controllers",
        "nodes",
        "user_certificates",
        "users_until",
        "moved_nodes",
        "skipped_nodes",
        "users_skipped",
    ];

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
            ("Stage", self.doing()),
            ("Signs", self.signing.clone()),
            ("Signs until", at(self.signing_until)),
            ("Trusted too", self.also_trusted.clone().unwrap_or_default()),
            ("Started", started.unwrap_or_default()),
            ("Moving since", at(self.moving_since)),
            ("Nodes that moved", moved),
            ("Waits for controllers", controllers.join("; ")),
            ("Waits for nodes", names(&self.nodes)),
            ("Waits for users", self.waiting_users(clock)),
            ("Does not wait for", names(&self.skipped_nodes)),
        ]
    }
}
