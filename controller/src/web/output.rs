//! The last lines that a job printed, for the job's page. It may take as long as a node takes to answer, so the page asks
//! for it by itself.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use fleet_proto::json::job::Job;
use fleet_proto::v1;
use fleet_proto::v1::attach_input::Input;
use fleet_proto::v1::attach_output::Output;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::ask::{here, there};
use super::output_text::{LINES_MAX, Tail};
use super::session::LoggedIn;
use super::{Shared, Web, answer};
use crate::callers::Session;

/// How long the node may take. What has come by then is shown.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Default, Serialize)]
struct Shown {
    state: String,
    attempt: u32,
    /// Nothing more comes.
    is_over: bool,
    text: String,
    /// The node sent all that was asked for. Without it, what the page shows already is worth more.
    is_complete: bool,
    /// The job printed more before that.
    is_cut: bool,
    /// What the reader should know, as sentences.
    notes: Vec<String>,
}

impl Shown {
    fn take_job(&mut self, job: v1::Job) {
        let job = Job::from(job);
        self.is_over = job.is_final();
        self.attempt = job.attempt;
        self.state = job.state.word().to_owned();
    }

    /// With the text, and why there is none.
    fn with(mut self, tail: &Tail) -> Self {
        (self.text, self.is_cut) = tail.text();
        if self.text.is_empty() && self.notes.is_empty() {
            let why = match (self.attempt, self.is_over) {
                (0, false) => "The job has not started yet.",
                (0, true) => "The job ended before it started.",
                (1, false) => "The job has printed nothing so far.",
                (_, false) => "This attempt has printed nothing so far.",
                (_, true) => "The job printed nothing.",
            };
            self.notes.push(why.to_owned());
        }
        self
    }
}

pub(super) async fn output(
    State(web): State<Shared>,
    Path(id): Path<String>,
    LoggedIn { session, .. }: LoggedIn,
) -> Response {
    let Some(_place) = web.asking.take(session.0.clone()) else {
        let problem = "too many pages ask nodes now; close some, or try again in a few seconds";
        return answer::refused(&Status::resource_exhausted(problem));
    };
    match web.last_lines(&session, id).await {
        Ok(shown) => Json(shown).into_response(),
        Err(status) => answer::refused(&status),
    }
}

impl Web {
    async fn last_lines(&self, session: &Session, job: String) -> Result<Shown, Status> {
        // One more line than is shown tells whether there are more.
        let open = v1::AttachOpen { job, tail_lines: LINES_MAX + 1, ..Default::default() };
        let until = Instant::now() + OUTPUT_TIMEOUT;
        let late =
            |_| Status::deadline_exceeded("the controller that leads did not answer in time");
        let mut output = timeout_at(until, self.attached(session, open)).await.map_err(late)??;
        let mut shown = Shown { is_complete: true, ..Shown::default() };
        let mut tail = Tail::default();
        loop {
            match timeout_at(until, output.next()).await {
                Ok(Some(message)) => match message?.output {
                    Some(Output::Job(job)) => shown.take_job(job),
                    Some(Output::Stdout(bytes) | Output::Stderr(bytes)) => tail.push(&bytes),
                    Some(Output::Missing(missing)) => {
                        shown.is_complete = false;
                        shown.notes.push(missing.why);
                    }
                    None => {}
                },
                Ok(None) => return Ok(shown.with(&tail)),
                Err(_) => {
                    let seconds = OUTPUT_TIMEOUT.as_secs();
                    let note = format!("The job's node did not send all within {seconds} s.");
                    shown.notes.push(note);
                    shown.is_complete = false;
                    return Ok(shown.with(&tail));
                }
            }
        }
    }

    /// What `fleet logs` gets: here, and where another controller leads, there.
    async fn attached(
        &self,
        session: &Session,
        open: v1::AttachOpen,
    ) -> Result<BoxStream<'static, Result<v1::AttachOutput, Status>>, Status> {
        match self.context.job_output(here(session, open.clone())).await {
            Err(status) => {
                let Some(mut leader) = self.leader(&status) else { return Err(status) };
                let input = v1::AttachInput { input: Some(Input::Open(open)) };
                let answer = leader.attach(there(session, tokio_stream::once(input))?).await?;
                Ok(Box::pin(answer.into_inner()))
            }
            done => done.map(|output| ReceiverStream::new(output).boxed()),
        }
    }
}
