//! People in a lab's week who decide about each place that the waiting list has for them.

use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::transport::Channel;

use super::week::{Held, SECOND_MS, WISH_MS};
use super::{Answer, User};

/// How much later it may begin. An offer is open until then at the longest, and for five minutes at the least. After
/// half an hour it ends in any case, which would be too much of a week.
const WAIT_MS: (u64, u64) = (360 * SECOND_MS, 840 * SECOND_MS);
const GPUS: &[u32] = &[1, 1, 2, 2, 3];
/// How many of those that may have an offer look for it before they do something else.
const LOOK_PERCENT: u64 = 35;
/// What they answer; the rest of them does not.
const ACCEPTED_PERCENT: u64 = 42;
const DECLINED_PERCENT: u64 = 40;

impl User {
    pub(super) async fn wish_for_offers(&mut self, has: &mut Vec<Held>) {
        let wish = v1::CreateReservationRequest {
            meta: Some(self.meta()),
            gpus: Some(v1::GpuWish { count: *self.rng.one_of(GPUS), ..Default::default() }),
            length_ms: self.rng.between(WISH_MS.0, WISH_MS.1),
            wait_ms: self.rng.between(WAIT_MS.0, WAIT_MS.1),
            offer: Some(v1::OfferTerms::default()),
            with: self.companions(),
            ..Default::default()
        };
        self.create(wish, has).await;
    }

    /// Answers what is offered to them. Returns whether they looked.
    pub(super) async fn answer_offers(&mut self, has: &[Held]) -> bool {
        if !has.iter().any(|one| one.by_offers) || !self.rng.chance(LOOK_PERCENT) {
            return false;
        }
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.list_reservations(wish).await
        };
        let wish = v1::ListReservationsRequest { owner: self.name.clone(), ..Default::default() };
        let Answer::Yes(list) = self.ask(wish, call).await else { return true };
        let offered = |one: &v1::Reservation| one.owner == self.name && one.state == "offered";
        let offered: Vec<_> = list.items.into_iter().filter(offered).map(|one| one.id).collect();
        for id in offered {
            match self.rng.between(0, 99) {
                n if n < ACCEPTED_PERCENT => self.accept(id).await,
                n if n < ACCEPTED_PERCENT + DECLINED_PERCENT => self.decline(id).await,
                _ => {}
            }
        }
        true
    }

    async fn accept(&mut self, id: String) {
        let wish = v1::AcceptReservationRequest { meta: Some(self.meta()), id: id.clone() };
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.accept_reservation(wish).await
        };
        let answer = self.ask(wish, call).await;
        self.tell(&format!("accept {id}"), &answer);
    }

    async fn decline(&mut self, id: String) {
        let wish = v1::DeclineReservationRequest { meta: Some(self.meta()), id: id.clone() };
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.decline_reservation(wish).await
        };
        let answer = self.ask(wish, call).await;
        self.tell(&format!("decline {id}"), &answer);
    }
}
