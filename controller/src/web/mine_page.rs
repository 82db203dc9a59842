//! The page of one's own reservations and jobs.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use fleet_core::view::ReservationShown;
use fleet_proto::convert::freshness::Freshness;
use fleet_proto::json::job::Job as JobJson;
use fleet_proto::json::reservation::Reservation as ReservationJson;
use fleet_proto::json::values::gpu_names;
use fleet_proto::v1;

use super::Shared;
use super::ask::look;
use super::fleet_page::stale;
use super::page::{Page, shown};
use super::requests::{EffectShown, Request};
use super::session::LoggedIn;

#[derive(Template)]
#[template(path = "mine.html")]
struct Mine {
    page: Page,
    /// Those that wait for the decision of the one who looks.
    requests: Vec<Request>,
    reservations: Vec<Reservation>,
    jobs: Vec<Job>,
}

struct Reservation {
    id: String,
    /// Whose it is, where it is somebody else's who shares it.
    owner: Option<String>,
    gpus: String,
    from: Option<String>,
    until: Option<String>,
    state: String,
    note: Option<String>,
    reason: Option<String>,
    /// Since when its GPUs compute nothing, and when it is released for that.
    idle_since: Option<String>,
    idle_release_at: Option<String>,
    /// Until when its owner may accept the place.
    offered_until: Option<String>,
    /// It is over if its owner declines this offer.
    is_last_offer: bool,
    /// Whether it has begun; not said where the one who looks cannot release it.
    begun: Option<bool>,
}

struct Job {
    id: String,
    name: Option<String>,
    state: String,
    reason: Option<String>,
    gpus: String,
    submitted: Option<String>,
    ends_by: Option<String>,
}

impl Reservation {
    fn of(reservation: ReservationJson, user: &str) -> Self {
        let mine = reservation.owner == user;
        let begun = reservation.state.known().and_then(|state| match state {
            ReservationShown::Requested
            | ReservationShown::Waiting
            | ReservationShown::Offered
            | ReservationShown::Scheduled => Some(false),
            ReservationShown::Active => Some(true),
            ReservationShown::Ending
            | ReservationShown::Ended
            | ReservationShown::Cancelling
            | ReservationShown::Cancelled => None,
        });
        let has_gpus = !reservation.gpus.is_empty();
        let offer = reservation.offer.as_ref();
        let offered_until = offer.and_then(|offer| offer.until);
        let waits = match (reservation.waiting_place, reservation.approval.as_ref()) {
            (Some(_), _) if offered_until.is_some() => None,
            (Some(_), _) if has_gpus => Some("starts earlier if GPUs become free".to_owned()),
            (Some(place), _) => Some(format!("place {place} on the waiting list")),
            (None, Some(approval)) => Some(format!("above a limit: {}", approval.above)),
            (None, None) => None,
        };
        Self {
            gpus: reservation.gpus_shown(),
            from: reservation.starts_at.map(|at| at.to_string()),
            until: reservation.ends_at.map(|at| at.to_string()),
            state: reservation.state.word().to_owned(),
            idle_since: reservation.idle_since.map(|at| at.to_string()),
            idle_release_at: reservation.idle_release_at.map(|at| at.to_string()),
            note: reservation.note,
            reason: reservation.unconfirmed.or(reservation.reason).or(waits),
            offered_until: offered_until.map(|at| at.to_string()),
            is_last_offer: offer.is_some_and(|offer| offer.declined + 1 >= offer.most),
            begun: begun.filter(|_| mine),
            owner: Some(reservation.owner).filter(|_| !mine),
            id: reservation.id,
        }
    }
}

impl From<JobJson> for Job {
    fn from(job: JobJson) -> Self {
        Self {
            gpus: gpu_names(&job.gpus),
            name: Some(job.name).filter(|name| !name.is_empty()),
            state: job.state.word().to_owned(),
            reason: job.reason,
            submitted: job.submitted_at.map(|at| at.to_string()),
            ends_by: job.time_limit_at.map(|at| at.to_string()),
            id: job.id,
        }
    }
}

pub(super) async fn mine(State(web): State<Shared>, user: LoggedIn) -> Response {
    let (session, owner) = (&user.session, user.caller.name.to_string());
    let of_mine = v1::ListReservationsRequest { owner: owner.clone(), ..Default::default() };
    let reservations = match look!(web, session, of_mine, list_reservations) {
        Ok(reservations) => reservations,
        Err(status) => return web.problem(Some(&user.caller), &status),
    };
    let of_mine = v1::ListJobsRequest { owner: owner.clone(), ..Default::default() };
    let jobs = match look!(web, session, of_mine, list_jobs) {
        Ok(jobs) => jobs,
        Err(status) => return web.problem(Some(&user.caller), &status),
    };
    let requests = match web.requests(&user, None).await {
        Ok(requests) => requests,
        Err(status) => return web.problem(Some(&user.caller), &status),
    };
    let mut page = web.page("Mine", "mine", Some(&user.caller));
    page.stale = stale(Freshness::of(jobs.metadata()).or(Freshness::of(reservations.metadata())));
    let reservations = reservations.into_inner().items.into_iter().map(ReservationJson::from);
    let reservations = reservations.map(|one| Reservation::of(one, &owner)).collect();
    let jobs = jobs.into_inner().items.into_iter().map(JobJson::from).map(Job::from).collect();
    shown(&Mine { page, requests, reservations, jobs })
}
