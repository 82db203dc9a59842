//! `ps`, `job list|show|set|rm|defaults`, `cancel`.

use fleet_core::job::JobState;
use fleet_proto::json::job::{Job, JobDefaults};
use fleet_proto::v1::{
    CancelJobRequest, GetJobDefaultsRequest, ListJobsRequest, RemoveJobRequest, RequestMeta,
    SetJobDefaultsRequest, SetJobRequest,
};

use super::run::stop_after_ms;
use super::{Context, node, owner_filter, signals, watch};
use crate::args::{
    CancelArgs, JobDefaultsArgs, JobListArgs, JobRmArgs, JobSetArgs, JobShowArgs, PsArgs,
};
use crate::at_once;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};
use crate::times::length;

/// The kind of object for `Resolve`.
pub(super) const KIND: &str = "job";

/// `job list` for one's own.
pub(super) async fn ps(context: &Context, args: &PsArgs) -> Result<Exit, Failure> {
    let mut list = args.list.clone();
    list.owner.me = list.owner.user.is_none() && !args.everybody;
    self::list(context, &list).await
}

pub(super) async fn list(context: &Context, args: &JobListArgs) -> Result<Exit, Failure> {
    let (client, printer) =
        (context.client()?.stale(args.stale.stale), context.printer(&args.output)?);
    let request = ListJobsRequest {
        ids: Vec::new(),
        owner: owner_filter(&client, &args.owner).await?,
        all: args.all,
        with_spec: false,
        node: args.node.clone().unwrap_or_default(),
    };
    watch::show(&client, args.watch, async || {
        let jobs = fetch(&client, request.clone()).await?;
        if jobs.is_empty() {
            node::must_exist(&client, args.node.as_ref(), &context.clock).await?;
        }
        printer.list(&jobs)
    })
    .await
}

pub(super) async fn fetch(client: &Client, request: ListJobsRequest) -> Result<Vec<Job>, Failure> {
    let listed = client.call(request, async |api, r| api.list_jobs(r).await).await?;
    Ok(listed.items.into_iter().map(Job::from).collect())
}

/// The fleet's defaults: as they are, or set and as they are then.
pub(super) async fn defaults(context: &Context, args: &JobDefaultsArgs) -> Result<Exit, Failure> {
    let stop_after_ms = stop_after_ms(context, args.stop_after.as_deref())?;
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (without_gpus_percent, places_kept) = (args.without_gpus, args.places_kept);
    let only_asks =
        stop_after_ms.is_none() && without_gpus_percent.is_none() && places_kept.is_none();
    let answer = if only_asks {
        let request = GetJobDefaultsRequest {};
        client.call(request, async |api, r| api.get_job_defaults(r).await).await?
    } else {
        let meta = client.request_meta()?;
        let request =
            SetJobDefaultsRequest { meta, stop_after_ms, without_gpus_percent, places_kept };
        client.call(request, async |api, r| api.set_job_defaults(r).await).await?
    };
    print(&printer.one(&JobDefaults::from(answer))?)?;
    Ok(Exit::Done)
}

pub(super) async fn show(context: &Context, args: &JobShowArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    print(&printer.one(&one(&client, &args.id).await?)?)?;
    Ok(Exit::Done)
}

/// The job that a typed text means, with what it asks for.
pub(super) async fn one(client: &Client, text: &str) -> Result<Job, Failure> {
    let id = client.resolve(KIND, text).await?;
    let request =
        ListJobsRequest { ids: vec![id.clone()], all: true, with_spec: true, ..Default::default() };
    let found = fetch(client, request).await?.into_iter().next();
    found.ok_or_else(|| client.not_found(KIND, &id))
}

/// A few at once, answered in the order that was typed; after the first that fails, or Ctrl-C, no more are asked for.
pub(super) async fn cancel(context: &Context, args: &CancelArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (ids, others) = match args.ids.is_empty() {
        false => {
            client.resolve_owned(KIND, &args.ids).await.map_err(|failure| match failure.exit {
                Exit::Usage => failure
                    .hint("type more characters of the id; `--name NAME` takes all of your own"),
                _ => failure,
            })?
        }
        true => (own(&client, args).await?, Vec::new()),
    };
    if !others.is_empty() {
        args.consent.ask(&format!("Cancel {}?", others.join(", ")))?;
    }
    if ids.is_empty() {
        say("there is nothing to cancel");
    }
    let one = |id: String| {
        // Numbered in the order that was typed, so that the same command again repeats each.
        let (client, meta) = (&client, client.request_meta());
        async move {
            match cancel_with(client, meta?, id).await {
                // It ended by itself since it was listed.
                Err(failure) if args.ids.is_empty() && failure.has_ended_already() => Ok(None),
                cancelled => cancelled.map(Some),
            }
        }
    };
    let mut cancelled = Vec::new();
    let take = |job: Option<Job>| {
        if let Some(job) = job {
            say(&format!("{}: {}", job.id, job.state));
            cancelled.push(job);
        }
    };
    let outcome = at_once::each(&ids, one, take, signals::interrupts(ids.len())?).await;
    let all = outcome.account("cancelled", ids.len());
    if all.is_ok() || !cancelled.is_empty() {
        print(&printer.changed(&cancelled, |job| &job.id)?)?;
    }
    all?;
    Ok(Exit::Done)
}

/// The caller's open jobs that are meant.
async fn own(client: &Client, args: &CancelArgs) -> Result<Vec<String>, Failure> {
    let owner = super::caller(client).await?;
    let jobs = fetch(client, ListJobsRequest { owner, ..Default::default() }).await?;
    let meant = jobs.into_iter().filter(|job| {
        let named = args.name.as_ref().is_none_or(|name| job.name == *name);
        !job.is_final() && named && (!args.queued || job.state.is(JobState::Queued))
    });
    Ok(meant.map(|job| job.id).collect())
}

pub(super) async fn set(context: &Context, args: &JobSetArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let limit = args.time.as_deref().map(|text| context.length("--time", text)).transpose()?;
    let time_limit_ms = limit.unwrap_or_default();
    let id = client.resolve(KIND, &args.id).await?;
    let class = args.class.clone().unwrap_or_default();
    let request = SetJobRequest { meta: client.request_meta()?, id, time_limit_ms, class };
    let job = Job::from(client.call(request, async |api, r| api.set_job(r).await).await?);
    let limit = length(time_limit_ms);
    say(&match job.time_limit_at {
        _ if time_limit_ms == 0 => format!("{} is of class {} now", job.id, job.class),
        Some(at) => {
            let until = context.clock.day_and_minute(at.0);
            format!("{}: its time limit is {limit} now; it ends by {until}", job.id)
        }
        None => format!("{}: its time limit is {limit} now, counted from its start", job.id),
    });
    print(&printer.changed(&[job], |job| &job.id)?)?;
    Ok(Exit::Done)
}

pub(super) async fn cancel_one(client: &Client, id: String) -> Result<Job, Failure> {
    cancel_with(client, client.request_meta()?, id).await
}

async fn cancel_with(
    client: &Client,
    meta: Option<RequestMeta>,
    id: String,
) -> Result<Job, Failure> {
    let request = CancelJobRequest { meta, id };
    Ok(Job::from(client.call(request, async |api, r| api.cancel_job(r).await).await?))
}

/// Each in turn; the first that fails ends it.
pub(super) async fn remove(context: &Context, args: &JobRmArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let mut ids = Vec::new();
    for text in &args.ids {
        ids.push(client.resolve(KIND, text).await?);
    }
    if args.consent.is_asked_for() {
        say("A removed job cannot be restarted. Its checkpoints stay.");
    }
    args.consent.ask(&format!(
        "Remove {}, and the files that fleet wrote beside the checkpoints?",
        ids.join(", ")
    ))?;
    for id in ids {
        let request = RemoveJobRequest { meta: client.request_meta()?, id: id.clone() };
        let removed = client.call(request, async |api, r| api.remove_job(r).await).await?;
        match removed.waits_for.as_str() {
            "" => say(&format!("{id}: removed")),
            node => say(&format!("{id}: {node} removes fleet's files first, then the job goes")),
        }
    }
    Ok(Exit::Done)
}
