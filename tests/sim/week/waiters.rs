//! Judges the waiting list: those who came first are served first, and nobody on it is forgotten.
//!
//! What is promised exactly: all are tried in their order, so whatever one of them gets, or somebody who asks later, no one
//! before them who has no place could have used. Who has a place that begins too late is tried in the same order, but only
//! on the nodes that change, and on all of them once a minute: that is judged among those on the list. Judged is what needs
//! no search: the later one's GPUs and time hold everything that the earlier one wishes. Wishes that name GPUs, a node or
//! a model are left out.

use fleet_core::Fsm;
use fleet_core::command::{Command, CreateReservation, Envelope, ReservationCommand};
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::id::ReservationId;
use fleet_core::node::Liveness;
use fleet_core::offer::OfferEvent;
use fleet_core::reply::Reply;
use fleet_core::reservation::{GpuRequest, WaitOverWhy};
use fleet_core::time::{Millis, Timestamp, Window};

use super::Week;

/// How long after its latest start a wish may stay on the list.
pub(super) const OVER_LATE_MAX: Millis = Millis::minutes(2);
/// A place that begins earlier by less than this is not worth a move; or by less than a tenth of the length.
const GAIN_MAX: Millis = Millis::minutes(5);

/// One who waits, or who has a place that begins later than they wish.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    id: ReservationId,
    gpus: u32,
    length: Millis,
    earliest: Timestamp,
    latest: Timestamp,
    placed: Option<Timestamp>,
}

/// What somebody got by an entry.
struct Got<'a> {
    id: &'a ReservationId,
    gpus: usize,
    window: Window,
    /// It was on the waiting list before, so that all before it were tried in the same pass.
    in_turn: bool,
}

impl Waiting {
    pub(super) fn of(
        wish: &CreateReservation,
        latest: Timestamp,
        now: Timestamp,
    ) -> Option<Waiting> {
        let plain = GpuRequest { count: wish.gpus.count, ..GpuRequest::default() };
        (wish.gpus == plain).then(|| Waiting {
            id: wish.id.clone(),
            gpus: wish.gpus.count,
            length: wish.window.ends_at.since(wish.window.starts_at),
            earliest: wish.window.starts_at.max(now),
            latest,
            placed: None,
        })
    }

    pub(super) fn id(&self) -> &ReservationId {
        &self.id
    }

    pub(super) fn earliest(&self) -> Timestamp {
        self.earliest
    }

    pub(super) fn with_place(self, placed: Option<Timestamp>) -> Waiting {
        Waiting { placed, ..self }
    }

    /// Whether that place holds all that is wished here.
    fn could_use(&self, got: &Got<'_>) -> bool {
        let starts_at = got.window.starts_at;
        let latest = match self.placed {
            Some(placed) => placed - GAIN_MAX.min(Millis(self.length.0 / 10)),
            None => self.latest,
        };
        self.gpus as usize <= got.gpus
            && self.length <= got.window.ends_at.since(starts_at)
            && self.earliest <= starts_at
            && starts_at <= latest
    }

    /// Whether a place that begins then may be its own, or be offered to it, now.
    fn may_get(&self, starts_at: Timestamp, fsm: &Fsm) -> bool {
        let waiter = fsm.waitlist().waits(&self.id);
        let terms = waiter.and_then(|waiter| waiter.offer.as_ref());
        terms.is_none_or(|terms| {
            terms.open_until(fsm.now(), self.latest).is_some_and(|until| until <= starts_at)
        })
    }

    /// Whether the place that it has can be exchanged at any time.
    fn can_move(&self, fsm: &Fsm) -> bool {
        let Some(r) = fsm.reservation(&self.id) else { return false };
        let heard = fsm.node(&r.node).is_some_and(|n| n.liveness == Liveness::Ready);
        let listed = fsm.waitlist().get(&self.id).is_some_and(|w| w.placed == self.placed);
        let is_own = r.offered_until().is_none();
        is_own && listed && heard && r.next.is_none() && r.pair.is_none() && !r.is_unconfirmed()
    }
}

impl Week {
    /// Returns how many of those who waited got a place.
    pub(super) fn judge_waiters(
        &mut self,
        envelope: &Envelope,
        outcome: &Outcome,
        fsm: &Fsm,
    ) -> Result<usize, String> {
        let served = self.leave(envelope, outcome, fsm)?;
        self.judge_order(outcome, fsm)?;
        if let Command::Reservation(ReservationCommand::Wait { wish, latest_start, .. }) =
            &envelope.command
        {
            let waiting = Waiting::of(wish, *latest_start, fsm.now());
            let order = fsm.waitlist().all().find(|(_, w)| w.wish.id == wish.id);
            match (&outcome.reply, order, waiting) {
                // A request that was sent again has the answer of the first, which may be over by now.
                (Ok(Reply::ReservationWaits { id }), None, _) if *id == wish.id => {
                    return Err(format!("{} is to wait, and is not on the list", wish.id));
                }
                // Nobody serves it before it is approved.
                (_, Some((_, w)), _) if w.asks() => {}
                (_, Some((order, w)), Some(waiting)) => {
                    self.orders.insert(wish.id.clone(), (order, waiting.earliest));
                    self.waiting.insert(order, waiting.with_place(w.placed));
                }
                (_, _, _) => {}
            }
        }
        for waiting in self.waiting.values().filter(|waiting| waiting.placed.is_none()) {
            if fsm.waitlist().waits(&waiting.id).is_none() {
                return Err(format!("{} is gone from the waiting list", waiting.id));
            }
            if fsm.now() > waiting.latest + OVER_LATE_MAX {
                return Err(format!("{} waits beyond its latest start", waiting.id));
            }
        }
        Ok(served)
    }

    /// Those who got a place, or whose wait is over, by this entry's records.
    fn leave(
        &mut self,
        envelope: &Envelope,
        outcome: &Outcome,
        fsm: &Fsm,
    ) -> Result<usize, String> {
        let mut served = 0;
        for event in &outcome.events {
            let id = match event {
                Event::Offer(offer) => offer.reservation(),
                Event::ReservationCreated { reservation, .. }
                | Event::ReservationWaitOver { reservation, .. }
                | Event::ReservationCancelled { reservation, .. } => reservation,
                _ => continue,
            };
            let order = self.waiting.iter().find(|(_, w)| w.id == *id).map(|(order, _)| *order);
            let Some(order) = order else { continue };
            let Some(waiting) = self.waiting.get_mut(&order) else { continue };
            match event {
                Event::ReservationCreated { starts_at, .. } => {
                    served += 1;
                    if *starts_at > waiting.latest || *starts_at < waiting.earliest {
                        return Err(format!("{id} begins at {starts_at:?}: {waiting:?}"));
                    }
                    waiting.placed = Some(*starts_at);
                    continue;
                }
                Event::Offer(offer) => {
                    waiting.placed = match &**offer {
                        OfferEvent::Made { window, .. } => Some(window.starts_at),
                        OfferEvent::Accepted { .. } => continue,
                        OfferEvent::Declined { .. }
                        | OfferEvent::NotAnswered { .. }
                        | OfferEvent::Withdrawn { .. } => None,
                    };
                    if waiting.placed.is_some_and(|at| at > waiting.latest || at < waiting.earliest)
                    {
                        return Err(format!("{id} is offered another time: {waiting:?}"));
                    }
                    continue;
                }
                Event::ReservationWaitOver { why: WaitOverWhy::TooLate, .. }
                    if fsm.now() <= waiting.latest =>
                {
                    return Err(format!("{id} is over before its latest start"));
                }
                Event::ReservationWaitOver { why: WaitOverWhy::Refused { why }, .. } => {
                    return Err(format!("{id} is refused ({why}), and nothing was taken away"));
                }
                Event::ReservationCancelled { .. } if waiting.placed.is_none() => {
                    let by_command = matches!(
                        &envelope.command,
                        Command::Reservation(ReservationCommand::Release { id: asked }) if asked == id
                    );
                    if !by_command {
                        return Err(format!("{id} left the waiting list, and nobody released it"));
                    }
                }
                _ => {}
            }
            self.waiting.remove(&order);
        }
        // One that begins, or that its owner changed, has what it waits for.
        let ids = |order: &u64| fsm.waitlist().all().any(|(other, _)| other == *order);
        self.waiting.retain(|order, waiting| waiting.placed.is_none() || ids(order));
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.placed.is_some()) {
            waiting.placed = fsm.waitlist().get(&waiting.id).and_then(|w| w.placed);
        }
        Ok(served)
    }

    /// What somebody got by this entry, nobody before them could have used.
    fn judge_order(&self, outcome: &Outcome, fsm: &Fsm) -> Result<(), String> {
        for got in outcome.events.iter().filter_map(|event| self.got_by(event, fsm)) {
            // Those who never were on the list come after all who are.
            let own = self.orders.get(got.id).copied();
            let before = self.waiting.range(..own.map_or(u64::MAX, |(order, _)| order));
            // GPUs that are being emptied count as free for a start that is named, and for the next free time they do not.
            let starts_at = got.window.starts_at;
            let is_named = own.is_none_or(|(_, earliest)| earliest == starts_at);
            let is_named = is_named && starts_at > fsm.now();
            let before = before.map(|(_, w)| w).filter(|w| !is_named || w.earliest == starts_at);
            let is_in_turn = |w: &&Waiting| w.placed.is_none() || (got.in_turn && w.can_move(fsm));
            let before = before.filter(is_in_turn).filter(|w| w.may_get(starts_at, fsm));
            let mut before = before.filter(|w| w.id != *got.id);
            if let Some(first) = before.find(|w| w.could_use(&got)) {
                return Err(format!(
                    "{} got {:?}, which {} could have used, who waits for longer: {first:?}",
                    got.id, got.window, first.id
                ));
            }
        }
        Ok(())
    }

    fn got_by<'a>(&self, event: &'a Event, fsm: &Fsm) -> Option<Got<'a>> {
        let (id, gpus, mut window, in_turn) = match event {
            Event::ReservationCreated { reservation, gpus, starts_at, ends_at, .. } => {
                let window = Window { starts_at: *starts_at, ends_at: *ends_at };
                let in_turn = self.orders.contains_key(reservation);
                (reservation, gpus.clone(), window, in_turn)
            }
            Event::Offer(offer) => match &**offer {
                OfferEvent::Made { reservation, gpus, window, .. } => {
                    (reservation, gpus.clone(), *window, true)
                }
                _ => return None,
            },
            Event::ReservationEdited { reservation, by, edit, .. } if by == "fleet" => {
                let (_, window) = edit.window?;
                (reservation, fsm.reservation(reservation)?.wanted().gpus.clone(), window, true)
            }
            _ => return None,
        };
        // What it had before was its own, and nobody else's to use.
        let before = self.records.get(id).map(|record| &record.place).or(self.offers.place(id));
        if let Some(own) = before.filter(|own| own.gpus.iter().any(|gpu| gpus.contains(gpu))) {
            window.ends_at = window.ends_at.min(own.window.starts_at);
        }
        Some(Got { id, gpus: gpus.len(), window, in_turn })
    }
}
