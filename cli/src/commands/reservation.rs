//! `reservation list|show|export|rules`, `release`, `extend`.

use fleet_core::id::SeriesId;
use fleet_core::idle::{IDLE_AFTER_MIN, IDLE_NOTICE};
use fleet_core::time::Millis;
use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::{Reservation, ReservationRules};
use fleet_proto::v1::{
    ExtendReservationRequest, GetApprovalEffectRequest, GetReservationRulesRequest,
    ListReservationsRequest, ReleaseReservationRequest, SetReservationRulesRequest,
};

use super::reserve::say_who_leaves;
use super::{Context, node, owner_filter, series, signals, watch};
use crate::args::{
    AtEnd, ExtendArgs, ReleaseArgs, ReservationExportArgs, ReservationListArgs,
    ReservationRulesArgs, ReservationShowArgs,
};
use crate::at_once;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::{NEVER, window_shown};
use crate::output::text::{harmless, print, say};
use crate::spreadsheet;
use crate::times::{Edge, across_a_change, parse_day};

/// The kind of object for `Resolve`.
pub(super) const KIND: &str = "reservation";

pub(super) async fn list(context: &Context, args: &ReservationListArgs) -> Result<Exit, Failure> {
    let (client, printer) =
        (context.client()?.stale(args.stale.stale), context.printer(&args.output)?);
    let owner = owner_filter(&client, &args.owner).await?;
    let request = ListReservationsRequest { ids: Vec::new(), owner, all: args.all };
    let only = Only::of(context, &client, args).await?;
    watch::show(&client, args.watch, async || {
        let mut items = fetch(&client, request.clone()).await?;
        items.retain(|reservation| only.means(reservation));
        printer.list(&items)
    })
    .await
}

/// Which of them are shown.
struct Only {
    node: Option<String>,
    /// Its UUID.
    gpu: Option<String>,
    /// From its first instant to the first of the next one.
    day: Option<(u64, u64)>,
    series: Option<String>,
}

impl Only {
    async fn of(
        context: &Context,
        client: &Client,
        args: &ReservationListArgs,
    ) -> Result<Self, Failure> {
        node::must_exist(client, args.node.as_ref(), &context.clock).await?;
        let gpu = match &args.gpu {
            Some(gpu) => Some(client.resolve(super::gpu::KIND, gpu).await?),
            None => None,
        };
        let day = args.day.as_ref().map(|day| {
            parse_day(day, context.clock.now, context.clock.zone()).ok_or_else(|| {
                let problem =
                    format!("{day:?} is not a day; write one like today, friday or 2026-12-01");
                Failure::usage("--day", problem)
            })
        });
        let series = match &args.series {
            Some(series) => Some(client.resolve(series::KIND, series).await?),
            None => None,
        };
        // An empty node is that of all nodes.
        let node = args.node.clone().filter(|node| !node.is_empty());
        Ok(Self { node, gpu, day: day.transpose()?, series })
    }

    fn means(&self, reservation: &Reservation) -> bool {
        let begins = reservation.starts_at.map_or(0, |at| at.0);
        let ends = reservation.ends_at.map_or(u64::MAX, |at| at.0);
        self.node.as_ref().is_none_or(|node| reservation.node.as_ref() == Some(node))
            && self.gpu.as_ref().is_none_or(|uuid| reservation.gpus.iter().any(|g| g.uuid == *uuid))
            && self.series.as_ref().is_none_or(|series| reservation.series.as_ref() == Some(series))
            && self.day.is_none_or(|(from, until)| begins < until && from < ends)
    }
}

pub(super) async fn fetch(
    client: &Client,
    request: ListReservationsRequest,
) -> Result<Vec<Reservation>, Failure> {
    let listed = client.call(request, async |api, r| api.list_reservations(r).await).await?;
    Ok(listed.items.into_iter().map(Reservation::from).collect())
}

/// The one with that id.
pub(super) async fn fetch_one(
    context: &Context,
    client: &Client,
    id: &str,
) -> Result<Reservation, Failure> {
    let request =
        ListReservationsRequest { ids: vec![id.to_owned()], all: true, ..Default::default() };
    let found = fetch(client, request).await?.into_iter().next();
    found.ok_or_else(|| {
        Failure::of_rejection(fleet_core::Rejection::not_found(KIND, id), &context.clock)
    })
}

pub(super) async fn show(context: &Context, args: &ReservationShowArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let id = client.resolve(KIND, &args.id).await?;
    let mut reservation = fetch_one(context, &client, &id).await?;
    if reservation.state.is(ReservationShown::Requested) {
        let request = GetApprovalEffectRequest { id: id.clone() };
        let effect = client.call(request, async |api, r| api.get_approval_effect(r).await).await;
        // It may be decided by now.
        reservation = match effect {
            Ok(effect) => reservation.with_effect(effect),
            Err(failure) if failure.exit == Exit::Conflict => {
                fetch_one(context, &client, &id).await?
            }
            Err(failure) => return Err(failure),
        };
    }
    let more = match reservation.series.is_some() && printer.for_people() {
        true => series::others(context, &client, &reservation).await?,
        false => Vec::new(),
    };
    print(&printer.one_with(&reservation, more)?)?;
    Ok(Exit::Done)
}

/// The calendar as a sheet that `import` reads: what is over, or ends now, is none of it.
pub(super) async fn export(
    context: &Context,
    args: &ReservationExportArgs,
) -> Result<Exit, Failure> {
    let client = context.client()?;
    let owner = args.user.clone().unwrap_or_default();
    let request = ListReservationsRequest { ids: Vec::new(), owner, all: false };
    let items = fetch(&client, request).await?;
    let lasting = items.into_iter().filter(|r| {
        r.state.is(ReservationShown::Scheduled) || r.state.is(ReservationShown::Active)
    });
    print(&spreadsheet::csv(&lasting.collect::<Vec<_>>(), &context.clock))?;
    Ok(Exit::Done)
}

/// A few at once, answered in the order that was typed; after the first that fails, or Ctrl-C, no more are asked for.
pub(super) async fn release(context: &Context, args: &ReleaseArgs) -> Result<Exit, Failure> {
    if args.following || args.ids.iter().any(|id| id.starts_with(SeriesId::PREFIX)) {
        return series::release(context, args).await;
    }
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (ids, others) = client.resolve_owned(KIND, &args.ids).await?;
    if !others.is_empty() {
        args.consent.ask(&format!("Release {}?", others.join(", ")))?;
    }
    let one = |id: String| {
        // Numbered in the order that was typed, so that the same command again repeats each.
        let (client, meta) = (&client, client.request_meta());
        async move {
            let request = ReleaseReservationRequest { meta: meta?, id };
            client.call(request, async |api, r| api.release_reservation(r).await).await
        }
    };
    let mut released = Vec::new();
    let take = |answer| {
        let reservation = Reservation::from(answer);
        let done = if reservation.unconfirmed.is_some() { "asked to release" } else { "released" };
        say(&format!("{done} {}: {}", reservation.id, reservation.gpus_shown()));
        note_unconfirmed(&reservation);
        released.push(reservation);
    };
    let outcome = at_once::each(&ids, one, take, signals::interrupts(ids.len())?).await;
    let all = outcome.account("released", ids.len());
    if all.is_ok() || !released.is_empty() {
        print(&printer.changed(&released, |r| &r.id)?)?;
    }
    all?;
    Ok(Exit::Done)
}

/// What holds until the node has confirmed the change.
pub(super) fn note_unconfirmed(reservation: &Reservation) {
    if let Some(note) = &reservation.unconfirmed {
        say(&format!("note: {}", harmless(note)));
    }
}

pub(super) async fn extend(context: &Context, args: &ExtendArgs) -> Result<Exit, Failure> {
    let longer_by_ms = context.length_of("--time", args.time.as_ref())?.unwrap_or(0);
    let ends_at_unix_ms = match &args.until {
        Some(until) => match context.when("--until", until, Edge::End)?.unix_ms() {
            0 => return Err(Failure::usage("--until", "now; `fleet release` ends it at once")),
            ms => ms,
        },
        None => 0,
    };
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (id, owner) = client.resolve_one(KIND, &args.id).await?;
    // Only a new end may be an earlier one.
    if let Some(owner) = owner.filter(|_| args.until.is_some()) {
        args.consent.ask(&format!("Move the end of {id} of {owner}?"))?;
    }
    let mut changed = None;
    let request = |meta| ExtendReservationRequest { meta, id: id.clone(), ..Default::default() };
    if let Some(at_end) = args.at_end {
        let at_end = at_end.word().to_owned();
        let request = ExtendReservationRequest { at_end, ..request(client.request_meta()?) };
        changed = Some(client.call(request, async |api, r| api.extend_reservation(r).await).await?);
    }
    if ends_at_unix_ms > 0 || longer_by_ms > 0 || changed.is_none() {
        let request = ExtendReservationRequest {
            ends_at_unix_ms,
            longer_by_ms,
            ..request(client.request_meta()?)
        };
        changed = Some(client.call(request, async |api, r| api.extend_reservation(r).await).await?);
    }
    let reservation = Reservation::from(changed.unwrap_or_default());
    let window = window_shown(&reservation, &context.clock);
    say(&format!("{}: {} {window}", reservation.id, reservation.gpus_shown()));
    say_who_leaves(&reservation, "leaves", &context.clock);
    let new_end = reservation.ends_at.filter(|_| longer_by_ms > 0);
    let old_end_ms = new_end.map(|end| end.0.saturating_sub(longer_by_ms));
    let change = old_end_ms.and_then(|end| across_a_change(&context.clock, end, longer_by_ms));
    if let Some(note) = change {
        say(&format!("note: {note}"));
    }
    note_unconfirmed(&reservation);
    print(&printer.changed(&[reservation], |r| &r.id)?)?;
    Ok(Exit::Done)
}

/// The fleet's rules: as they are, or set and as they are then.
pub(super) async fn rules(context: &Context, args: &ReservationRulesArgs) -> Result<Exit, Failure> {
    let no_show_ms = match args.no_show.as_deref() {
        Some(NEVER | "0") => Some(0),
        Some(text) => Some(context.length("--no-show", text)?),
        None => None,
    };
    let grace_ms = match args.grace.as_deref() {
        Some("0") => Some(0),
        Some(text) => Some(context.length("--grace", text)?),
        None => None,
    };
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (idle_after_ms, idle_release_ms) = idle_times(context, args, &client).await?;
    let idle_below_percent = args.idle_below;
    let idle = idle_after_ms.is_some() || idle_release_ms.is_some() || idle_below_percent.is_some();
    let answer = if args.at_end.is_none() && no_show_ms.is_none() && grace_ms.is_none() && !idle {
        let request = GetReservationRulesRequest {};
        client.call(request, async |api, r| api.get_reservation_rules(r).await).await?
    } else {
        let at_end = args.at_end.map(AtEnd::word).unwrap_or_default().to_owned();
        let meta = client.request_meta()?;
        let request = SetReservationRulesRequest {
            meta,
            at_end,
            no_show_ms,
            grace_ms,
            idle_after_ms,
            idle_below_percent,
            idle_release_ms,
        };
        client.call(request, async |api, r| api.set_reservation_rules(r).await).await?
    };
    print(&printer.one(&ReservationRules::from(answer))?)?;
    Ok(Exit::Done)
}

/// From when on a reservation is idle, and when it is released for that, where they are typed. Programs take minutes to
/// begin, and users read of a release before it: what leaves no time for that is refused.
async fn idle_times(
    context: &Context,
    args: &ReservationRulesArgs,
    client: &Client,
) -> Result<(Option<u64>, Option<u64>), Failure> {
    let typed = |flag: &str, text: Option<&String>| match text.map(String::as_str) {
        Some(NEVER | "0") => Ok(Some(0)),
        Some(text) => context.length(flag, text).map(Some),
        None => Ok(None),
    };
    let after = typed("--idle-after", args.idle_after.as_ref())?;
    let release = typed("--idle-release", args.idle_release.as_ref())?;
    if after.is_some_and(|ms| ms > 0 && ms < IDLE_AFTER_MIN.0) {
        let problem = format!("at least {IDLE_AFTER_MIN}, or `never`: programs take time to start");
        return Err(Failure::usage("--idle-after", problem));
    }
    if after.is_some() || release.is_some() {
        let request = GetReservationRulesRequest {};
        let now = client.call(request, async |api, r| api.get_reservation_rules(r).await).await?;
        let (after, release) =
            (after.unwrap_or(now.idle_after_ms), release.unwrap_or(now.idle_release_ms));
        let least = Millis(after) + IDLE_NOTICE;
        if release > 0 && after > 0 && release < least.0 {
            let problem = format!(
                "at least {least}: it is called idle after {}, and users are warned {IDLE_NOTICE} before a release",
                Millis(after)
            );
            return Err(Failure::usage("--idle-release", problem));
        }
    }
    Ok((after, release))
}
