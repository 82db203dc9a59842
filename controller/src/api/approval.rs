//! Reservations above a limit: approved or denied by those who may, whom admins name.

use fleet_core::command::{Command, LimitsCommand, ReservationCommand};
use fleet_core::people::PeopleChange;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::people::{Named, change_of, texts};
use super::propose::request_key;
use super::writes::reservation_id;

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
