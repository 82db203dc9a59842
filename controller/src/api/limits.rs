//! Limits on reservations by group: shown to everybody, set by admins.

use fleet_core::Rejection;
use fleet_core::command::{Command, LimitsCommand};
use fleet_core::limits::{EVERYBODY_ELSE, ReservationLimits};
use fleet_core::name::GroupName;
use fleet_core::time::Millis;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::names::refuse_unknown_group;
use super::propose::request_key;

impl Context {
    pub(super) async fn set_reservation_limits(
        &self,
        request: Request<v1::SetReservationLimitsRequest>,
    ) -> Result<v1::ReservationLimits, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let said = request.limits.unwrap_or_default();
        let group = GroupName::parse(&said.group)
            .map_err(|e| to_status(&Rejection::field("limits.group", e.to_string())))?;
        let limits = ReservationLimits {
            gpus: said.gpus,
            length: said.length_ms.map(Millis),
            ahead: said.ahead_ms.map(Millis),
        };
        // It is the leader's machine that knows.
        self.newest().await?;
        let command = match request.remove {
            true => LimitsCommand::Remove { group: group.clone() },
            false => {
                check_group(&group).await?;
                LimitsCommand::Set { group: group.clone(), limits }
            }
        };
        self.change(&caller.actor, Some(key), Command::Limits(command)).await?;
        Ok(self.raft.read(|fsm| {
            let limits = fsm.reservation_limits().get(&group).copied().unwrap_or_default();
            view(&group, &limits)
        }))
    }

    pub(super) fn reservation_limits(&self) -> v1::ListReservationLimitsResponse {
        let items = self.raft.read(|fsm| {
            fsm.reservation_limits().iter().map(|(group, limits)| view(group, limits)).collect()
        });
        v1::ListReservationLimitsResponse { items }
    }
}

/// A slip of the pen would limit nobody.
async fn check_group(group: &GroupName) -> Result<(), Status> {
    match group.as_str() {
        EVERYBODY_ELSE => Ok(()),
        _ => refuse_unknown_group("limits.group", group).await,
    }
}

fn view(group: &GroupName, limits: &ReservationLimits) -> v1::ReservationLimits {
    v1::ReservationLimits {
        group: group.to_string(),
        gpus: limits.gpus,
        length_ms: limits.length.map(|length| length.0),
        ahead_ms: limits.ahead.map(|ahead| ahead.0),
    }
}
