//! Offers of the waiting list: made, accepted, declined, and ended by time.
//!
//! `fsm/waitlist.rs` finds the place and calls this at the end of each command. The place of an open offer is a
//! reservation in the state `Offered`: the calendar, limits and promises count it, and nothing else acts on it. Its
//! owner answers in time, or the place is free again and the reservation keeps its place on the list.

use super::moving::is_heard;
use super::reservations::{Granted, scheduled};
use super::waitlist::{Asked, gain_min};
use super::{Fsm, Turn};
use crate::event::Event;
use crate::id::ReservationId;
use crate::name::UserName;
use crate::offer::{OFFERS_MAX, OfferEvent, OfferTerms};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{Reservation, ReservationState, WaitOverWhy};
use crate::time::Timestamp;

/// What an open offer that nobody answered comes to at this time.
enum Fate {
    Stays,
    /// Its owner released it, for example.
    Gone,
    /// It was open until then.
    Ends(Timestamp),
    Withdrawn(String),
}

/// What became of open offers in one command.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Settled {
    pub(super) changed: bool,
    /// One lost its place, and may have another one anywhere.
    pub(super) withdrawn: bool,
}

impl Fsm {
    /// The terms of one whose places are offered; `None` if they are not.
    pub(super) fn offer_terms(&self, asked: &Asked<'_>) -> Result<Option<OfferTerms>, Rejection> {
        let Some(quiet) = asked.offer else { return Ok(None) };
        let by_then = asked.ask.map_or(asked.latest_start, |ask| ask.latest_start);
        let latest_start = asked.latest_start.max(by_then);
        OfferTerms::checked(quiet, self.now, latest_start).map(Some)
    }

    /// One that is open and not offered any more: what changes a reservation is about those.
    pub(super) fn accepted_reservation(
        &self,
        id: &ReservationId,
    ) -> Result<&Reservation, Rejection> {
        let reservation = self.open_reservation(id)?;
        match reservation.offered_until() {
            None => Ok(reservation),
            Some(_) => {
                let why = format!("it is offered: accept it first (fleet reservation accept {id})");
                Err(Rejection::NotChangeable { id: id.to_string(), why })
            }
        }
    }

    /// Holds the place for its owner until then.
    pub(super) fn make_offer(
        &mut self,
        turn: &mut Turn<'_>,
        order: u64,
        granted: Granted,
        until: Timestamp,
    ) {
        let Some(waiter) = self.waitlist.of_order(order) else { return };
        let (wish, (window, node, gpus)) = (&waiter.wish, granted.clone());
        let state = ReservationState::Offered { until };
        let reservation = Reservation { state, ..scheduled(wish, granted, self.now) };
        let (id, owner) = (wish.id.clone(), wish.owner.clone());
        self.reservations.insert(reservation);
        self.waitlist.set_placed(order, window.starts_at);
        let made = OfferEvent::Made { reservation: id, owner, node, gpus, window, until };
        turn.say(Event::Offer(Box::new(made)));
    }

    /// The order on the list of one that is offered now; `None` if it is its owner's already.
    pub(super) fn check_accept(&self, id: &ReservationId) -> Result<Option<u64>, Rejection> {
        if self.reservations.contains_key(id) {
            let offered = self.open_reservation(id)?.offered_until();
            return match offered {
                None => Ok(None),
                Some(until) if until <= self.now => Err(over(id, until)),
                Some(_) => Ok(self.waitlist.find(id).map(|(order, _)| order)),
            };
        }
        let Some(waiter) = self.waitlist.waits(id) else { return Err(self.has_no_place(id)) };
        match waiter.offer.as_ref().and_then(|terms| terms.ended_at()) {
            Some(at) => Err(over(id, at)),
            None => Err(no_offer(id)),
        }
    }

    /// It is an ordinary reservation from now on, and begins earlier if it can.
    pub(super) fn accept_offer(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
    ) -> Result<Reply, Rejection> {
        let Some(order) = self.check_accept(id)? else { return Ok(Reply::Unchanged) };
        self.waitlist.accept(order);
        let by = turn.actor.display_name();
        turn.say(Event::Offer(Box::new(OfferEvent::Accepted { reservation: id.clone(), by })));
        // Its own place must not stand in its way.
        let Some(offered) = self.reservations.remove(id) else { return Ok(Reply::Unchanged) };
        let waiter = self.waitlist.of_order(order);
        let earlier = waiter.and_then(|waiter| {
            let last = offered.window.starts_at - gain_min(waiter.length());
            self.earlier_place(waiter, last)
        });
        let place = earlier.unwrap_or((offered.window, offered.node, offered.gpus));
        self.place_waiter(turn, order, place);
        Ok(Reply::ReservationCreated { id: id.clone() })
    }

    /// The order on the list of one that is offered now; `None` if its last offer is over anyway.
    pub(super) fn check_decline(&self, id: &ReservationId) -> Result<Option<u64>, Rejection> {
        if self.reservations.contains_key(id) {
            if self.open_reservation(id)?.offered_until().is_some() {
                return Ok(self.waitlist.find(id).map(|(order, _)| order));
            }
            let why = format!("it is reserved and not offered: to give it up, fleet release {id}");
            return Err(Rejection::NotChangeable { id: id.to_string(), why });
        }
        let Some(waiter) = self.waitlist.waits(id) else { return Err(self.has_no_place(id)) };
        match waiter.offer.as_ref().and_then(|terms| terms.ended_at()) {
            Some(_) => Ok(None),
            None => Err(no_offer(id)),
        }
    }

    pub(super) fn decline_offer(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
    ) -> Result<Reply, Rejection> {
        let Some(order) = self.check_decline(id)? else { return Ok(Reply::Unchanged) };
        let until = self.reservations.get(id).and_then(Reservation::offered_until);
        // Behind each command, what nobody answered in time is ended as of its time.
        if until.is_none_or(|until| until <= self.now) {
            return Ok(Reply::Unchanged);
        }
        let by = turn.actor.display_name();
        self.end_offer(turn, order, self.now, Some(by));
        Ok(Reply::Done)
    }

    /// Ends the offers whose time is over, and those with a bad place. Called before the list is served: what they held
    /// is for those who are on it.
    pub(super) fn settle_offers(&mut self, turn: &mut Turn<'_>) -> Settled {
        let open: Vec<(u64, ReservationId)> =
            self.waitlist.offered().map(|(order, w)| (order, w.wish.id.clone())).collect();
        let mut settled = Settled::default();
        for (order, id) in open {
            match self.fate_of_offer(&id) {
                Fate::Stays => continue,
                Fate::Gone => drop(self.waitlist.remove(order)),
                Fate::Ends(at) => self.end_offer(turn, order, at, None),
                Fate::Withdrawn(why) => {
                    self.withdraw_offer(turn, order, why);
                    settled.withdrawn = true;
                }
            }
            settled.changed = true;
        }
        settled
    }

    fn fate_of_offer(&self, id: &ReservationId) -> Fate {
        let Some(r) = self.reservations.get(id) else { return Fate::Gone };
        let Some(until) = r.offered_until() else { return Fate::Gone };
        if until <= self.now {
            return Fate::Ends(until);
        }
        // A silent node says nothing of its GPUs: they may be as good as they were.
        let node = self.nodes.get(&r.node).filter(|node| is_heard(node));
        let bad = node.and_then(|node| self.bad_place(node, r));
        bad.map_or(Fate::Stays, |bad| Fate::Withdrawn(bad.what))
    }

    /// Not accepted: declined by somebody, or not answered by then.
    fn end_offer(
        &mut self,
        turn: &mut Turn<'_>,
        order: u64,
        at: Timestamp,
        declined_by: Option<String>,
    ) {
        let Some(reservation) = self.free_offered(order) else { return };
        let declined = self.waitlist.end_offer(order, Some(at));
        let event = match declined_by {
            Some(by) => OfferEvent::Declined { reservation, by, declined },
            None => OfferEvent::NotAnswered { reservation, declined },
        };
        turn.say(Event::Offer(Box::new(event)));
        if declined >= OFFERS_MAX {
            self.end_wait(turn, order, WaitOverWhy::NotAccepted { offers: declined });
        }
    }

    fn withdraw_offer(&mut self, turn: &mut Turn<'_>, order: u64, why: String) {
        let Some(reservation) = self.free_offered(order) else { return };
        self.waitlist.end_offer(order, None);
        let withdrawn = OfferEvent::Withdrawn { reservation, why };
        turn.say(Event::Offer(Box::new(withdrawn)));
    }

    /// The account of that user is closed: what was offered to them waits, and becomes what becomes of the rest.
    pub(super) fn withdraw_offers_of(&mut self, turn: &mut Turn<'_>, user: &UserName) {
        let theirs = self.waitlist.offered().filter(|(_, waiter)| waiter.wish.owner == *user);
        let theirs: Vec<u64> = theirs.map(|(order, _)| order).collect();
        for order in theirs {
            self.withdraw_offer(turn, order, format!("the account of {user} is closed"));
        }
    }

    /// The book does not have the place any more.
    fn free_offered(&mut self, order: u64) -> Option<ReservationId> {
        let id = self.waitlist.of_order(order)?.wish.id.clone();
        self.reservations.remove(&id);
        Some(id)
    }

    /// Its node has it, so it was accepted after the backup.
    pub(super) fn was_accepted_after_the_backup(&mut self, id: &ReservationId) {
        let order = self.waitlist.find(id).filter(|(_, w)| w.has_open_offer()).map(|(at, _)| at);
        let Some(order) = order else { return };
        self.waitlist.accept(order);
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.state = ReservationState::Scheduled;
        }
    }
}

fn over(id: &ReservationId, ended_at: Timestamp) -> Rejection {
    Rejection::OfferOver { id: id.to_string(), ended_at }
}

fn no_offer(id: &ReservationId) -> Rejection {
    let why = "nothing is offered to it now: it is on the waiting list".to_owned();
    Rejection::NotChangeable { id: id.to_string(), why }
}
