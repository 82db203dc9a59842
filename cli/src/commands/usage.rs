//! `usage`: who held how many GPUs for how long.

use fleet_core::usage::UsageBy;
use fleet_proto::json::usage::UsageRow;
use fleet_proto::v1::GetUsageRequest;

use super::Context;
use crate::args::UsageArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};
use crate::times::parse_month;

pub(super) async fn run(context: &Context, args: &UsageArgs) -> Result<Exit, Failure> {
    let printer = context.printer(&args.output)?;
    let by = by(args.by.as_deref())?;
    let (from_unix_ms, until_unix_ms) = span(context, args)?;
    let client = context.client()?;
    let owner = match (&args.user, args.mine) {
        (Some(user), _) => user.clone(),
        (None, true) => super::caller(&client).await?,
        (None, false) => String::new(),
    };
    let by = by.word().to_owned();
    let request = GetUsageRequest { from_unix_ms, until_unix_ms, by, owner };
    let usage = client.call(request, async |api, r| api.get_usage(r).await).await?;
    let at = |unix_ms| context.clock.day_and_minute(unix_ms);
    let (from, until, complete_from) =
        (usage.from_unix_ms, usage.until_unix_ms, usage.complete_from_unix_ms);
    let (left_out, measured_left_out) = (usage.rows_left_out, usage.measured_left_out);
    let rows = UsageRow::all(usage);
    print(&printer.list(&rows)?)?;
    // Programs get these too: on standard error.
    if complete_from > 0 {
        say(&format!(
            "complete from {} on: older audit records were pruned, an admin's exports have them",
            at(complete_from)
        ));
    }
    if measured_left_out {
        say(
            "USED and IDLE are not counted: too much was measured in this time, ask for a shorter one",
        );
    }
    if left_out > 0 {
        say(&format!("{left_out} rows with the least are only in the total"));
    }
    if printer.for_people() {
        say(&format!("GPU-hours held from {} until {}", at(from), at(until)));
    }
    Ok(Exit::Done)
}

fn by(text: Option<&str>) -> Result<UsageBy, Failure> {
    let Some(text) = text else { return Ok(UsageBy::User) };
    UsageBy::from_word(text).ok_or_else(|| {
        let all: Vec<&str> = UsageBy::ALL.iter().map(|by| by.word()).collect();
        Failure::usage("--by", format!("{text:?} is not one of {}", all.join(", ")))
    })
}

/// Milliseconds; 0 as the end: now.
fn span(context: &Context, args: &UsageArgs) -> Result<(u64, u64), Failure> {
    let clock = &context.clock;
    if args.from.is_none() {
        let month = parse_month(args.month.as_deref(), clock.now, clock.zone());
        let (from, until) = month.map_err(|error| Failure::usage("--month", error))?;
        let ms = |at: jiff::Timestamp| u64::try_from(at.as_millisecond()).unwrap_or(0);
        // The controllers say what now is.
        let until = if until > clock.now { 0 } else { ms(until) };
        return Ok((ms(from), until));
    }
    let from = context.past("--from", args.from.as_ref())?;
    let until = context.past("--until", args.until.as_ref())?;
    if from > clock.now_ms() {
        return Err(Failure::usage("--from", "must be in the past"));
    }
    if args.until.is_some() && until <= from {
        return Err(Failure::usage("--until", "must be later than --from"));
    }
    Ok((from, until))
}
