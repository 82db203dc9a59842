//! Reservations leave a bad place before they begin: their node is drained, or one of their GPUs is dead.
//!
//! Called behind each command, for the nodes that it changed, and once a minute for those that found no other place. Only
//! a node that answers is left: it releases the old place, as for an edit of the owner. Of a silent node nothing can be
//! taken back (ADR 12). What has begun stays, and its users read that a GPU is dead.

use std::collections::BTreeSet;

use super::{Fsm, Turn};
use crate::calendar::{self, Leaving};
use crate::event::Event;
use crate::gpu::Presence;
use crate::health::Severity;
use crate::id::ReservationId;
use crate::name::{GpuUuid, NodeName};
use crate::node::{Liveness, Node};
use crate::reason::Closed;
use crate::reservation::{GpuRequest, Place, Reservation, ReservationState};
use crate::risk::{Keeps, MOVE_AHEAD, MOVED_APART, Pair, Risk, RiskEvent};
use crate::scheduler::claims;
use crate::state::wish;
use crate::time::{Timestamp, Window};
use crate::waitlist::minute;

/// So many other places are searched in one pass: each may look through the whole fleet. The rest follow a minute later.
const SEARCHES_MAX: usize = 64;

/// What is wrong with a place.
pub(super) struct Bad {
    pub(super) what: String,
    /// Somebody ordered it. What follows from health alone waits while evictions are frozen.
    by_decision: bool,
}

/// What becomes of a reservation in this pass.
pub(super) enum Step {
    /// Nothing that is not known.
    Nothing,
    /// Its place is good.
    Good,
    /// Its place says nothing to anybody: it is over, or begins much later, or has begun on a node that is drained.
    Calm,
    Moves(String, Place),
    /// Its node is silent: it gets a stand-in there.
    Doubles(Place),
    Stays(String, Keeps),
}

/// What is left to do in one pass.
pub(super) struct Pass {
    searches: usize,
    /// A minute has passed: those that found nothing try again.
    tries_again: bool,
}

impl Pass {
    /// Counts one more search; or says why there is none this time.
    pub(super) fn may_search(&mut self, r: &Reservation) -> Result<(), Keeps> {
        let known = r.risk.as_ref().map(|risk| risk.keeps);
        if let Some(keeps @ (Keeps::NothingFree | Keeps::Queued)) = known
            && !self.tries_again
        {
            return Err(keeps);
        }
        let nothing_free = known.filter(|keeps| *keeps == Keeps::NothingFree);
        let left = self.searches.checked_sub(1);
        self.searches = left.ok_or(nothing_free.unwrap_or(Keeps::Queued))?;
        Ok(())
    }
}

impl Fsm {
    /// Moves what has a bad place, and says what stays there. Says whether anything changed.
    pub(super) fn settle_places(&mut self, turn: &mut Turn<'_>) -> bool {
        let tries_again = minute(self.places_tried_at) != minute(self.now);
        if tries_again {
            self.places_tried_at = self.now;
        }
        let mut pass = Pass { searches: SEARCHES_MAX, tries_again };
        let mut review = self.places_to_review(tries_again);
        // All pairs first: the first of a pair may be on a node that this command did not change, and has a bad place of its
        // own once its stand-in is gone.
        let mut changed = false;
        for id in &review {
            changed |= self.settle_pair(turn, id);
        }
        if changed {
            review = self.places_to_review(tries_again);
        }
        for id in review {
            let step = self.step_of_place(&id, &mut pass);
            changed |= self.take_step(turn, &id, step, &mut pass);
        }
        changed
    }

    /// Those of which the place may have become bad or good, and once a minute those that wait for another one. The first to
    /// begin comes first; those that found nothing before come last, in turns.
    fn places_to_review(&self, tries_again: bool) -> Vec<ReservationId> {
        let key = |r: &Reservation| (r.window.starts_at, r.id.clone());
        let mut review = BTreeSet::new();
        for node in self.unsettled().into_iter().filter_map(|name| self.nodes.get(name)) {
            let is_bad = self.is_bad(node);
            let here = self.reservations.open_on(&node.name);
            let may_change = |r: &&Reservation| is_bad || r.risk.is_some() || r.pair.is_some();
            review.extend(here.filter(may_change).map(key));
        }
        if tries_again {
            let waiting = self.reservations.to_move().iter();
            review.extend(waiting.filter_map(|id| self.reservations.get(id)).map(key));
            let silent = self.due_nodes().into_iter().filter(|name| self.is_silent(name));
            review.extend(silent.flat_map(|name| self.reservations.open_on(name)).map(key));
        }
        let found_nothing = |id: &ReservationId| {
            let risk = self.reservations.get(id).and_then(|r| r.risk.as_ref());
            risk.is_some_and(|risk| risk.keeps == Keeps::NothingFree)
        };
        let ids = review.into_iter().map(|(_, id)| id);
        let (mut last, mut first): (Vec<ReservationId>, Vec<ReservationId>) =
            ids.partition(found_nothing);
        let turn = usize::try_from(minute(self.now)).unwrap_or(0).wrapping_mul(SEARCHES_MAX);
        let turn = turn % last.len().max(1);
        last.rotate_left(turn);
        first.append(&mut last);
        first
    }

    fn step_of_place(&mut self, id: &ReservationId, pass: &mut Pass) -> Step {
        let Some(r) = self.reservations.get(id) else { return Step::Nothing };
        let Some(node) = self.nodes.get(&r.node) else { return Step::Nothing };
        // A silent node says nothing of its GPUs, so what was known of them stays.
        if !is_heard(node) {
            return self.step_of_silent(id, pass);
        }
        let Some(Bad { what, by_decision }) = self.bad_place(node, r) else { return Step::Good };
        match r.state {
            ReservationState::Active if by_decision => return Step::Calm,
            ReservationState::Active => return Step::Stays(what, Keeps::Begun),
            ReservationState::Scheduled => {}
            // Such an offer is withdrawn, and another one may follow.
            ReservationState::Offered { .. } => return Step::Nothing,
            ReservationState::Ending | ReservationState::Ended | ReservationState::Cancelled => {
                return Step::Calm;
            }
        }
        let is_withdrawn = r.handed_out.as_ref().is_some_and(|given| given.withdrawn.is_some());
        // It leaves already; or its stand-in decides, or its start.
        let has_stand_in = matches!(r.pair.as_deref(), Some(Pair::HasStandIn(_)));
        if has_stand_in || r.next.is_some() || is_withdrawn || r.window.starts_at <= self.now {
            return Step::Nothing;
        }
        if r.window.starts_at > self.now + MOVE_AHEAD {
            return Step::Calm;
        }
        // First what nothing but its owner changes: that is not tried again.
        if self.is_named(node, r) {
            return Step::Stays(what, Keeps::Named);
        }
        if !by_decision && self.storm.frozen().is_some() {
            return Step::Stays(what, Keeps::Frozen);
        }
        // After a reset of the clock it may lie ahead.
        let lately = |at: Timestamp| at <= self.now && self.now < at + MOVED_APART;
        if r.moved_at.is_some_and(lately) {
            return Step::Stays(what, Keeps::MovedLately);
        }
        if let Err(keeps) = pass.may_search(r) {
            return Step::Stays(what, keeps);
        }
        match self.other_place(id) {
            Some(place) => Step::Moves(what, place),
            None => Step::Stays(what, Keeps::NothingFree),
        }
    }

    fn take_step(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        step: Step,
        pass: &mut Pass,
    ) -> bool {
        match step {
            Step::Nothing => false,
            Step::Good | Step::Calm => {
                let was_at_risk = self.forget_risk(id);
                if was_at_risk && matches!(step, Step::Good) {
                    let reservation = id.clone();
                    turn.say(Event::Risk(Box::new(RiskEvent::Over { reservation })));
                }
                false
            }
            Step::Moves(what, place) => {
                self.move_off(turn, id, what, place);
                true
            }
            Step::Doubles(place) => self.book_stand_in(turn, id, place),
            Step::Stays(what, keeps) => {
                self.stays(turn, id, what, keeps, pass);
                false
            }
        }
    }

    fn forget_risk(&mut self, id: &ReservationId) -> bool {
        if self.reservations.get(id).is_none_or(|r| r.risk.is_none()) {
            return false;
        }
        self.reservations.get_mut(id).and_then(|mut r| r.risk.take()).is_some()
    }

    fn move_off(&mut self, turn: &mut Turn<'_>, id: &ReservationId, why: String, place: Place) {
        let now = self.now;
        let Some(mut r) = self.reservations.get_mut(id) else { return };
        r.mark_changed("fleet".to_owned(), now);
        (r.risk, r.moved_at) = (None, Some(now));
        drop(r);
        let (node, gpus) = (place.node.clone(), place.gpus.clone());
        let waits_for = self.move_to(turn, id, place, "fleet".to_owned());
        let is_there = waits_for.is_none();
        turn.say(Event::ReservationMoved { reservation: id.clone(), node, gpus, why, waits_for });
        if is_there {
            self.hand_out(turn, id);
        }
    }

    /// Writes down that it keeps its bad place. That is said when the reason for it changes.
    fn stays(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        what: String,
        keeps: Keeps,
        pass: &mut Pass,
    ) {
        let Some(r) = self.reservations.get(id) else { return };
        let known = r.risk.as_deref();
        let is_said = known.is_some_and(|risk| risk.keeps == keeps);
        if is_said && known.is_some_and(|risk| risk.what == what) {
            return;
        }
        let since = known.map_or(self.now, |risk| risk.since);
        // One that follows within minutes has nothing to hear yet.
        if !is_said && keeps != Keeps::Queued {
            let others = match keeps {
                Keeps::Named | Keeps::Begun => self.others_to_offer(id, pass),
                Keeps::NothingFree | Keeps::MovedLately | Keeps::Queued | Keeps::Frozen => None,
            };
            let (reservation, what) = (id.clone(), what.clone());
            let stays = RiskEvent::Stays { reservation, what, keeps, others };
            turn.say(Event::Risk(Box::new(stays)));
        }
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.risk = Some(Box::new(Risk { since, what, keeps }));
        }
    }

    /// What is wrong with the place of a reservation on a node that is heard.
    pub(super) fn bad_place(&self, node: &Node, r: &Reservation) -> Option<Bad> {
        if is_drained(node) {
            let what = format!("{} is {}", node.name, Closed::Draining);
            return Some(Bad { what, by_decision: true });
        }
        let dead = r.gpus.iter().find(|gpu| self.is_dead(node, gpu))?;
        let what = wish::broken(node, self.gpus.get(dead)?)?.to_string();
        Some(Bad { what, by_decision: false })
    }

    fn is_dead(&self, node: &Node, gpu: &GpuUuid) -> bool {
        let is_fatal =
            |c: &crate::health::Condition| c.is_active() && c.severity >= Severity::Fatal;
        self.gpus.get(gpu).is_some_and(|gpu| gpu.presence == Presence::Lost)
            || node.conditions_for(gpu).any(is_fatal)
    }

    /// Whether some place on the node may be bad. Asked for each node that changed.
    fn is_bad(&self, node: &Node) -> bool {
        is_heard(node) && (is_drained(node) || node.gpus.iter().any(|gpu| self.is_dead(node, gpu)))
    }

    /// Whether no other place is what its owner named.
    fn is_named(&self, node: &Node, r: &Reservation) -> bool {
        let here = r.wish.node.as_ref() == Some(&node.name);
        !r.wish.uuids.is_empty() || (here && is_drained(node))
    }

    /// GPUs for the same wish at the same time; on the same node, if that has any.
    fn other_place(&mut self, id: &ReservationId) -> Option<Place> {
        let r = self.reservations.get(id)?;
        let (window, wish, home) = (r.window, r.wish.clone(), r.node.clone());
        let here = GpuRequest { node: Some(home.clone()), ..wish.clone() };
        // Its own place must not stand in its way.
        let was_touched = self.reservations.touched().contains(&home);
        let r = self.reservations.remove(id)?;
        let found = self.free_at(&[&here, &wish], window);
        self.reservations.insert(r);
        if !was_touched {
            self.reservations.as_it_was(&home);
        }
        let (node, gpus) = found?;
        Some(Place { node, gpus, window, wish })
    }

    /// GPUs for the first of these wishes that can be met. Nobody leaves where other GPUs are free.
    pub(super) fn free_at(
        &self,
        wishes: &[&GpuRequest],
        window: Window,
    ) -> Option<(NodeName, Vec<GpuUuid>)> {
        let held = claims::held_within(self, &window);
        [Leaving::Nobody, Leaving::Jobs].into_iter().find_map(|leaving| {
            let of =
                |wish: &&GpuRequest| calendar::choose_heard(self, wish, window, leaving, &held);
            wishes.iter().find_map(of)
        })
    }

    /// Other GPUs of the same model for the rest of its time, for an owner who has to ask for them.
    fn others_to_offer(
        &self,
        id: &ReservationId,
        pass: &mut Pass,
    ) -> Option<(NodeName, Vec<GpuUuid>)> {
        pass.searches = pass.searches.checked_sub(1)?;
        let r = self.reservations.get(id)?;
        let model = || Some(self.gpus.get(r.gpus.first()?)?.model.clone());
        let like_it = GpuRequest {
            count: r.wish.count,
            model: r.wish.model.clone().or_else(model),
            memory_bytes_min: r.wish.memory_bytes_min,
            node: None,
            uuids: Vec::new(),
        };
        let window = Window { starts_at: r.window.starts_at.max(self.now), ..r.window };
        let held = claims::held_within(self, &window);
        calendar::choose_heard(self, &like_it, window, Leaving::Nobody, &held)
    }
}

/// It answers, and has said what it holds.
pub(super) fn is_heard(node: &Node) -> bool {
    node.liveness == Liveness::Ready && !node.uncounted && node.suspended.is_none()
}

/// Drained by an admin. A drain for a reboot is over in minutes.
fn is_drained(node: &Node) -> bool {
    node.drain.is_some() && !node.reboot.as_ref().is_some_and(|wish| wish.drained)
}
