//! `reservation set` of a series: `SERIES` for all dates that have not started, `RES --following` for one and the later ones.
//!
//! The times are worked out here, as they are when a series is made. `--from` is the new start of the first of these dates,
//! and the others move as much by the wall clock. The controllers change all of them or none.

use fleet_core::Rejection;
use fleet_core::id::SeriesId;
use fleet_core::rejection::DateProblem;
use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{
    EditReservationRequest, EditSeriesRequest, EditSeriesResponse, GpuWish, ListReservationsRequest,
};
use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::{KIND, dates_of, problem};
use crate::args::ReservationSetArgs;
use crate::client::Client;
use crate::commands::reservation::{self, fetch_one};
use crate::commands::reservation_set::{Times, counted_as, shared_then, shown, wished};
use crate::commands::reserve::say_who_leaves;
use crate::commands::{Context, nodes_without_gpus};
use crate::consent::NewUsers;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};
use crate::recurrence::instant;
use crate::times::Clock;

/// Between a rule and the words that say that it does not hold any more.
const CHANGED: &str = "; changed from ";

/// The dates that are meant, the first one first.
struct Meant {
    series: String,
    dates: Vec<Reservation>,
    /// Somebody else, who is to be asked about.
    owner: Option<String>,
}

pub(in crate::commands) async fn run(
    context: &Context,
    args: &ReservationSetArgs,
) -> Result<Exit, Failure> {
    let times = Times::read(context, args)?;
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let meant = meant(context, &client, args).await?;
    let count = dates_of(meant.dates.len());
    if let Some(owner) = meant.owner.as_ref().filter(|_| !args.dry_run) {
        args.consent.ask(&format!("Change {count} of {} of {owner}?", meant.series))?;
    }
    let wish = wished(&client, &args.wish).await?;
    let request = request(args, &times, &meant, wish.as_ref(), &context.clock)?;
    let answer = match send(&client, args, request).await {
        Ok(answer) => answer,
        Err(failure) => {
            return Err(nodes_without_gpus::beside(&client, wish.as_ref(), failure).await);
        }
    };
    let items: Vec<Reservation> = answer.items.into_iter().map(Reservation::from).collect();
    for item in &items {
        say(&format!("{}: {}", item.id, shown(item, &context.clock)));
        let leave = if args.dry_run { "would leave" } else { "leaves" };
        say_who_leaves(item, leave, &context.clock);
    }
    let series = &meant.series;
    match args.dry_run {
        true => say(&format!("would change {count} of {series}; nothing was changed")),
        false => say(&format!("changed {count} of {series}")),
    }
    match printer.for_people() {
        true if args.dry_run => {}
        true => print(&printer.changed(&items, |r| &r.id)?)?,
        false => print(&printer.list(&items)?)?,
    }
    Ok(Exit::Done)
}

/// Refuses what names no series, and one of which nothing is left to change.
async fn meant(
    context: &Context,
    client: &Client,
    args: &ReservationSetArgs,
) -> Result<Meant, Failure> {
    let text = args.id.as_str();
    let (series, first, owner) = match text.starts_with(SeriesId::PREFIX) {
        true if args.following => {
            let problem = format!("{text} is a series; name the first reservation to change");
            return Err(Failure::usage("--following", problem));
        }
        true => {
            let (series, owner) = client.resolve_one(KIND, text).await?;
            (series, None, owner)
        }
        false => {
            let (id, owner) = client.resolve_one(reservation::KIND, text).await?;
            let first = fetch_one(context, client, &id).await?;
            let Some(series) = first.series.clone() else {
                let problem = format!("{id} is not of a series; leave --following out");
                return Err(Failure::usage("--following", problem));
            };
            if !first.state.is(ReservationShown::Scheduled) {
                let message = format!(
                    "{id} is {}: with --following name a date of {series} that has not started",
                    first.state
                );
                return Err(Failure::new(Exit::Conflict, message));
            }
            (series, Some(first), owner)
        }
    };
    let request = ListReservationsRequest { ids: Vec::new(), owner: String::new(), all: false };
    let mut dates = reservation::fetch(client, request).await?;
    let from_ms = first.as_ref().map_or(0, starts_ms);
    dates.retain(|r| {
        r.series.as_deref() == Some(&series)
            && r.state.is(ReservationShown::Scheduled)
            && starts_ms(r) >= from_ms
    });
    dates.sort_by_key(|r| (starts_ms(r), r.id.clone()));
    if dates.is_empty() {
        let message = format!("all dates of {series} have started, or are released");
        return Err(Failure::new(Exit::Conflict, message));
    }
    Ok(Meant { series, dates, owner })
}

/// When it starts, or will.
fn starts_ms(reservation: &Reservation) -> u64 {
    let next = reservation.next.as_ref().map_or(reservation.starts_at, |next| next.starts_at);
    next.map_or(0, |at| at.0)
}

fn request(
    args: &ReservationSetArgs,
    times: &Times,
    meant: &Meant,
    wish: Option<&GpuWish>,
    clock: &Clock,
) -> Result<EditSeriesRequest, Failure> {
    let Some(first) = meant.dates.first() else { return Ok(EditSeriesRequest::default()) };
    let moved = Moved::of(times, first, clock)?;
    let mut changes = Vec::new();
    for date in &meant.dates {
        let (starts_at_unix_ms, ends_at_unix_ms) = moved.window(starts_ms(date), clock)?;
        changes.push(EditReservationRequest {
            meta: None,
            id: date.id.clone(),
            starts_at_unix_ms,
            ends_at_unix_ms,
            gpus: wish.map(|wish| counted_as(wish.clone(), date)),
            note: args.note.clone(),
            with: shared_then(args, date),
            seen_revision: Some(date.revision),
            dry_run: false,
            new_users: false,
        });
    }
    let rule = moved.is_any().then(|| {
        let rule = first.series_rule.as_deref().unwrap_or_default();
        let rule = rule.split(CHANGED).next().unwrap_or_default();
        let begins = changes.first().map_or(0, |change| change.starts_at_unix_ms);
        let begins = if begins == 0 { starts_ms(first) } else { begins };
        format!("{rule}{CHANGED}{} on", clock.day_and_minute(begins))
    });
    Ok(EditSeriesRequest {
        meta: None,
        id: meant.series.clone(),
        changes,
        rule,
        dry_run: args.dry_run,
        new_users: args.consent.yes,
    })
}

/// How each date moves.
struct Moved {
    /// By the wall clock.
    by: Option<SignedDuration>,
    length_ms: Option<u64>,
}

impl Moved {
    /// As the first date does.
    fn of(times: &Times, first: &Reservation, clock: &Clock) -> Result<Self, Failure> {
        let (old, new) = (starts_ms(first), times.starts_at_ms);
        let by = match new {
            0 => None,
            new => Some(wall(new, clock).duration_since(wall(old, clock))),
        };
        let begins = if new == 0 { old } else { new };
        let length_ms = match times.end(first) {
            0 => None,
            end if end <= begins => {
                let problem = format!(
                    "{} is not after the start of the first date, {}",
                    clock.day_and_minute(end),
                    clock.day_and_minute(begins)
                );
                return Err(Failure::usage("--until", problem));
            }
            end => Some(end - begins),
        };
        Ok(Self { by, length_ms })
    }

    fn is_any(&self) -> bool {
        self.by.is_some() || self.length_ms.is_some()
    }

    /// The new start and end of a date; 0 stays as it is, or has the length that it has.
    fn window(&self, starts_ms: u64, clock: &Clock) -> Result<(u64, u64), Failure> {
        let new = match self.by {
            None => 0,
            Some(by) => later(starts_ms, by, clock).ok_or_else(|| {
                Failure::usage("--from", "moves a date beyond the years that there are")
            })?,
        };
        let begins = if new == 0 { starts_ms } else { new };
        Ok((new, self.length_ms.map_or(0, |length| begins.saturating_add(length))))
    }
}

fn wall(unix_ms: u64, clock: &Clock) -> DateTime {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.unwrap_or(jiff::Timestamp::MAX).to_zoned_datetime(clock.zone().clone()).datetime()
}

fn later(unix_ms: u64, by: SignedDuration, clock: &Clock) -> Option<u64> {
    let at = wall(unix_ms, clock).checked_add(by).ok()?;
    u64::try_from(instant(at, clock.zone())?.as_millisecond()).ok()
}

/// Asks first about users that nobody has heard of. A refusal names all dates that cannot be changed.
async fn send(
    client: &Client,
    args: &ReservationSetArgs,
    mut request: EditSeriesRequest,
) -> Result<EditSeriesResponse, Failure> {
    let of = request.changes.len();
    loop {
        let failure = match call(client, request.clone()).await {
            Ok(answer) if answer.refused.is_empty() => return Ok(answer),
            Ok(answer) => {
                let problems = answer.refused.iter().map(problem).collect();
                return Err(refused(problems, of, args, &client.clock));
            }
            Err(failure) => failure,
        };
        if failure.names_unknown_users() && !request.new_users {
            NewUsers { yes: args.consent.yes }.ask(failure)?;
            request.new_users = true;
            client.ask_anew()?;
            continue;
        }
        let Some(Rejection::DatesRefused { problems, more, .. }) = failure.rejection.as_deref()
        else {
            return Err(failure);
        };
        let mut problems = problems.clone();
        if *more > 0 {
            // A refusal has room for some of them, the answer of a dry run for all.
            let trial = EditSeriesRequest { dry_run: true, ..request };
            problems = call(client, trial).await?.refused.iter().map(problem).collect();
        }
        return Err(refused(problems, of, args, &client.clock));
    }
}

async fn call(client: &Client, request: EditSeriesRequest) -> Result<EditSeriesResponse, Failure> {
    let meta = if request.dry_run { client.meta_of_its_own()? } else { client.request_meta()? };
    let request = EditSeriesRequest { meta, ..request };
    client.call(request, async |api, r| api.edit_series(r).await).await
}

fn refused(
    problems: Vec<DateProblem>,
    of: usize,
    args: &ReservationSetArgs,
    clock: &Clock,
) -> Failure {
    let (bad, are) = (problems.len(), if problems.len() == 1 { "is" } else { "are" });
    let message = format!("nothing was changed: {bad} of {} {are} not available", dates_of(of));
    let of = u32::try_from(of).unwrap_or(u32::MAX);
    let failure = Failure::of_rejection(Rejection::DatesRefused { problems, of, more: 0 }, clock);
    let hint = format!(
        "a date is changed alone by its own id; `fleet reservation show {}` lists them",
        args.id
    );
    Failure { message, ..failure }.hint(hint)
}

#[cfg(test)]
mod tests;
