//! `checkpoint list`, `checkpoint now`, `job restart`.

use std::time::Duration;

use fleet_proto::json::checkpoint::Checkpoint;
use fleet_proto::json::job::Job;
use fleet_proto::v1::{
    AskCheckpointRequest, ListCheckpointsRequest, ListJobsRequest, RestartJobRequest,
};
use tokio::time::{Instant, sleep};

use super::job::{self, KIND};
use super::{Context, watch::WATCH_PERIOD};
use crate::args::{CheckpointListArgs, CheckpointNowArgs, JobRestartArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::checkpoint::content_shown;
use crate::output::text::{print, say};
use crate::times::length;

/// What `RestartJobRequest` calls "from the beginning".
const SCRATCH: &str = "scratch";

/// All that were seen of one job, or of all jobs of one user.
pub(super) async fn list(context: &Context, args: &CheckpointListArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let job = match &args.job {
        Some(text) => client.resolve(KIND, text).await?,
        None => String::new(),
    };
    let request = ListCheckpointsRequest { job, owner: args.user.clone().unwrap_or_default() };
    let listed = client.call(request, async |api, r| api.list_checkpoints(r).await).await?;
    let items: Vec<Checkpoint> = listed.items.into_iter().map(Checkpoint::from).collect();
    print(&printer.list(&items)?)?;
    Ok(Exit::Done)
}

/// Asks, and waits until a newer checkpoint is there, the job is over, or the time is.
pub(super) async fn now(context: &Context, args: &CheckpointNowArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let wait_ms = context.length("--timeout", &args.timeout)?;
    let id = client.resolve(KIND, &args.job).await?;
    let before = look(context, &client, &id).await?;
    let request = AskCheckpointRequest { meta: client.request_meta()?, id: id.clone() };
    let asked = Job::from(client.call(request, async |api, r| api.ask_checkpoint(r).await).await?);
    let usual = asked.checkpoint_gap_seconds.map(|seconds| length(seconds * 1_000));
    let usual = usual.map(|usual| format!(" It usually saves every {usual}.")).unwrap_or_default();
    say(&format!(
        "asked {id} for a checkpoint.{usual} Ctrl-C stops waiting; the job keeps running."
    ));
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let newest = |job: &Job| job.last_checkpoint.as_ref().map(|seen| (seen.attempt, seen.seq));
    loop {
        let job = look(context, &client, &id).await?;
        if let Some(seen) = job.last_checkpoint.as_ref().filter(|_| newest(&job) != newest(&before))
        {
            print(&format!(
                "checkpoint {} saved ({}): {}\n",
                seen.number,
                content_shown(seen),
                seen.path
            ))?;
            return Ok(Exit::Done);
        }
        if job.is_final() {
            let problem = format!("{id} ended before it saved a checkpoint: it is {}", job.state);
            return Err(Failure::new(Exit::Conflict, problem));
        }
        if Instant::now() >= deadline {
            let waited = length(wait_ms);
            let notes: String =
                job.checkpoint_notes.iter().map(|note| format!("; {note}")).collect();
            let problem = format!("no new checkpoint of {id} within {waited}{notes}");
            let failure = Failure::new(Exit::Timeout, problem);
            let hint = "the program decides whether it listens, to the file .fleet-checkpoint-requested in its checkpoint \
                        directory or to --checkpoint-signal: see docs/job-environment.md";
            return Err(failure.hint(hint));
        }
        sleep(WATCH_PERIOD.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

async fn look(context: &Context, client: &Client, id: &str) -> Result<Job, Failure> {
    let request = ListJobsRequest { ids: vec![id.to_owned()], all: true, ..Default::default() };
    let found = job::fetch(client, request).await?.into_iter().next();
    found.ok_or_else(|| {
        Failure::of_rejection(fleet_core::Rejection::not_found(KIND, id), &context.clock)
    })
}

pub(super) async fn restart(context: &Context, args: &JobRestartArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let id = client.resolve(KIND, &args.id).await?;
    let from = match (&args.from, args.from_scratch) {
        (_, true) => SCRATCH.to_owned(),
        (Some(from), false) => from.clone(),
        (None, false) => String::new(),
    };
    let request = RestartJobRequest {
        meta: client.request_meta()?,
        id,
        from,
        time_limit_ms: context.length_of("--time", args.time.as_ref())?.unwrap_or(0),
    };
    let job = Job::from(client.call(request, async |api, r| api.restart_job(r).await).await?);
    say(&format!("{} queued again. Follow it: fleet logs -f {}", job.id, job.id));
    print(&printer.changed(std::slice::from_ref(&job), |job| &job.id)?)?;
    Ok(Exit::Done)
}
