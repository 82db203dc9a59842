//! Shows calendar feeds; the address only of one that was just created.

use fleet_proto::json::feed::{Feed, NewFeed};

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

impl Row for Feed {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("FEED", |f: &Self, _| f.id.clone()),
            Column::new("USER", |f: &Self, _| f.user.clone()),
            Column::new("COVERS", |f: &Self, _| f.covers()).clip(),
            Column::when("CREATED", |f: &Self| f.created_at),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Feed", self.id.clone()),
            ("User", self.user.clone()),
            ("Covers", self.covers()),
            ("Created", or_dash(self.created_at.map(|at| clock.minute(at.0)))),
        ]
    }
}

impl Row for NewFeed {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("FEED", |f: &Self, _| f.id.clone()),
            Column::new("ADDRESS", |f: &Self, _| f.url.clone()),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Feed", self.id.clone()),
            ("Covers", self.covers.clone()),
            ("Address", self.url.clone()),
        ]
    }
}
