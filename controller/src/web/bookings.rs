//! Reserving, another end, giving back: what the page sends, as requests of the users' service.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use fleet_core::time::Millis;
use fleet_proto::json::One;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1;
use jiff::Timestamp;
use serde::Deserialize;
use tonic::Status;

use super::ask::ask;
use super::session::LoggedIn;
use super::{Shared, Web, answer};

/// How long one that is to begin now may wait for approval.
const APPROVED_WITHIN: Millis = Millis::days(7);

/// A reservation as the page wishes for it. Empty and missing mean the same.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wish {
    request_id: Option<String>,
    /// The fleet's time when it was first sent, in milliseconds.
    made_at: Option<u64>,
    gpus: Vec<String>,
    count: u32,
    model: String,
    node: String,
    /// RFC 3339; none is now.
    from: Option<String>,
    until: Option<String>,
    note: String,
    project: String,
    with: Vec<String>,
    /// How much later it may start; 0: not at all.
    wait_minutes: u32,
    /// What it is needed for, if it is above a limit: it waits for approval then.
    ask: String,
    dry_run: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtherEnd {
    request_id: Option<String>,
    made_at: Option<u64>,
    until: String,
}

/// Nothing but the mark of a request: for what needs no more words.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marked {
    pub(super) request_id: Option<String>,
    pub(super) made_at: Option<u64>,
}

pub(super) type Sent<T> = Result<Json<T>, JsonRejection>;

pub(super) fn body<T>(sent: Sent<T>) -> Result<T, Status> {
    sent.map(|Json(body)| body).map_err(|error| answer::wrong("body", error.body_text()))
}

fn instant(field: &str, text: &str) -> Result<u64, Status> {
    let at = text.parse::<Timestamp>().map_err(|error| answer::wrong(field, error.to_string()))?;
    u64::try_from(at.as_millisecond()).map_err(|_| answer::wrong(field, "before 1970"))
}

pub(super) fn shown(done: Result<v1::Reservation, Status>) -> Response {
    match done {
        Ok(reservation) => Json(One::of(&Reservation::from(reservation))).into_response(),
        Err(status) => answer::refused(&status),
    }
}

impl Wish {
    fn request(self, web: &Web) -> Result<v1::CreateReservationRequest, Status> {
        let starts_at_unix_ms = self.from.map_or(Ok(0), |from| instant("from", &from))?;
        let until = self.until.ok_or_else(|| answer::wrong("until", "say until when"))?;
        let uuids = self.gpus;
        let named = u32::try_from(uuids.len()).unwrap_or(u32::MAX);
        let count = if uuids.is_empty() { self.count } else { named };
        let (model, node) = (self.model, self.node);
        Ok(v1::CreateReservationRequest {
            meta: Some(web.meta(self.request_id, self.made_at)),
            gpus: Some(v1::GpuWish { count, model, node, uuids, ..v1::GpuWish::default() }),
            starts_at_unix_ms,
            ends_at_unix_ms: instant("until", &until)?,
            note: self.note,
            project: self.project,
            with: self.with,
            dry_run: self.dry_run,
            wait_ms: Millis::minutes(self.wait_minutes.into()).0,
            // Nobody approves in the same second what is to begin now.
            ask_wait_ms: if starts_at_unix_ms == 0 { APPROVED_WITHIN.0 } else { 0 },
            ask_reason: self.ask,
            ..v1::CreateReservationRequest::default()
        })
    }
}

pub(super) async fn reserve(
    State(web): State<Shared>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<Wish>,
) -> Response {
    match body(sent).and_then(|wish| wish.request(&web)) {
        Ok(request) => shown(ask!(web, &session, request, create_reservation)),
        Err(wrong) => answer::refused(&wrong),
    }
}

pub(super) async fn extend(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<OtherEnd>,
) -> Response {
    let request = body(sent).and_then(|other| {
        Ok(v1::ExtendReservationRequest {
            meta: Some(web.meta(other.request_id, other.made_at)),
            id,
            ends_at_unix_ms: instant("until", &other.until)?,
            ..v1::ExtendReservationRequest::default()
        })
    });
    match request {
        Ok(request) => shown(ask!(web, &session, request, extend_reservation)),
        Err(wrong) => answer::refused(&wrong),
    }
}

pub(super) async fn accept(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<Marked>,
) -> Response {
    match body(sent) {
        Ok(Marked { request_id, made_at }) => {
            let meta = Some(web.meta(request_id, made_at));
            let request = v1::AcceptReservationRequest { meta, id };
            shown(ask!(web, &session, request, accept_reservation))
        }
        Err(wrong) => answer::refused(&wrong),
    }
}

pub(super) async fn decline(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<Marked>,
) -> Response {
    match body(sent) {
        Ok(Marked { request_id, made_at }) => {
            let meta = Some(web.meta(request_id, made_at));
            let request = v1::DeclineReservationRequest { meta, id };
            shown(ask!(web, &session, request, decline_reservation))
        }
        Err(wrong) => answer::refused(&wrong),
    }
}

pub(super) async fn release(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<Marked>,
) -> Response {
    match body(sent) {
        Ok(Marked { request_id, made_at }) => {
            let meta = Some(web.meta(request_id, made_at));
            let request = v1::ReleaseReservationRequest { meta, id };
            shown(ask!(web, &session, request, release_reservation))
        }
        Err(wrong) => answer::refused(&wrong),
    }
}
