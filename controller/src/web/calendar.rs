//! The calendar as JSON, made once for all browsers as long as nothing changes.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use fleet_proto::convert::freshness::Freshness;
use fleet_proto::json::gpu::Gpu;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::json::{self, calendar};
use fleet_proto::transport::identity::sha256;
use fleet_proto::v1;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::Mutex;
use tonic::Status;

use super::ask::look;
use super::session::LoggedIn;
use super::{Shared, Web, answer};
use crate::callers::Session;

/// The fleet's time, in milliseconds since 1970: a browser's clock may be wrong.
const NOW: HeaderName = HeaderName::from_static("fleet-now");
/// How old the answer may be, in milliseconds, where no majority confirms it.
const STALE: HeaderName = HeaderName::from_static("fleet-stale-ms");
/// What agents say of their GPUs changes without an entry of the log.
const MADE_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The last one that was made.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Option<Made>>);

#[derive(Debug, Clone)]
struct Made {
    at: Instant,
    /// The index of the log up to which this controller knew the state.
    index: u64,
    body: Bytes,
    tag: HeaderValue,
    /// How old it may be; none where it was confirmed.
    stale: Option<Freshness>,
}

pub(super) async fn calendar(
    State(web): State<Shared>,
    LoggedIn { session, .. }: LoggedIn,
    asked: HeaderMap,
) -> Response {
    let made = match web.calendar_now(&session).await {
        Ok(made) => made,
        Err(status) => return answer::refused(&status),
    };
    let mut headers = HeaderMap::from_iter([
        (ETAG, made.tag.clone()),
        (CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
        (NOW, HeaderValue::from(web.context.clock.now().0)),
    ]);
    if let Some(stale) = made.stale {
        headers.insert(STALE, HeaderValue::from(stale.age_ms.unwrap_or(u64::MAX)));
    }
    if asked.get(IF_NONE_MATCH) == Some(&made.tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (headers, made.body).into_response()
}

impl Web {
    async fn calendar_now(&self, session: &Session) -> Result<Made, Status> {
        // Before it is read: what comes in between is made again.
        let index = *self.context.raft.applied().borrow();
        // All browsers ask at once when something changed: for one of them it is made, the others wait.
        let mut last = self.calendar.0.lock().await;
        let fresh = |made: &&Made| made.index >= index && made.at.elapsed() < MADE_AGAIN_AFTER;
        if let Some(made) = last.as_ref().filter(fresh) {
            return Ok(made.clone());
        }
        let gpus = look!(self, session, v1::ListGpusRequest::default(), list_gpus)?;
        let reservations =
            look!(self, session, v1::ListReservationsRequest::default(), list_reservations)?;
        let stale = Freshness::of(gpus.metadata()).or(Freshness::of(reservations.metadata()));
        let gpus: Vec<Gpu> = gpus.into_inner().items.into_iter().map(Gpu::from).collect();
        let reservations = reservations.into_inner().items.into_iter();
        let reservations: Vec<Reservation> = reservations.map(Reservation::from).collect();
        let drawn = calendar::of(&gpus, &reservations, self.context.clock.now().0);
        let body = serde_json::to_vec(&json::List::of(&drawn));
        let body = body.map_err(|error| Status::internal(error.to_string()))?;
        let tag = format!("\"{}\"", hex::encode(&sha256(&body)[..16]));
        let tag = tag.parse().map_err(|_| Status::internal("a digest is no header"))?;
        let made = Made { at: Instant::now(), index, body: body.into(), tag, stale };
        *last = made.stale.is_none().then(|| made.clone());
        Ok(made)
    }
}
