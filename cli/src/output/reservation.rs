//! Reservations.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{GpuRef, Time, gpu_names, or_dash, text, time};
use super::{Column, Row};
use crate::times::{Clock, length};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Reservation {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) project: String,
    pub(crate) node: Option<String>,
    pub(crate) gpus: Vec<GpuRef>,
    pub(crate) starts_at: Option<Time>,
    pub(crate) ends_at: Option<Time>,
    pub(crate) state: String,
    pub(crate) note: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) created_at: Option<Time>,
    pub(crate) unconfirmed: Option<String>,
    pub(crate) at_end: Option<String>,
    pub(crate) with: Vec<String>,
    /// The import that made it.
    pub(crate) import: Option<String>,
}

impl From<pb::Reservation> for Reservation {
    fn from(reservation: pb::Reservation) -> Self {
        Self {
            node: text(&reservation.node),
            gpus: reservation.gpus.into_iter().map(GpuRef::from).collect(),
            starts_at: time(reservation.starts_at_unix_ms),
            ends_at: time(reservation.ends_at_unix_ms),
            note: text(&reservation.note),
            reason: text(&reservation.reason),
            created_at: time(reservation.created_at_unix_ms),
            unconfirmed: text(&reservation.unconfirmed),
            at_end: text(&reservation.at_end),
            with: reservation.with,
            import: text(&reservation.import),
            id: reservation.id,
            owner: reservation.owner,
            project: reservation.project,
            state: reservation.state,
        }
    }
}

impl Reservation {
    /// `titan01:0,1 (v100)`.
    pub(crate) fn gpus_shown(&self) -> String {
        let names = gpu_names(&self.gpus);
        match self.gpus.first().and_then(|gpu| gpu.model.as_ref()) {
            Some(model) => format!("{names} ({model})"),
            None => names,
        }
    }

    fn shared(&self) -> Option<String> {
        (!self.with.is_empty()).then(|| self.with.join(","))
    }

    /// `from … until …`.
    pub(crate) fn window_shown(&self, clock: &Clock) -> String {
        let at = |at: Option<Time>| or_dash(at.map(|at| clock.day_and_minute(at.0)));
        format!("from {} until {}", at(self.starts_at), at(self.ends_at))
    }
}

impl Row for Reservation {
    const SCHEMA: &'static str = "fleet.reservation/v1";
    const LIST_SCHEMA: &'static str = "fleet.reservations/v1";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "owner",
        "project",
        "node",
        "gpus",
        "starts_at",
        "ends_at",
        "state",
        "note",
        "reason",
        "created_at",
        "unconfirmed",
        "at_end",
        "with",
        "import",
    ];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("RESERVATION", |r: &Self, _| r.id.clone()),
            Column::new("OWNER", |r: &Self, _| r.owner.clone()),
            Column::new("PROJECT", |r: &Self, _| r.project.clone()).wide(),
            Column::new("STATE", |r: &Self, _| r.state.clone()).state(),
            Column::new("GPUS", |r: &Self, _| r.gpus_shown()),
            Column::new("FROM", |r: &Self, clock| {
                or_dash(r.starts_at.map(|at| clock.minute(at.0)))
            }),
            Column::new("UNTIL", |r: &Self, clock| or_dash(r.ends_at.map(|at| clock.minute(at.0)))),
            Column::new("AT END", |r: &Self, _| or_dash(r.at_end.clone())).wide(),
            Column::new("WITH", |r: &Self, _| or_dash(r.shared())).wide(),
            Column::new("NOTE", |r: &Self, _| r.note.clone().unwrap_or_default()),
            Column::new("REASON", |r: &Self, _| r.reason.clone().unwrap_or_default()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Reservation", self.id.clone()),
            ("Owner", format!("{}, project {}", self.owner, self.project)),
            ("State", self.state.clone()),
            ("GPUs", self.gpus_shown()),
            ("From", or_dash(self.starts_at.map(|at| clock.second(at.0)))),
            ("Until", or_dash(self.ends_at.map(|at| clock.second(at.0)))),
        ];
        let optional = [
            ("With", self.shared()),
            ("Import", self.import.clone()),
            ("At end", self.at_end.clone()),
            ("Note", self.note.clone()),
            ("Reason", self.reason.clone()),
            ("Unconfirmed", self.unconfirmed.clone()),
            ("Made", self.created_at.map(|at| clock.second(at.0))),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines
    }
}

/// What stands for a time that never comes.
pub(crate) const NEVER: &str = "never";

/// How reservations end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ReservationRules {
    pub(crate) at_end: String,
    /// None: never.
    pub(crate) no_show_ms: Option<u64>,
    pub(crate) grace_ms: u64,
}

impl From<pb::ReservationRules> for ReservationRules {
    fn from(rules: pb::ReservationRules) -> Self {
        let pb::ReservationRules { at_end, no_show_ms, grace_ms } = rules;
        Self { at_end, no_show_ms: (no_show_ms > 0).then_some(no_show_ms), grace_ms }
    }
}

impl ReservationRules {
    fn no_show(&self) -> String {
        self.no_show_ms.map_or(NEVER.to_owned(), length)
    }
}

impl Row for ReservationRules {
    const SCHEMA: &'static str = "fleet.reservation_rules/v1";
    const LIST_SCHEMA: &'static str = "fleet.reservation_rules_list/v1";
    const FIELDS: &'static [&'static str] = &["at_end", "no_show_ms", "grace_ms"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("AT END", |rules: &Self, _| rules.at_end.clone()),
            Column::new("NO SHOW", |rules: &Self, _| rules.no_show()),
            Column::new("GRACE", |rules: &Self, _| length(rules.grace_ms)),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("At end", self.at_end.clone()),
            ("No show", self.no_show()),
            ("Grace", length(self.grace_ms)),
        ]
    }
}
