//! `job hold` and `job release`.
//!
//! Each job is asked for on its own: one that is refused keeps no other from being held or released.

use fleet_proto::json::job::Job;
use fleet_proto::v1::{HoldJobRequest, HoldJobResponse, RequestMeta};

use super::job::KIND;
use super::{Context, signals};
use crate::args::{JobHoldArgs, JobReleaseArgs, OutputArgs};
use crate::at_once;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

pub(super) async fn hold(context: &Context, args: &JobHoldArgs) -> Result<Exit, Failure> {
    set(context, &args.ids, &args.output, false).await
}

pub(super) async fn release(context: &Context, args: &JobReleaseArgs) -> Result<Exit, Failure> {
    set(context, &args.ids, &args.output, true).await
}

async fn set(
    context: &Context,
    typed: &[String],
    output: &OutputArgs,
    release: bool,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(output)?);
    let one = |text: String| {
        // Numbered in the order that was typed, so that the same command again repeats each.
        let (client, meta) = (&client, client.request_meta());
        async move {
            match ask(client, meta?, &text, release).await {
                // The others are asked for all the same.
                Err(refused) if refused.is_about_one_thing() => Ok(Err(refused)),
                answer => answer.map(Ok),
            }
        }
    };
    let (mut changed, mut refused) = (Vec::new(), Vec::new());
    let take = |answer: Result<HoldJobResponse, Failure>| match answer {
        Err(failure) => refused.push(failure),
        Ok(HoldJobResponse { job, unchanged }) => {
            let Some(job) = job.map(Job::from) else { return };
            say(&said(&job, unchanged, release));
            changed.push(job);
        }
    };
    let outcome = at_once::each(typed, one, take, signals::interrupts(typed.len())?).await;
    let word = if release { "released" } else { "held" };
    let all = outcome.account(word, typed.len());
    if (all.is_ok() && refused.is_empty()) || !changed.is_empty() {
        print(&printer.changed(&changed, |job| &job.id)?)?;
    }
    all?;
    let total = typed.len();
    let Some(mut failure) = first_of(refused) else { return Ok(Exit::Done) };
    if total > 1 {
        failure.details.push(format!("{word} {} of {total}", changed.len()));
    }
    Err(failure)
}

async fn ask(
    client: &Client,
    meta: Option<RequestMeta>,
    text: &str,
    release: bool,
) -> Result<HoldJobResponse, Failure> {
    let id = client.resolve(KIND, text).await?;
    let request = HoldJobRequest { meta, id, release };
    client.call(request, async |api, r| api.hold_job(r).await).await
}

fn said(job: &Job, unchanged: bool, release: bool) -> String {
    let id = &job.id;
    match (&job.hold, unchanged, release) {
        (Some(hold), true, false) => format!("{id}: {} holds it already; nothing changed", hold.by),
        (_, true, _) => format!("{id}: not held; nothing changed"),
        (_, false, true) => format!("{id}: released"),
        (_, false, false) => format!("{id}: held"),
    }
}

/// The first refusal, with a line for each of the others.
fn first_of(refused: Vec<Failure>) -> Option<Failure> {
    let mut refused = refused.into_iter();
    let mut first = refused.next()?;
    first.details.extend(refused.map(|other| other.message));
    Some(first)
}
