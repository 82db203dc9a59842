//! `controller status|thaw-evictions|reset-clock`.

use fleet_proto::json::controller::ControllerStatus;
use fleet_proto::json::status::Status;
use fleet_proto::v1::{ResetClockRequest, ThawEvictionsRequest};

use super::{Context, status::fetch, watch};
use crate::args::{ControllerStatusArgs, Format, OutputArgs, ResetClockArgs, ThawArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::status::summary;
use crate::output::text::{print, say};
use crate::times::Edge;

/// Every controller is asked, and each answers for itself.
pub(super) async fn status(
    context: &Context,
    args: &ControllerStatusArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    watch::show(&client, args.watch, async || {
        let (status, items) = (fetch(&client).await?, super::members::fetch(&client).await?);
        Ok(match printer.format {
            Format::Table | Format::Wide => {
                format!("{}\n{}", printer.one(&status)?, printer.list(&items)?)
            }
            Format::Json => printer.one(&ControllerStatus { status, items })?,
            Format::Jsonl | Format::Csv => printer.list(&items)?,
        })
    })
    .await
}

pub(super) async fn thaw(context: &Context, args: &ThawArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    if args.consent.is_asked_for() {
        say("Evictions were frozen because many things failed at once. If that was a false alarm,");
        say("thawing lets fleet move jobs that could have stayed.");
    }
    args.consent.ask("Allow evictions again?")?;
    let request = ThawEvictionsRequest { meta: client.request_meta()? };
    let after = client.call(request, async |api, r| api.thaw_evictions(r).await).await?;
    say("evictions are allowed again");
    let printer = context.printer(&OutputArgs::default())?;
    print(&summary(&Status::from(after), &printer))?;
    Ok(Exit::Done)
}

pub(super) async fn reset_clock(context: &Context, args: &ResetClockArgs) -> Result<Exit, Failure> {
    let to_unix_ms = match &args.to {
        Some(text) => context.when("--to", text, Edge::Start)?.unix_ms(),
        None => 0,
    };
    let to_unix_ms = if to_unix_ms == 0 { context.clock.now_ms() } else { to_unix_ms };
    let client = context.client()?;
    if args.consent.is_asked_for() {
        let now = fetch(&client).await?.now.map(|now| context.clock.second(now.0));
        say(&format!("The fleet's time is {}.", now.unwrap_or_else(|| "not known".to_owned())));
        say("Reservations start and end by it.");
    }
    args.consent.ask(&format!("Set the fleet's time to {}?", context.clock.second(to_unix_ms)))?;
    let request = ResetClockRequest { meta: client.request_meta()?, to_unix_ms };
    let after = client.call(request, async |api, r| api.reset_clock(r).await).await?;
    let now = Status::from(after).now.map(|now| context.clock.second(now.0));
    say(&format!("the fleet's time is {}", now.unwrap_or_default()));
    Ok(Exit::Done)
}
