//! Shows tokens to join with; the secret only of one that was just made.

use fleet_proto::json::token::{JoinToken, Token};

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

impl Row for Token {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("TOKEN", |t: &Self, _| t.id.clone()),
            Column::new("FOR", |t: &Self, _| t.meant_for()).clip(),
            Column::new("USED BY", |t: &Self, _| {
                or_dash(Some(t.used.join(",")).filter(|used| !used.is_empty()))
            })
            .clip(),
            Column::new("MADE BY", |t: &Self, _| or_dash(t.created_by.as_ref())),
            Column::when("EXPIRES", |t: &Self| t.expires_at),
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

impl Row for JoinToken {
    fn columns() -> Vec<Column<Self>> {
        vec![Column::new("TOKEN", |t: &Self, _| t.id.clone())]
    }

    /// Only the line to type: it can be piped to the node.
    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![("Type on the node", self.join_line.clone())]
    }
}
