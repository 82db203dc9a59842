//! `status` and `top`.

use std::io::IsTerminal;
use std::time::Duration;

use fleet_proto::json::job::Job;
use fleet_proto::json::node_gpus::by_node;
use fleet_proto::json::status::Status;
use fleet_proto::v1::{GetStatusRequest, ListGpusRequest, ListJobsRequest};

use super::{Context, gpu, job, local, watch};
use crate::args::{Format, OutputArgs, StatusArgs, TopArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::Printer;
use crate::output::job_use::{Used, used};
use crate::output::process::{OnGpus, on_gpus};
use crate::output::status::summary;
use crate::output::text::{harmless, print, say};
use crate::times::Clock;

pub(super) async fn run(context: &Context, args: &StatusArgs) -> Result<Exit, Failure> {
    let printer = context.printer(&args.output)?;
    let client = context.client().map(|client| client.stale(args.stale.stale));
    let client = match client {
        Err(failure) if !nobody_decides(&failure) => return Err(failure),
        client => client,
    };
    watch::show(client.as_ref().ok(), args.watch, async || {
        let answer = match &client {
            Ok(client) => of_the_fleet(client, &printer).await,
            // Not even a certificate was available.
            Err(failure) => Err(failure.clone()),
        };
        match answer {
            Err(failure) if nobody_decides(&failure) => {
                of_this_node(context, &printer, failure, args.watch.watch).await
            }
            answer => answer,
        }
    })
    .await
}

/// A certificate that was refused is another matter: the next one may do.
fn nobody_decides(failure: &Failure) -> bool {
    failure.exit == Exit::Unreachable && !failure.certificate_refused
}

async fn of_the_fleet(client: &Client, printer: &Printer) -> Result<String, Failure> {
    let status = fetch(client).await?;
    if matches!(printer.format, Format::Json | Format::Jsonl) {
        return printer.one(&status);
    }
    let gpus = gpu::fetch(client, ListGpusRequest::default()).await?;
    let table = match printer.format {
        Format::Wide => printer.list(&gpus)?,
        _ => printer.list(&by_node(&gpus))?,
    };
    if !printer.for_people() {
        return Ok(table);
    }
    let mut text = summary(&status, printer);
    if !gpus.is_empty() {
        text.push('\n');
        text.push_str(&table);
    }
    Ok(text)
}

/// Where no controller answers: what the agent of this exact machine knows, and how old that is. On a screen that
/// is drawn again and again that stands above it.
async fn of_this_node(
    context: &Context,
    printer: &Printer,
    failure: Failure,
    on_screen: bool,
) -> Result<String, Failure> {
    let Some(status) = local::node_status(context).await else { return Err(failure) };
    let warning = format!("warning: {}", harmless(&failure.message));
    let source = format!("this is what {}'s own agent knows; {}", status.node, status.age());
    let text = printer.one(&status)?;
    if on_screen {
        return Ok(format!("{warning}\n{source}\n\n{text}"));
    }
    say(&warning);
    say(&source);
    Ok(text)
}

pub(super) async fn fetch(client: &Client) -> Result<Status, Failure> {
    let request = GetStatusRequest {};
    Ok(Status::from(client.call(request, async |api, r| api.get_status(r).await).await?))
}

/// How `top` orders jobs.
#[derive(Debug, Clone, Copy)]
enum JobOrder {
    /// As the controller lists them: running ones first, then the queue.
    Queue,
    Owner,
    /// The longest running first.
    Time,
    /// Those with the most GPUs first.
    Gpus,
}

const ORDERS: [(&str, JobOrder); 4] = [
    ("place", JobOrder::Queue),
    ("owner", JobOrder::Owner),
    ("time", JobOrder::Time),
    ("GPUs", JobOrder::Gpus),
];

/// Stable: equals stay in the order of the queue.
fn sort(jobs: &mut [Job], order: JobOrder) {
    match order {
        JobOrder::Queue => {}
        JobOrder::Owner => jobs.sort_by(|a, b| a.owner.cmp(&b.owner)),
        JobOrder::Time => jobs.sort_by_key(|job| job.started_at.map_or(u64::MAX, |at| at.0)),
        JobOrder::Gpus => jobs.sort_by_key(|job| std::cmp::Reverse(job.gpus.len())),
    }
}

/// The refreshing view; without a terminal one look.
pub(super) async fn top(context: &Context, args: &TopArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let output = OutputArgs::default();
    context.printer(&output)?;
    let look = async |order: usize| {
        let clock = Clock::of_this_machine();
        let printer = Printer::new(false, &output, clock.clone())?;
        let (status, gpus, mut jobs) = tokio::try_join!(
            fetch(&client),
            gpu::fetch(&client, ListGpusRequest::default()),
            job::fetch(&client, ListJobsRequest::default()),
        )?;
        sort(&mut jobs, ORDERS[order % ORDERS.len()].1);
        let mut text =
            format!("fleet top   {}\n{}", clock.second(clock.now_ms()), summary(&status, &printer));
        text.push_str(&format!("\n{}", printer.list(&by_node(&gpus))?));
        text.push_str(&format!("\n{}", printer.list(&jobs)?));
        let used = used(&jobs);
        if !used.is_empty() {
            text.push_str(&format!("\n{}", printer.table(&used, Used::columns())));
        }
        let processes = on_gpus(&gpus);
        if !processes.is_empty() {
            text.push_str(&format!("\n{}", printer.table(&processes, OnGpus::columns())));
        }
        Ok(text)
    };
    if std::io::stdout().is_terminal() {
        let orders = ORDERS.map(|(name, _)| name);
        return watch::again_and_again(Duration::from_secs(args.every), &orders, look).await;
    }
    print(&look(0).await?)?;
    Ok(Exit::Done)
}
