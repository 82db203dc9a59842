//! Edits of a reservation, or of several of a series: from the request to the command, or only what would come of it.

use fleet_core::command::{
    Command, RequestKey, ReservationChange, ReservationCommand, SeriesChange,
};
use fleet_core::id::{ReservationId, SeriesId};
use fleet_core::time::Timestamp;
use fleet_core::{Fsm, Rejection, Reply};
use fleet_proto::convert::{rejection::to_status, wish};
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::series::refused;
use super::writes::{reservation_id, shared_with, unexpected};
use super::{Context, views};
use crate::callers::Caller;

impl Context {
    pub(super) async fn edit_reservation(
        &self,
        request: Request<v1::EditReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        // The same command typed again has seen what came of the first one: that is no other request.
        let body = v1::EditReservationRequest { seen_revision: None, ..request.clone() };
        let key = request_key(request.meta.as_ref(), &body)?;
        let id = reservation_id(&request.id)?;
        let change = change(&request).map_err(|rejection| to_status(&rejection))?;
        self.refuse_unknown_sharers(request.new_users, &change, &caller, &key).await?;
        let seen = request.seen_revision;
        if request.dry_run {
            return self.try_edit(&caller, id, change, seen).await;
        }
        let command =
            Command::Reservation(ReservationCommand::Edit { id: id.clone(), change, seen });
        self.change(&caller.actor, Some(key), command).await?;
        self.node_confirms(&id).await;
        self.reservation_view(&id)
    }

    pub(super) async fn edit_series(
        &self,
        request: Request<v1::EditSeriesRequest>,
    ) -> Result<v1::EditSeriesResponse, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let unseen = |change: &v1::EditReservationRequest| v1::EditReservationRequest {
            seen_revision: None,
            ..change.clone()
        };
        let changes = request.changes.iter().map(unseen).collect();
        let body = v1::EditSeriesRequest { changes, ..request.clone() };
        let key = request_key(request.meta.as_ref(), &body)?;
        let id = SeriesId::parse(&request.id)
            .map_err(|error| to_status(&Rejection::field("id", error.to_string())))?;
        let mut changes = Vec::new();
        for one in &request.changes {
            let change = change(one).map_err(|rejection| to_status(&rejection))?;
            // They are shared with the same users: the first is asked about for all.
            if changes.is_empty() {
                self.refuse_unknown_sharers(request.new_users, &change, &caller, &key).await?;
            }
            let reservation = reservation_id(&one.id)?;
            changes.push(SeriesChange { reservation, change, seen: one.seen_revision });
        }
        let command = ReservationCommand::EditSeries { id, changes, rule: request.rule };
        if request.dry_run {
            return self.try_edit_series(&caller, command).await;
        }
        match self.change(&caller.actor, Some(key), Command::Reservation(command)).await? {
            Reply::SeriesEdited { reservations } => {
                for id in &reservations {
                    self.node_confirms(id).await;
                }
                let items = self.views_of(&reservations);
                Ok(v1::EditSeriesResponse { items, refused: Vec::new() })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn refuse_unknown_sharers(
        &self,
        new_users: bool,
        change: &ReservationChange,
        caller: &Caller,
        key: &RequestKey,
    ) -> Result<(), Status> {
        if new_users {
            return Ok(());
        }
        self.refuse_unknown(change.with.iter().flatten().cloned(), caller, key).await
    }

    /// What the reservation would be; with a next place where its node would have to release the old one first.
    async fn try_edit(
        &self,
        caller: &Caller,
        id: ReservationId,
        change: ReservationChange,
        seen: Option<u64>,
    ) -> Result<v1::Reservation, Status> {
        // Only the leader knows what runs where.
        self.newest().await?;
        // On a copy and on a thread of its own, as an import's.
        let (state, sessions) = (self.raft.read(Fsm::clone), self.sessions.clone());
        let (actor, now) = (caller.actor.clone(), self.clock.now());
        let tried = tokio::task::spawn_blocking(move || {
            let made = state.try_edit(&actor, &id, &change, seen, now)?;
            Ok(views::reservation(&state, &sessions, &made))
        });
        let tried = tried.await.map_err(|error| Status::internal(error.to_string()))?;
        tried.map_err(|rejection: Rejection| to_status(&rejection))
    }
}

impl Context {
    /// What the reservations would be, or the dates that cannot be changed.
    async fn try_edit_series(
        &self,
        caller: &Caller,
        command: ReservationCommand,
    ) -> Result<v1::EditSeriesResponse, Status> {
        self.newest().await?;
        let (state, sessions) = (self.raft.read(Fsm::clone), self.sessions.clone());
        let (actor, now) = (caller.actor.clone(), self.clock.now());
        let tried = tokio::task::spawn_blocking(move || {
            let (made, problems) = state.try_edit_series(&actor, &command, now)?;
            let items = made.iter().map(|r| views::reservation(&state, &sessions, r)).collect();
            Ok(v1::EditSeriesResponse { items, refused: refused(&problems) })
        });
        let tried = tried.await.map_err(|error| Status::internal(error.to_string()))?;
        tried.map_err(|rejection: Rejection| to_status(&rejection))
    }
}

/// What the request changes, its fields checked.
fn change(request: &v1::EditReservationRequest) -> Result<ReservationChange, Rejection> {
    let at = |millis: u64| (millis > 0).then_some(Timestamp(millis));
    let gpus = request.gpus.as_ref().map(|gpus| wish::gpus(Some(gpus))).transpose()?;
    let with = request.with.as_ref().map(|with| shared_with(&with.users)).transpose()?;
    Ok(ReservationChange {
        starts_at: at(request.starts_at_unix_ms),
        ends_at: at(request.ends_at_unix_ms),
        gpus,
        with,
        note: request.note.clone(),
    })
}
