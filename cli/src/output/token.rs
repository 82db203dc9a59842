//! Tokens to join with. Never their secrets.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, or_dash, text, time};
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Token {
    pub(crate) id: String,
    /// The nodes that may join with it.
    pub(crate) names: Vec<String>,
    pub(crate) for_controller: bool,
    /// Those that have joined with it.
    pub(crate) used: Vec<String>,
    pub(crate) created_by: Option<String>,
    pub(crate) expires_at: Option<Time>,
}

impl From<pb::Token> for Token {
    fn from(token: pb::Token) -> Self {
        Self {
            created_by: text(&token.created_by),
            expires_at: time(token.expires_at_unix_ms),
            id: token.id,
            names: token.names,
            for_controller: token.for_controller,
            used: token.used,
        }
    }
}

impl Token {
    pub(crate) fn meant_for(&self) -> String {
        if self.for_controller { "a controller".to_owned() } else { self.names.join(",") }
    }
}

impl Row for Token {
    const SCHEMA: &'static str = "fleet.token/v1";
    const LIST_SCHEMA: &'static str = "fleet.tokens/v1";
    const FIELDS: &'static [&'static str] =
        &["id", "names", "for_controller", "used", "created_by", "expires_at"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("TOKEN", |t: &Self, _| t.id.clone()),
            Column::new("FOR", |t: &Self, _| t.meant_for()),
            Column::new("USED BY", |t: &Self, _| {
                or_dash(Some(t.used.join(",")).filter(|used| !used.is_empty()))
            }),
            Column::new("MADE BY", |t: &Self, _| or_dash(t.created_by.as_ref())),
            Column::new("EXPIRES", |t: &Self, clock| {
                or_dash(t.expires_at.map(|at| clock.minute(at.0)))
            }),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Token", self.id.clone()),
            ("For", self.meant_for()),
            ("Expires", or_dash(self.expires_at.map(|at| clock.minute(at.0)))),
        ]
    }
}
