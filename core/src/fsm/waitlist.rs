//! The waiting list: who gets on it, and who is served when something comes free.
//!
//! Called for the command, and at the end of each command that changed a node or passed a minute: so the list comes before
//! the queue of jobs, whose plan is made later. Those on the list are served in its order. Who has a place keeps it
//! until there is an earlier one, so nobody is delayed by those that come later; and jobs that end before the place begins
//! may run there. Places are found as for any reservation: claims and promises come first.

use std::collections::BTreeSet;

use super::cluster::check_text;
use super::offers::Settled;
use super::reservations::Granted;
use super::{Fsm, Turn};
use crate::access::AccessEvent;
use crate::actor::{Actor, Who};
use crate::approval::{Approval, ApprovalEvent};
use crate::calendar::{self, Leaving};
use crate::command::{AskForApproval, CreateReservation};
use crate::event::Event;
use crate::id::ReservationId;
use crate::name::{NodeName, UserName};
use crate::node::Liveness;
use crate::rejection::{Rejection, Slot};
use crate::reply::Reply;
use crate::reservation::{
    Edit, GpuRequest, Place, RESERVATION_AHEAD_MAX, Reservation, ReservationState, WaitOverWhy,
};
use crate::scheduler::claims;
use crate::scheduler::project_limit::Booking;
use crate::time::{Millis, Timestamp, Window};
use crate::waitlist::{WAIT_MAX, WAITING_EACH_MAX, WAITLIST_MAX, Waiter, minute};

/// Where more nodes changed in one command, all nodes are tried.
const NODES_APART_MAX: usize = 16;
/// A place that begins earlier by less than this is not worth a move; of a short reservation, by a tenth of its length.
const GAIN_MIN: Millis = Millis::minutes(5);
const GAIN_PART: u64 = 10;
/// So many without a place may make jobs leave in one pass: all attempts are read for each of them.
const LEAVING_TRIES_MAX: usize = 8;

/// So many times the list is tried from its beginning in one pass. What is left in the last one is found a minute later.
const FREED_MAX: usize = 16;

/// After so many places that limits refuse there is none.
const LIMITED_TRIES_MAX: usize = 8;

/// Places held for jobs that must leave may be others at a later start. After so many searches there is none.
const HELD_TRIES_MAX: usize = 4;

/// What a place is searched for.
struct Search<'a> {
    /// The actor with the limits that count; none for a reservation that was approved.
    by: Option<&'a Actor>,
    wish: &'a CreateReservation,
    /// The earliest one.
    window: Window,
    last: Timestamp,
    leaving: Leaving,
    /// On these nodes alone, or anywhere.
    on: Option<&'a [NodeName]>,
}

/// A wish that may wait.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) wish: &'a CreateReservation,
    pub(super) latest_start: Timestamp,
    /// To be approved, if it is above a limit.
    pub(super) ask: Option<&'a AskForApproval>,
    /// Its places are offered, but not in these windows.
    pub(super) offer: Option<&'a [Window]>,
}

/// What becomes of a wish that may wait.
pub(super) enum Answer {
    Place(Granted),
    /// Nothing is free in time.
    Waits,
    /// It is above a limit, and is to be approved.
    Asks(Approval),
}

/// How the list is tried.
#[derive(Clone, Copy)]
struct Served<'a> {
    /// On these nodes alone, or on all.
    on: Option<&'a [NodeName]>,
    /// Those for which jobs may leave.
    may_leave: &'a BTreeSet<u64>,
    /// From the beginning, once one has left a place.
    begins_again: bool,
}

/// What becomes of one on the list.
enum Step {
    Place(Granted),
    /// Its owner has to accept it before then.
    Offer(Granted, Timestamp),
    Move(Granted),
    /// It cannot get an earlier place any more, or somebody changed it.
    Leaves,
    Over(WaitOverWhy),
}

impl Fsm {
    /// Books the earliest place that begins by `latest_start`. Where there is none, or only one that begins later than the
    /// wish's window, it is on the waiting list. So is one above a limit that is to be approved.
    pub(super) fn wait_for_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        asked: &Asked<'_>,
    ) -> Result<Reply, Rejection> {
        let Asked { wish, latest_start, ask, .. } = *asked;
        let (window, answer) = self.check_wait(turn.actor, asked)?;
        let offer = self.offer_terms(asked)?;
        let mut waiter = Waiter {
            wish: CreateReservation { window, ..wish.clone() },
            latest_start,
            since: self.now,
            by: turn.actor.clone(),
            placed: None,
            approval: None,
            offer: offer.map(Box::new),
        };
        let (id, order) = (wish.id.clone(), self.applied);
        match answer {
            Answer::Asks(approval) => {
                let latest_start = ask.map_or(latest_start, |ask| ask.latest_start);
                waiter.latest_start = latest_start.max(waiter.latest_start);
                turn.say(Event::Approval(Box::new(ApprovalEvent::Asked {
                    reservation: id.clone(),
                    owner: wish.owner.clone(),
                    gpus: wish.gpus.clone(),
                    length: waiter.length(),
                    latest_start: waiter.latest_start,
                    reason: approval.reason.clone(),
                    above: approval.above.clone(),
                })));
                waiter.approval = Some(Box::new(approval));
                self.waitlist.add(order, waiter, self.now);
                Ok(Reply::ReservationWaits { id })
            }
            Answer::Waits => {
                let is_offered = waiter.offer.is_some();
                self.waitlist.add(order, waiter, self.now);
                self.say_it_waits(turn, &id);
                match is_offered && self.serve_now(turn, order) {
                    true => Ok(Reply::ReservationCreated { id }),
                    false => Ok(Reply::ReservationWaits { id }),
                }
            }
            Answer::Place(granted) => {
                let starts_at = granted.0.starts_at;
                self.book(turn, wish, granted);
                self.start_if_begun(turn, &id);
                if starts_at > window.starts_at && !self.waitlist.is_full() {
                    waiter.placed = Some(starts_at);
                    self.waitlist.add(order, waiter, self.now);
                }
                Ok(Reply::ReservationCreated { id })
            }
        }
    }

    pub(super) fn say_it_waits(&self, turn: &mut Turn<'_>, id: &ReservationId) {
        let Some(waiter) = self.waitlist.get(id) else { return };
        turn.say(Event::ReservationWaits {
            reservation: id.clone(),
            owner: waiter.wish.owner.clone(),
            gpus: waiter.wish.gpus.clone(),
            earliest_start: waiter.earliest_start(),
            latest_start: waiter.latest_start,
            place: self.waitlist.place(id).and_then(|at| u32::try_from(at).ok()).unwrap_or(0),
        });
    }

    /// Everything that could be refused; else its window from now on, and what becomes of it.
    pub(super) fn check_wait(
        &self,
        actor: &Actor,
        asked: &Asked<'_>,
    ) -> Result<(Window, Answer), Rejection> {
        let Asked { wish, latest_start, ask, offer } = *asked;
        let length = wish.window.ends_at.since(wish.window.starts_at);
        let starts_at = self.check_wish(actor, wish)?.starts_at;
        let window = Window { starts_at, ends_at: starts_at + length };
        if wish.adopts {
            let problem = "what runs now cannot be taken over later: it cannot wait";
            return Err(Rejection::field("adopts", problem));
        }
        // With a request for approval it need not wait otherwise: the time that it took to ask does not count.
        let latest_start = if ask.is_some() { latest_start.max(starts_at) } else { latest_start };
        self.check_latest(starts_at, latest_start)?;
        if let Some(ask) = ask {
            check_text("ask_reason", &ask.reason)?;
            if ask.reason.trim().is_empty() {
                let problem = "a reason is required: the approver reads it";
                return Err(Rejection::field("ask_reason", problem));
            }
            self.check_latest(starts_at, ask.latest_start.max(starts_at))?;
        }
        self.offer_terms(asked)?;
        calendar::is_built(self, &wish.gpus)?;
        let limits = self.check_limits(actor, &booking_of(wish, window), true);
        if let Some(most) = self.has_all_reservations() {
            let what = "open reservations".to_owned();
            return Err(Rejection::LimitReached { what, limit: most as u64 });
        }
        let answer = match (limits, ask) {
            (Err(above), Some(ask)) => self.asked_for(wish, (window, latest_start), ask, above)?,
            // What counts against it may be over in time.
            (Ok(()) | Err(Rejection::LimitReached { .. }), ask) => {
                self.placed_or_asked_for(actor, wish, (window, latest_start), ask)?
            }
            (Err(other), None) => return Err(other.above_limit()),
        };
        let answer = match answer {
            // It is offered from the list, if its terms allow that now.
            Answer::Place(_) if offer.is_some() => Answer::Waits,
            other => other,
        };
        if !matches!(answer, Answer::Place(_)) {
            self.check_room_on_waitlist(&wish.owner)?;
        }
        Ok((window, answer))
    }

    fn check_latest(&self, starts_at: Timestamp, latest_start: Timestamp) -> Result<(), Rejection> {
        if latest_start < starts_at || latest_start.since(starts_at) > WAIT_MAX {
            let problem = format!("must be at most {WAIT_MAX} after the start, and not before it");
            return Err(Rejection::field("latest_start", problem));
        }
        if latest_start.since(self.now) > RESERVATION_AHEAD_MAX {
            let problem = format!("at most {RESERVATION_AHEAD_MAX} ahead");
            return Err(Rejection::field("latest_start", problem));
        }
        Ok(())
    }

    /// One that a limit refuses at its start. A request for one start is refused if nothing is free then: nobody should
    /// approve what cannot be.
    fn asked_for(
        &self,
        wish: &CreateReservation,
        (window, latest_start): (Window, Timestamp),
        ask: &AskForApproval,
        above: Rejection,
    ) -> Result<Answer, Rejection> {
        let last = ask.latest_start.max(latest_start);
        if last <= self.now {
            let problem =
                "it would start before anybody can approve it: give a later start, or let it wait";
            return Err(Rejection::field("ask_reason", problem));
        }
        let leaving = self.leaving_for_one_more(None);
        let search = Search { by: None, wish, window, last, leaving, on: None };
        if last == window.starts_at && self.earliest_place(&search).is_none() {
            self.place_at(wish, window)?;
        }
        let (reason, above) = (ask.reason.clone(), limit_said(above));
        Ok(Answer::Asks(Approval { reason, above, given_by: None }))
    }

    /// One that no limit refuses at its start: maybe at the first place that is free.
    fn placed_or_asked_for(
        &self,
        actor: &Actor,
        wish: &CreateReservation,
        (window, latest_start): (Window, Timestamp),
        ask: Option<&AskForApproval>,
    ) -> Result<Answer, Rejection> {
        let (last, leaving) = (latest_start, self.leaving_for_one_more(None));
        let search = Search { by: Some(actor), wish, window, last, leaving, on: None };
        if let Some(granted) = self.earliest_place(&search) {
            return Ok(Answer::Place(granted));
        }
        if let Some(ask) = ask {
            let last = ask.latest_start.max(latest_start);
            let found = self.earliest_place(&Search { by: None, last, ..search });
            let limits = |window| self.check_limits(actor, &booking_of(wish, window), true);
            if let Some(Err(above)) = found.map(|(window, ..)| limits(window)) {
                return self.asked_for(wish, (window, latest_start), ask, above);
            }
            if latest_start == window.starts_at {
                // As if nothing had been asked for.
                return self.place_at(wish, window).map(Answer::Place);
            }
        }
        Ok(Answer::Waits)
    }

    /// What the wish gets in exactly that window, limits aside.
    fn place_at(&self, wish: &CreateReservation, window: Window) -> Result<Granted, Rejection> {
        let held = claims::held_within(self, &window);
        let unleased = calendar::Unleased::Blocks;
        let (node, gpus) = calendar::choose(self, &wish.gpus, window, unleased, &held)?;
        Ok((window, node, gpus))
    }

    /// Jobs leave for those first who asked before.
    pub(super) fn leaving_for_one_more(&self, but: Option<&ReservationId>) -> Leaving {
        let mut others = self.waitlist.without_place().filter(|w| Some(&w.wish.id) != but);
        let is_first = others.all(|w| !w.makes_jobs_leave());
        if is_first { Leaving::Jobs } else { Leaving::Nobody }
    }

    fn check_room_on_waitlist(&self, owner: &UserName) -> Result<(), Rejection> {
        // What is offered may be without a place again.
        let offered = self.waitlist.offered().map(|(_, waiter)| waiter);
        let all = self.waitlist.without_place().chain(offered);
        let of_owner = all.filter(|w| w.wish.owner == *owner).count();
        let full = |what: &str, limit: usize| {
            Err(Rejection::LimitReached { what: what.to_owned(), limit: limit as u64 })
        };
        if of_owner >= WAITING_EACH_MAX {
            return full("reservations of one person that wait for a place", WAITING_EACH_MAX);
        }
        if self.waitlist.is_full() {
            return full("reservations on the waiting list", WAITLIST_MAX);
        }
        Ok(())
    }

    /// Why one on the list would be refused now if it asked again without waiting.
    pub fn what_it_waits_for(&self, waiter: &Waiter) -> Option<Rejection> {
        let offered = waiter.offer.as_ref();
        let until = offered.and_then(|terms| terms.open_until(self.now, waiter.latest_start));
        let starts_at = waiter.earliest_start().max(until.unwrap_or(self.now));
        let window = Window { starts_at, ends_at: starts_at + waiter.length() };
        let asked = booking_of(&waiter.wish, window);
        let limits = waiter.limited_as().map_or(Ok(()), |by| self.check_limits(by, &asked, true));
        limits.and_then(|()| self.place_at(&waiter.wish, window)).err()
    }

    /// Of a reservation that is not in the book: it waits, it got nothing, or nobody knows it.
    pub fn has_no_place(&self, id: &ReservationId) -> Rejection {
        if let Some(waiter) = self.waitlist.waits(id) {
            let why = match waiter.asks() {
                true => "it waits for approval and has no GPUs yet: release it and reserve again",
                false => {
                    "it is on the waiting list and has no GPUs yet: release it and reserve again"
                }
            };
            return Rejection::NotChangeable { id: id.to_string(), why: why.to_owned() };
        }
        match self.waitlist.was_over(id) {
            Some(_) => Rejection::AlreadyEnded { id: id.to_string(), state: "over".to_owned() },
            None => Rejection::not_found("reservation", id),
        }
    }

    pub(super) fn check_released(&self, id: &ReservationId) -> Result<(), Rejection> {
        if self.waitlist.waits(id).is_some() || self.waitlist.was_over(id).is_some() {
            return Ok(());
        }
        self.open_reservation(id).map(|_| ())
    }

    /// Takes it off the list; says whether it was there without a place. Repeating it is harmless.
    pub(super) fn leave_waitlist(&mut self, turn: &mut Turn<'_>, id: &ReservationId) -> bool {
        let order = self.waitlist.find(id).filter(|(_, w)| w.placed.is_none()).map(|(at, _)| at);
        let Some(order) = order else { return self.waitlist.was_over(id).is_some() };
        let by = turn.actor.display_name();
        self.waitlist.end(order, self.now, WaitOverWhy::Cancelled { by: by.clone() });
        turn.say(Event::ReservationCancelled { reservation: id.clone(), by });
        true
    }

    /// What a person whose account is closed has on the list: given to somebody else, or over.
    pub(super) fn clear_waitlist_of(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        transfer_to: Option<&UserName>,
    ) {
        self.withdraw_offers_of(turn, user);
        let all: Vec<(u64, ReservationId, bool)> = self
            .waitlist
            .all()
            .filter(|(_, w)| w.wish.users().any(|named| named == user))
            .map(|(order, w)| (order, w.wish.id.clone(), w.wish.owner == *user))
            .collect();
        for (order, id, owns) in all {
            match transfer_to {
                _ if !owns => self.waitlist.unshare(order, user),
                Some(to) => {
                    self.waitlist.set_owner(order, to, turn.actor);
                    if self.waitlist.waits(&id).is_some() {
                        turn.say(Event::Access(AccessEvent::ReservationTransferred {
                            reservation: id,
                            from: user.clone(),
                            to: to.clone(),
                        }));
                    }
                }
                // One that has a place is cancelled with it.
                None => drop(self.leave_waitlist(turn, &id)),
            }
        }
    }

    /// Serves the list where this command may have made something free. Says whether anything changed.
    pub(super) fn serve_waitlist(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.waitlist.is_empty() {
            return false;
        }
        let Settled { mut changed, withdrawn } = self.settle_offers(turn);
        let nodes: Vec<NodeName> = self.unsettled().into_iter().cloned().collect();
        let is_over = self.waitlist.first_over().is_some_and(|at| at <= self.now);
        let everywhere = withdrawn || self.waitlist.is_due(self.now);
        let mut on = match everywhere || nodes.len() > NODES_APART_MAX {
            true => None,
            false if nodes.is_empty() && !is_over => return changed,
            false => Some(nodes),
        };
        let may_leave = match &on {
            None => self.may_make_jobs_leave(),
            Some(_) => BTreeSet::new(),
        };
        if on.is_none() {
            self.waitlist.was_tried(self.now);
        }
        // Those who come first may want what one behind them has left.
        for begins_again in (0..FREED_MAX).map(|round| round + 1 < FREED_MAX) {
            let served = Served { on: on.as_deref(), may_leave: &may_leave, begins_again };
            let freed = self.serve_in_order(turn, served, &mut changed);
            let Some(freed) = freed else { break };
            on.iter_mut().for_each(|nodes| nodes.push(freed.clone()));
        }
        changed
    }

    /// Tries all on the list; with `begins_again`, those up to the first that leaves a place which is free at once, and says
    /// on which node.
    fn serve_in_order(
        &mut self,
        turn: &mut Turn<'_>,
        served: Served<'_>,
        changed: &mut bool,
    ) -> Option<NodeName> {
        let Served { on, may_leave, begins_again } = served;
        let orders: Vec<u64> = self.waitlist.all().map(|(order, _)| order).collect();
        for order in orders {
            let Some(step) = self.step_of(order, on, may_leave.contains(&order)) else { continue };
            *changed = true;
            match step {
                Step::Place(granted) => self.place_waiter(turn, order, granted),
                Step::Offer(granted, until) => self.make_offer(turn, order, granted, until),
                Step::Move(granted) => {
                    let freed = self.move_waiter(turn, order, granted).filter(|_| begins_again);
                    if freed.is_some() {
                        return freed;
                    }
                }
                Step::Leaves => drop(self.waitlist.remove(order)),
                Step::Over(why) => self.end_wait(turn, order, why),
            }
        }
        None
    }

    /// Those without a place for which jobs may leave this time. Others follow a minute later, so that nobody keeps the rest
    /// from it.
    fn may_make_jobs_leave(&self) -> BTreeSet<u64> {
        let served = |waiter: &Waiter| waiter.placed.is_none() && waiter.makes_jobs_leave();
        let orders = self.waitlist.all().filter(|(_, waiter)| served(waiter));
        let orders: Vec<u64> = orders.map(|(order, _)| order).collect();
        let minutes = usize::try_from(minute(self.now)).unwrap_or(0);
        let first = minutes.wrapping_mul(LEAVING_TRIES_MAX) % orders.len().max(1);
        let turned = orders.iter().cycle().skip(first).take(orders.len());
        turned.take(LEAVING_TRIES_MAX).copied().collect()
    }

    fn step_of(
        &mut self,
        order: u64,
        on: Option<&[NodeName]>,
        may_make_jobs_leave: bool,
    ) -> Option<Step> {
        let waiter = self.waitlist.of_order(order)?;
        let leaving = if may_make_jobs_leave { Leaving::Jobs } else { Leaving::Nobody };
        match waiter.placed {
            Some(_) if waiter.has_open_offer() => None,
            Some(placed) => self.step_with_place(order, placed, on),
            None => self.step_without_place(waiter, on, leaving),
        }
    }

    fn step_without_place(
        &self,
        waiter: &Waiter,
        on: Option<&[NodeName]>,
        leaving: Leaving,
    ) -> Option<Step> {
        if waiter.latest_start < self.now {
            return Some(Step::Over(waiter.too_late()));
        }
        if let Err(refused) = self.may_still_wait(waiter) {
            return Some(Step::Over(WaitOverWhy::Refused { why: refused.to_string() }));
        }
        if waiter.asks() {
            return None;
        }
        if self.has_all_reservations().is_some() {
            return None;
        }
        let (wish, last) = (&waiter.wish, waiter.latest_start);
        let find = |from: Timestamp, leaving| {
            let starts_at = waiter.earliest_start().max(from);
            let window = Window { starts_at, ends_at: starts_at + waiter.length() };
            let by = waiter.limited_as();
            self.earliest_place(&Search { by, wish, window, last, leaving, on })
        };
        match &waiter.offer {
            None => find(self.now, leaving).map(Step::Place),
            Some(terms) => {
                let until = terms.open_until(self.now, last)?;
                find(until, Leaving::Nobody).map(|granted| Step::Offer(granted, until))
            }
        }
    }

    /// The first place that is free by then for one whose offer was accepted.
    pub(super) fn earlier_place(&self, waiter: &Waiter, last: Timestamp) -> Option<Granted> {
        let starts_at = waiter.earliest_start().max(self.now);
        let window = Window { starts_at, ends_at: starts_at + waiter.length() };
        let (by, wish, leaving) = (waiter.limited_as(), &waiter.wish, Leaving::Nobody);
        let search = Search { by, wish, window, last, leaving, on: None };
        (starts_at <= last).then(|| self.earliest_place(&search)).flatten()
    }

    /// What was checked when it got on the list, as far as it may have changed since.
    pub(super) fn may_still_wait(&self, waiter: &Waiter) -> Result<(), Rejection> {
        let Waiter { by, wish, .. } = waiter;
        self.check_enabled(&wish.owner)?;
        if let Who::User { name, .. } = &by.who {
            self.check_enabled(name)?;
        }
        self.check_project(by, &wish.owner, &wish.project)?;
        calendar::is_built(self, &wish.gpus)
    }

    fn step_with_place(
        &mut self,
        order: u64,
        placed: Timestamp,
        on: Option<&[NodeName]>,
    ) -> Option<Step> {
        let waiter = self.waitlist.of_order(order)?.clone();
        let earliest = waiter.earliest_start();
        let Some(r) = self.reservations.get(&waiter.wish.id) else { return Some(Step::Leaves) };
        let wanted = r.wanted();
        let is_ours = r.state == ReservationState::Scheduled
            && !r.is_cancelled()
            && wanted.window.starts_at == placed
            && wanted.wish == waiter.wish.gpus;
        let gain = gain_min(waiter.length());
        if !is_ours || placed <= self.now.max(earliest) + gain {
            return Some(Step::Leaves);
        }
        // Its node must release the place that it has, so it has to answer.
        let node = self.nodes.get(&r.node);
        let heard = node.is_some_and(|n| n.liveness == Liveness::Ready);
        // Since a restore a node may have more in its hands than is known here.
        let is_asked = node.is_some_and(|n| !n.uncounted);
        if r.next.is_some()
            || r.pair.is_some()
            || r.is_unconfirmed()
            || (r.handed_out.is_some() && !heard)
            || !is_asked
        {
            return None;
        }
        let starts_at = earliest.max(self.now);
        let length = r.window.ends_at.since(r.window.starts_at);
        let window = Window { starts_at, ends_at: starts_at + length };
        let (by, wish, last) = (waiter.limited_as(), &waiter.wish, placed - gain);
        let search = Search { by, wish, window, last, leaving: Leaving::Nobody, on };
        if on.is_some_and(|nodes| !nodes.contains(&r.node)) {
            return self.earliest_place(&search).map(Step::Move);
        }
        // Its own place must not stand in its way.
        let touched = self.reservations.touched().contains(&r.node);
        let r = self.reservations.remove(&waiter.wish.id)?;
        let found = self.earliest_place(&search);
        let node = r.node.clone();
        self.reservations.insert(r);
        if !touched {
            self.reservations.as_it_was(&node);
        }
        found.map(Step::Move)
    }

    /// The earliest place that it may have. What limits refuse is searched again from where a reservation of the same owner
    /// ends.
    fn earliest_place(&self, search: &Search<'_>) -> Option<Granted> {
        let mut window = search.window;
        for _ in 0..LIMITED_TRIES_MAX {
            let (then, node, gpus) = self.earliest_free(&Search { window, ..*search })?;
            let Some(by) = search.by else { return Some((then, node, gpus)) };
            // The place that it has is none of the others that count.
            let of = Some(&search.wish.id);
            let booking = Booking { of, ..booking_of(search.wish, then) };
            match self.check_limits(by, &booking, true) {
                Ok(()) => return Some((then, node, gpus)),
                Err(Rejection::LimitReached { .. }) => {}
                // A later start does not help.
                Err(_) => return None,
            }
            let own = self.reservations.open_of(&search.wish.owner);
            let ends = own.map(|r| r.wanted().window.ends_at).filter(|at| *at > then.starts_at);
            let (starts_at, length) = (ends.min()?, window.ends_at.since(window.starts_at));
            window = Window { starts_at, ends_at: starts_at + length };
        }
        None
    }

    fn earliest_free(&self, search: &Search<'_>) -> Option<Granted> {
        let slot = match search.on {
            None => self.earliest_slot(search, &search.wish.gpus),
            Some(nodes) => {
                let asked = &search.wish.gpus;
                let may_be = |name: &&NodeName| {
                    asked.node.as_ref().is_none_or(|only| only == *name)
                        && asked
                            .uuids
                            .iter()
                            .all(|gpu| self.gpus.get(gpu).is_some_and(|gpu| gpu.node == **name))
                };
                let here = |name: &NodeName| {
                    let request = GpuRequest { node: Some(name.clone()), ..asked.clone() };
                    self.earliest_slot(search, &request)
                };
                let slots = nodes.iter().filter(may_be).filter_map(here);
                slots.min_by_key(|slot| slot.starts_at)
            }
        }?;
        let ends_at = slot.starts_at + search.window.ends_at.since(search.window.starts_at);
        let window = Window { starts_at: slot.starts_at, ends_at };
        Some((window, slot.node, slot.gpus))
    }

    fn earliest_slot(&self, search: &Search<'_>, request: &GpuRequest) -> Option<Slot> {
        let Search { mut window, last, leaving, .. } = *search;
        let length = window.ends_at.since(window.starts_at);
        let mut held = claims::held_within(self, &window);
        for _ in 0..HELD_TRIES_MAX {
            let slot = calendar::earliest(self, request, (window, last), leaving, &held)?;
            let starts_at = slot.starts_at;
            let then = Window { starts_at, ends_at: starts_at + length };
            // Other places may be held for jobs that must leave by then.
            let held_then = claims::held_within(self, &then);
            if held_then == held {
                return Some(slot);
            }
            (window, held) = (then, held_then);
        }
        None
    }

    /// The place that it would get now, no matter what limits say; or why there is none.
    pub(super) fn place_beyond_limits(&self, waiter: &Waiter) -> Result<Granted, Rejection> {
        let starts_at = waiter.earliest_start().max(self.now);
        let window = Window { starts_at, ends_at: starts_at + waiter.length() };
        let (wish, last) = (&waiter.wish, waiter.latest_start);
        let leaving = self.leaving_for_one_more(Some(&wish.id));
        let search = Search { by: None, wish, window, last, leaving, on: None };
        if let Some(granted) = self.earliest_place(&search) {
            return Ok(granted);
        }
        self.place_at(wish, window)?;
        let why = "jobs use the GPUs, and they leave first for others on the waiting list";
        Err(Rejection::NotNow { why: why.to_owned() })
    }

    /// Serves this one now, out of its order: what is free now is free because nobody before it can use it.
    pub(super) fn serve_now(&mut self, turn: &mut Turn<'_>, order: u64) -> bool {
        let waiter = self.waitlist.of_order(order);
        let leaving = self.leaving_for_one_more(waiter.map(|waiter| &waiter.wish.id));
        match waiter.and_then(|waiter| self.step_without_place(waiter, None, leaving)) {
            Some(Step::Place(granted)) => {
                self.place_waiter(turn, order, granted);
                true
            }
            Some(Step::Offer(granted, until)) => {
                self.make_offer(turn, order, granted, until);
                true
            }
            Some(Step::Move(_) | Step::Leaves | Step::Over(_)) | None => false,
        }
    }

    pub(super) fn place_waiter(&mut self, turn: &mut Turn<'_>, order: u64, granted: Granted) {
        let Some(waiter) = self.waitlist.of_order(order) else { return };
        let (wish, earliest) = (waiter.wish.clone(), waiter.earliest_start());
        let starts_at = granted.0.starts_at;
        self.book(turn, &wish, granted);
        self.start_if_begun(turn, &wish.id);
        if starts_at > self.now.max(earliest) {
            self.waitlist.set_placed(order, starts_at);
        } else {
            self.waitlist.remove(order);
        }
    }

    /// Names the node of the old place, if that is free at once.
    fn move_waiter(
        &mut self,
        turn: &mut Turn<'_>,
        order: u64,
        (window, node, gpus): Granted,
    ) -> Option<NodeName> {
        let waiter = self.waitlist.of_order(order)?;
        let (id, wish) = (waiter.wish.id.clone(), waiter.wish.gpus.clone());
        let now = self.now;
        let mut r = self.reservations.get_mut(&id)?;
        let before = r.wanted();
        let left = before.node.clone();
        r.mark_changed("fleet".to_owned(), now);
        drop(r);
        let (was, is) = ((before.node, before.gpus), (node.clone(), gpus.clone()));
        let edit = Edit {
            window: Some((before.window, window)),
            place: (was != is).then_some((was, is)),
            ..Edit::default()
        };
        self.waitlist.set_placed(order, window.starts_at);
        let place = Place { node, gpus, window, wish };
        let waits_for = self.move_to(turn, &id, place, "fleet".to_owned());
        turn.say(Event::ReservationEdited {
            reservation: id.clone(),
            by: "fleet".to_owned(),
            edit: Box::new(edit),
            waits_for: waits_for.clone(),
        });
        if waits_for.is_some() {
            return None;
        }
        self.hand_out(turn, &id);
        self.start_if_begun_and_waiting(turn, &id);
        Some(left)
    }

    /// Its owner wants this time or these GPUs, or the node has it from after the backup: it is not moved any more.
    pub(super) fn leave_as_placed(&mut self, id: &ReservationId) {
        let order = self.waitlist.find(id).filter(|(_, w)| w.placed.is_some()).map(|(at, _)| at);
        if let Some(order) = order {
            self.waitlist.remove(order);
        }
    }

    /// A window that its node has and that waits or waited here: it got its place after the backup. The node does not know
    /// all of it.
    pub(super) fn was_placed_after_the_backup(&mut self, adopted: &mut Reservation) {
        let Some(waiter) = self.waitlist.take(&adopted.id) else { return };
        if waiter.placed.is_none() && waiter.wish.owner == adopted.owner {
            adopted.project = waiter.wish.project;
            adopted.wish = waiter.wish.gpus;
            adopted.note = waiter.wish.note;
            adopted.at_end = waiter.wish.at_end;
        }
    }

    pub(super) fn end_wait(&mut self, turn: &mut Turn<'_>, order: u64, why: WaitOverWhy) {
        let Some(waiter) = self.waitlist.of_order(order) else { return };
        let reservation = waiter.wish.id.clone();
        self.waitlist.end(order, self.now, why.clone());
        turn.say(Event::ReservationWaitOver { reservation, why });
    }
}

/// How much earlier a place must begin to be worth a move.
pub(crate) fn gain_min(length: Millis) -> Millis {
    GAIN_MIN.min(Millis(length.0 / GAIN_PART))
}

/// A limit that refused something, as somebody reads it who may approve that.
fn limit_said(refused: Rejection) -> String {
    refused.above_limit().to_string()
}

pub(super) fn booking_of(wish: &CreateReservation, window: Window) -> Booking<'_> {
    let (project, owner, gpus) = (&wish.project, &wish.owner, wish.gpus.count as usize);
    Booking { project, owner, window, added: window, gpus, of: None }
}
