//! `reservation accept|decline`: the place that is offered to a reservation on the waiting list.

use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{AcceptReservationRequest, DeclineReservationRequest};

use super::Context;
use super::reservation::KIND;
use crate::args::{ReservationAcceptArgs, ReservationDeclineArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::{next_offer_shown, window_shown};
use crate::output::text::{print, say};

/// In the order that was typed; stops at the first that fails.
pub(super) async fn accept(
    context: &Context,
    args: &ReservationAcceptArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let mut accepted = Vec::new();
    for id in &args.ids {
        let id = client.resolve(KIND, id).await?;
        client.ask_anew()?;
        let request = AcceptReservationRequest { meta: client.request_meta()?, id };
        let answer = client.call(request, async |api, r| api.accept_reservation(r).await).await?;
        let reservation = Reservation::from(answer);
        let (id, gpus) = (&reservation.id, reservation.gpus_shown());
        let window = window_shown(&reservation, &context.clock);
        let earlier = match reservation.waiting_place {
            Some(_) => "; it starts earlier if GPUs become available before",
            None => "",
        };
        say(&format!("{id} is reserved: {gpus} {window}{earlier}"));
        accepted.push(reservation);
    }
    print(&printer.changed(&accepted, |r| &r.id)?)?;
    Ok(Exit::Done)
}

/// In the order that was typed; stops at the first that fails.
pub(super) async fn decline(
    context: &Context,
    args: &ReservationDeclineArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let mut declined = Vec::new();
    for id in &args.ids {
        let id = client.resolve(KIND, id).await?;
        client.ask_anew()?;
        let request = DeclineReservationRequest { meta: client.request_meta()?, id };
        let answer = client.call(request, async |api, r| api.decline_reservation(r).await).await?;
        let reservation = Reservation::from(answer);
        say(&after_decline(context, &reservation));
        declined.push(reservation);
    }
    print(&printer.changed(&declined, |r| &r.id)?)?;
    Ok(Exit::Done)
}

fn after_decline(context: &Context, reservation: &Reservation) -> String {
    let id = &reservation.id;
    let next = next_offer_shown(reservation, &context.clock);
    match (reservation.state.is(ReservationShown::Waiting), next) {
        (true, Some(next)) => {
            format!("offer of {id} declined; it stays on the waiting list: {next}")
        }
        (true, None) => format!(
            "offer of {id} declined; it stays on the waiting list, but no time is left for another offer"
        ),
        (false, _) => {
            let why = reservation.reason.as_deref().unwrap_or("it is over");
            format!("offer of {id} declined; it is off the waiting list: {why}")
        }
    }
}
