//! Requests above a limit that wait for the decision of the user who looks: what an approver wants to know about each,
//! and the decision.
//!
//! Mine shows all of them, the page of a reservation its own. The core says who may decide; what is shown follows it.

use axum::extract::{Path, State};
use axum::response::Response;
use fleet_core::actor::Actor;
use fleet_core::id::ReservationId;
use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::{ApprovalEffect, Reservation as ReservationJson};
use fleet_proto::v1;
use serde::Deserialize;
use tonic::{Code, Status};

use super::ask::{ask, look};
use super::bookings::{Marked, Sent, body, shown};
use super::session::LoggedIn;
use super::{Shared, Web, answer};

/// Requests of one page with what follows from an approval: each takes a copy of the fleet's state.
const EFFECTS_MAX: usize = 3;

/// A request that waits for a decision.
pub(super) struct Request {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) project: String,
    /// What it asks for: `2 GPUs for 1h`.
    pub(super) wish: String,
    pub(super) starts: Option<String>,
    pub(super) latest: Option<String>,
    pub(super) reason: String,
    pub(super) above: String,
    pub(super) note: Option<String>,
    pub(super) with: String,
    pub(super) effect: EffectShown,
}

/// Whether the page knows what follows from an approval.
pub(super) enum EffectShown {
    Known(Effect),
    /// The page of the request says it.
    NotAsked,
    /// Nobody leads, or the leader does not answer.
    NotKnown,
}

/// What follows from an approval now.
pub(super) struct Effect {
    pub(super) place: Option<Place>,
    pub(super) waits_for: Option<String>,
    pub(super) left_free: u32,
    pub(super) gpus_like_it: u32,
    pub(super) owner_has: u32,
}

pub(super) struct Place {
    pub(super) gpus: String,
    pub(super) from: Option<String>,
    pub(super) until: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Denial {
    request_id: Option<String>,
    made_at: Option<u64>,
    /// For its owner.
    reason: String,
}

impl Request {
    fn of(reservation: ReservationJson, effect: EffectShown) -> Self {
        let wish = reservation.gpus_shown();
        let (reason, above) =
            reservation.approval.map(|asked| (asked.reason, asked.above)).unwrap_or_default();
        Self {
            wish,
            reason,
            above,
            starts: reservation.earliest_start.map(|at| at.to_string()),
            latest: reservation.latest_start.map(|at| at.to_string()),
            note: reservation.note,
            with: reservation.with.join(", "),
            project: reservation.project,
            owner: reservation.owner,
            id: reservation.id,
            effect,
        }
    }
}

impl From<ApprovalEffect> for Effect {
    fn from(effect: ApprovalEffect) -> Self {
        let place = effect.place.map(|place| Place {
            gpus: place.gpus_shown(),
            from: place.starts_at.map(|at| at.to_string()),
            until: place.ends_at.map(|at| at.to_string()),
        });
        Self {
            place,
            waits_for: effect.waits_for,
            left_free: effect.left_free,
            gpus_like_it: effect.gpus_like_it,
            owner_has: effect.owner_has,
        }
    }
}

impl Web {
    /// The requests that the actor may decide, as far as this controller knows.
    pub(super) fn to_decide(&self, actor: &Actor) -> Vec<ReservationId> {
        let now = self.context.clock.now();
        self.context.raft.read(|fsm| {
            let asks = fsm.waitlist().without_place().filter(|waiter| waiter.asks());
            let in_time = asks.filter(|waiter| waiter.latest_start >= now);
            let ids = in_time.map(|waiter| &waiter.wish.id);
            ids.filter(|id| fsm.may_approve(actor, id)).cloned().collect()
        })
    }

    /// The requests that the user may decide, or the one of them with that id. The leader says what they are now.
    pub(super) async fn requests(
        &self,
        user: &LoggedIn,
        only: Option<&str>,
    ) -> Result<Vec<Request>, Status> {
        let ids = self.to_decide(&user.caller.actor);
        let ids: Vec<String> = ids
            .iter()
            .map(ToString::to_string)
            .filter(|id| only.is_none_or(|only| only == id))
            .collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let request = v1::ListReservationsRequest { ids, all: true, ..Default::default() };
        let listed = look!(self, &user.session, request, list_reservations)?.into_inner();
        let mut requests = Vec::new();
        // With nobody who leads each question takes seconds: one is enough.
        let mut answers = true;
        for (at, reservation) in listed.items.into_iter().map(ReservationJson::from).enumerate() {
            if !reservation.state.is(ReservationShown::Requested) {
                continue;
            }
            if at >= EFFECTS_MAX || !answers {
                let effect = if answers { EffectShown::NotAsked } else { EffectShown::NotKnown };
                requests.push(Request::of(reservation, effect));
                continue;
            }
            let request = v1::GetApprovalEffectRequest { id: reservation.id.clone() };
            match ask!(self, &user.session, request, get_approval_effect) {
                Ok(effect) => {
                    requests.push(Request::of(
                        reservation,
                        EffectShown::Known(ApprovalEffect::from(effect).into()),
                    ));
                }
                // Somebody has decided since it was listed.
                Err(status)
                    if matches!(status.code(), Code::FailedPrecondition | Code::NotFound) => {}
                // What is known is shown without it.
                Err(_) => {
                    answers = false;
                    requests.push(Request::of(reservation, EffectShown::NotKnown));
                }
            }
        }
        Ok(requests)
    }
}

pub(super) async fn approve(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<Marked>,
) -> Response {
    match body(sent) {
        Ok(Marked { request_id, made_at }) => {
            let meta = Some(web.meta(request_id, made_at));
            let request = v1::ApproveReservationRequest { meta, id };
            shown(ask!(web, &session, request, approve_reservation))
        }
        Err(wrong) => answer::refused(&wrong),
    }
}

pub(super) async fn deny(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
    sent: Sent<Denial>,
) -> Response {
    match body(sent) {
        Ok(Denial { request_id, made_at, reason }) => {
            let meta = Some(web.meta(request_id, made_at));
            let request = v1::DenyReservationRequest { meta, id, reason };
            shown(ask!(web, &session, request, deny_reservation))
        }
        Err(wrong) => answer::refused(&wrong),
    }
}
