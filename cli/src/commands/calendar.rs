//! `calendar`: who has which GPU when.

use fleet_proto::json::calendar;
use fleet_proto::json::values::Time;
use fleet_proto::v1::{ListGpusRequest, ListReservationsRequest};

use super::{Context, gpu, node, nodes_without_gpus, reservation, watch};
use crate::args::{CalendarShowArgs, Format};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::calendar::{View, drawn};
use crate::times::Edge;

const DAY_MS: u64 = 86_400_000;
/// Nobody can reserve further ahead.
const LENGTH_DAYS_MAX: u64 = 366;

pub(super) async fn run(context: &Context, args: &CalendarShowArgs) -> Result<Exit, Failure> {
    let length_ms = context.length_of("--time", args.time.as_ref())?.unwrap_or(DAY_MS);
    if length_ms > LENGTH_DAYS_MAX * DAY_MS {
        return Err(Failure::usage("--time", format!("at most {LENGTH_DAYS_MAX} days")));
    }
    let from_ms = match &args.from {
        // 0 is now; a view that is drawn again and again moves along.
        Some(from) => context.when("--from", from, Edge::Start)?.unix_ms(),
        None => 0,
    };
    if from_ms > 0 && from_ms.saturating_add(length_ms) <= context.clock.now_ms() {
        let failure = Failure::usage("--from", "all of that time is in the past");
        return Err(failure.hint("`fleet gpu history GPU` says who had a GPU"));
    }
    let (client, printer) =
        (context.client()?.stale(args.stale.stale), context.printer(&args.output)?);
    let of_gpus = ListGpusRequest {
        node: args.node.clone().unwrap_or_default(),
        model: args.model.clone().unwrap_or_default(),
        ..ListGpusRequest::default()
    };
    watch::show(&client, args.watch, async || {
        let gpus = gpu::fetch(&client, of_gpus.clone()).await?;
        let of_all = ListReservationsRequest::default();
        let reservations = reservation::fetch(&client, of_all).await?;
        let clock = context.clock.read_again();
        let mut calendar = calendar::of(&gpus, &reservations, clock.now_ms());
        let from_ms = if from_ms == 0 { clock.now_ms() } else { from_ms };
        if printer.format != Format::Table {
            let within = |at: Option<Time>, other: u64| at.map_or(other, |at| at.0);
            for gpu in &mut calendar {
                gpu.taken.retain(|one| {
                    within(one.from, 0) < from_ms.saturating_add(length_ms)
                        && from_ms < within(one.until, u64::MAX)
                });
            }
            return printer.list(&calendar);
        }
        if calendar.is_empty() {
            node::must_exist(&client, args.node.as_ref(), &context.clock).await?;
            nodes_without_gpus::below_nothing(&client, args.node.as_ref()).await;
            return Ok("no such GPU; `fleet gpu list` shows what there is\n".to_owned());
        }
        let view = View { from_ms, length_ms, columns: printer.columns() };
        Ok(drawn(&calendar, &view, &clock))
    })
    .await
}
