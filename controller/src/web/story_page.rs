//! The page of one job, reservation or node: what happened to it, and why it is as it is.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use fleet_proto::json::checkpoint::Checkpoint as CheckpointJson;
use fleet_proto::json::story::Story;
use fleet_proto::v1;

use super::Shared;
use super::ask::ask;
use super::page::{Page, shown};
use super::requests::{EffectShown, Request};
use super::session::LoggedIn;

const MIB: u64 = 1 << 20;

#[derive(Template)]
#[template(path = "story.html")]
struct StoryPage {
    page: Page,
    id: String,
    summary: String,
    /// When a job that waits could start.
    expected_start: Option<String>,
    details: Vec<String>,
    /// The newest first: that is what is asked for.
    lines: Vec<Line>,
    older: u64,
    pruned_until: Option<String>,
    parts: Parts,
}

/// What not all of them have.
#[derive(Default)]
struct Parts {
    /// The newest first; only a job has some.
    checkpoints: Vec<Checkpoint>,
    /// The reservation itself, if the one who looks may approve or deny it.
    requests: Vec<Request>,
    /// Only of a job. The page asks for the text.
    output: Option<Output>,
}

struct Output {
    owner: String,
    may_read: bool,
}

struct Line {
    at: Option<String>,
    text: String,
    actor: Option<String>,
}

struct Checkpoint {
    path: String,
    saved: Option<String>,
    attempt: u32,
    step: Option<u64>,
    size: Option<String>,
    content: Option<String>,
    place: Option<String>,
}

impl From<CheckpointJson> for Checkpoint {
    fn from(checkpoint: CheckpointJson) -> Self {
        Self {
            path: checkpoint.path,
            saved: checkpoint.completed_at.map(|at| at.to_string()),
            attempt: checkpoint.attempt,
            step: checkpoint.step,
            size: checkpoint.size_bytes.map(|bytes| format!("{} MiB", bytes.div_ceil(MIB))),
            content: checkpoint.content,
            place: checkpoint.place,
        }
    }
}

pub(super) async fn job(state: State<Shared>, id: Path<String>, user: LoggedIn) -> Response {
    let checkpoints = {
        let request = v1::ListCheckpointsRequest { job: id.0.clone(), owner: String::new() };
        ask!(state, &user.session, request, list_checkpoints)
    };
    // The story says what is wrong with the job, if anything is.
    let checkpoints = checkpoints.map(|answer| answer.items).unwrap_or_default();
    let checkpoints = checkpoints.into_iter().rev().map(CheckpointJson::from);
    let checkpoints = checkpoints.map(Checkpoint::from).collect();
    let request = v1::ListJobsRequest { ids: vec![id.0.clone()], all: true, ..Default::default() };
    let job = ask!(state, &user.session, request, list_jobs);
    let job = job.ok().and_then(|answer| answer.items.into_iter().next());
    let output = job.map(|job| Output {
        may_read: user.caller.admin || user.caller.name.as_str() == job.owner,
        owner: job.owner,
    });
    let parts = Parts { checkpoints, output, ..Parts::default() };
    story(state, id, user, "Job", parts).await
}

pub(super) async fn reservation(
    state: State<Shared>,
    id: Path<String>,
    user: LoggedIn,
) -> Response {
    // The story says what is wrong with the reservation, if anything is.
    let requests = state.requests(&user, Some(&id.0)).await.unwrap_or_default();
    story(state, id, user, "Reservation", Parts { requests, ..Parts::default() }).await
}

pub(super) async fn node(state: State<Shared>, id: Path<String>, user: LoggedIn) -> Response {
    story(state, id, user, "Node", Parts::default()).await
}

async fn story(
    State(web): State<Shared>,
    Path(id): Path<String>,
    user: LoggedIn,
    title: &'static str,
    parts: Parts,
) -> Response {
    let request = v1::ExplainRequest { id, ..v1::ExplainRequest::default() };
    let story = match ask!(web, &user.session, request, explain) {
        Ok(explanation) => Story::from(explanation),
        Err(status) => return web.problem(Some(&user.caller), &status),
    };
    let lines = story.story.into_iter().rev().map(|line| Line {
        at: line.at.map(|at| at.to_string()),
        text: line.text,
        actor: line.actor,
    });
    shown(&StoryPage {
        page: web.page(title, "", Some(&user.caller)),
        id: story.id,
        summary: story.summary,
        expected_start: story.expected_start.map(|at| at.to_string()),
        details: story.details,
        lines: lines.collect(),
        older: story.older_lines,
        pruned_until: story.pruned_until.map(|at| at.to_string()),
        parts,
    })
}
