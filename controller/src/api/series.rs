//! Series of reservations: from the request to the command, or only what would come of it.

use fleet_core::command::{Command, CreateReservation, RequestKey, ReservationCommand};
use fleet_core::id::{ReservationId, SeriesId};
use fleet_core::rejection::DateProblem;
use fleet_core::reservation::{Reservation, SERIES_LENGTH_MAX, Series};
use fleet_core::time::{Timestamp, Window};
use fleet_core::{Fsm, Rejection, Reply};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::writes::{refuse_wait, reservation_id, unexpected};
use super::{Context, views};
use crate::callers::Caller;
use crate::random;

/// Ids that are drawn before it is given up; one of a thousand millions is taken.
const ID_DRAWS_MAX: usize = 8;

impl Context {
    pub(super) async fn create_series(
        &self,
        request: Request<v1::CreateSeriesRequest>,
    ) -> Result<v1::CreateSeriesResponse, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let reservations = self.dates(&request, &caller, &key).await?;
        if request.dry_run {
            return self.try_series(&caller, reservations).await;
        }
        let series = Series { id: self.new_series_id()?, rule: request.rule };
        let skip = request.skip_conflicts;
        let command = ReservationCommand::CreateSeries { series, reservations, skip };
        match self.change(&caller.actor, Some(key), Command::Reservation(command)).await? {
            Reply::SeriesCreated { id, reservations, skipped } => {
                let items = self.views_of(&reservations);
                let refused = refused(&skipped);
                Ok(v1::CreateSeriesResponse { series: id.to_string(), items, refused })
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn release_series(
        &self,
        request: Request<v1::ReleaseSeriesRequest>,
    ) -> Result<v1::ReleaseSeriesResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = SeriesId::parse(&request.id)
            .map_err(|error| to_status(&Rejection::field("id", error.to_string())))?;
        let from = match request.from.as_str() {
            "" => None,
            from => Some(reservation_id(from)?),
        };
        let released = if request.dry_run {
            self.newest().await?;
            let found = self.raft.read(|fsm| fsm.releasable(&caller.actor, &id, from.as_ref()));
            found.map_err(|rejection| to_status(&rejection))?
        } else {
            let command = Command::Reservation(ReservationCommand::ReleaseSeries { id, from });
            match self.change(&caller.actor, Some(key), command).await? {
                Reply::SeriesReleased { reservations } => reservations,
                other => return Err(unexpected(&other)),
            }
        };
        Ok(v1::ReleaseSeriesResponse { items: self.views_of(&released) })
    }

    pub(super) fn views_of(&self, ids: &[ReservationId]) -> Vec<v1::Reservation> {
        self.raft.read(|fsm| {
            let found = ids.iter().filter_map(|id| fsm.reservation(id));
            found.map(|r| views::reservation(fsm, &self.sessions, r)).collect()
        })
    }

    /// A wish for each date. All of them are like the first, whose fields and names are checked.
    async fn dates(
        &self,
        request: &v1::CreateSeriesRequest,
        caller: &Caller,
        key: &RequestKey,
    ) -> Result<Vec<CreateReservation>, Status> {
        let refuse = |problem: String| Err(to_status(&Rejection::field("dates", problem)));
        let nodes = request.nodes.max(1) as usize;
        let count = request.dates.len().max(1).saturating_mul(nodes);
        if count > SERIES_LENGTH_MAX {
            return refuse(format!("at most {SERIES_LENGTH_MAX} reservations, these are {count}"));
        }
        let each = request.each.clone().unwrap_or_default();
        let each = v1::CreateReservationRequest { new_users: request.new_users, ..each };
        let each = match request.dates.first() {
            Some(first) => v1::CreateReservationRequest {
                starts_at_unix_ms: first.starts_at_unix_ms,
                ends_at_unix_ms: first.ends_at_unix_ms,
                length_ms: 0,
                ..each
            },
            None if nodes > 1 => each,
            None => return refuse("a series needs at least one date".to_owned()),
        };
        refuse_wait(&each, "not in a series")?;
        if each.adopts.is_some() {
            return Err(to_status(&Rejection::field("adopts", "not in a series")));
        }
        let wish = self.checked_wish(&each, self.new_reservation_id()?, caller, key).await?;
        let window_of = |date: &v1::SeriesDate| {
            let starts_at = Timestamp(date.starts_at_unix_ms);
            Window { starts_at, ends_at: Timestamp(date.ends_at_unix_ms) }
        };
        let windows: Vec<Window> = match request.dates.as_slice() {
            [] => vec![wish.window],
            dates => dates.iter().map(window_of).collect(),
        };
        let one = |window: Window| {
            Ok(CreateReservation { id: self.new_reservation_id()?, window, ..wish.clone() })
        };
        windows.into_iter().flat_map(|window| std::iter::repeat_n(window, nodes)).map(one).collect()
    }

    /// What each date would get, and those that are not available.
    async fn try_series(
        &self,
        caller: &Caller,
        reservations: Vec<CreateReservation>,
    ) -> Result<v1::CreateSeriesResponse, Status> {
        // Only the leader knows what runs where.
        self.newest().await?;
        // On a copy and on a thread of its own, as an import's.
        let (state, sessions) = (self.raft.read(Fsm::clone), self.sessions.clone());
        let (actor, now) = (caller.actor.clone(), self.clock.now());
        let tried = tokio::task::spawn_blocking(move || {
            let (made, problems) = state.try_series(&actor, &reservations, now)?;
            let without_id = |made: &Reservation| v1::Reservation {
                id: String::new(),
                ..views::reservation(&state, &sessions, made)
            };
            let items = made.iter().map(without_id).collect();
            Ok(v1::CreateSeriesResponse {
                series: String::new(),
                items,
                refused: refused(&problems),
            })
        });
        let tried = tried.await.map_err(|error| Status::internal(error.to_string()))?;
        tried.map_err(|rejection: Rejection| to_status(&rejection))
    }

    /// An id that no series has.
    fn new_series_id(&self) -> Result<SeriesId, Status> {
        for _ in 0..ID_DRAWS_MAX {
            let id = random::series_id().map_err(|e| Status::internal(e.to_string()))?;
            let is_other = |r: &Reservation| r.series.as_ref().is_none_or(|series| series.id != id);
            if self.raft.read(|fsm| fsm.reservations().all(is_other)) {
                return Ok(id);
            }
        }
        Err(Status::internal("no free id was drawn"))
    }
}

pub(super) fn refused(problems: &[DateProblem]) -> Vec<v1::RefusedDate> {
    let one = |problem: &DateProblem| v1::RefusedDate {
        date: Some(v1::SeriesDate {
            starts_at_unix_ms: problem.window.starts_at.0,
            ends_at_unix_ms: problem.window.ends_at.0,
        }),
        // Without it the date alone says what is left out.
        rejection_json: serde_json::to_string(&problem.why).unwrap_or_default(),
    };
    problems.iter().map(one).collect()
}
