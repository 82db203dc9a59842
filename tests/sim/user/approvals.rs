//! People in a lab's week who want more than the limit, and those who decide about it.

use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::transport::Channel;

use super::week::{Held, SECOND_MS};
use super::{Answer, User};
use crate::week::{APPROVERS, LONGEST_MS};

/// How far ahead a request begins.
const AHEAD_MS: (u64, u64) = (300 * SECOND_MS, 1_000 * SECOND_MS);
const LENGTH_MS: (u64, u64) = (LONGEST_MS + 10 * SECOND_MS, LONGEST_MS + 150 * SECOND_MS);
/// So many that others often book some of them before anybody decides.
const GPUS: &[u32] = &[3, 3, 4, 4];
/// How many are for one start alone.
const ONE_START_PERCENT: u64 = 90;
/// How much later the others may begin.
const LATER_MS: (u64, u64) = (60 * SECOND_MS, 300 * SECOND_MS);
const APPROVED_PERCENT: u64 = 88;
/// Most requests are decided when they are due within this, so that others have booked meanwhile.
const DUE_MS: u64 = 140 * SECOND_MS;
const EARLY_PERCENT: u64 = 3;

impl User {
    /// The admin says what nobody may reserve without approval, and who may give it.
    pub(super) async fn set_limits(&mut self) {
        let add_members = APPROVERS.iter().map(|name| (*name).to_owned()).collect();
        let approvers =
            v1::SetApproversRequest { add_members, new_users: true, ..Default::default() };
        loop {
            let wish = v1::SetApproversRequest { meta: Some(self.meta()), ..approvers.clone() };
            let call = |mut client: FleetClient<Channel>, wish| async move {
                client.set_approvers(wish).await
            };
            let answer = self.ask(wish, call).await;
            self.tell("approvers", &answer);
            if matches!(answer, Answer::Yes(_)) {
                break;
            }
        }
        let length_ms = Some(LONGEST_MS);
        let limits =
            v1::ReservationLimits { group: "*".to_owned(), length_ms, ..Default::default() };
        loop {
            let (meta, limits) = (Some(self.meta()), Some(limits.clone()));
            let wish = v1::SetReservationLimitsRequest { meta, limits, remove: false };
            let call = |mut client: FleetClient<Channel>, wish| async move {
                client.set_reservation_limits(wish).await
            };
            let answer = self.ask(wish, call).await;
            self.tell("limits", &answer);
            if matches!(answer, Answer::Yes(_)) {
                return;
            }
        }
    }

    /// For longer than the limit allows.
    pub(super) async fn ask_for_more(&mut self, has: &mut Vec<Held>) {
        let starts = self.now() + self.rng.between(AHEAD_MS.0, AHEAD_MS.1);
        let later = self.rng.between(LATER_MS.0, LATER_MS.1);
        let ask_wait_ms = if self.rng.chance(ONE_START_PERCENT) { 0 } else { later };
        let wish = v1::CreateReservationRequest {
            meta: Some(self.meta()),
            gpus: Some(v1::GpuWish { count: *self.rng.one_of(GPUS), ..Default::default() }),
            starts_at_unix_ms: starts,
            length_ms: self.rng.between(LENGTH_MS.0, LENGTH_MS.1),
            ask_reason: "a long run".to_owned(),
            ask_wait_ms,
            with: self.companions(),
            ..Default::default()
        };
        self.create(wish, has).await;
    }

    pub(super) fn approves(&self) -> bool {
        APPROVERS.contains(&self.name.as_str())
    }

    /// Decides what others ask for.
    pub(super) async fn decide(&mut self) {
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.list_reservations(wish).await
        };
        let Answer::Yes(list) = self.ask(v1::ListReservationsRequest::default(), call).await else {
            return;
        };
        for one in list.items {
            let asks = one.state == "requested"
                && one.approval.as_ref().is_some_and(|approval| approval.given_by.is_empty());
            if !asks || one.owner == self.name || one.with.contains(&self.name) {
                continue;
            }
            let is_due = one.earliest_start_unix_ms < self.now() + DUE_MS;
            if !is_due && !self.rng.chance(EARLY_PERCENT) {
                continue;
            }
            match self.rng.chance(APPROVED_PERCENT) {
                true => self.approve(one.id).await,
                false => self.deny(one.id).await,
            }
        }
    }

    async fn approve(&mut self, id: String) {
        let wish = v1::ApproveReservationRequest { meta: Some(self.meta()), id: id.clone() };
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.approve_reservation(wish).await
        };
        let answer = self.ask(wish, call).await;
        self.tell(&format!("approve {id}"), &answer);
    }

    async fn deny(&mut self, id: String) {
        let (meta, reason) = (Some(self.meta()), "too long".to_owned());
        let wish = v1::DenyReservationRequest { meta, id: id.clone(), reason };
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.deny_reservation(wish).await
        };
        let answer = self.ask(wish, call).await;
        self.tell(&format!("deny {id}"), &answer);
    }
}
