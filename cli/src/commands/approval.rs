//! `reservation approve|deny|approvers`: what is above a limit, and who decides about it.

use fleet_core::view::ReservationShown;
use fleet_proto::json::limits::Approvers;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{
    ApproveReservationRequest, DenyReservationRequest, GetApproversRequest, SetApproversRequest,
};

use super::Context;
use super::reservation::KIND;
use crate::args::{ReservationApproveArgs, ReservationApproversArgs, ReservationDenyArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::{waits_shown, window_shown};
use crate::output::text::{print, say};

/// In the order that was typed; stops at the first that fails.
pub(super) async fn approve(
    context: &Context,
    args: &ReservationApproveArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let mut approved = Vec::new();
    for id in &args.ids {
        let id = client.resolve(KIND, id).await?;
        client.ask_anew()?;
        let request = ApproveReservationRequest { meta: client.request_meta()?, id };
        let answer = client.call(request, async |api, r| api.approve_reservation(r).await).await?;
        let reservation = Reservation::from(answer);
        let (id, owner, gpus) = (&reservation.id, &reservation.owner, reservation.gpus_shown());
        let clock = &context.clock;
        match reservation.state.is(ReservationShown::Waiting) {
            true => say(&format!(
                "{id} of {owner} is approved; it waits for {gpus}: {}",
                waits_shown(&reservation, clock)
            )),
            false => {
                let window = window_shown(&reservation, clock);
                say(&format!("{id} of {owner} is approved: {gpus} {window}"));
            }
        }
        approved.push(reservation);
    }
    print(&printer.changed(&approved, |r| &r.id)?)?;
    Ok(Exit::Done)
}

pub(super) async fn deny(context: &Context, args: &ReservationDenyArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let id = client.resolve(KIND, &args.id).await?;
    let (meta, reason) = (client.request_meta()?, args.reason.clone());
    let request = DenyReservationRequest { meta, id, reason };
    let answer = client.call(request, async |api, r| api.deny_reservation(r).await).await?;
    let reservation = Reservation::from(answer);
    say(&format!("{} of {} is denied", reservation.id, reservation.owner));
    print(&printer.changed(&[reservation], |r| &r.id)?)?;
    Ok(Exit::Done)
}

/// Asks again where it names users that nobody has heard of, and somebody says that they are no mistake.
pub(super) async fn approvers(
    context: &Context,
    args: &ReservationApproversArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let ReservationApproversArgs { add_members, remove_members, add_groups, remove_groups, .. } =
        args;
    let changes = [add_members, remove_members, add_groups, remove_groups];
    let answer = if changes.iter().all(|names| names.is_empty()) {
        let request = GetApproversRequest {};
        client.call(request, async |api, r| api.get_approvers(r).await).await?
    } else {
        let send = async |new_users| {
            let request = SetApproversRequest {
                meta: client.request_meta()?,
                add_members: add_members.clone(),
                remove_members: remove_members.clone(),
                add_groups: add_groups.clone(),
                remove_groups: remove_groups.clone(),
                new_users,
            };
            client.call(request, async |api, r| api.set_approvers(r).await).await
        };
        super::naming_users(&client, args.consent, send).await?
    };
    print(&printer.one(&Approvers::from(answer))?)?;
    Ok(Exit::Done)
}
