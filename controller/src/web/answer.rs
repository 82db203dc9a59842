//! Answers: refusals as JSON, and the headers that every answer has.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use fleet_core::Rejection;
use fleet_core::rejection::{Holding, Slot};
use fleet_proto::convert::rejection::{from_status, to_status};
use fleet_proto::json::values::Time;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tonic::{Code, Status};

/// Nothing but what this controller serves, and in nobody's frame.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
);

/// Why something was not done.
#[derive(Debug, Serialize)]
struct Refusal {
    error: Problem,
}

#[derive(Debug, Serialize)]
struct Problem {
    /// For scripts: that of the refusal, or of the way there.
    code: &'static str,
    /// For people.
    message: String,
    /// Who has the GPUs.
    holdings: Vec<Held>,
    /// The first time at which they are free.
    next: Option<Next>,
}

#[derive(Debug, Serialize)]
struct Held {
    uuid: String,
    node: String,
    index: u32,
    owner: String,
    /// The reservation or job.
    holder: String,
    until: Option<Time>,
}

#[derive(Debug, Serialize)]
struct Next {
    starts_at: Time,
    node: String,
    gpus: Vec<String>,
}

impl From<&Holding> for Held {
    fn from(holding: &Holding) -> Self {
        Self {
            uuid: holding.gpu.to_string(),
            node: holding.node.to_string(),
            index: holding.index,
            owner: holding.owner.to_string(),
            holder: holding.holder.clone(),
            until: holding.until.map(|until| Time(until.0)),
        }
    }
}

impl From<&Slot> for Next {
    fn from(slot: &Slot) -> Self {
        Self {
            starts_at: Time(slot.starts_at.0),
            node: slot.node.to_string(),
            gpus: slot.gpus.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A field of the page's own JSON that does not hold what it should.
pub(super) fn wrong(field: &str, problem: impl Into<String>) -> Status {
    to_status(&Rejection::field(field, problem))
}

/// A refusal, as the page understands it.
pub(super) fn refused(status: &Status) -> Response {
    let rejection = from_status(status);
    let (holdings, next) = match &rejection {
        Some(Rejection::GpusHeld { holdings, next, .. }) => {
            (holdings.iter().map(Held::from).collect(), next.as_ref().map(Next::from))
        }
        _ => (Vec::new(), None),
    };
    let (number, word) = code_of(status.code());
    let error = Problem {
        code: rejection.as_ref().map_or(word, Rejection::code),
        message: rejection.map_or_else(|| status.message().to_owned(), |why| why.to_string()),
        holdings,
        next,
    };
    (number, Json(Refusal { error })).into_response()
}

/// The status of HTTP that says the same.
pub(super) fn number_of(status: &Status) -> StatusCode {
    code_of(status.code()).0
}

fn code_of(code: Code) -> (StatusCode, &'static str) {
    match code {
        Code::InvalidArgument | Code::OutOfRange => (StatusCode::BAD_REQUEST, "invalid"),
        Code::Unauthenticated => (StatusCode::UNAUTHORIZED, "logged_out"),
        Code::PermissionDenied => (StatusCode::FORBIDDEN, "denied"),
        Code::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => {
            (StatusCode::CONFLICT, "refused")
        }
        Code::ResourceExhausted => (StatusCode::CONFLICT, "full"),
        Code::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unreachable"),
        // The last two are of a connection to the leader that broke: what became of it is not known.
        Code::DeadlineExceeded | Code::Unknown | Code::Cancelled => {
            (StatusCode::GATEWAY_TIMEOUT, "no_answer")
        }
        Code::Ok | Code::Internal | Code::Unimplemented | Code::DataLoss => {
            (StatusCode::INTERNAL_SERVER_ERROR, "internal")
        }
    }
}

/// What every answer has. Only what never changes is kept by a browser.
pub(super) async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
