//! Judges offers: what is offered is promised to nobody else while the offer is open, nobody has it before its owner
//! accepts it in time, and who did not accept is left alone for the pause.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::Fsm;
use fleet_core::command::{Command, Envelope, ReservationCommand};
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::id::ReservationId;
use fleet_core::offer::{OFFER_OPEN, OFFER_OPEN_MIN, OFFER_PAUSE, OFFERS_MAX, OfferEvent};
use fleet_core::reservation::WaitOverWhy;
use fleet_core::time::Timestamp;

use super::records::{Place, Record, id_of};
use super::waiters::OVER_LATE_MAX;
use super::{OFFER_ACCEPTED, OFFER_DECLINED, OFFER_NOT_ANSWERED, OFFER_WITHDRAWN, Week};

/// Who wants offers, and what is offered.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// They have got nothing that is theirs yet.
    wished: BTreeSet<ReservationId>,
    open: BTreeMap<ReservationId, Offered>,
    not_accepted: BTreeMap<ReservationId, (u32, Timestamp)>,
}

#[derive(Debug, Clone)]
struct Offered {
    owner: String,
    place: Place,
    until: Timestamp,
}

impl Week {
    pub(super) fn judge_offers(
        &mut self,
        envelope: &Envelope,
        outcome: &Outcome,
        fsm: &Fsm,
        counted: &mut Vec<&'static str>,
    ) -> Result<(), String> {
        if let Command::Reservation(ReservationCommand::Wait { wish, offer: Some(_), .. }) =
            &envelope.command
        {
            self.offers.wished.insert(wish.id.clone());
        }
        let now = fsm.now();
        for event in &outcome.events {
            match event {
                Event::Offer(offer) => {
                    counted.extend(self.offers.note(offer, now)?);
                }
                Event::ReservationCreated { reservation, .. }
                    if self.offers.wished.contains(reservation) =>
                {
                    return Err(format!("{reservation} is reserved, and was not accepted"));
                }
                Event::WindowHandedOut { reservation, .. }
                    if self.offers.open.contains_key(reservation) =>
                {
                    return Err(format!("{reservation} is its node's, and only offered"));
                }
                Event::ReservationCancelled { reservation, .. } => {
                    self.offers.open.remove(reservation);
                }
                Event::ReservationWaitOver {
                    reservation,
                    why: WaitOverWhy::NotAccepted { offers },
                } => {
                    let waits = self.waiting.values().any(|waiting| waiting.id() == reservation);
                    if waits && *offers < OFFERS_MAX {
                        return Err(format!("{reservation} is over after {offers} offers"));
                    }
                }
                _ => {}
            }
        }
        self.offers.are_known(fsm)
    }

    /// What is offered is promised to nobody, once all that the entry says is noted.
    pub(super) fn judge_offered(&self, events: &[Event], now: Timestamp) -> Result<(), String> {
        for event in events {
            match event {
                Event::Offer(offer) => self.judge_made(offer.reservation(), now)?,
                _ => self.judge_taken(id_of(event), now)?,
            }
        }
        Ok(())
    }

    fn judge_made(&self, id: &ReservationId, now: Timestamp) -> Result<(), String> {
        let Some(place) = self.offers.place(id) else { return Ok(()) };
        let promised = |record: &Record| record.places().any(|other| other.meets(place, now));
        let promised = self.records.iter().find(|(_, record)| promised(record));
        let mut others = self.offers.open.iter().filter(|(other, _)| *other != id);
        let offered = others.find(|(_, other)| other.place.meets(place, now));
        match promised.map(|(other, _)| other).or(offered.map(|(other, _)| other)) {
            Some(other) => Err(format!("{id} is offered {place:?}, which {other} has")),
            None => Ok(()),
        }
    }

    fn judge_taken(&self, id: Option<&ReservationId>, now: Timestamp) -> Result<(), String> {
        let Some((id, record)) = id.and_then(|id| Some((id, self.records.get(id)?))) else {
            return Ok(());
        };
        let meets = |offered: &Offered| record.places().any(|own| own.meets(&offered.place, now));
        match self.offers.open.iter().find(|(_, offered)| meets(offered)) {
            Some((other, offered)) => {
                Err(format!("{id} has a part of {:?}, offered to {other}", offered.place))
            }
            None => Ok(()),
        }
    }
}

impl Offers {
    /// The place that is offered to it, if one is.
    pub(super) fn place(&self, id: &ReservationId) -> Option<&Place> {
        self.open.get(id).map(|offered| &offered.place)
    }

    fn note(&mut self, event: &OfferEvent, now: Timestamp) -> Result<Option<&'static str>, String> {
        let id = event.reservation();
        if let OfferEvent::Made { owner, node, gpus, window, until, .. } = event {
            let place = Place { node: node.to_string(), gpus: gpus.clone(), window: *window };
            let offered = Offered { owner: owner.to_string(), place, until: *until };
            return self.made(id, offered, now).map(|()| None);
        }
        let Some(offered) = self.open.remove(id) else {
            return Err(format!("{event:?}, and nothing is offered"));
        };
        let answered_by = |by: &str| {
            let may = by == offered.owner || by == "root";
            match may && now < offered.until {
                true => Ok(()),
                false => Err(format!("{by} answers at {now:?}: {offered:?}")),
            }
        };
        Ok(Some(match event {
            OfferEvent::Made { .. } => return Ok(None),
            OfferEvent::Accepted { by, .. } => {
                self.wished.remove(id);
                answered_by(by).map(|()| OFFER_ACCEPTED)?
            }
            OfferEvent::Declined { by, declined, .. } => {
                answered_by(by)?;
                self.was_not_accepted(id, *declined, now).map(|()| OFFER_DECLINED)?
            }
            OfferEvent::NotAnswered { declined, .. } => {
                if now < offered.until {
                    return Err(format!("{id} may be answered: {offered:?}"));
                }
                self.was_not_accepted(id, *declined, offered.until).map(|()| OFFER_NOT_ANSWERED)?
            }
            OfferEvent::Withdrawn { .. } => OFFER_WITHDRAWN,
        }))
    }

    fn made(&mut self, id: &ReservationId, offered: Offered, now: Timestamp) -> Result<(), String> {
        if !self.wished.contains(id) {
            return Err(format!("{id} did not ask for offers: {offered:?}"));
        }
        if let Some((_, ended_at)) = self.not_accepted.get(id)
            && now < *ended_at + OFFER_PAUSE
        {
            return Err(format!("{id} was not accepted at {ended_at:?}, and is offered again"));
        }
        let open = offered.until.since(now);
        if open < OFFER_OPEN_MIN || open > OFFER_OPEN {
            return Err(format!("{id} can be answered for {open:?}"));
        }
        if offered.place.window.starts_at < offered.until {
            return Err(format!("{id} begins before it is answered: {offered:?}"));
        }
        match self.open.insert(id.clone(), offered) {
            Some(before) => Err(format!("{id} is offered already: {before:?}")),
            None => Ok(()),
        }
    }

    fn was_not_accepted(
        &mut self,
        id: &ReservationId,
        times: u32,
        at: Timestamp,
    ) -> Result<(), String> {
        let before = self.not_accepted.insert(id.clone(), (times, at)).map_or(0, |(n, _)| n);
        match times == before + 1 {
            true => Ok(()),
            false => Err(format!("{id} was not accepted {before} times, and now it is {times}")),
        }
    }

    /// The state has each open offer, and ends it in time.
    fn are_known(&self, fsm: &Fsm) -> Result<(), String> {
        for (id, offered) in &self.open {
            if fsm.reservation(id).and_then(|r| r.offered_until()) != Some(offered.until) {
                return Err(format!("the offer of {id} is gone: {offered:?}"));
            }
            if fsm.now() > offered.until + OVER_LATE_MAX {
                return Err(format!("the offer of {id} does not end: {offered:?}"));
            }
        }
        Ok(())
    }
}
