//! What a GPU did in each minute of a day, for its page. It may take as long as a node takes to answer, so the page asks for
//! it by itself.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use fleet_proto::json::gpu_minute::GpuMinute;
use fleet_proto::json::values::{Time, time};
use fleet_proto::v1;
use serde::Serialize;
use tonic::Status;

use super::ask::ask;
use super::session::LoggedIn;
use super::{Shared, answer};

#[derive(Debug, Serialize)]
struct Shown {
    items: Vec<GpuMinute>,
    /// Of minutes before, nobody knows whether somebody had the GPU; null: it is known.
    known_from: Option<Time>,
    /// From here on the answer has nothing; null: it has all.
    cut_at: Option<Time>,
    /// What the reader should know, as sentences.
    notes: Vec<String>,
}

pub(super) async fn minutes(
    State(web): State<Shared>,
    Path((uuid, from_unix_ms, until_unix_ms)): Path<(String, u64, u64)>,
    LoggedIn { session, .. }: LoggedIn,
) -> Response {
    let Some(_place) = web.asking.take(session.0.clone()) else {
        let problem = "too many pages ask nodes now; close some, or try again in a few seconds";
        return answer::refused(&Status::resource_exhausted(problem));
    };
    let request = v1::ListGpuMinutesRequest { uuid, from_unix_ms, until_unix_ms };
    match ask!(web, &session, request, list_gpu_minutes) {
        Ok(found) => Json(shown(found)).into_response(),
        Err(status) => answer::refused(&status),
    }
}

fn shown(found: v1::GpuMinutes) -> Shown {
    let node = &found.node;
    let full = found.incomplete_days.iter();
    let full = full.map(|day| format!("{node} had no room for all minutes of {day} (UTC)."));
    let cut = (found.cut_at_unix_ms > 0)
        .then(|| format!("{node} has more than one answer holds; the end is missing."));
    Shown {
        notes: full.chain(cut).collect(),
        known_from: time(found.complete_from_unix_ms),
        cut_at: time(found.cut_at_unix_ms),
        items: found.items.into_iter().map(GpuMinute::from).collect(),
    }
}
