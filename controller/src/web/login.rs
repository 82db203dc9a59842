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

use super::ask::{ask, meta};
use super::{Shared, answer, session};
use crate::clock::wall;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shown {
    code: String,
}

/// Trades a code for a cookie.
pub(super) async fn log_in(
    State(web): State<Shared>,
    Extension(address): Extension<SocketAddr>,
    shown: Result<Json<Shown>, JsonRejection>,
) -> Response {
    let (from, now) = (address.ip(), Instant::now());
    if !web.attempts.may(from, now) {
        let problem = "too many wrong codes from this address; wait a minute";
        let mut refused = answer::refused(&Status::resource_exhausted(problem));
        *refused.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return refused;
    }
    let Json(Shown { code }) = match shown {
        Ok(shown) => shown,
        Err(error) => return answer::refused(&answer::wrong("code", error.body_text())),
    };
    match web.context.begin_session(&code).await {
        Ok(begun) => {
            let cookie = session::cookie(&begun.secret, begun.not_after, wall());
            let headers = cookie.map(|cookie| [(SET_COOKIE, cookie)]);
            tracing::info!(user = %begun.user, %from, "a browser logged in");
            (headers.map_or_else(HeaderMap::new, HeaderMap::from_iter), Json(serde_json::json!({})))
                .into_response()
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
    if let Some(session) = session::session_in(&headers) {
        let request = v1::EndSessionsRequest { meta: meta(None, None), session: session.0.clone() };
        if let Err(status) = ask!(web, &session, request, end_sessions)
            && status.code() != Code::Unauthenticated
        {
            return answer::refused(&status);
        }
    }
    ([(SET_COOKIE, session::forgotten())], Redirect::to("/login")).into_response()
}
