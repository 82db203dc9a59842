//! Stand-ins: a second reservation for one whose node is silent when it is to begin soon.
//!
//! Nothing can be taken back from a silent node: it may open its window alone (ADR 12). So the first reservation stays
//! as it is, and its GPUs count as given; the stand-in is an ordinary reservation of the same owner on a node that
//! answers. Once the first node has answered for a while one of the two is released. What the owner released before is
//! the owner's choice. Called by `fsm/moving.rs`, at a start, and where a reservation ends.

use super::moving::{Pass, Step, is_heard};
use super::{Fsm, Turn};
use crate::calendar::{self, Leaving};
use crate::command::CreateReservation;
use crate::event::Event;
use crate::id::{JobId, ReservationId};
use crate::name::NodeName;
use crate::node::{Liveness, Node};
use crate::reason::Closed;
use crate::reservation::{Place, Reservation, ReservationState};
use crate::risk::{HEARD_MIN, Keeps, Pair, RiskEvent};
use crate::scheduler::claims;
use crate::state::storm::is_storm;
use crate::time::Timestamp;
use crate::waitlist::next_minute;

impl Fsm {
    /// Whether the node may not come back in time.
    pub(super) fn is_silent(&self, name: &NodeName) -> bool {
        self.nodes.get(name).and_then(Node::may_stay_silent_at).is_some_and(|at| at <= self.now)
    }

    /// When time alone makes a stand-in for it.
    pub(super) fn stands_in_at(&self, r: &Reservation) -> Option<Timestamp> {
        // Where it was tried before, it is tried again with all others that wait.
        let wants = r.wants_stand_in_at(self.nodes.get(&r.node)?.may_stay_silent_at()?);
        let at = next_minute(wants.filter(|_| r.risk.is_none())?);
        // An entry that was refused may have passed that minute.
        (at > self.places_tried_at).then_some(at)
    }

    /// What becomes of one whose node is not heard.
    pub(super) fn step_of_silent(&self, id: &ReservationId, pass: &mut Pass) -> Step {
        let Some(r) = self.reservations.get(id) else { return Step::Nothing };
        let Some(node) = self.nodes.get(&r.node) else { return Step::Nothing };
        let wants = node.may_stay_silent_at().and_then(|silent| r.wants_stand_in_at(silent));
        let is_due = wants.is_some_and(|at| at <= self.now);
        if !is_due || r.window.starts_at <= self.now {
            // No other place is searched until it is heard; then what is wrong is said again.
            let is_tried = r.risk.as_ref().is_some_and(|risk| risk.keeps.is_tried_again());
            return if is_tried { Step::Calm } else { Step::Nothing };
        }
        let what = format!("{} is {}", node.name, Closed::Unreachable);
        if r.wish.node.is_some() || !r.wish.uuids.is_empty() {
            return Step::Stays(what, Keeps::Named);
        }
        if self.storm.frozen().is_some() || self.are_many_silent() {
            return Step::Stays(what, Keeps::Frozen);
        }
        if let Err(keeps) = pass.may_search(r) {
            return Step::Stays(what, keeps);
        }
        // Nobody leaves for a place that may not be needed.
        let held = claims::held_within(self, &r.window);
        let found = calendar::choose_heard(self, &r.wish, r.window, Leaving::Nobody, &held);
        match found.filter(|_| self.has_all_reservations().is_none()) {
            Some((node, gpus)) => {
                Step::Doubles(Place { node, gpus, window: r.window, wish: r.wish.clone() })
            }
            None => Step::Stays(what, Keeps::NothingFree),
        }
    }

    /// A switch that dies takes many nodes with it, and all of them may be back soon.
    fn are_many_silent(&self) -> bool {
        let silent = self.nodes.values().filter(|node| node.liveness == Liveness::Unreachable);
        is_storm(silent.count(), self.nodes.len())
    }

    pub(super) fn book_stand_in(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        place: Place,
    ) -> bool {
        let stand_in = ReservationId::of_stand_in(turn.epoch, turn.granted);
        turn.granted += 1;
        // Somebody may have asked for exactly that id.
        if self.owner_of_reservation(&stand_in).is_some() {
            return false;
        }
        let now = self.now;
        let Some(mut r) = self.reservations.get_mut(id) else { return false };
        (r.risk, r.pair) = (None, Some(Box::new(Pair::HasStandIn(stand_in.clone()))));
        r.mark_changed("fleet".to_owned(), now);
        let Place { node, gpus, window, wish } = place;
        let wish = CreateReservation {
            project: r.project.clone(),
            note: r.note.clone(),
            at_end: r.at_end,
            with: r.with.clone(),
            ..CreateReservation::plain(stand_in.clone(), r.owner.clone(), wish, window)
        };
        let (reservation, silent) = (id.clone(), r.node.clone());
        drop(r);
        turn.say(Event::Risk(Box::new(RiskEvent::StandsIn {
            reservation,
            stand_in: stand_in.clone(),
            node: silent,
        })));
        self.book(turn, &wish, (window, node, gpus));
        if let Some(mut second) = self.reservations.get_mut(&stand_in) {
            second.pair = Some(Box::new(Pair::StandsInFor(id.clone())));
        }
        true
    }

    /// Releases one of a reservation and its stand-in, where it is known by now which one. Says whether anything changed.
    pub(super) fn settle_pair(&mut self, turn: &mut Turn<'_>, id: &ReservationId) -> bool {
        let Some(r) = self.reservations.get(id) else { return false };
        let (first, second) = match r.pair.as_deref() {
            Some(Pair::HasStandIn(second)) => (id.clone(), second.clone()),
            Some(Pair::StandsInFor(first)) => (first.clone(), id.clone()),
            Some(Pair::HadStandIn) => {
                // The next silence is another one.
                if self.nodes.get(&r.node).is_some_and(is_heard) {
                    self.set_pair(id, None);
                }
                return false;
            }
            None => return false,
        };
        let open = |id: &ReservationId| self.reservations.get(id).filter(|r| r.is_open());
        let (Some(one), Some(other)) = (open(&first), open(&second)) else {
            self.forget_other(id);
            return true;
        };
        let is_pair = one.pair.as_deref() == Some(&Pair::HasStandIn(second.clone()))
            && other.pair.as_deref() == Some(&Pair::StandsInFor(first.clone()));
        if !is_pair {
            // A restore from a backup brought back one of the two as it was.
            self.forget_other(id);
            return true;
        }
        if one.is_cancelled() || other.is_cancelled() {
            // Its owner has chosen.
            self.leave_pair(turn, if one.is_cancelled() { &first } else { &second });
            return true;
        }
        let is_served = other.state == ReservationState::Active;
        let moves_jobs = is_served && one.state == ReservationState::Scheduled;
        let moved = moves_jobs && self.rebind_jobs(&first, &second);
        match self.superseded(&first, &second) {
            Some((released, kept)) => {
                self.supersede(turn, &released, &kept);
                true
            }
            None => {
                // The node of the stand-in may be silent by now.
                let is_active = |fsm: &Self| {
                    let first = fsm.reservations.get(&first);
                    first.is_some_and(|r| r.state == ReservationState::Active)
                };
                let was_active = is_active(self);
                self.start_if_begun_and_waiting(turn, &first);
                moved || is_active(self) != was_active
            }
        }
    }

    /// Which of the two is released, and which one is kept.
    fn superseded(
        &self,
        first: &ReservationId,
        second: &ReservationId,
    ) -> Option<(ReservationId, ReservationId)> {
        let (one, other) = (self.reservations.get(first)?, self.reservations.get(second)?);
        let node = self.nodes.get(&one.node)?;
        // After a reset of the clock that may lie ahead.
        let (since, now) = (node.liveness_since, self.now);
        if !is_heard(node) || (since <= now && now.since(since) < HEARD_MIN) {
            return None;
        }
        let has_good_place = self.bad_place(node, one).is_none();
        let is_first_kept = match &other.state {
            ReservationState::Scheduled if has_good_place => true,
            // Nobody may be able to use it, and nobody knows whether somebody does.
            ReservationState::Scheduled | ReservationState::Active
                if !self.is_heard_on(&other.node) =>
            {
                return None;
            }
            // It has begun, and keeps its GPUs as any other.
            ReservationState::Scheduled if one.state == ReservationState::Active => return None,
            ReservationState::Scheduled => false,
            ReservationState::Active if !one.usage.came => false,
            // People came to both: each ends in its time.
            ReservationState::Active
                if other.usage.came || self.has_children(other.lease.as_ref()) =>
            {
                return None;
            }
            ReservationState::Active => true,
            // A stand-in is never offered.
            ReservationState::Offered { .. }
            | ReservationState::Ending
            | ReservationState::Ended
            | ReservationState::Cancelled => return None,
        };
        let (first, second) = (first.clone(), second.clone());
        Some(if is_first_kept { (second, first) } else { (first, second) })
    }

    fn supersede(&mut self, turn: &mut Turn<'_>, released: &ReservationId, kept: &ReservationId) {
        let (reservation, by) = (released.clone(), "fleet".to_owned());
        turn.say(Event::Risk(Box::new(RiskEvent::Superseded { reservation, kept: kept.clone() })));
        self.rebind_jobs(released, kept);
        for id in [released, kept] {
            self.set_pair(id, None);
        }
        self.release_as(turn, released, by, &format!("{kept} is kept in its place"));
        self.start_if_begun_and_waiting(turn, kept);
    }

    fn is_heard_on(&self, name: &NodeName) -> bool {
        self.nodes.get(name).is_some_and(is_heard)
    }

    /// While its stand-in is there it does not begin, unless its node opens it alone: nobody would use it, and its owner
    /// would be charged for both. Where the node of the stand-in is silent and its own node is back, it begins.
    pub(super) fn waits_for_its_stand_in(&self, id: &ReservationId) -> bool {
        let r = self.reservations.get(id);
        let Some((r, Pair::HasStandIn(second))) = r.and_then(|r| Some((r, r.pair.as_deref()?)))
        else {
            return false;
        };
        let second = self.reservations.get(second);
        second.is_some_and(|second| {
            let is_alone_heard = self.is_heard_on(&r.node) && !self.is_heard_on(&second.node);
            second.is_open() && !second.is_cancelled() && !is_alone_heard
        })
    }

    /// It is over: the other one is a reservation like any other from now on.
    pub(super) fn leave_pair(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let Some(other) = self.other_of_pair(id) else { return };
        self.rebind_jobs(id, &other);
        self.part(id, &other);
        self.set_pair(id, None);
        self.start_if_begun_and_waiting(turn, &other);
    }

    /// Both are reservations like any other from now on: their owner changed one of them, and has both.
    pub(super) fn dissolve_pair(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let Some(other) = self.other_of_pair(id) else { return };
        self.part(id, &other);
        for id in [id, &other] {
            self.start_if_begun_and_waiting(turn, id);
        }
    }

    /// For those that are released with all of their kind: not only one of the two is meant.
    pub(super) fn release_stand_in_of(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let pair = self.reservations.get(id).and_then(|r| r.pair.as_deref());
        if let Some(Pair::HasStandIn(second)) = pair.cloned() {
            let by = turn.actor.display_name();
            self.part(id, &second);
            self.release_as(turn, &second, by.clone(), &format!("released by {by}"));
        }
    }

    fn part(&mut self, id: &ReservationId, other: &ReservationId) {
        self.forget_other(id);
        if self.other_of_pair(other).as_ref() == Some(id) {
            self.forget_other(other);
        }
    }

    fn other_of_pair(&self, id: &ReservationId) -> Option<ReservationId> {
        match self.reservations.get(id)?.pair.as_deref()? {
            Pair::HasStandIn(other) | Pair::StandsInFor(other) => Some(other.clone()),
            Pair::HadStandIn => None,
        }
    }

    /// The first of a pair gets no other stand-in in the same silence.
    fn forget_other(&mut self, id: &ReservationId) {
        let Some(r) = self.reservations.get(id) else { return };
        let is_silent = !self.nodes.get(&r.node).is_some_and(is_heard);
        let then = match r.pair.as_deref() {
            Some(Pair::HasStandIn(_) | Pair::HadStandIn) if is_silent => Some(Pair::HadStandIn),
            Some(Pair::HasStandIn(_) | Pair::HadStandIn | Pair::StandsInFor(_)) | None => None,
        };
        self.set_pair(id, then);
    }

    fn set_pair(&mut self, id: &ReservationId, pair: Option<Pair>) {
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.pair = pair.map(Box::new);
        }
    }

    /// What waits to run in the one waits for the other from now on. Says whether anything does.
    fn rebind_jobs(&mut self, from: &ReservationId, to: &ReservationId) -> bool {
        let place = |id: &ReservationId| self.reservations.get(id).map(|r| (&r.owner, &r.node));
        let (Some((owner, _)), Some((same, node))) = (place(from), place(to)) else {
            return false;
        };
        let may_move = |id: &JobId| {
            let wish = self.jobs.get(id).map(|job| &job.spec.gpus);
            wish.is_some_and(|wish| {
                wish.uuids.is_empty() && wish.node.as_ref().is_none_or(|named| named == node)
            })
        };
        let mut waiting = match owner == same && self.still_takes_jobs(to) {
            true => self.waiting_for(from),
            false => Vec::new(),
        };
        waiting.retain(may_move);
        let any = !waiting.is_empty();
        for id in waiting {
            self.unbind_job(&id);
            if let Some(job) = self.jobs.get_mut(&id) {
                job.spec.reservation = Some(to.clone());
            }
            if let Some(job) = self.jobs.get(&id).cloned() {
                self.bind_job(&job);
            }
        }
        any
    }
}
