//! Logging in by a code, and out.

use std::net::SocketAddr;
use std::time::Instant;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use fleet_proto::v1;
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tonic::{Code, Status};

use super::ask::ask;
use super::{Shared, Web, answer, session};
use crate::callers::Session;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shown {
    code: String,
}

/// Trades a code for a cookie.
pub(super) async fn log_in(
    State(web): State<Shared>,
    Extension(address): Extension<SocketAddr>,
    headers: HeaderMap,
    shown: Result<Json<Shown>, JsonRejection>,
) -> Response {
    let (from, now) = (address.ip(), Instant::now());
    let Some(_place) = web.attempts.begin(from, now) else {
        let problem = "too many codes from this address; wait a minute";
        let mut refused = answer::refused(&Status::resource_exhausted(problem));
        *refused.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return refused;
    };
    let Json(Shown { code }) = match shown {
        Ok(shown) => shown,
        Err(error) => return answer::refused(&answer::wrong("code", error.body_text())),
    };
    match web.context.begin_session(&code).await {
        Ok(begun) => {
            // The browser forgets the one it had, and nobody else may find it.
            if let Some(before) = session::session_in(&headers) {
                drop(web.end(&before).await);
            }
            let cookie = session::cookie(&begun.secret, begun.not_after, web.context.clock.now());
            let headers = cookie.map(|cookie| [(SET_COOKIE, cookie)]);
            let user = begun.user.to_string();
            tracing::info!(user, %from, "a browser logged in");
            let headers = headers.map_or_else(HeaderMap::new, HeaderMap::from_iter);
            (headers, Json(serde_json::json!({ "user": user }))).into_response()
        }
        Err(status) => {
            if status.code() == Code::Unauthenticated {
                web.attempts.was_wrong(from, now);
            }
            answer::refused(&status)
        }
    }
}

/// Ends this browser's session. One that has ended already is logged out all the same.
pub(super) async fn log_out(State(web): State<Shared>, headers: HeaderMap) -> Response {
    if let Some(session) = session::session_in(&headers)
        && let Err(status) = web.end(&session).await
        && status.code() != Code::Unauthenticated
    {
        // It is a form's: the answer is a page.
        return web.problem(None, &status);
    }
    ([(SET_COOKIE, session::forgotten())], Redirect::to("/login")).into_response()
}

impl Web {
    async fn end(&self, session: &Session) -> Result<(), Status> {
        let meta = Some(self.meta(None, None));
        let request = v1::EndSessionsRequest { meta, session: session.0.clone() };
        ask!(self, session, request, end_sessions).map(drop)
    }
}
