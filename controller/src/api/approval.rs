//! Reservations above a limit: approved or denied by users that admins name.

use fleet_core::command::{Command, LimitsCommand, ReservationCommand};
use fleet_core::people::PeopleChange;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::people::{Named, change_of, texts};
use super::propose::request_key;
use super::writes::reservation_id;
use super::{Context, views};

impl Context {
    pub(super) async fn approve_reservation(
        &self,
        request: Request<v1::ApproveReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = reservation_id(&request.id)?;
        let command = ReservationCommand::Approve { id: id.clone() };
        self.change(&caller.actor, Some(key), Command::Reservation(command)).await?;
        self.reservation_view(&id)
    }

    pub(super) async fn deny_reservation(
        &self,
        request: Request<v1::DenyReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = reservation_id(&request.id)?;
        let command = ReservationCommand::Deny { id: id.clone(), why: request.reason };
        self.change(&caller.actor, Some(key), Command::Reservation(command)).await?;
        self.reservation_view(&id)
    }

    /// On a copy and on a thread of its own: it searches the whole calendar.
    pub(super) async fn approval_effect(
        &self,
        request: Request<v1::GetApprovalEffectRequest>,
    ) -> Result<v1::ApprovalEffect, Status> {
        self.callers.user(&request).await?;
        let id = reservation_id(&request.into_inner().id)?;
        self.newest().await?;
        let turn = self.trials.turn().await?;
        let (state, now) = (self.raft.read(Fsm::clone), self.clock.now());
        let found = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let effect = state.effect_of_approval(&id, now)?;
            Ok(views::approval_effect(&state, effect))
        });
        let found = found.await.map_err(|error| Status::internal(error.to_string()))?;
        found.map_err(|rejection: Rejection| to_status(&rejection))
    }

    pub(super) fn approvers(&self) -> v1::Approvers {
        self.raft.read(|fsm| {
            let people = fsm.approvers();
            v1::Approvers { members: texts(&people.members), groups: texts(&people.groups) }
        })
    }

    pub(super) async fn set_approvers(
        &self,
        request: Request<v1::SetApproversRequest>,
    ) -> Result<v1::Approvers, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let change: PeopleChange = change_of(Named {
            add_members: &request.add_members,
            remove_members: &request.remove_members,
            add_groups: &request.add_groups,
            remove_groups: &request.remove_groups,
        })?;
        // It is the leader's machine that knows.
        self.newest().await?;
        self.callers.require_admin(&caller, "set_approvers")?;
        self.refuse_unknown_people(&change, request.new_users, &caller, &key).await?;
        let command = Command::Limits(LimitsCommand::SetApprovers { change });
        self.change(&caller.actor, Some(key), command).await?;
        Ok(self.approvers())
    }
}
