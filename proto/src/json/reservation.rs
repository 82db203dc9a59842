//! Defines the JSON of a reservation, and of the rules by which reservations end.

use fleet_core::view::ReservationShown;
use serde::Serialize;

use super::Document;
use super::values::{GpuRef, Stated, Time, gpu_names, text, time};
use crate::v1 as pb;

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reservation {
    /// Its id, `res-9d2fwm`; empty in a dry run, because nothing was reserved.
    pub id: String,
    /// The user whose reservation it is.
    pub owner: String,
    /// The project it counts for.
    pub project: String,
    /// The node of its GPUs; null: not known.
    pub node: Option<String>,
    /// Its GPUs.
    pub gpus: Vec<GpuRef>,
    /// When it starts; null: not known.
    pub starts_at: Option<Time>,
    /// When it ends; null: not known.
    pub ends_at: Option<Time>,
    /// `requested`, `waiting`, `offered`, `scheduled`, `active`, `ending`, `ended`, `cancelling`, `cancelled`.
    pub state: Stated<ReservationShown>,
    /// What its owner noted; null: nothing.
    pub note: Option<String>,
    /// Why it is in its state; null: that needs no reason.
    pub reason: Option<String>,
    /// When it was made; null: not known.
    pub created_at: Option<Time>,
    /// What its node has not confirmed yet, and what holds until it does, as a sentence; null: all is confirmed.
    pub unconfirmed: Option<String>,
    /// What happens at its end: `extend-if-free`, `stop`, `warn`; null: not known.
    pub at_end: Option<String>,
    /// Who else may use its GPUs.
    pub with: Vec<String>,
    /// The import that made it.
    pub import: Option<String>,
    /// Raised by each change; an edit names the revision that its author saw.
    pub revision: u64,
    /// Where it moves once its node has released the place above; null: it moves nowhere.
    pub next: Option<ReservationPlace>,
    /// The series it was made with, `ser-7h2kqd`; null: it is not of a series.
    pub series: Option<String>,
    /// The rule of that series, as a sentence; null: it is not of a series.
    pub series_rule: Option<String>,
    /// Jobs of lower classes that run on its GPUs now and leave before it begins.
    pub leaves_first: Vec<JobThatLeaves>,
    /// Its place in the waiting list, from 1; null: it is not on the list.
    pub waiting_place: Option<u32>,
    /// Of one on the waiting list: it begins no earlier than this; null: it is not on the list.
    pub earliest_start: Option<Time>,
    /// Of one on the waiting list: it begins by then, or not at all; null: it is not on the list.
    pub latest_start: Option<Time>,
    /// What one without GPUs waits for or waited for, as a sentence; null: it has GPUs.
    pub waits_for: Option<String>,
    /// Of one that was above a limit: what was asked for, while it is on the waiting list and if it got nothing; null: it was above none.
    pub approval: Option<Approval>,
    /// Of one whose places are offered, while it is on the waiting list and none was accepted; null: they are taken at once.
    pub offer: Option<Offer>,
    /// Since when its GPUs compute nothing, once that is long enough to be called idle; null: it is not idle, or not known to be.
    pub idle_since: Option<Time>,
    /// When it is released if it stays idle; null: it is not released for that.
    pub idle_release_at: Option<Time>,
}

/// What the owner of a reservation above a limit asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approval {
    /// What its owner needs it for.
    pub reason: String,
    /// The limit that it is above, as a sentence.
    pub above: String,
    /// Who approved it; null: nobody yet.
    pub given_by: Option<String>,
    /// What follows if it is approved now; null: it does not wait for approval, or is one of a list.
    pub effect: Option<ApprovalEffect>,
}

/// What follows if a reservation above a limit is approved now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApprovalEffect {
    /// Where and when it would be; null: it would have to wait.
    pub place: Option<ReservationPlace>,
    /// What it would wait for, as a sentence; null: it would get its place at once.
    pub waits_for: Option<String>,
    /// GPUs in service that it could have by what it asks for.
    pub gpus_like_it: u32,
    /// Those of them that nobody has at any time while it lasts, without its own.
    pub left_free: u32,
    /// GPUs that its owner has reserved at the same time, without it.
    pub owner_has: u32,
}

/// The offers of a reservation on the waiting list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// Its owner accepts the open offer before then; null: nothing is offered now.
    pub until: Option<Time>,
    /// The next offer comes at the earliest then; null: one is open, or no time is left for another one.
    pub next: Option<Time>,
    /// Offers that its owner declined or did not answer.
    pub declined: u32,
    /// After so many of them it is over.
    pub most: u32,
}

impl From<pb::ReservationOffer> for Offer {
    fn from(offer: pb::ReservationOffer) -> Self {
        Self {
            until: time(offer.until_unix_ms),
            next: time(offer.next_unix_ms),
            declined: offer.declined,
            most: offer.most,
        }
    }
}

impl From<pb::ReservationApproval> for Approval {
    fn from(approval: pb::ReservationApproval) -> Self {
        Self {
            reason: approval.reason,
            above: approval.above,
            given_by: text(&approval.given_by),
            effect: None,
        }
    }
}

impl From<pb::ApprovalEffect> for ApprovalEffect {
    fn from(effect: pb::ApprovalEffect) -> Self {
        Self {
            place: effect.place.map(ReservationPlace::from),
            waits_for: text(&effect.waits_for),
            gpus_like_it: effect.gpus_like_it,
            left_free: effect.left_free,
            owner_has: effect.owner_has,
        }
    }
}

/// A job that leaves its GPUs to a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobThatLeaves {
    /// Its id.
    pub job: String,
    /// The user whose job it is.
    pub owner: String,
    /// When it has left at the latest; null: not known.
    pub by: Option<Time>,
}

impl From<pb::JobThatLeaves> for JobThatLeaves {
    fn from(leaves: pb::JobThatLeaves) -> Self {
        Self { job: leaves.job, owner: leaves.owner, by: time(leaves.by_unix_ms) }
    }
}

/// GPUs of a node for a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReservationPlace {
    /// The node of the GPUs; null: not known.
    pub node: Option<String>,
    /// The GPUs.
    pub gpus: Vec<GpuRef>,
    /// When the window starts; null: not known.
    pub starts_at: Option<Time>,
    /// When the window ends; null: not known.
    pub ends_at: Option<Time>,
}

impl From<pb::ReservationPlace> for ReservationPlace {
    fn from(place: pb::ReservationPlace) -> Self {
        Self {
            node: text(&place.node),
            gpus: place.gpus.into_iter().map(GpuRef::from).collect(),
            starts_at: time(place.starts_at_unix_ms),
            ends_at: time(place.ends_at_unix_ms),
        }
    }
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
            revision: reservation.revision,
            next: reservation.next.map(ReservationPlace::from),
            series: text(&reservation.series),
            series_rule: text(&reservation.series_rule),
            leaves_first: reservation.leaves_first.into_iter().map(JobThatLeaves::from).collect(),
            waiting_place: Some(reservation.waiting_place).filter(|place| *place > 0),
            earliest_start: time(reservation.earliest_start_unix_ms),
            latest_start: time(reservation.latest_start_unix_ms),
            waits_for: text(&reservation.waits_for),
            approval: reservation.approval.map(Approval::from),
            offer: reservation.offer.map(Offer::from),
            idle_since: time(reservation.idle_since_unix_ms),
            idle_release_at: time(reservation.idle_release_unix_ms),
            id: reservation.id,
            owner: reservation.owner,
            project: reservation.project,
            state: reservation.state.into(),
        }
    }
}

impl Reservation {
    /// With what follows if it is approved.
    pub fn with_effect(mut self, effect: pb::ApprovalEffect) -> Self {
        if let Some(approval) = &mut self.approval {
            approval.effect = Some(effect.into());
        }
        self
    }

    /// `titan01:0,1 (v100)`; of one without GPUs what it waits for.
    pub fn gpus_shown(&self) -> String {
        self.waits_for.clone().unwrap_or_else(|| with_model(&self.gpus))
    }
}

impl ReservationPlace {
    /// `titan01:0,1 (v100)`.
    pub fn gpus_shown(&self) -> String {
        with_model(&self.gpus)
    }
}

fn with_model(gpus: &[GpuRef]) -> String {
    let names = gpu_names(gpus);
    match gpus.first().and_then(|gpu| gpu.model.as_ref()) {
        Some(model) => format!("{names} ({model})"),
        None => names,
    }
}

impl Document for Reservation {
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
        "revision",
        "next",
        "series",
        "series_rule",
        "leaves_first",
        "waiting_place",
        "earliest_start",
        "latest_start",
        "waits_for",
        "approval",
        "offer",
        "idle_since",
        "idle_release_at",
    ];
}

/// How reservations end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReservationRules {
    /// For reservations that say nothing themselves: `extend-if-free`, `stop`, `warn`.
    pub at_end: String,
    /// After how many milliseconds a window that nobody used is released; null: never.
    pub no_show_ms: Option<u64>,
    /// Between asking a process to release a GPU and killing it, in milliseconds.
    pub grace_ms: u64,
    /// After how many milliseconds without work a reservation is called idle; null: never.
    pub idle_after_ms: Option<u64>,
    /// A GPU whose utilisation is below this many percent is idle.
    pub idle_below_percent: u32,
    /// After how many milliseconds without work a reservation is released; null: never.
    pub idle_release_ms: Option<u64>,
}

impl From<pb::ReservationRules> for ReservationRules {
    fn from(rules: pb::ReservationRules) -> Self {
        let sometime = |ms: u64| (ms > 0).then_some(ms);
        Self {
            at_end: rules.at_end,
            no_show_ms: sometime(rules.no_show_ms),
            grace_ms: rules.grace_ms,
            idle_after_ms: sometime(rules.idle_after_ms),
            idle_below_percent: rules.idle_below_percent,
            idle_release_ms: sometime(rules.idle_release_ms),
        }
    }
}

impl Document for ReservationRules {
    const SCHEMA: &'static str = "fleet.reservation_rules/v1";
    const LIST_SCHEMA: &'static str = "fleet.reservation_rules_list/v1";
    const FIELDS: &'static [&'static str] = &[
        "at_end",
        "no_show_ms",
        "grace_ms",
        "idle_after_ms",
        "idle_below_percent",
        "idle_release_ms",
    ];
}
