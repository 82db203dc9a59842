//! People in a lab's week: each reserves, wishes, holds courses, and changes or releases what they have. The admin drains
//! nodes and opens them again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fleet_core::id::ReservationId;
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::transport::Channel;

use super::{Answer, User};
use crate::oracle::Done;
use crate::week::PEOPLE;

pub(super) const SECOND_MS: u64 = 1_000;
/// What a person waits between two requests.
const PAUSE_MS: (u64, u64) = (25 * SECOND_MS, 135 * SECOND_MS);
/// How far ahead people reserve.
const AHEAD_MS: (u64, u64) = (20 * SECOND_MS, 1_500 * SECOND_MS);
const LENGTH_MS: (u64, u64) = (60 * SECOND_MS, 260 * SECOND_MS);
/// Of what waits: shorter, so that one can take another's place.
pub(super) const WISH_MS: (u64, u64) = (45 * SECOND_MS, 130 * SECOND_MS);
/// How much later than wished one on the waiting list may begin.
const WAIT_MS: (u64, u64) = (90 * SECOND_MS, 400 * SECOND_MS);
/// A course: how many dates, how far apart, how long.
const DATES: (u64, u64) = (3, 5);
const DATES_APART_MS: (u64, u64) = (300 * SECOND_MS, 700 * SECOND_MS);
const DATE_MS: (u64, u64) = (60 * SECOND_MS, 180 * SECOND_MS);
/// How many reservations are shared.
const SHARED_PERCENT: u64 = 40;
/// How often those who may approve decide what others ask for.
const DECIDE_PERCENT: u64 = 45;
/// How long the admin waits between two drains, and how long a node is drained.
const DRAIN_PAUSE_MS: (u64, u64) = (60 * SECOND_MS, 180 * SECOND_MS);
const DRAINED_MS: (u64, u64) = (60 * SECOND_MS, 200 * SECOND_MS);

/// What a person has, as they last read it.
#[derive(Debug, Clone)]
pub(super) struct Held {
    id: ReservationId,
    starts_ms: u64,
    ends_ms: u64,
    is_date: bool,
    /// Its places are offered, or were.
    pub(super) by_offers: bool,
}

fn held(made: &v1::Reservation, is_date: bool) -> Held {
    let by_offers = made.offer.is_some();
    // Nothing may be offered yet.
    let waits_until_ms = if by_offers { made.latest_start_unix_ms } else { 0 };
    Held {
        id: ReservationId::parse(&made.id).expect("a legal id"),
        starts_ms: made.starts_at_unix_ms,
        ends_ms: made.ends_at_unix_ms.max(waits_until_ms),
        is_date,
        by_offers,
    }
}

impl User {
    pub(super) async fn live_a_week(mut self) {
        let mut has = Vec::new();
        if self.name == "root" {
            self.set_limits().await;
        }
        while !self.scene.users_rest.load(Ordering::Relaxed) {
            let (low, high) = if self.name == "root" { DRAIN_PAUSE_MS } else { PAUSE_MS };
            self.pause((low, high)).await;
            if self.name == "root" {
                self.look_after_nodes().await;
                continue;
            }
            let now = self.now();
            has.retain(|one: &Held| one.ends_ms > now);
            if self.approves() && self.rng.chance(DECIDE_PERCENT) {
                self.decide().await;
                continue;
            }
            if self.answer_offers(&has).await {
                continue;
            }
            match self.rng.between(0, 99) {
                0..=11 => self.book(&mut has).await,
                12..=28 => self.wish(&mut has).await,
                29..=39 => self.wish_for_offers(&mut has).await,
                40..=43 => self.hold_a_course(&mut has).await,
                44..=67 => self.ask_for_more(&mut has).await,
                68..=78 => self.change(&mut has, false).await,
                79..=84 => self.change(&mut has, true).await,
                85..=93 => self.give_up(&mut has, false).await,
                _ => self.give_up(&mut has, true).await,
            }
        }
        self.leave().await;
    }

    /// Shorter at the end of the week.
    async fn pause(&mut self, (low, high): (u64, u64)) {
        let until = self.now() + self.rng.between(low, high);
        while self.now() < until && !self.scene.users_rest.load(Ordering::Relaxed) {
            let left = Duration::from_millis(until - self.now());
            tokio::time::sleep(left.min(Duration::from_secs(5))).await;
        }
    }

    pub(super) fn companions(&mut self) -> Vec<String> {
        if !self.rng.chance(SHARED_PERCENT) {
            return Vec::new();
        }
        let mut with = Vec::new();
        for _ in 0..self.rng.between(1, 2) {
            let other = (*self.rng.one_of(&PEOPLE[1..])).to_owned();
            if other != self.name && !with.contains(&other) {
                with.push(other);
            }
        }
        with
    }

    pub(super) fn gpus(&mut self) -> Option<v1::GpuWish> {
        let count = *self.rng.one_of(&[1, 1, 1, 2, 2, 3, 4]);
        Some(v1::GpuWish { count, ..Default::default() })
    }

    async fn book(&mut self, has: &mut Vec<Held>) {
        let starts = self.now() + self.rng.between(AHEAD_MS.0, AHEAD_MS.1);
        let wish = v1::CreateReservationRequest {
            meta: Some(self.meta()),
            gpus: self.gpus(),
            starts_at_unix_ms: starts,
            length_ms: self.rng.between(LENGTH_MS.0, LENGTH_MS.1),
            with: self.companions(),
            ..Default::default()
        };
        self.create(wish, has).await;
    }

    async fn wish(&mut self, has: &mut Vec<Held>) {
        let later = self.rng.between(0, 90) * SECOND_MS;
        let starts = if self.rng.chance(60) { 0 } else { self.now() + later };
        let wish = v1::CreateReservationRequest {
            meta: Some(self.meta()),
            gpus: self.gpus(),
            starts_at_unix_ms: starts,
            length_ms: self.rng.between(WISH_MS.0, WISH_MS.1),
            wait_ms: self.rng.between(WAIT_MS.0, WAIT_MS.1),
            with: self.companions(),
            ..Default::default()
        };
        self.create(wish, has).await;
    }

    pub(super) async fn create(&mut self, wish: v1::CreateReservationRequest, has: &mut Vec<Held>) {
        let request = self.request_of(wish.meta.as_ref());
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.create_reservation(wish).await
        };
        let answer = self.ask(wish, call).await;
        self.tell(&format!("{request} reserve"), &answer);
        if let Answer::Yes(made) = answer {
            has.push(held(&made, false));
        }
    }

    fn request_of(&self, meta: Option<&v1::RequestMeta>) -> String {
        meta.map(|meta| meta.request_id.clone()).unwrap_or_default()
    }

    async fn hold_a_course(&mut self, has: &mut Vec<Held>) {
        let (first, apart) =
            (self.now() + 60 * SECOND_MS, self.rng.between(DATES_APART_MS.0, DATES_APART_MS.1));
        let length = self.rng.between(DATE_MS.0, DATE_MS.1);
        let count = *self.rng.one_of(&[1, 2]);
        let dates = (0..self.rng.between(DATES.0, DATES.1)).map(|nth| {
            let starts = first + nth * apart;
            v1::SeriesDate { starts_at_unix_ms: starts, ends_at_unix_ms: starts + length }
        });
        let each = v1::CreateReservationRequest {
            gpus: Some(v1::GpuWish { count, ..Default::default() }),
            ..Default::default()
        };
        let dates = dates.collect();
        let meta = self.meta();
        let request = meta.request_id.clone();
        let wish = v1::CreateSeriesRequest {
            meta: Some(meta),
            each: Some(v1::CreateReservationRequest { with: self.companions(), ..each }),
            dates,
            rule: "each day".to_owned(),
            skip_conflicts: true,
            ..Default::default()
        };
        let answer = self
            .ask(wish, |mut client, wish| async move { client.create_series(wish).await })
            .await;
        self.tell(&format!("{request} series"), &answer);
        if let Answer::Yes(made) = answer {
            has.extend(made.items.iter().map(|item| held(item, true)));
        }
    }

    /// One of those that have not begun: its place in the list.
    fn any_ahead(&mut self, has: &[Held], is_date: bool) -> Option<usize> {
        let now = self.now();
        let ahead = |(_, one): &(usize, &Held)| one.starts_ms > now && one.is_date == is_date;
        let all: Vec<usize> = has.iter().enumerate().filter(ahead).map(|(at, _)| at).collect();
        (!all.is_empty()).then(|| *self.rng.one_of(&all))
    }

    /// Another time, other GPUs, other users, or several of these.
    async fn change(&mut self, has: &mut [Held], is_date: bool) {
        let Some(at) = self.any_ahead(has, is_date) else { return };
        let id = has[at].id.clone();
        let meta = self.meta();
        let request = meta.request_id.clone();
        let mut wish = v1::EditReservationRequest {
            meta: Some(meta),
            id: id.to_string(),
            ..Default::default()
        };
        let what = self.rng.between(0, 9);
        if what < 6 {
            let by = self.rng.between(0, 600) * SECOND_MS;
            wish.starts_at_unix_ms = (has[at].starts_ms + by).saturating_sub(200 * SECOND_MS);
            wish.starts_at_unix_ms = wish.starts_at_unix_ms.max(self.now() + 5 * SECOND_MS);
        }
        if (5..8).contains(&what) {
            wish.gpus = self.gpus();
        }
        if what >= 7 {
            wish.with = Some(v1::SharedWith { users: self.companions() });
        }
        let answer = self
            .ask(wish, |mut client, wish| async move { client.edit_reservation(wish).await })
            .await;
        self.tell(&format!("{request} edit {id}"), &answer);
        if let Answer::Yes(made) = answer {
            self.acknowledged(request, Done::Edited(id, made.revision));
            // Where a node must release the old place first, the answer still has that.
            has[at] = held(&made, is_date);
        }
    }

    /// Releases one that has not begun, or one date; without such a one whatever they have.
    async fn give_up(&mut self, has: &mut Vec<Held>, is_date: bool) {
        let Some(at) = self.any_ahead(has, is_date).or(has.len().checked_sub(1)) else { return };
        let id = has.remove(at).id;
        self.release_one(id).await;
    }

    /// One node is drained for a while. Evictions that a storm of faults has stopped resume.
    async fn look_after_nodes(&mut self) {
        self.thaw().await;
        let meta = self.meta();
        let request = meta.request_id.clone();
        let node = self.node_to_empty();
        let wish = v1::DrainNodeRequest {
            meta: Some(meta),
            node: node.clone(),
            reason: "a new fan".to_owned(),
            deadline_unix_ms: self.now() + 30 * SECOND_MS,
        };
        let answer =
            self.ask(wish, |mut client, wish| async move { client.drain_node(wish).await }).await;
        self.tell(&format!("{request} drain {node}"), &answer);
        if matches!(answer, Answer::No(_)) {
            return;
        }
        self.pause(DRAINED_MS).await;
        loop {
            let meta = self.meta();
            let wish = v1::UncordonNodeRequest { meta: Some(meta), node: node.clone() };
            let answer = self
                .ask(wish, |mut client, wish| async move { client.uncordon_node(wish).await })
                .await;
            self.tell(&format!("uncordon {node}"), &answer);
            if !matches!(answer, Answer::Unknown) {
                return;
            }
        }
    }

    /// The week is over: everybody releases what they have.
    async fn leave(mut self) {
        if self.name == "root" {
            return;
        }
        loop {
            let call = |mut client: FleetClient<Channel>, wish| async move {
                client.list_reservations(wish).await
            };
            let wish =
                v1::ListReservationsRequest { owner: self.name.clone(), ..Default::default() };
            let Answer::Yes(list) = self.ask(wish, call).await else { continue };
            let own: Vec<_> = list.items.iter().filter(|one| one.owner == self.name).collect();
            if own.is_empty() {
                return;
            }
            for one in own {
                self.release_one(held(one, false).id).await;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }
}
