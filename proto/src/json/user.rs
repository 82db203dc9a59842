//! Defines the JSON of a user: whether they may come in, and what they have.

use fleet_core::view::UserState;
use serde::Serialize;

use super::Document;
use super::values::{Stated, Time, text, time};
use crate::v1 as pb;

/// A user of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct User {
    /// Their name on the nodes.
    pub name: String,
    /// `active`, `disabled`.
    pub state: Stated<UserState>,
    /// Why the account is disabled; null: it is not.
    pub reason: Option<String>,
    /// Who disabled it; null: it is not.
    pub disabled_by: Option<String>,
    /// When it was disabled; null: it is not.
    pub disabled_at: Option<Time>,
    /// When they first came; null: not known.
    pub first_seen: Option<Time>,
    /// When they last came, up to an hour old where another controller was asked; null: not known.
    pub last_seen: Option<Time>,
    /// How many certificates of theirs are valid now.
    pub certificates: u32,
    /// How many jobs of theirs run.
    pub jobs_running: u32,
    /// How many jobs of theirs wait.
    pub jobs_queued: u32,
    /// How many reservations they have.
    pub reservations: u32,
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
            state: user.state.into(),
        }
    }
}

impl Document for User {
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
}
