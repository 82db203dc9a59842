//! `gpu history`: who had a GPU, and what it did in each minute of a day.
//!
//! The controllers know who had it. Its node keeps the minutes: where it cannot be asked, who had the GPU is shown all the
//! same.

use fleet_proto::json::gpu_minute::GpuMinute;
use fleet_proto::json::gpu_stay::GpuStay;
use fleet_proto::v1::{GetGpuHistoryRequest, GpuMinutes, ListGpuMinutesRequest};

use super::{Context, gpu};
use crate::args::GpuHistoryArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::gpu_picture::{self, Day};
use crate::output::text::{is_utf8, print, say};
use crate::times::parse_past_day;

/// How far it looks back where nobody says.
const BACK_MS: u64 = 7 * 86_400_000;

pub(super) async fn run(context: &Context, args: &GpuHistoryArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (from_unix_ms, until_unix_ms) = span(context, args)?;
    let uuid = client.resolve(gpu::KIND, &args.gpu).await?;
    let of_day = ListGpuMinutesRequest { uuid: uuid.clone(), from_unix_ms, until_unix_ms };
    if args.minutes {
        let found = minutes(&client, of_day).await?;
        let lines: Vec<GpuMinute> = found.items.iter().cloned().map(GpuMinute::from).collect();
        print(&printer.list(&lines)?)?;
        say_what_is_missing(context, &found);
        if printer.for_people() && lines.is_empty() {
            say(&format!("nobody had {} on that day, as far as is known", args.gpu));
        }
        return Ok(Exit::Done);
    }
    let request = GetGpuHistoryRequest { uuid, from_unix_ms, until_unix_ms };
    let history = client.call(request, async |api, r| api.get_gpu_history(r).await).await?;
    let stays: Vec<GpuStay> = history.items.into_iter().map(GpuStay::from).collect();
    print(&printer.list(&stays)?)?;
    // Programs get it too: on standard error.
    if history.pruned_until_unix_ms > 0 {
        let at = context.clock.day_and_minute(history.pruned_until_unix_ms);
        say(&format!(
            "audit records up to {at} were pruned: who had {} before is in an admin's exports only",
            args.gpu
        ));
    }
    if !printer.for_people() {
        return Ok(Exit::Done);
    }
    if stays.is_empty() && history.complete_from_unix_ms == 0 && history.pruned_until_unix_ms == 0 {
        let at = |unix_ms| context.clock.day_and_minute(unix_ms);
        let until = if until_unix_ms == 0 { "now".to_owned() } else { at(until_unix_ms) };
        say(&format!("nobody had {} from {} until {until}", args.gpu, at(from_unix_ms)));
    }
    if history.complete_from_unix_ms > 0 {
        let at = context.clock.day_and_minute(history.complete_from_unix_ms);
        say(&format!(
            "what was before {at} is not shown: ask for a shorter time, or see `fleet audit export`"
        ));
    }
    if args.on.is_some() {
        match minutes(&client, of_day).await {
            Ok(found) => draw(context, &found, from_unix_ms, until_unix_ms)?,
            Err(failure) => say(&format!("minute by minute: {}", failure.message)),
        }
    }
    Ok(Exit::Done)
}

async fn minutes(client: &Client, request: ListGpuMinutesRequest) -> Result<GpuMinutes, Failure> {
    client.call(request, async |api, r| api.list_gpu_minutes(r).await).await
}

fn draw(context: &Context, found: &GpuMinutes, from_ms: u64, until_ms: u64) -> Result<(), Failure> {
    let minutes: Vec<GpuMinute> = found.items.iter().cloned().map(GpuMinute::from).collect();
    let day = Day {
        from_ms,
        until_ms,
        known_from_ms: found.complete_from_unix_ms,
        cut_ms: found.cut_at_unix_ms,
    };
    let clock = context.clock.read_again();
    print(&format!("\n{}", gpu_picture::drawn(&minutes, day, &clock, is_utf8())))?;
    say_what_is_missing(context, found);
    Ok(())
}

fn say_what_is_missing(context: &Context, found: &GpuMinutes) {
    let node = &found.node;
    for day in &found.incomplete_days {
        say(&format!("{node} had no room for all minutes of {day} (UTC): some are unknown"));
    }
    if found.cut_at_unix_ms > 0 {
        let at = context.clock.day_and_minute(found.cut_at_unix_ms);
        say(&format!("{node} has more than one answer holds: what is from {at} on is missing"));
    }
}

fn span(context: &Context, args: &GpuHistoryArgs) -> Result<(u64, u64), Failure> {
    if let Some(day) = &args.on {
        let clock = &context.clock;
        let (from, until) = parse_past_day(day, clock.now, clock.zone())
            .map_err(|error| Failure::usage("--on", error))?;
        let ms = |at: jiff::Timestamp| u64::try_from(at.as_millisecond()).unwrap_or(0);
        return Ok((ms(from), ms(until)));
    }
    let until = context.past("--until", args.until.as_ref())?;
    let from = match &args.from {
        Some(_) => context.past("--from", args.from.as_ref())?,
        None if until == 0 => context.clock.now_ms().saturating_sub(BACK_MS),
        None => until.saturating_sub(BACK_MS),
    };
    if until > 0 && until <= from {
        return Err(Failure::usage("--until", "must be later than --from"));
    }
    Ok((from, until))
}
