//! Series of reservations: `reserve --every`, `reserve -N`, `release --following` and `release SERIES`; `set.rs` changes them.
//!
//! Reservations on several nodes at once are a series of one date, with one reservation for each node. The dates of a
//! rule are worked out here, in the zone of the person who types it. The controllers get the dates and reserve all of
//! them or none; what they refuse is listed with each date.

mod rule;
pub(super) mod set;

use fleet_core::Rejection;
use fleet_core::id::SeriesId;
use fleet_core::rejection::DateProblem;
use fleet_core::time::{Timestamp, Window};
use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{
    CreateReservationRequest, CreateSeriesRequest, CreateSeriesResponse, GpuWish,
    ListReservationsRequest, RefusedDate, ReleaseSeriesRequest,
};

use super::reservation::{self, fetch_one};
use super::reserve::Window as Typed;
use super::{Context, gpu, nodes_without_gpus};
use crate::args::{AtEnd, ReleaseArgs, ReserveArgs};
use crate::client::Client;
use crate::errors::{Failure, date_line};
use crate::exit_code::Exit;
use crate::output::text::{harmless, print, say};
use crate::times::{Clock, When};

/// The kind of object for `Resolve`.
pub(super) const KIND: &str = "series";
/// Later reservations of a series that `reservation show` lists.
const NEXT_SHOWN: usize = 3;

/// Reserves all dates of a rule, or none; each on as many nodes at once as were asked for.
pub(super) async fn reserve(context: &Context, args: &ReserveArgs) -> Result<Exit, Failure> {
    let context = &rule::in_zone(context, &args.series)?;
    let nodes = args.nodes.unwrap_or(1);
    let at_once = (nodes > 1).then(|| format!("{nodes} nodes at once"));
    let typed = match args.series.every {
        Some(_) => None,
        None => Some(Typed::read(context, args)?),
    };
    let (dates, rule, times) = match &args.series.every {
        Some(every) => {
            let dates = rule::dates(context, args, every)?;
            let rule =
                at_once.iter().fold(dates.rule, |rule, at_once| format!("{rule}, {at_once}"));
            (dates.windows, rule, CreateReservationRequest::default())
        }
        None => {
            let times = typed.as_ref().map(times).unwrap_or_default();
            (Vec::new(), at_once.unwrap_or_default(), times)
        }
    };
    let at_next_slot = |failure: Failure| match &typed {
        Some(window) => super::reserve::with_command(failure, args, window, context),
        None => failure,
    };
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let wish = on_each(gpu::wish(&client, &args.wish).await?, nodes)?;
    let request = CreateSeriesRequest {
        meta: None,
        each: Some(CreateReservationRequest { gpus: Some(wish.clone()), ..each(args, times) }),
        dates,
        rule,
        skip_conflicts: args.series.skip_conflicts,
        dry_run: args.dry_run,
        new_users: args.new_users.yes,
        nodes,
    };
    let answer = match send(&client, args, request).await {
        Ok(answer) => answer,
        Err(failure) => {
            let failure = nodes_without_gpus::beside(&client, Some(&wish), failure).await;
            return Err(at_next_slot(failure));
        }
    };
    let clock = &context.clock;
    let problems: Vec<DateProblem> = answer.refused.iter().map(problem).collect();
    let of = problems.len() + answer.items.len() / nodes as usize;
    let items: Vec<Reservation> = answer.items.into_iter().map(Reservation::from).collect();
    for item in &items {
        say(&format!("{}: {}", start(item, clock), item.gpus_shown()));
    }
    if args.dry_run && !problems.is_empty() && (items.is_empty() || !args.series.skip_conflicts) {
        return Err(at_next_slot(refused(problems, of, args, clock)));
    }
    for problem in &problems {
        say(&format!("left out {}", date_line(problem, clock)));
    }
    if args.dry_run {
        say(&format!("would reserve {}; nothing was reserved", counted(items.len(), args)));
        // They have no ids that could be printed.
        if !printer.for_people() {
            print(&printer.list(&items)?)?;
        }
        return Ok(Exit::Done);
    }
    let series = answer.series;
    let count = counted(items.len(), args);
    say(&format!("reserved {count} as {series}; release them: fleet release {series}"));
    match printer.for_people() {
        true => print(&printer.changed(&items, |r| &r.id)?)?,
        // A list, also of one: a script should not depend on how many dates a rule has.
        false => print(&printer.list(&items)?)?,
    }
    Ok(Exit::Done)
}

/// The time of a series of one date.
fn times(window: &Typed) -> CreateReservationRequest {
    CreateReservationRequest {
        starts_at_unix_ms: window.from.unix_ms(),
        ends_at_unix_ms: window.until.map_or(0, When::unix_ms),
        length_ms: window.length_ms,
        ..CreateReservationRequest::default()
    }
}

/// What each of the nodes gives of all GPUs.
fn on_each(wish: GpuWish, nodes: u32) -> Result<GpuWish, Failure> {
    let (all, each) = (wish.count, wish.count / nodes);
    if each * nodes == all && each > 0 {
        return Ok(GpuWish { count: each, ..wish });
    }
    let problem = format!("{all} GPUs cannot be spread evenly over {nodes} nodes");
    let more = (each + 1).saturating_mul(nodes);
    Err(Failure::usage("-N", problem).hint(format!("-G {more} is {} on each", each + 1)))
}

/// What each reservation is like, but for its GPUs.
fn each(args: &ReserveArgs, times: CreateReservationRequest) -> CreateReservationRequest {
    CreateReservationRequest {
        note: args.note.clone().unwrap_or_default(),
        project: args.project.clone().unwrap_or_default(),
        owner: args.owner.clone().unwrap_or_default(),
        at_end: args.at_end.map(AtEnd::word).unwrap_or_default().to_owned(),
        with: args.with.clone(),
        ..times
    }
}

/// Asks first about users that nobody has heard of. A refusal names all dates that are not available.
async fn send(
    client: &Client,
    args: &ReserveArgs,
    mut request: CreateSeriesRequest,
) -> Result<CreateSeriesResponse, Failure> {
    loop {
        let failure = match call(client, request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        if failure.names_unknown_users() && !request.new_users {
            args.new_users.ask(failure)?;
            request.new_users = true;
            client.ask_anew()?;
            continue;
        }
        let Some(Rejection::DatesRefused { problems, of, more }) = failure.rejection.as_deref()
        else {
            return Err(failure);
        };
        let (of, mut problems) = (*of as usize, problems.clone());
        if *more > 0 {
            // A refusal has room for some of them, an answer for all.
            let trial = CreateSeriesRequest { dry_run: true, ..request };
            problems = call(client, trial).await?.refused.iter().map(problem).collect();
        }
        return Err(refused(problems, of, args, &client.clock));
    }
}

async fn call(
    client: &Client,
    request: CreateSeriesRequest,
) -> Result<CreateSeriesResponse, Failure> {
    let meta = if request.dry_run { client.meta_of_its_own()? } else { client.request_meta()? };
    let request = CreateSeriesRequest { meta, ..request };
    client.call(request, async |api, r| api.create_series(r).await).await
}

fn refused(
    mut problems: Vec<DateProblem>,
    of: usize,
    args: &ReserveArgs,
    clock: &Clock,
) -> Failure {
    if args.series.every.is_none()
        && let Some(only) = problems.pop()
    {
        return Failure::of_rejection(only.why, clock);
    }
    let rest = of.saturating_sub(problems.len());
    let of = u32::try_from(of).unwrap_or(u32::MAX);
    let failure = Failure::of_rejection(Rejection::DatesRefused { problems, of, more: 0 }, clock);
    if rest == 0 || args.series.skip_conflicts {
        return failure;
    }
    failure.hint(format!("--skip-conflicts reserves the other {}", dates_of(rest)))
}

/// A refused date of an answer.
fn problem(refused: &RefusedDate) -> DateProblem {
    let date = refused.date.unwrap_or_default();
    let at = |ms: u64| Timestamp(ms);
    let window =
        Window { starts_at: at(date.starts_at_unix_ms), ends_at: at(date.ends_at_unix_ms) };
    // A controller of another version may have a reason that this program does not know.
    let unknown = || Rejection::NotNow { why: refused.rejection_json.clone() };
    let why = serde_json::from_str(&refused.rejection_json).unwrap_or_else(|_| unknown());
    DateProblem { window, why }
}

fn start(reservation: &Reservation, clock: &Clock) -> String {
    clock.day_and_minute(reservation.starts_at.map_or(0, |at| at.0))
}

/// How many dates these reservations are, or nodes where they are all of one date.
fn counted(reservations: usize, args: &ReserveArgs) -> String {
    let nodes = args.nodes.map_or(1, |nodes| nodes as usize);
    match args.series.every {
        Some(_) if nodes > 1 => {
            format!("{} on {nodes} nodes each", dates_of(reservations / nodes))
        }
        Some(_) => dates_of(reservations),
        None => format!("GPUs of {reservations} nodes"),
    }
}

fn dates_of(count: usize) -> String {
    if count == 1 { "1 date".to_owned() } else { format!("{count} dates") }
}

/// Releases a reservation and the later ones of its series, or all of a series that has not started.
pub(super) async fn release(context: &Context, args: &ReleaseArgs) -> Result<Exit, Failure> {
    let [text] = args.ids.as_slice() else {
        let problem = "a series is released alone; name one reservation or one series";
        return Err(Failure::usage(if args.following { "--following" } else { "SERIES" }, problem));
    };
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (id, from, owner) = match text.starts_with(SeriesId::PREFIX) {
        true if args.following => {
            let problem = format!("{text} is a series; name the first reservation to release");
            return Err(Failure::usage("--following", problem));
        }
        true => {
            let (id, owner) = client.resolve_one(KIND, text).await?;
            (id, String::new(), owner)
        }
        false => {
            let (from, owner) = client.resolve_one(reservation::KIND, text).await?;
            let Some(id) = fetch_one(context, &client, &from).await?.series else {
                let problem = format!("{from} is not of a series; leave --following out");
                return Err(Failure::usage("--following", problem));
            };
            (id, from, owner)
        }
    };
    let request = |dry_run| -> Result<ReleaseSeriesRequest, Failure> {
        let meta = if dry_run { client.meta_of_its_own()? } else { client.request_meta()? };
        Ok(ReleaseSeriesRequest { meta, id: id.clone(), from: from.clone(), dry_run })
    };
    if args.consent.is_asked_for() {
        let call = client.call(request(true)?, async |api, r| api.release_series(r).await).await?;
        let found: Vec<Reservation> = call.items.into_iter().map(Reservation::from).collect();
        let of = owner.map_or(String::new(), |owner| format!(" of {owner}"));
        args.consent.ask(&format!("Release {}{of}?", what(&found, &id, &context.clock)))?;
    }
    let call = client.call(request(false)?, async |api, r| api.release_series(r).await).await?;
    let released: Vec<Reservation> = call.items.into_iter().map(Reservation::from).collect();
    say(&format!("released {}", what(&released, &id, &context.clock)));
    for one in &released {
        if let Some(note) = &one.unconfirmed {
            say(&format!("note: {}: {}", one.id, harmless(note)));
        }
    }
    match printer.for_people() {
        true => print(&printer.changed(&released, |r| &r.id)?)?,
        false => print(&printer.list(&released)?)?,
    }
    Ok(Exit::Done)
}

/// `5 reservations of ser-7h2kqd, the first Mon 2026-12-07 10:00 CET`.
fn what(items: &[Reservation], id: &str, clock: &Clock) -> String {
    let first = items.first().map(|first| start(first, clock)).unwrap_or_default();
    let begun = items.iter().any(|r| r.state.is(ReservationShown::Active));
    let used = if begun { ", which has started and may be in use" } else { "" };
    match items.len() {
        1 => format!("1 reservation of {id}, {first}{used}"),
        many => format!("{many} reservations of {id}, the first {first}{used}"),
    }
}

/// The other reservations of the same series: those at the same time on other nodes, and when the next ones start.
pub(super) async fn others(
    context: &Context,
    client: &Client,
    shown: &Reservation,
) -> Result<Vec<(&'static str, String)>, Failure> {
    // Of anybody: single dates may have been given to others.
    let request = ListReservationsRequest { ids: Vec::new(), owner: String::new(), all: false };
    let mut others = reservation::fetch(client, request).await?;
    let starts_at = |r: &Reservation| r.starts_at.map_or(0, |at| at.0);
    others.retain(|r| r.series == shown.series && r.id != shown.id);
    others.sort_by_key(|r| (starts_at(r), r.id.clone()));
    let at_once = others.iter().filter(|r| starts_at(r) == starts_at(shown));
    let at_once: Vec<String> =
        at_once.map(|r| format!("{} with {}", r.id, r.gpus_shown())).collect();
    let mut starts: Vec<u64> =
        others.iter().map(starts_at).filter(|at| *at > starts_at(shown)).collect();
    starts.dedup();
    let is_one_date = starts.is_empty() && !at_once.is_empty();
    let mut rows = Vec::new();
    if !at_once.is_empty() {
        rows.push(("At once", at_once.join(", ")));
    }
    if !is_one_date {
        rows.push(("Next", next(&starts, &context.clock)));
    }
    Ok(rows)
}

fn next(starts: &[u64], clock: &Clock) -> String {
    let mut shown: Vec<String> =
        starts.iter().take(NEXT_SHOWN).map(|at| clock.day_and_minute(*at)).collect();
    match starts.len() {
        0 => return "none: this is the last one".to_owned(),
        count if count > NEXT_SHOWN => shown.push(format!("and {} more", count - NEXT_SHOWN)),
        _ => {}
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests;
