//! Defines the JSON of the certificate authority: who signs, and how far an exchange of it is.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// A controller that an exchange waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingController {
    /// Its number.
    pub id: u64,
    /// What it has not done yet, as a sentence.
    pub why: String,
}

/// The certificate authority of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuthorityStatus {
    /// `settled`, `spreading`, `moving`.
    pub stage: String,
    /// Pin of the authority that signs.
    pub signing: String,
    /// When the authority that signs ends; null: not known.
    pub signing_until: Option<Time>,
    /// Pin of the authority that is trusted beside it; null: there is none.
    pub also_trusted: Option<String>,
    /// Who began the exchange; null: there is none.
    pub started_by: Option<String>,
    /// When the exchange began; null: there is none.
    pub started_at: Option<Time>,
    /// Since when the new authority signs; null: it does not yet, or there is no exchange.
    pub moving_since: Option<Time>,
    /// The controllers that are waited for.
    pub controllers: Vec<WaitingController>,
    /// The nodes that are waited for.
    pub nodes: Vec<String>,
    /// How many certificates of users are waited for.
    pub user_certificates: u64,
    /// When the last of these certificates ends; null: none is waited for.
    pub users_until: Option<Time>,
    /// How many nodes have a certificate of the new authority.
    pub moved_nodes: u64,
    /// The nodes that an admin said not to wait for.
    pub skipped_nodes: Vec<String>,
    /// Whether an admin said not to wait for users.
    pub users_skipped: bool,
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

impl Document for AuthorityStatus {
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
}
