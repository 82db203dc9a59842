//! `reservation set`: moves a reservation, or changes its GPUs, its note or who shares it.

use std::collections::BTreeSet;

use fleet_core::id::SeriesId;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{EditReservationRequest, GpuWish, SharedWith};

use super::reservation::{KIND, fetch_one, note_unconfirmed};
use super::reserve::say_who_leaves;
use super::{Context, gpu, nodes_without_gpus, series};
use crate::args::{ReservationSetArgs, WishArgs};
use crate::client::Client;
use crate::consent::NewUsers;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::{place_shown, window_shown};
use crate::output::text::{print, say};
use crate::times::{Clock, Edge};

/// The times as typed; 0 is not said.
pub(super) struct Times {
    pub(super) starts_at_ms: u64,
    pub(super) ends_at_ms: u64,
    pub(super) length_ms: u64,
}

pub(super) async fn run(context: &Context, args: &ReservationSetArgs) -> Result<Exit, Failure> {
    if args.following || args.id.starts_with(SeriesId::PREFIX) {
        return series::set::run(context, args).await;
    }
    let times = Times::read(context, args)?;
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let (id, owner) = client.resolve_one(KIND, &args.id).await?;
    if let Some(owner) = owner.filter(|_| !args.dry_run) {
        args.consent.ask(&format!("Change {id} of {owner}?"))?;
    }
    // What this user has seen: a change that somebody else makes meanwhile is not overwritten.
    let before = fetch_one(context, &client, &id).await?;
    let request = request(&client, args, &times, &before).await?;
    let wish = request.gpus.clone();
    let reservation = match send(&client, args, request).await {
        Ok(reservation) => reservation,
        Err(failure) => {
            return Err(nodes_without_gpus::beside(&client, wish.as_ref(), failure).await);
        }
    };
    let shown = shown(&reservation, &context.clock);
    if args.dry_run {
        say(&format!("would change {id}: {shown}; nothing was changed"));
        say_who_leaves(&reservation, "would leave", &context.clock);
        if !printer.for_people() {
            print(&printer.one(&reservation)?)?;
        }
        return Ok(Exit::Done);
    }
    say(&format!("{id}: {shown}"));
    say_who_leaves(&reservation, "leaves", &context.clock);
    note_unconfirmed(&reservation);
    print(&printer.changed(&[reservation], |r| &r.id)?)?;
    Ok(Exit::Done)
}

/// Where and when it is in the end.
pub(super) fn shown(reservation: &Reservation, clock: &Clock) -> String {
    match &reservation.next {
        Some(next) => place_shown(next, clock),
        None => format!("{} {}", reservation.gpus_shown(), window_shown(reservation, clock)),
    }
}

impl Times {
    pub(super) fn read(context: &Context, args: &ReservationSetArgs) -> Result<Self, Failure> {
        let starts_at_ms = match &args.from {
            None => 0,
            Some(text) => match context.when("--from", text, Edge::Start)?.unix_ms() {
                0 => context.clock.now_ms(),
                ms => ms,
            },
        };
        let ends_at_ms = match &args.until {
            None => 0,
            Some(text) => match context.when("--until", text, Edge::End)?.unix_ms() {
                0 => return Err(Failure::usage("--until", "now; `fleet release` ends it at once")),
                ms => ms,
            },
        };
        let length_ms = context.length_of("--time", args.time.as_ref())?.unwrap_or(0);
        Ok(Self { starts_at_ms, ends_at_ms, length_ms })
    }

    /// The new end, where there is one: a length counts from the start that it gets, or has.
    pub(super) fn end(&self, before: &Reservation) -> u64 {
        let next = before.next.as_ref().map_or(before.starts_at, |next| next.starts_at);
        let starts_at_ms = match self.starts_at_ms {
            0 => next.map_or(0, |at| at.0),
            ms => ms,
        };
        match self.length_ms {
            0 => self.ends_at_ms,
            length => starts_at_ms.saturating_add(length),
        }
    }
}

async fn request(
    client: &Client,
    args: &ReservationSetArgs,
    times: &Times,
    before: &Reservation,
) -> Result<EditReservationRequest, Failure> {
    Ok(EditReservationRequest {
        meta: None,
        id: before.id.clone(),
        starts_at_unix_ms: times.starts_at_ms,
        ends_at_unix_ms: times.end(before),
        gpus: wished(client, &args.wish).await?.map(|wish| counted_as(wish, before)),
        note: args.note.clone(),
        with: shared_then(args, before),
        seen_revision: Some(before.revision),
        dry_run: args.dry_run,
        new_users: args.consent.yes,
    })
}

/// The GPUs that are wanted, if anything is said of them.
pub(super) async fn wished(client: &Client, args: &WishArgs) -> Result<Option<GpuWish>, Failure> {
    let said = args.gpus.is_some() || args.gpu_memory.is_some() || args.node.is_some();
    match !said && args.gpu.is_empty() {
        true => Ok(None),
        false => gpu::wish(client, args).await.map(Some),
    }
}

/// As many GPUs as it has where no number is said.
pub(super) fn counted_as(wish: GpuWish, before: &Reservation) -> GpuWish {
    let has = before.next.as_ref().map_or(before.gpus.len(), |next| next.gpus.len());
    let count = if wish.count == 0 { u32::try_from(has).unwrap_or(u32::MAX) } else { wish.count };
    GpuWish { count, ..wish }
}

/// Who shares it then, if anything is said of that.
pub(super) fn shared_then(args: &ReservationSetArgs, before: &Reservation) -> Option<SharedWith> {
    if !args.with.is_empty() {
        return Some(SharedWith { users: args.with.clone() });
    }
    if args.add_with.is_empty() && args.remove_with.is_empty() {
        return None;
    }
    let all = before.with.iter().chain(&args.add_with);
    let users: BTreeSet<&String> = all.filter(|user| !args.remove_with.contains(user)).collect();
    Some(SharedWith { users: users.into_iter().cloned().collect() })
}

/// Asks first about users that nobody has heard of.
async fn send(
    client: &Client,
    args: &ReservationSetArgs,
    mut request: EditReservationRequest,
) -> Result<Reservation, Failure> {
    loop {
        request.meta =
            if args.dry_run { client.meta_of_its_own()? } else { client.request_meta()? };
        let sent = request.clone();
        match client.call(sent, async |api, r| api.edit_reservation(r).await).await {
            Ok(answer) => return Ok(Reservation::from(answer)),
            Err(failure) if failure.names_unknown_users() && !request.new_users => {
                NewUsers { yes: args.consent.yes }.ask(failure)?;
                request.new_users = true;
                client.ask_anew()?;
            }
            Err(failure) => return Err(failure),
        }
    }
}
