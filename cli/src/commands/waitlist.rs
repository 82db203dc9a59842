//! What `reserve --wait` says while a reservation is on the waiting list, and `reserve --ask` while it waits for approval.
//!
//! The list is the controllers': this command only watches it, and nothing is lost when it ends.

use std::time::Duration;

use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::ListReservationsRequest;

use super::{Context, reservation};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::{waits_shown, window_shown};
use crate::output::text::say;
use crate::times::Clock;

/// Between two questions.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Waits until it has begun, or has the start that was asked for; says what becomes of it meanwhile. `detach`: says how it
/// stands and returns.
pub(super) async fn wait(
    context: &Context,
    client: &Client,
    made: Reservation,
    (from_ms, detach): (u64, bool),
) -> Result<Reservation, Failure> {
    let (mut now, mut said) = (made, String::new());
    loop {
        let asks = now.state.is(ReservationShown::Requested);
        if !asks && now.waiting_place.is_none() && is_settled(&now, from_ms) {
            return ended_well(now);
        }
        let standing = standing(&now, &context.clock);
        if standing != said {
            say(&standing);
        }
        if detach {
            return Ok(now);
        }
        if said.is_empty() {
            say(&format!(
                "it stays so when you end this command (Ctrl-C); `fleet release {}` gives it up",
                now.id
            ));
        }
        said = standing;
        tokio::time::sleep(LOOK_EVERY).await;
        client.ask_anew()?;
        let ids = vec![now.id.clone()];
        let request = ListReservationsRequest { ids, ..ListReservationsRequest::default() };
        let found = reservation::fetch(client, request).await?.into_iter().next();
        now = found.ok_or_else(|| {
            let message = format!("{} is not known any more", now.id);
            Failure::new(Exit::NotFound, message)
        })?;
    }
}

/// Whether it has begun, is over, or begins when it was asked to.
fn is_settled(reservation: &Reservation, from_ms: u64) -> bool {
    let made_ms = reservation.created_at.map_or(0, |at| at.0);
    let as_asked = reservation.starts_at.is_some_and(|at| at.0 <= made_ms.max(from_ms));
    let waits = [ReservationShown::Scheduled, ReservationShown::Offered];
    as_asked || !waits.into_iter().any(|state| reservation.state.is(state))
}

fn standing(now: &Reservation, clock: &Clock) -> String {
    let (id, gpus) = (&now.id, now.gpus_shown());
    if now.state.is(ReservationShown::Requested) {
        let above = now.approval.as_ref().map(|approval| approval.above.as_str());
        let latest = now.latest_start.map(|at| clock.day_and_minute(at.0)).unwrap_or_default();
        return format!(
            "{id} ({gpus}) waits for approval and holds no GPUs. It starts by {latest} or not at all. Limit: {}",
            above.unwrap_or_default()
        );
    }
    if now.state.is(ReservationShown::Waiting) {
        return format!("{id} waits for {gpus}: {}", waits_shown(now, clock));
    }
    if let Some(until) = now.offer.as_ref().and_then(|offer| offer.until) {
        let until = clock.day_and_minute(until.0);
        return format!(
            "{id} is offered to you until {until}:\n  {gpus}\n  {}\n\
             accept it:  fleet reservation accept {id}\n\
             decline it: fleet reservation decline {id}",
            window_shown(now, clock)
        );
    }
    let place = format!("{id} has {gpus} {}", window_shown(now, clock));
    match now.waiting_place {
        Some(_) => format!("{place}; it starts earlier if GPUs become available before"),
        None => place,
    }
}

/// It has its place, or it has none: then nothing may rely on it.
fn ended_well(reservation: Reservation) -> Result<Reservation, Failure> {
    let Reservation { id, state, reason, waits_for, .. } = &reservation;
    if state.is(ReservationShown::Scheduled) || state.is(ReservationShown::Active) {
        return Ok(reservation);
    }
    let why = reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    Err(match waits_for {
        Some(wanted) if state.is(ReservationShown::Ended) => {
            let message = format!("{id} waited for {wanted} without result{why}");
            Failure::new(Exit::Timeout, message)
        }
        Some(_) | None => Failure::new(Exit::Conflict, format!("{id} is {state}{why}")),
    })
}
