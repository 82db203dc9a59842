//! Users.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, or_dash, text, time};
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) disabled_by: Option<String>,
    pub(crate) disabled_at: Option<Time>,
    pub(crate) first_seen: Option<Time>,
    pub(crate) last_seen: Option<Time>,
    pub(crate) certificates: u32,
    pub(crate) jobs_running: u32,
    pub(crate) jobs_queued: u32,
    pub(crate) reservations: u32,
}

impl From<pb::User> for User {
    fn from(user: pb::User) -> Self {
        Self {
            reason: text(&user.reason),
            disabled_by: text(&user.disabled_by),
            disabled_at: time(user.disabled_at_unix_ms),
            first_seen: time(user.first_seen_unix_ms),
            last_seen: time(user.last_seen_unix_ms),
            certificates: user.certificates,
            jobs_running: user.jobs_running,
            jobs_queued: user.jobs_queued,
            reservations: user.reservations,
            name: user.name,
            state: user.state,
        }
    }
}

impl User {
    fn why(&self) -> Option<String> {
        let by = self.disabled_by.as_ref()?;
        Some(format!("{} (by {by})", self.reason.as_deref().unwrap_or_default()))
    }
}

impl Row for User {
    const SCHEMA: &'static str = "fleet.user/v1";
    const LIST_SCHEMA: &'static str = "fleet.users/v1";
    const FIELDS: &'static [&'static str] = &[
        "name",
        "state",
        "reason",
        "disabled_by",
        "disabled_at",
        "first_seen",
        "last_seen",
        "certificates",
        "jobs_running",
        "jobs_queued",
        "reservations",
    ];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("USER", |u: &Self, _| u.name.clone()),
            Column::new("STATE", |u: &Self, _| u.state.clone()).state(),
            Column::new("RUNNING", |u: &Self, _| u.jobs_running.to_string()).right(),
            Column::new("QUEUED", |u: &Self, _| u.jobs_queued.to_string()).right(),
            Column::new("RESERVED", |u: &Self, _| u.reservations.to_string()).right(),
            Column::new("CERTIFICATES", |u: &Self, _| u.certificates.to_string()).right().wide(),
            Column::new("SEEN", |u: &Self, clock| {
                or_dash(u.last_seen.map(|at| format!("{} ago", clock.ago(at.0))))
            })
            .right(),
            Column::new("REASON", |u: &Self, _| u.why().unwrap_or_default()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![("User", self.name.clone()), ("State", self.state.clone())];
        let optional = [
            ("Reason", self.why()),
            ("Disabled", self.disabled_at.map(|at| clock.minute(at.0))),
            ("First seen", self.first_seen.map(|at| clock.minute(at.0))),
            ("Last seen", self.last_seen.map(|at| clock.minute(at.0))),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines.extend([
            ("Certificates", self.certificates.to_string()),
            ("Jobs", format!("{} running, {} queued", self.jobs_running, self.jobs_queued)),
            ("Reservations", self.reservations.to_string()),
        ]);
        lines
    }
}
