//! Edits of a reservation: another time, other GPUs, other users, another note. Done wholly, or refused wholly.
//!
//! Called for the command and, for edits that wait, by agents' answers and by time. A window in an agent's hands opens even
//! while every controller is away. So an edit of its start or of its GPUs first takes the window back: until the agent has
//! released it, the old place and the new one are both taken, and nobody else is promised either. A place never
//! changes hands because an agent is silent: the old one is free when the agent says so, or when its time is over.

use super::commands::Act;
use super::reservations::check_gpu_request;
use super::{Fsm, Turn};
use crate::actor::Actor;
use crate::calendar::{self, Unleased};
use crate::command::{Command, ReservationChange, ReservationCommand};
use crate::event::Event;
use crate::id::ReservationId;
use crate::lease::Epoch;
use crate::name::{GpuUuid, NodeName};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{
    Edit, GpuRequest, Place, RESERVATION_LENGTH_MAX, RESERVATION_LENGTH_MIN, Reservation,
    ReservationState,
};
use crate::scheduler::claims;
use crate::scheduler::project_limit::Booking;
use crate::time::{Timestamp, Window};
use crate::window::Withdrawal;

/// A way to choose GPUs for a wish.
type Choice<'a> = dyn Fn(&GpuRequest) -> Option<(NodeName, Vec<GpuUuid>)> + 'a;

/// What an edit asks for, before GPUs are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The place it has, or waits for.
    before: Place,
    wish: GpuRequest,
    window: Window,
}

impl Fsm {
    pub(super) fn edit_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        change: &ReservationChange,
        seen: Option<u64>,
    ) -> Result<Reply, Rejection> {
        let wanted = self.check_edit(turn.actor, id, change, seen)?;
        let place = self.place_for(id, &wanted)?;
        let edit = self.note_edit(turn, id, change, &wanted.before, &place);
        let by = turn.actor.display_name();
        let waits_for = self.move_to(turn, id, place, by.clone());
        if edit.window.is_some() || edit.place.is_some() {
            self.dissolve_pair(turn, id);
        }
        if change.starts_at.is_some() || change.ends_at.is_some() || change.gpus.is_some() {
            self.leave_as_placed(id);
        }
        if !edit.is_empty() {
            turn.say(Event::ReservationEdited {
                reservation: id.clone(),
                by,
                edit: Box::new(edit),
                waits_for: waits_for.clone(),
            });
        }
        if waits_for.is_none() {
            self.hand_out(turn, id);
            self.start_if_begun_and_waiting(turn, id);
        }
        Ok(Reply::ReservationEdited { id: id.clone(), waits_for })
    }

    /// What the reservation would be with that change, without changing anything. It has a next place where its node would
    /// have to release the old one first.
    pub fn try_edit(
        &self,
        actor: &Actor,
        id: &ReservationId,
        change: &ReservationChange,
        seen: Option<u64>,
        now: Timestamp,
    ) -> Result<Reservation, Rejection> {
        let (edited, change) = (id.clone(), change.clone());
        let command = ReservationCommand::Edit { id: edited, change, seen };
        let (after, _) = self.after(actor, &command, now)?;
        after.reservations.get(id).cloned().ok_or_else(|| Rejection::not_found("reservation", id))
    }

    /// A copy of the state on which that was done, and the reply.
    pub(super) fn after(
        &self,
        actor: &Actor,
        command: &ReservationCommand,
        now: Timestamp,
    ) -> Result<(Fsm, Reply), Rejection> {
        let mut trial = self.as_of(now);
        let epoch = Epoch { incarnation: trial.incarnation, index: trial.applied };
        let (granted, before, events) = (0, trial.now, Vec::new());
        let mut turn = Turn { actor, epoch, granted, before, events };
        super::authorize(&trial, actor, &Command::Reservation(command.clone()))?;
        let reply = command.act(&mut trial, &mut turn)?;
        Ok((trial, reply))
    }

    /// Everything that can be refused before GPUs are chosen.
    pub(super) fn check_edit(
        &self,
        actor: &Actor,
        id: &ReservationId,
        change: &ReservationChange,
        seen: Option<u64>,
    ) -> Result<Wanted, Rejection> {
        let r = self.changeable(id)?;
        if seen.is_some_and(|seen| seen != r.revision) {
            let by = r.changed.as_ref().map(|changed| changed.by.clone());
            let at = r.changed.as_ref().map(|changed| changed.at);
            return Err(Rejection::ChangedSince { id: id.to_string(), by, at });
        }
        if *change == ReservationChange::default() {
            return Err(Rejection::field("change", "names nothing to change"));
        }
        if let Some(note) = &change.note {
            self.check_note(note)?;
        }
        if let Some(with) = &change.with {
            self.check_shared(actor, &r.owner, with)?;
        }
        let before = r.wanted();
        let wish = merged(r, &before, change.gpus.as_ref());
        check_gpu_request(&wish)?;
        let window = moved(before.window, change);
        if r.state == ReservationState::Active {
            check_active(id, &before, &wish, window)?;
        }
        let window = self.check_edited_window(before.window, window)?;
        self.check_edit_limits(actor, r, &before, (&wish, window))?;
        Ok(Wanted { before, wish, window })
    }

    fn check_edited_window(&self, before: Window, window: Window) -> Result<Window, Rejection> {
        if window == before {
            return Ok(before);
        }
        if window.starts_at != before.starts_at {
            return self.check_window(window);
        }
        if window.ends_at <= self.now.max(window.starts_at) {
            return Err(Rejection::field("ends_at", "must be after now and after the start"));
        }
        let length = window.ends_at.since(window.starts_at);
        if !(RESERVATION_LENGTH_MIN..=RESERVATION_LENGTH_MAX).contains(&length) {
            let problem = format!(
                "a reservation lasts {RESERVATION_LENGTH_MIN} to {RESERVATION_LENGTH_MAX}, this one {length}"
            );
            return Err(Rejection::field("ends_at", problem));
        }
        Ok(window)
    }

    /// Limits count for what an edit adds: a later or longer window, or more GPUs.
    fn check_edit_limits(
        &self,
        actor: &Actor,
        r: &Reservation,
        before: &Place,
        (wish, window): (&GpuRequest, Window),
    ) -> Result<(), Rejection> {
        let within =
            before.window.starts_at <= window.starts_at && window.ends_at <= before.window.ends_at;
        let gpus = wish.count as usize;
        if within && gpus <= before.gpus.len() {
            return Ok(());
        }
        let only_longer = window.starts_at == before.window.starts_at && gpus <= before.gpus.len();
        let added = match only_longer {
            true => Window { starts_at: before.window.ends_at.max(self.now), ..window },
            false => Window { starts_at: window.starts_at.max(self.now), ..window },
        };
        let later = window.starts_at > before.window.starts_at;
        let (project, owner, of) = (&r.project, &r.owner, Some(&r.id));
        self.check_limits(actor, &Booking { project, owner, window, added, gpus, of }, later)
    }

    /// The GPUs for it. Those that it has stay where they fit; else others of the same wish are chosen on its node, else on
    /// another one. Changes nothing.
    fn place_for(&mut self, id: &ReservationId, wanted: &Wanted) -> Result<Place, Rejection> {
        let Wanted { before, wish, window } = wanted;
        let place = |(node, gpus)| Place { node, gpus, window: *window, wish: wish.clone() };
        if *wish == before.wish && *window == before.window {
            return Ok(before.clone());
        }
        let Some(r) = self.reservations.get(id) else {
            return Err(Rejection::not_found("reservation", id));
        };
        if r.state == ReservationState::Active {
            calendar::extension(self, r, window.ends_at)?;
            return Ok(place((before.node.clone(), before.gpus.clone())));
        }
        // Its own places must not stand in its way.
        let Some(r) = self.reservations.remove(id) else {
            return Err(Rejection::not_found("reservation", id));
        };
        let found = self.choose_for(wanted);
        self.reservations.insert(r);
        found.map(place)
    }

    fn choose_for(&self, wanted: &Wanted) -> Result<(NodeName, Vec<GpuUuid>), Rejection> {
        let Wanted { before, wish, window } = wanted;
        let rest = Window { starts_at: window.starts_at.max(self.now), ends_at: window.ends_at };
        // Only the end moves: what is wrong with the GPUs meanwhile is no reason to change them.
        if *wish == before.wish && window.starts_at == before.window.starts_at {
            let from = before.window.ends_at.max(rest.starts_at);
            let added = Window { starts_at: from, ends_at: window.ends_at };
            if added.ends_at <= from || calendar::are_free(self, &before.node, &before.gpus, added)
            {
                return Ok((before.node.clone(), before.gpus.clone()));
            }
        }
        let held = claims::held_within(self, &rest);
        let choose =
            |wish: &GpuRequest| calendar::choose(self, wish, rest, Unleased::Blocks, &held);
        let free = |wish: &GpuRequest| calendar::choose_free(self, wish, rest, &held);
        let also_freed = |wish: &GpuRequest| choose(wish).ok();
        let may_keep =
            wish.uuids.is_empty() && wish.node.as_ref().is_none_or(|n| *n == before.node);
        // Nobody leaves where another node is free.
        let passes: [&Choice<'_>; 2] = [&free, &also_freed];
        for pass in passes.into_iter().filter(|_| may_keep) {
            let here = GpuRequest { node: Some(before.node.clone()), ..wish.clone() };
            let kept = self.keeping(before, &here, pass).or_else(|| pass(&here));
            if let Some(found) = kept.or_else(|| pass(wish)) {
                return Ok(found);
            }
        }
        choose(wish)
    }

    /// The GPUs that it has, as many as are wanted; or all of them, and more of the same node.
    fn keeping(
        &self,
        before: &Place,
        here: &GpuRequest,
        choose: &Choice<'_>,
    ) -> Option<(NodeName, Vec<GpuUuid>)> {
        let has = u32::try_from(before.gpus.len()).unwrap_or(u32::MAX);
        let of_its = |count| GpuRequest { count, uuids: before.gpus.clone(), ..here.clone() };
        let (node, kept) = choose(&of_its(here.count.min(has)))?;
        if here.count <= has {
            return Some((node, kept));
        }
        let all = &self.nodes.get(&node)?.gpus;
        let others: Vec<GpuUuid> = all.iter().filter(|gpu| !kept.contains(gpu)).cloned().collect();
        if others.is_empty() {
            return None;
        }
        let more = GpuRequest { count: here.count - has, uuids: others, ..here.clone() };
        let (_, more) = choose(&more)?;
        let picked = |gpu: &&GpuUuid| kept.contains(gpu) || more.contains(gpu);
        Some((node, all.iter().filter(picked).cloned().collect()))
    }

    /// Writes down note and users, and says what the whole edit changes.
    fn note_edit(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        change: &ReservationChange,
        before: &Place,
        place: &Place,
    ) -> Edit {
        let (by, now) = (turn.actor.display_name(), self.now);
        let Some(mut r) = self.reservations.get_mut(id) else { return Edit::default() };
        let spot = |place: &Place| (place.node.clone(), place.gpus.clone());
        let note = change.note.clone().filter(|note| *note != r.note);
        let with = change.with.clone().filter(|with| *with != r.with);
        let edit = Edit {
            window: (before.window != place.window).then_some((before.window, place.window)),
            place: (spot(before) != spot(place)).then(|| (spot(before), spot(place))),
            note: note.map(|is| (std::mem::replace(&mut r.note, is.clone()), is)),
            with: with.map(|is| (std::mem::replace(&mut r.with, is.clone()), is)),
        };
        if !edit.is_empty() || before.wish != place.wish {
            r.mark_changed(by, now);
        }
        drop(r);
        if edit.with.is_some() {
            // Its node lets them in, so it must know.
            self.tell_anew(turn, id);
        }
        edit
    }

    /// Gives it the place, at once or when its node has released the one it has. Says which node it waits for.
    pub(super) fn move_to(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        place: Place,
        by: String,
    ) -> Option<NodeName> {
        let in_hands = self.is_in_hands(id);
        let mut r = self.reservations.get_mut(id)?;
        // What was said of the old place does not hold of the new one.
        if r.node != place.node || r.gpus != place.gpus {
            r.risk = None;
        }
        let waited = r.next.take().is_some();
        let stays = r.node == place.node
            && r.gpus == place.gpus
            && r.window.starts_at == place.window.starts_at;
        if stays {
            let changed = waited || r.window != place.window;
            (r.window, r.wish) = (place.window, place.wish);
            drop(r);
            if changed {
                self.revise(turn, id, None);
            }
            return None;
        }
        if in_hands {
            let node = r.node.clone();
            let asked = r.handed_out.as_ref().and_then(|given| given.withdrawn.as_ref());
            let asked = matches!(asked, Some(Withdrawal::Edited { .. }));
            r.next = Some(Box::new(place));
            drop(r);
            if !asked {
                self.revise(turn, id, Some(Withdrawal::Edited { by }));
            }
            return Some(node);
        }
        (r.node, r.gpus, r.window, r.wish) = (place.node, place.gpus, place.window, place.wish);
        (r.handed_out, r.reason) = (None, None);
        None
    }

    /// Its node has released the old place, or cannot open it any more: it has the new one from now on.
    pub(super) fn settle_edit(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        if self.reservations.get(id).is_some_and(|r| r.next.is_some()) {
            // Its node may have opened the old place alone.
            self.charge_what_its_node_opened(turn, id);
        }
        let Some(mut r) = self.reservations.get_mut(id) else { return };
        let Some(place) = r.next.take() else { return };
        let Place { node, gpus, window, wish } = *place;
        (r.node, r.gpus, r.window, r.wish) = (node, gpus, window, wish);
        (r.handed_out, r.reason) = (None, None);
        turn.say(Event::ReservationEditDone {
            reservation: id.clone(),
            node: r.node.clone(),
            gpus: r.gpus.clone(),
            starts_at: r.window.starts_at,
            ends_at: r.window.ends_at,
        });
        drop(r);
        self.hand_out(turn, id);
        self.start_if_begun_and_waiting(turn, id);
    }

    /// One whose time has come begins at once, where it has not begun.
    pub(super) fn start_if_begun_and_waiting(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let waits =
            |r: &Reservation| r.state == ReservationState::Scheduled && r.window.ends_at > self.now;
        if self.reservations.get(id).is_some_and(waits) {
            self.start_if_begun(turn, id);
        }
    }

    /// Edits that wait for a silent node until time alone settles them: the old window is over, so that nobody can open
    /// it any more; or the new one is, and the old one counts again.
    pub(super) fn settle_due_edits(&mut self, turn: &mut Turn<'_>) {
        let now = self.now;
        let due =
            self.due_reservations().filter(|r| r.edit_settles_at().is_some_and(|at| at <= now));
        let due: Vec<ReservationId> = due.map(|r| r.id.clone()).collect();
        for id in due {
            let lapsed = |r: &Reservation| r.next.as_ref().is_some_and(|n| n.window.ends_at <= now);
            match self.reservations.get(&id).is_some_and(lapsed) {
                true => self.lapse_edit(turn, &id),
                false => self.settle_edit(turn, &id),
            }
        }
    }

    fn lapse_edit(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let now = self.now;
        let Some(mut r) = self.reservations.get_mut(id) else { return };
        r.next = None;
        r.mark_changed("fleet".to_owned(), now);
        let node = r.node.clone();
        drop(r);
        turn.say(Event::ReservationEditLapsed { reservation: id.clone(), node });
        self.revise(turn, id, None);
    }
}

/// The window after the change. A new start alone moves it: its length stays.
pub(super) fn moved(before: Window, change: &ReservationChange) -> Window {
    let starts_at = change.starts_at.unwrap_or(before.starts_at);
    let length = before.ends_at.since(before.starts_at);
    let ends_at = match (change.ends_at, change.starts_at) {
        (Some(ends_at), _) => ends_at,
        (None, Some(starts_at)) => starts_at + length,
        (None, None) => before.ends_at,
    };
    Window { starts_at, ends_at }
}

/// The wish after the change. A number alone keeps model, memory and node of the wish before.
fn merged(r: &Reservation, before: &Place, asked: Option<&GpuRequest>) -> GpuRequest {
    let Some(asked) = asked else { return before.wish.clone() };
    if !asked.uuids.is_empty() {
        return asked.clone();
    }
    // GPUs that were named one by one are of one node, and more of them are wanted there.
    let named = (!r.wish.uuids.is_empty()).then(|| before.node.clone());
    let same_count = asked.count == before.wish.count && *asked == of_count(asked.count);
    if same_count {
        return before.wish.clone();
    }
    GpuRequest {
        count: asked.count,
        model: asked.model.clone().or_else(|| before.wish.model.clone()),
        memory_bytes_min: asked.memory_bytes_min.or(before.wish.memory_bytes_min),
        node: asked.node.clone().or_else(|| before.wish.node.clone()).or(named),
        uuids: Vec::new(),
    }
}

fn of_count(count: u32) -> GpuRequest {
    GpuRequest { count, ..GpuRequest::default() }
}

/// People are on the GPUs of one that has started: its start and its GPUs stay.
fn check_active(
    id: &ReservationId,
    before: &Place,
    wish: &GpuRequest,
    window: Window,
) -> Result<(), Rejection> {
    let refuse =
        |why: &str| Err(Rejection::NotChangeable { id: id.to_string(), why: why.to_owned() });
    if window.starts_at != before.window.starts_at {
        return refuse(
            "it has started, so its start stays: change its end, or release it and reserve again",
        );
    }
    let mut named = wish.uuids.clone();
    let mut has = before.gpus.clone();
    named.sort();
    has.sort();
    if *wish != before.wish && named != has {
        return refuse(
            "it has started, so its GPUs stay: for more GPUs make a second reservation, \
             for others release it and reserve again",
        );
    }
    Ok(())
}
