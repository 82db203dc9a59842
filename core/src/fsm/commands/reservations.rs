//! Commands about reservations.

use super::{Act, Rule, any_user, denied, owner_or_admin};
use crate::actor::Actor;
use crate::command::{AskForApproval, CreateReservation, ReservationCommand};
use crate::fsm::waitlist::Asked;
use crate::fsm::{Fsm, Turn};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::{Timestamp, Window};

/// The users who decide about a reservation above a limit.
const APPROVER: &str =
    "an admin, or an approver who has no part in the reservation (fleet reservation approvers)";

fn asked<'a>(
    wish: &'a CreateReservation,
    latest_start: Timestamp,
    ask: Option<&'a AskForApproval>,
    offer: Option<&'a Vec<Window>>,
) -> Asked<'a> {
    Asked { wish, latest_start, ask, offer: offer.map(Vec::as_slice) }
}

impl Act for ReservationCommand {
    fn who_may(&self, fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            ReservationCommand::Create(_)
            | ReservationCommand::Wait { .. }
            | ReservationCommand::Import { .. } => any_user(actor),
            // Whose they are, the handler checks: they may be several people's.
            ReservationCommand::UndoImport { .. }
            | ReservationCommand::CreateSeries { .. }
            | ReservationCommand::EditSeries { .. }
            | ReservationCommand::ReleaseSeries { .. } => any_user(actor),
            ReservationCommand::Approve { id } | ReservationCommand::Deny { id, .. } => {
                match fsm.may_approve(actor, id) {
                    true => Ok(if actor.is_admin() { "admin" } else { "approver" }),
                    false => Err(denied(APPROVER)),
                }
            }
            ReservationCommand::Accept { id }
            | ReservationCommand::Decline { id }
            | ReservationCommand::Extend { id, .. }
            | ReservationCommand::Release { id }
            | ReservationCommand::Edit { id, .. } => {
                owner_or_admin(actor, fsm.owner_of_reservation(id))
            }
        }
    }

    fn check(&self, fsm: &Fsm, actor: &Actor) -> Result<(), Rejection> {
        match self {
            ReservationCommand::Create(wish) => fsm.check_reservation(actor, wish).map(|_| ()),
            ReservationCommand::Wait { wish, latest_start, ask, offer } => {
                let asked = asked(wish, *latest_start, ask.as_ref(), offer.as_ref());
                fsm.check_wait(actor, &asked).map(|_| ())
            }
            ReservationCommand::Accept { id } => fsm.check_accept(id).map(|_| ()),
            ReservationCommand::Decline { id } => fsm.check_decline(id).map(|_| ()),
            ReservationCommand::Approve { id } => fsm.check_approval(id).map(|_| ()),
            ReservationCommand::Deny { id, why } => fsm.check_denial(id, why).map(|_| ()),
            ReservationCommand::Import { reservations, .. } => {
                fsm.try_import(actor, reservations, fsm.now).map(|_| ())
            }
            ReservationCommand::UndoImport { id } => fsm.undoable(actor, id).map(|_| ()),
            ReservationCommand::Extend { id, ends_at } => fsm.check_extension(actor, id, *ends_at),
            ReservationCommand::Release { id } => fsm.check_released(id),
            // Whether the GPUs are free, only the log decides.
            ReservationCommand::Edit { id, change, seen } => {
                fsm.check_edit(actor, id, change, *seen).map(|_| ())
            }
            ReservationCommand::CreateSeries { reservations, skip, .. } => {
                fsm.judge_series(actor, reservations, *skip).map(|_| ())
            }
            // What a change comes to depends on those before it.
            ReservationCommand::EditSeries { id, changes, rule } => {
                fsm.check_series_edit(actor, id, changes, rule.as_deref())
            }
            ReservationCommand::ReleaseSeries { id, from } => {
                fsm.releasable(actor, id, from.as_ref()).map(|_| ())
            }
        }
    }

    fn may_change_the_plan(&self) -> bool {
        true
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            ReservationCommand::Create(wish) => fsm.create_reservation(turn, wish),
            ReservationCommand::Wait { wish, latest_start, ask, offer } => {
                let asked = asked(wish, *latest_start, ask.as_ref(), offer.as_ref());
                fsm.wait_for_reservation(turn, &asked)
            }
            ReservationCommand::Accept { id } => fsm.accept_offer(turn, id),
            ReservationCommand::Decline { id } => fsm.decline_offer(turn, id),
            ReservationCommand::Approve { id } => fsm.approve_reservation(turn, id),
            ReservationCommand::Deny { id, why } => fsm.deny_reservation(turn, id, why),
            ReservationCommand::Import { reservations, import } => {
                fsm.import_reservations(turn, reservations, import.as_ref())
            }
            ReservationCommand::UndoImport { id } => fsm.undo_import(turn, id),
            ReservationCommand::Extend { id, ends_at } => {
                fsm.extend_reservation(turn, id, *ends_at)
            }
            ReservationCommand::Release { id } => fsm.release_reservation(turn, id),
            ReservationCommand::Edit { id, change, seen } => {
                fsm.edit_reservation(turn, id, change, *seen)
            }
            ReservationCommand::CreateSeries { series, reservations, skip } => {
                fsm.create_series(turn, series, reservations, *skip)
            }
            ReservationCommand::EditSeries { id, changes, rule } => {
                fsm.edit_series(turn, id, changes, rule.as_deref())
            }
            ReservationCommand::ReleaseSeries { id, from } => {
                fsm.release_series(turn, id, from.as_ref())
            }
        }
    }
}
