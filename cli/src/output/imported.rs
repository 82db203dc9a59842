//! What became of the lines of a spreadsheet.

use fleet_core::view::ReservationShown;
use fleet_proto::json::Document;
use fleet_proto::json::reservation::Reservation;
use serde::Serialize;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Imported {
    /// Of the file, counted from 1.
    pub(crate) line: u64,
    /// `created`, `would be created`, `there`, `over`.
    pub(crate) outcome: String,
    pub(crate) reservation: Option<Reservation>,
}

impl Imported {
    /// A line whose window has passed.
    pub(crate) fn over(line: u64) -> Self {
        Self { line, outcome: "over".to_owned(), reservation: None }
    }

    /// What is there may be over by now, or released and not confirmed yet: an import brings nothing back.
    fn outcome_shown(&self) -> String {
        let over = |r: &&Reservation| match r.state.known() {
            Some(
                ReservationShown::Ended
                | ReservationShown::Cancelled
                | ReservationShown::Ending
                | ReservationShown::Cancelling,
            ) => true,
            Some(
                ReservationShown::Requested
                | ReservationShown::Waiting
                | ReservationShown::Offered
                | ReservationShown::Scheduled
                | ReservationShown::Active,
            )
            | None => false,
        };
        match self.reservation.as_ref().filter(over) {
            Some(reservation) => format!("{} ({})", self.outcome, reservation.state),
            None => self.outcome.clone(),
        }
    }

    fn of(&self, cell: impl Fn(&Reservation) -> Option<String>) -> String {
        or_dash(self.reservation.as_ref().and_then(cell))
    }
}

impl Document for Imported {
    const SCHEMA: &'static str = "fleet.imported_line/v1";
    const LIST_SCHEMA: &'static str = "fleet.imported_lines/v1";
    const FIELDS: &'static [&'static str] = &["line", "outcome", "reservation"];
}

impl Row for Imported {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("LINE", |i: &Self, _| i.line.to_string()).right(),
            Column::new("OUTCOME", |i: &Self, _| i.outcome_shown()),
            Column::new("RESERVATION", |i: &Self, _| {
                i.of(|r| (!r.id.is_empty()).then(|| r.id.clone()))
            }),
            Column::new("OWNER", |i: &Self, _| i.of(|r| Some(r.owner.clone()))).rank(1),
            Column::new("GPUS", |i: &Self, _| i.of(|r| Some(r.gpus_shown()))).clip(),
            Column::when("FROM", |i: &Self| i.reservation.as_ref()?.starts_at),
            Column::when("UNTIL", |i: &Self| i.reservation.as_ref()?.ends_at),
        ]
    }

    fn lines(&self, _: &Clock) -> Vec<(&'static str, String)> {
        vec![("Line", self.line.to_string()), ("Outcome", self.outcome_shown())]
    }
}
