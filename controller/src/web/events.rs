//! Tells browsers that something changed: by server-sent events (WHATWG HTML, 9.2), each with the index of the log.
//!
//! A stream holds nothing but its place in the log: a browser that reads slowly misses steps, never the last one. It ends with
//! the session.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use fleet_core::actor::Actor;
use fleet_proto::transport::Slot;
use futures::stream;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Status;

use super::session::LoggedIn;
use super::{Shared, answer};

/// Between two events of a change, at least.
const CHANGED_EVERY: Duration = Duration::from_secs(1);
/// Between two events where nothing changes: a browser takes twice as long for silence.
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// What a stream knows of what it has said.
struct Told {
    web: Shared,
    session: crate::callers::Session,
    /// The user as they were when the stream began.
    actor: Actor,
    applied: tokio::sync::watch::Receiver<u64>,
    last: Option<Instant>,
    /// Among the streams of its session.
    _place: Slot<String>,
}

pub(super) async fn events(
    State(web): State<Shared>,
    LoggedIn { session, caller }: LoggedIn,
) -> Response {
    let Some(place) = web.streams.take(session.0.clone()) else {
        let problem = "too many windows of this browser show the fleet; close some";
        return answer::refused(&Status::resource_exhausted(problem));
    };
    let mut applied = web.context.raft.applied();
    applied.borrow_and_update();
    let told = Told { web, session, actor: caller.actor, applied, last: None, _place: place };
    Sse::new(stream::unfold(told, next)).into_response()
}

async fn next(mut told: Told) -> Option<(Result<Event, Infallible>, Told)> {
    let web = told.web.clone();
    let changed = tokio::select! {
        () = web.stop.cancelled() => return None,
        changed = told.changed() => changed?,
    };
    // Revoked, or logged out in another window. It counts as no request of the user's.
    web.context.callers.whose(&told.session)?;
    let index = *told.applied.borrow();
    // Another incarnation is a fleet that was restored: what a browser has loaded is not what there is.
    let incarnation = web.context.raft.incarnation();
    let now_ms = web.context.clock.now().0;
    let to_decide = web.to_decide(&told.actor).len();
    let data = json!({
        "index": index, "incarnation": incarnation, "now_ms": now_ms, "to_decide": to_decide,
    });
    let event = Event::default()
        .event(if changed { "changed" } else { "alive" })
        .id(index.to_string())
        .data(data.to_string());
    told.last = Some(Instant::now());
    Some((Ok(event), told))
}

impl Told {
    /// Waits for the next thing to say. The first is said at once, so that a browser knows where it is; none once this
    /// controller ends.
    async fn changed(&mut self) -> Option<bool> {
        let Some(last) = self.last else { return Some(false) };
        match timeout_at(last + ALIVE_EVERY, self.applied.changed()).await {
            Ok(Ok(())) => {
                sleep_until(last + CHANGED_EVERY).await;
                self.applied.borrow_and_update();
                Some(true)
            }
            Ok(Err(_)) => None,
            Err(_) => Some(false),
        }
    }
}
