//! Reservations: made, extended, released, started and ended.

use std::collections::BTreeSet;

use super::cluster::{check_length, check_text};
use super::leases::Grant;
use super::{ENDED_RESERVATIONS_KEPT, Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::allocation::StopWhy;
use crate::calendar::{self, Unleased};
use crate::command::{CreateReservation, ReservationChange};
use crate::ending::Usage;
use crate::event::Event;
use crate::gpu::{GPUS_PER_NODE_MAX, Presence};
use crate::health::Severity;
use crate::id::{AllocationId, ReservationId};
use crate::lease::{Account, LeaseHolder};
use crate::name::{GpuUuid, NodeName, UserName, has_joiner, is_plain_note};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{
    GpuRequest, RESERVATION_AHEAD_MAX, RESERVATION_LENGTH_MAX, RESERVATION_LENGTH_MIN,
    RESERVATION_PAST_MAX, RESERVATIONS_OPEN_MAX, Reservation, ReservationState, SHARED_WITH_MAX,
};
use crate::scheduler::claims;
use crate::scheduler::project_limit::Booking;
use crate::time::{Timestamp, Window};
use crate::window::Withdrawal;

/// What a wish gets: when, and which GPUs of which node.
pub(super) type Granted = (Window, NodeName, Vec<GpuUuid>);

impl Fsm {
    pub(super) fn create_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        wish: &CreateReservation,
    ) -> Result<Reply, Rejection> {
        let granted = self.check_reservation(turn.actor, wish)?;
        self.book(turn, wish, granted);
        self.start_if_begun(turn, &wish.id);
        Ok(Reply::ReservationCreated { id: wish.id.clone() })
    }

    /// What the wish would get at that time, without taking anything.
    pub fn try_reservation(
        &self,
        actor: &Actor,
        wish: &CreateReservation,
        now: Timestamp,
    ) -> Result<Reservation, Rejection> {
        let trial = self.as_of(now);
        Ok(scheduled(wish, trial.check_reservation(actor, wish)?, trial.now))
    }

    /// The same state at the time of a question. Its own time is that of the last entry, and a lease whose end has come
    /// since then is stuck by now.
    pub(super) fn as_of(&self, now: Timestamp) -> Fsm {
        let mut trial = self.clone();
        trial.now = trial.now.max(now);
        trial
    }

    /// Writes down what was granted.
    pub(super) fn book(&mut self, turn: &mut Turn<'_>, wish: &CreateReservation, granted: Granted) {
        self.reservations.insert(scheduled(wish, granted, self.now));
        self.say_booked(turn, wish);
    }

    /// Of a reservation that is in the book now: said, and handed to its agent where it begins soon.
    pub(super) fn say_booked(&mut self, turn: &mut Turn<'_>, wish: &CreateReservation) {
        let Some(reservation) = self.reservations.get(&wish.id) else { return };
        turn.say(Event::ReservationCreated {
            reservation: wish.id.clone(),
            owner: wish.owner.clone(),
            with: wish.with.iter().cloned().collect(),
            series: reservation.series.as_ref().map(|series| series.id.clone()),
            adopts: wish.adopts,
            node: reservation.node.clone(),
            gpus: reservation.gpus.clone(),
            starts_at: reservation.window.starts_at,
            ends_at: reservation.window.ends_at,
        });
        self.hand_out(turn, &wish.id);
    }

    pub(super) fn start_if_begun(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        if self.reservations.get(id).is_some_and(|r| r.window.starts_at <= self.now) {
            self.start_reservation(turn, id);
        }
    }

    /// Everything that could be refused, and what is granted otherwise.
    pub(super) fn check_reservation(
        &self,
        actor: &Actor,
        wish: &CreateReservation,
    ) -> Result<Granted, Rejection> {
        let window = self.check_wish(actor, wish)?;
        let gpus = wish.gpus.count as usize;
        let (project, owner) = (&wish.project, &wish.owner);
        let asked = Booking { project, owner, window, added: window, gpus, of: None };
        self.check_limits(actor, &asked, true).map_err(Rejection::above_limit)?;
        let later = window.starts_at.since(self.now) >= calendar::NEAR;
        if wish.adopts && (wish.gpus.uuids.is_empty() || later) {
            let problem = "it is for GPUs that are named, and from now on";
            return Err(Rejection::field("adopts", problem));
        }
        if let Some(most) = self.has_all_reservations() {
            let what = "open reservations".to_owned();
            return Err(Rejection::LimitReached { what, limit: most as u64 });
        }
        let unleased = match wish.adopts {
            true => Unleased::Adopted,
            false => Unleased::Blocks,
        };
        let held = claims::held_within(self, &window);
        let (node, gpus) = calendar::choose(self, &wish.gpus, window, unleased, &held)?;
        Ok((window, node, gpus))
    }

    /// What is wrong with the wish itself, no matter who holds what; its window from now on otherwise.
    pub(super) fn check_wish(
        &self,
        actor: &Actor,
        wish: &CreateReservation,
    ) -> Result<Window, Rejection> {
        check_owner(actor, &wish.owner)?;
        self.check_enabled(&wish.owner)?;
        self.check_project(actor, &wish.owner, &wish.project)?;
        self.check_shared(actor, &wish.owner, &wish.with)?;
        self.check_note(&wish.note)?;
        check_gpu_request(&wish.gpus)?;
        if self.owner_of_reservation(&wish.id).is_some() {
            return Err(Rejection::IdTaken { id: wish.id.to_string() });
        }
        self.check_window(wish.window)
    }

    /// The most open reservations that there may be, where there are as many.
    pub(super) fn has_all_reservations(&self) -> Option<usize> {
        self.reservations.is_full(RESERVATIONS_OPEN_MAX).then_some(RESERVATIONS_OPEN_MAX)
    }

    pub(super) fn check_note(&self, note: &str) -> Result<(), Rejection> {
        let joined = has_joiner(note) && is_plain_note(note);
        if joined {
            return check_length("note", note);
        }
        check_text("note", note)
    }

    /// Who else may use it: people that the fleet has seen, or that an admin names.
    pub(super) fn check_shared(
        &self,
        actor: &Actor,
        owner: &UserName,
        with: &BTreeSet<UserName>,
    ) -> Result<(), Rejection> {
        if with.len() > SHARED_WITH_MAX {
            return Err(Rejection::field("with", format!("at most {SHARED_WITH_MAX} users")));
        }
        let admin = actor.is_admin();
        for user in with {
            self.check_enabled(user)?;
            if user == owner {
                return Err(Rejection::field("with", format!("{user} is its owner")));
            }
            if !admin && !self.access.accounts.contains_key(user) {
                let problem = format!(
                    "nobody has seen {user} here: they use `fleet` once, or an admin names them"
                );
                return Err(Rejection::field("with", problem));
            }
        }
        Ok(())
    }

    /// A user whose account is closed shares nothing any more.
    pub(super) fn unshare(&mut self, turn: &mut Turn<'_>, user: &UserName) {
        // All reservations: only when an account is closed.
        let shared = self.reservations.open().filter(|r| r.with.contains(user));
        let shared: Vec<ReservationId> = shared.map(|r| r.id.clone()).collect();
        let (by, now) = (turn.actor.display_name(), self.now);
        for id in shared {
            let Some(mut reservation) = self.reservations.get_mut(&id) else { continue };
            reservation.with.remove(user);
            reservation.mark_changed(by.clone(), now);
            drop(reservation);
            self.tell_anew(turn, &id);
            turn.say(Event::ReservationUnshared { reservation: id, user: user.clone() });
        }
    }

    /// Makes it somebody else's, also at its node where that knows of it already.
    pub(super) fn give_to(&mut self, turn: &mut Turn<'_>, id: &ReservationId, to: &UserName) {
        let (by, now) = (turn.actor.display_name(), self.now);
        let Some(mut reservation) = self.reservations.get_mut(id) else { return };
        reservation.owner = to.clone();
        reservation.with.remove(to);
        reservation.mark_changed(by, now);
        drop(reservation);
        self.tell_anew(turn, id);
    }

    /// Tells its node whose it is now, where it is in that one's hands already.
    pub(super) fn tell_anew(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let given = self.reservations.get(id).and_then(|r| r.handed_out.as_ref());
        let Some(withdrawn) = given.map(|given| given.withdrawn.clone()) else { return };
        self.revise(turn, id, withdrawn);
    }

    pub(super) fn check_window(&self, window: Window) -> Result<Window, Rejection> {
        let Window { starts_at, ends_at } = window;
        if starts_at > Timestamp::MAX_ACCEPTED || ends_at > Timestamp::MAX_ACCEPTED {
            return Err(Rejection::field("window", "beyond the year 9998"));
        }
        if ends_at <= starts_at {
            return Err(Rejection::field("ends_at", "must be after the start"));
        }
        if self.now.since(starts_at) > RESERVATION_PAST_MAX {
            let late = self.now.since(starts_at);
            return Err(Rejection::field("starts_at", format!("is {late} in the past")));
        }
        if ends_at <= self.now {
            let late = self.now.since(ends_at);
            return Err(Rejection::field("ends_at", format!("is {late} in the past")));
        }
        if starts_at.since(self.now) > RESERVATION_AHEAD_MAX {
            let problem = format!("at most {RESERVATION_AHEAD_MAX} ahead");
            return Err(Rejection::field("starts_at", problem));
        }
        let length = ends_at.since(starts_at);
        if !(RESERVATION_LENGTH_MIN..=RESERVATION_LENGTH_MAX).contains(&length) {
            let problem = format!(
                "a reservation lasts {RESERVATION_LENGTH_MIN} to {RESERVATION_LENGTH_MAX}, this one {length}"
            );
            return Err(Rejection::field("ends_at", problem));
        }
        Ok(Window { starts_at: starts_at.max(self.now), ends_at })
    }

    pub(super) fn extend_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        ends_at: Timestamp,
    ) -> Result<Reply, Rejection> {
        if self.waits_to_move(id) {
            // The end of the place that it waits for.
            self.edit_reservation(turn, id, &to_end_at(ends_at), None)?;
            return Ok(Reply::ReservationExtended { id: id.clone(), ends_at });
        }
        self.check_extension(turn.actor, id, ends_at)?;
        let (by, now) = (turn.actor.display_name(), self.now);
        if let Some(mut reservation) = self.reservations.get_mut(id) {
            reservation.window.ends_at = ends_at;
            reservation.mark_changed(by, now);
        }
        self.leave_as_placed(id);
        self.dissolve_pair(turn, id);
        self.revise(turn, id, None);
        turn.say(Event::ReservationExtended { reservation: id.clone(), ends_at });
        Ok(Reply::ReservationExtended { id: id.clone(), ends_at })
    }

    pub(super) fn check_extension(
        &self,
        actor: &Actor,
        id: &ReservationId,
        ends_at: Timestamp,
    ) -> Result<(), Rejection> {
        let reservation = self.changeable(id)?;
        if self.waits_to_move(id) {
            return self.check_edit(actor, id, &to_end_at(ends_at), None).map(|_| ());
        }
        let window = Window { starts_at: reservation.window.starts_at, ends_at };
        if ends_at <= self.now || ends_at <= window.starts_at {
            return Err(Rejection::field("ends_at", "must be after now and after the start"));
        }
        if ends_at.since(window.starts_at) > RESERVATION_LENGTH_MAX {
            let problem = format!("a reservation lasts at most {RESERVATION_LENGTH_MAX}");
            return Err(Rejection::field("ends_at", problem));
        }
        if ends_at > reservation.window.ends_at {
            let (owner, gpus) = (&reservation.owner, reservation.gpus.len());
            let starts_at = reservation.window.ends_at.max(self.now);
            let added = Window { starts_at, ends_at };
            let (project, of) = (&reservation.project, Some(id));
            let asked = Booking { project, owner, window, added, gpus, of };
            self.check_limits(actor, &asked, false)?;
            calendar::extension(self, reservation, ends_at)?;
        }
        Ok(())
    }

    /// One that is neither over nor about to be.
    pub(super) fn changeable(&self, id: &ReservationId) -> Result<&Reservation, Rejection> {
        let reservation = self.accepted_reservation(id)?;
        let cancelled = reservation.is_cancelled();
        if cancelled || reservation.state == ReservationState::Ending {
            let state = if cancelled { "being cancelled" } else { "ending" }.to_owned();
            return Err(Rejection::AlreadyEnded { id: id.to_string(), state });
        }
        Ok(reservation)
    }

    /// Whether an edit of it waits for its node.
    fn waits_to_move(&self, id: &ReservationId) -> bool {
        self.reservations.get(id).is_some_and(|r| r.next.is_some())
    }

    pub(super) fn open_reservation(&self, id: &ReservationId) -> Result<&Reservation, Rejection> {
        let Some(reservation) = self.reservations.get(id) else {
            return Err(self.has_no_place(id));
        };
        if reservation.is_open() {
            return Ok(reservation);
        }
        Err(Rejection::AlreadyEnded { id: id.to_string(), state: "ended".to_owned() })
    }

    /// Releases it early: cancels it before its start, ends it after its start. Repeating it is harmless.
    pub(super) fn release_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
    ) -> Result<Reply, Rejection> {
        if self.leave_waitlist(turn, id) {
            return Ok(Reply::Done);
        }
        match self.open_reservation(id)?.state {
            ReservationState::Offered { .. }
            | ReservationState::Scheduled
            | ReservationState::Active => {
                let by = turn.actor.display_name();
                let why = format!("released by {by}");
                self.release_as(turn, id, by, &why);
            }
            ReservationState::Ending | ReservationState::Ended | ReservationState::Cancelled => {}
        }
        Ok(Reply::Done)
    }

    /// The same by somebody else than the one who gave the command.
    pub(super) fn release_as(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        by: String,
        why: &str,
    ) {
        match self.reservations.get(id).map(|r| &r.state) {
            Some(ReservationState::Scheduled) if self.is_in_hands(id) => {
                self.withdraw(turn, id, by);
            }
            Some(ReservationState::Offered { .. } | ReservationState::Scheduled) => {
                let reason = Some(format!("by {by}"));
                self.finish_reservation(turn, id, ReservationState::Cancelled, reason);
                turn.say(Event::ReservationCancelled { reservation: id.clone(), by });
            }
            Some(ReservationState::Active) => {
                let now = self.now;
                if let Some(mut r) = self.reservations.get_mut(id) {
                    r.mark_released(by, now);
                }
                self.end_reservation(turn, id, why);
            }
            Some(
                ReservationState::Ending | ReservationState::Ended | ReservationState::Cancelled,
            )
            | None => {}
        }
    }

    /// Whether an agent may still open it.
    pub(super) fn is_in_hands(&self, id: &ReservationId) -> bool {
        let given = self.reservations.get(id).and_then(|r| r.handed_out.as_ref());
        given.is_some_and(|given| given.held_until > self.now)
    }

    /// Cancelled as soon as its agent has released it; until then it counts as handed out.
    fn withdraw(&mut self, turn: &mut Turn<'_>, id: &ReservationId, by: String) {
        let Some(reservation) = self.reservations.get(id) else { return };
        let given = reservation.handed_out.as_ref();
        if given.is_some_and(|g| matches!(g.withdrawn, Some(Withdrawal::Cancelled { .. }))) {
            return;
        }
        let node = reservation.node.clone();
        turn.say(Event::WindowWithdrawn { reservation: id.clone(), node, by: by.clone() });
        let now = self.now;
        if let Some(mut reservation) = self.reservations.get_mut(id) {
            // A place that it waits for is free at once: no agent knows of it.
            reservation.next = None;
            reservation.mark_released(by.clone(), now);
        }
        self.revise(turn, id, Some(Withdrawal::Cancelled { by }));
    }

    /// Why the reservation cannot be served with the GPUs it was promised, if so.
    pub(super) fn unfit(&self, reservation: &Reservation) -> Option<String> {
        let node = self.nodes.get(&reservation.node)?;
        if let Some(why) = node.closed() {
            return Some(format!("{} is {why}", reservation.node));
        }
        reservation.gpus.iter().find_map(|uuid| {
            let gpu = self.gpus.get(uuid)?;
            let lost = gpu.presence == Presence::Lost;
            let bad = node.severity_for(uuid).is_some_and(|s| s >= Severity::Degraded);
            (lost || bad).then(|| format!("{} is not healthy", gpu.name()))
        })
    }

    /// Other GPUs that meet the same wish for the window, or the rest of it.
    pub(super) fn better_place(&mut self, id: &ReservationId) -> Option<(NodeName, Vec<GpuUuid>)> {
        // Its own claim must not stand in its way.
        let reservation = self.reservations.remove(id)?;
        let Window { starts_at, ends_at } = reservation.window;
        let window = Window { starts_at: starts_at.max(self.now), ends_at };
        // An earlier promise takes the places that are held for jobs that must leave.
        let (unleased, held) = (Unleased::Blocks, &[]);
        let found = calendar::choose(self, &reservation.wish, window, unleased, held).ok();
        self.reservations.insert(reservation);
        found
    }

    /// Before it starts, broken GPUs are replaced by others that meet the same wish, where there are
    /// any free for the rest of the window. Only while no agent has the window in its hands.
    fn replace_broken_gpus(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let Some(reservation) = self.reservations.get(id) else { return };
        let Some(why) = self.unfit(reservation).filter(|_| reservation.handed_out.is_none()) else {
            return;
        };
        let Some((node, gpus)) = self.better_place(id) else { return };
        let now = self.now;
        let Some(mut reservation) = self.reservations.get_mut(id) else { return };
        reservation.node = node.clone();
        reservation.gpus = gpus.clone();
        reservation.mark_changed("fleet".to_owned(), now);
        turn.say(Event::ReservationMoved {
            reservation: id.clone(),
            node,
            gpus,
            why,
            waits_for: None,
        });
    }

    /// Gives the lease if the GPUs are empty; else says, once, what it waits for.
    pub(super) fn start_reservation(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        if self.waits_for_its_stand_in(id) || self.waits_for_its_node(turn, id) {
            return;
        }
        let mut waits = self.waits_for_the_count(id);
        if !waits {
            self.replace_broken_gpus(turn, id);
            // They may be on another node now.
            waits = self.waits_for_the_count(id);
            self.hand_out(turn, id);
        }
        let Some(reservation) = self.reservations.get(id) else { return };
        let busy = reservation.gpus.iter().find_map(|gpu| self.holds.get(gpu));
        let busy = busy.map(|hold| format!("{} is not released yet", self.holder_text(hold)));
        let unknown = waits.then(|| {
            format!("{} has not said yet what it runs, since the restore", reservation.node)
        });
        if let Some(why) = unknown.or(busy) {
            if reservation.reason.as_deref() != Some(why.as_str()) {
                turn.say(Event::ReservationDelayed { reservation: id.clone(), why: why.clone() });
            }
            if let Some(mut reservation) = self.reservations.get_mut(id) {
                reservation.reason = Some(why);
            }
            return;
        }
        self.tell_what_its_node_ended(turn, id);
        let grant = Grant {
            node: reservation.node.clone(),
            gpus: reservation.gpus.clone(),
            owner: reservation.owner.clone(),
            holder: LeaseHolder::Reservation(id.clone()),
            parent: None,
            account: Account { project: reservation.project.clone(), class: None },
            given: reservation.handed_out.as_ref().map(|g| (g.lease.clone(), g.epoch)),
        };
        let epoch = grant.given.as_ref().map_or(turn.epoch, |(_, epoch)| *epoch);
        let (owner, gpus) = (grant.owner.clone(), grant.gpus.clone());
        let lease = self.grant(turn, grant);
        let idle = self.reservations.get(id).and_then(|r| self.begins_idle(r));
        if let Some(mut reservation) = self.reservations.get_mut(id) {
            reservation.state = ReservationState::Active;
            reservation.lease = Some(lease.clone());
            reservation.reason = None;
            reservation.usage.idle = idle;
        }
        turn.say(Event::ReservationStarted { reservation: id.clone(), lease, epoch, owner, gpus });
    }

    /// Whether its node has not been asked yet what it holds, since a restore.
    fn waits_for_the_count(&self, id: &ReservationId) -> bool {
        let node = self.reservations.get(id).and_then(|r| self.nodes.get(&r.node));
        node.is_some_and(|node| node.uncounted)
    }

    /// A job or a reservation, with its owner: people do not know attempts by their ids.
    pub(super) fn holder_text(&self, hold: &super::Hold) -> String {
        let Some(lease) = self.leases.get(&hold.lease) else { return hold.lease.to_string() };
        let holder = match &lease.holder {
            LeaseHolder::Allocation(allocation) => allocation.job().to_string(),
            LeaseHolder::Reservation(reservation) => reservation.to_string(),
        };
        format!("{holder} of {}", lease.owner)
    }

    /// Stops what runs under it and takes the lease back; it has ended when the GPUs are empty.
    pub(super) fn end_reservation(&mut self, turn: &mut Turn<'_>, id: &ReservationId, why: &str) {
        let (by, now) = (turn.actor.display_name(), self.now);
        let Some(mut reservation) = self.reservations.get_mut(id) else { return };
        reservation.state = ReservationState::Ending;
        reservation.risk = None;
        reservation.reason = Some(why.to_owned());
        reservation.usage.idle = None;
        reservation.mark_released(by, now);
        let (lease, node) = (reservation.lease.clone(), reservation.node.clone());
        let ended = reservation.clone();
        drop(reservation);
        self.charge_reservation(&ended);
        let Some(lease) = lease else { return };
        if self.is_in_hands(id) {
            self.revise(turn, id, Some(Withdrawal::Ended));
        }
        turn.say(Event::ReservationEnding { reservation: id.clone(), why: why.to_owned() });
        let children: Vec<AllocationId> = self
            .allocations
            .on(&node)
            .filter(|a| {
                let own = a.lease.as_ref().and_then(|l| self.leases.get(l));
                own.is_some_and(|l| l.parent.as_ref() == Some(&lease))
            })
            .map(|a| a.id.clone())
            .collect();
        for child in children {
            self.stop_allocation(turn, &child, StopWhy::ReservationEnded);
        }
        self.end_lease(&lease);
        self.leave_pair(turn, id);
        self.end_jobs_waiting_for(turn, id);
    }

    /// What waits to run in a reservation that is over would wait for ever. What runs is stopped with its lease, and
    /// what asks its owner is answered by [`Self::restart_job`], which does without the reservation.
    fn end_jobs_waiting_for(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        self.end_waiting_jobs(turn, [id.clone()]);
    }

    /// One that is being emptied is open, but nothing begins in it any more.
    pub(super) fn still_takes_jobs(&self, id: &ReservationId) -> bool {
        self.reservations.get(id).is_some_and(|r| match r.state {
            ReservationState::Scheduled | ReservationState::Active => true,
            ReservationState::Offered { .. }
            | ReservationState::Ending
            | ReservationState::Ended
            | ReservationState::Cancelled => false,
        })
    }

    fn end_waiting_jobs(
        &mut self,
        turn: &mut Turn<'_>,
        over: impl IntoIterator<Item = ReservationId>,
    ) {
        for reservation in over {
            for job in self.waiting_for(&reservation) {
                self.end_with_its_reservation(turn, &job, &reservation, None);
            }
        }
    }

    pub(super) fn reservation_lease_released(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let why = self.reservations.get(id).and_then(|r| r.reason.clone());
        self.finish_reservation(turn, id, ReservationState::Ended, why);
        turn.say(Event::ReservationEnded { reservation: id.clone() });
    }

    /// Its window passed before the GPUs were empty, as far as is known here.
    pub(super) fn miss_reservation(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let Some(reservation) = self.reservations.get(id) else { return };
        let given = reservation.handed_out.as_ref();
        let why = match given.and_then(|given| given.withdrawn.as_ref()) {
            Some(Withdrawal::Cancelled { by }) => format!("cancelled by {by}"),
            _ if given.is_some_and(|given| given.opened_at.is_some()) => {
                format!("{} served it on its own", reservation.node)
            }
            _ => "its window passed before the GPUs were free".to_owned(),
        };
        self.finish_reservation(turn, id, ReservationState::Ended, Some(why));
        turn.say(Event::ReservationEnded { reservation: id.clone() });
    }

    pub(super) fn finish_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        state: ReservationState,
        reason: Option<String>,
    ) {
        self.charge_what_its_node_opened(turn, id);
        let (by, now) = (turn.actor.display_name(), self.now);
        let Some(mut reservation) = self.reservations.get_mut(id) else { return };
        if state == ReservationState::Cancelled {
            reservation.mark_released(by, now);
        }
        reservation.state = state;
        reservation.reason = reason;
        let had_lease = reservation.lease.take().is_some();
        if let Some(given) = reservation.handed_out.as_mut() {
            given.leased = had_lease;
        }
        (reservation.next, reservation.risk) = (None, None);
        drop(reservation);
        self.ended_reservations.push_back(id.clone());
        if self.ended_reservations.len() > ENDED_RESERVATIONS_KEPT
            && let Some(oldest) = self.ended_reservations.pop_front()
        {
            self.reservations.remove(&oldest);
        }
        self.leave_pair(turn, id);
        self.end_jobs_waiting_for(turn, id);
    }
}

/// Checks the shape of a wish for GPUs; whether it can be met is the calendar's business.
pub(super) fn check_gpu_request(wish: &GpuRequest) -> Result<(), Rejection> {
    if wish.count == 0 || wish.count as usize > GPUS_PER_NODE_MAX {
        return Err(Rejection::field("gpus.count", format!("must be 1 to {GPUS_PER_NODE_MAX}")));
    }
    check_text("gpus.model", wish.model.as_deref().unwrap_or_default())?;
    if !wish.uuids.is_empty() && wish.uuids.len() != wish.count as usize {
        return Err(Rejection::field("gpus.uuids", "must be as many as gpus.count"));
    }
    let mut seen = wish.uuids.clone();
    seen.sort();
    seen.dedup();
    if seen.len() != wish.uuids.len() {
        return Err(Rejection::field("gpus.uuids", "names a GPU twice"));
    }
    Ok(())
}

/// A reservation as it is when it was just made.
pub(super) fn scheduled(
    wish: &CreateReservation,
    (window, node, gpus): Granted,
    now: Timestamp,
) -> Reservation {
    Reservation {
        id: wish.id.clone(),
        owner: wish.owner.clone(),
        project: wish.project.clone(),
        node,
        gpus,
        wish: wish.gpus.clone(),
        window,
        note: wish.note.clone(),
        state: ReservationState::Scheduled,
        lease: None,
        created_at: now,
        reason: None,
        handed_out: None,
        at_end: wish.at_end,
        usage: Usage::default(),
        with: wish.with.clone(),
        imported: None,
        import: None,
        undone: false,
        revision: 1,
        changed: None,
        released_at: None,
        series: None,
        next: None,
        risk: None,
        moved_at: None,
        pair: None,
    }
}

/// The edit that moves only the end.
fn to_end_at(ends_at: Timestamp) -> ReservationChange {
    ReservationChange { ends_at: Some(ends_at), ..ReservationChange::default() }
}

/// Only an admin may act for somebody else.
pub(super) fn check_owner(actor: &Actor, owner: &UserName) -> Result<(), Rejection> {
    match &actor.who {
        Who::User { admin: true, .. } => Ok(()),
        Who::User { name, .. } if name == owner => Ok(()),
        Who::User { .. } | Who::Node { .. } | Who::Controller => {
            Err(Rejection::Denied { needs: format!("{owner} or an admin") })
        }
    }
}
