//! `reservation limits`: how much people may reserve, by Unix group.

use fleet_proto::json::limits::ReservationLimits;
use fleet_proto::v1::{
    ListReservationLimitsRequest, ReservationLimits as Limits, SetReservationLimitsRequest,
};

use super::Context;
use crate::args::ReservationLimitsArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::limits::NO_LIMIT;
use crate::output::text::{print, say};

pub(super) async fn run(context: &Context, args: &ReservationLimitsArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let Some(group) = &args.group else {
        let all: Vec<_> = fetch(&client).await?.into_iter().map(ReservationLimits::from).collect();
        print(&printer.list(&all)?)?;
        return Ok(Exit::Done);
    };
    let limits = changed(context, args, group, &client).await?;
    let (meta, limits, remove) = (client.request_meta()?, Some(limits), args.remove);
    let request = SetReservationLimitsRequest { meta, limits, remove };
    let answer = client.call(request, async |api, r| api.set_reservation_limits(r).await).await?;
    if args.remove {
        say(&format!("{group} has no limits any more"));
        return Ok(Exit::Done);
    }
    print(&printer.one(&ReservationLimits::from(answer))?)?;
    Ok(Exit::Done)
}

async fn fetch(client: &Client) -> Result<Vec<Limits>, Failure> {
    let request = ListReservationLimitsRequest {};
    let listed = client.call(request, async |api, r| api.list_reservation_limits(r).await).await?;
    Ok(listed.items)
}

/// Those of the group, with what was typed in their place.
async fn changed(
    context: &Context,
    args: &ReservationLimitsArgs,
    group: &str,
    client: &Client,
) -> Result<Limits, Failure> {
    let before = fetch(client).await?.into_iter().find(|limits| limits.group == group);
    let mut limits = before.unwrap_or(Limits { group: group.to_owned(), ..Limits::default() });
    match args.gpus.as_deref() {
        None => {}
        Some(NO_LIMIT) => limits.gpus = None,
        Some(text) => {
            let problem = |_| Failure::usage("--gpus", "write a number of GPUs, or none");
            limits.gpus = Some(text.parse().map_err(problem)?);
        }
    }
    let length = |flag: &str, text: &str| match text {
        NO_LIMIT => Ok(None),
        "0" => Ok(Some(0)),
        text => context.length(flag, text).map(Some),
    };
    if let Some(text) = &args.time {
        limits.length_ms = length("--time", text)?;
    }
    if let Some(text) = &args.ahead {
        limits.ahead_ms = length("--ahead", text)?;
    }
    Ok(limits)
}
