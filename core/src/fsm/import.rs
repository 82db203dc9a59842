//! A spreadsheet of reservations, taken over whole or not at all.
//!
//! Called by `apply` for `ImportReservations`, and by the edge for a trial. Lines are judged in their order,
//! each on what the ones before it took. What is there already and what is over is left out and said, so
//! that an import may be repeated. It must never take some lines and refuse others, nor bring back what
//! people gave back.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use super::reservations::{Granted, check_owner, scheduled};
use super::{Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::command::CreateReservation;
use crate::id::{ImportId, ReservationId};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::rejection::{LineProblem, Rejection};
use crate::reply::{ImportedLine, Reply};
use crate::reservation::{GpuRequest, Reservation, ReservationState};
use crate::time::{Timestamp, Window};

/// Most lines of one import. They are one log entry, so that all are taken or none; no other write is applied meanwhile.
/// `make bench BENCH_ONLY=scale` says for how long.
pub const IMPORT_LINES_MAX: usize = 10_000;

/// What is to be done about one line.
enum LineDecision {
    Book(Granted),
    Leave(ImportedLine),
}

impl Fsm {
    /// Takes all lines, or none.
    pub(super) fn import_reservations(
        &mut self,
        turn: &mut Turn<'_>,
        wishes: &[CreateReservation],
        import: Option<&ImportId>,
    ) -> Result<Reply, Rejection> {
        // On the state itself: a copy of a large fleet's takes half a second, and all writes wait for this one.
        let (plan, booked) = self.judge_lines(turn.actor, wishes, import);
        let lines = plan.inspect_err(|_| booked.iter().for_each(|id| self.unbook_trial(id)))?;
        let made_any = !booked.is_empty();
        let mut booked = booked.into_iter().peekable();
        for wish in wishes {
            if booked.next_if(|id| *id == wish.id).is_some() {
                self.reservations.touch(&wish.id);
                self.say_booked(turn, wish);
            }
        }
        // A start may look for other GPUs: only now are those of all lines taken.
        for wish in wishes {
            self.start_if_begun(turn, &wish.id);
        }
        Ok(Reply::ReservationsImported { lines, import: import.filter(|_| made_any).cloned() })
    }

    /// Releases what an import made, all of it or nothing. What is over by now stays so.
    pub(super) fn undo_import(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ImportId,
    ) -> Result<Reply, Rejection> {
        let reservations = self.undoable(turn.actor, id)?;
        for reservation in &reservations {
            self.release_stand_in_of(turn, reservation);
            self.release_reservation(turn, reservation)?;
            if let Some(mut released) = self.reservations.get_mut(reservation) {
                released.undone = true;
            }
        }
        Ok(Reply::ImportUndone { reservations })
    }

    /// The reservations that undoing this import releases: those that have not ended.
    pub fn undoable(&self, actor: &Actor, id: &ImportId) -> Result<Vec<ReservationId>, Rejection> {
        let made = || self.reservations.all().filter(|r| r.import.as_ref() == Some(id));
        if made().next().is_none() {
            return Err(Rejection::not_found("import", id));
        }
        let own = |r: &Reservation| match &actor.who {
            Who::User { admin, name, .. } => *admin || r.owner == *name,
            Who::Node { .. } | Who::Controller => false,
        };
        if let Some(other) = made().find(|r| !own(r)) {
            let needs = format!("an admin: {} in {id} is for {}", other.id, other.owner);
            return Err(Rejection::Denied { needs });
        }
        let open: Vec<ReservationId> =
            made().filter(|r| goes_on(r) && !r.undone).map(|r| r.id.clone()).collect();
        if open.is_empty() {
            let state = "undone, or all of it is over".to_owned();
            return Err(Rejection::AlreadyEnded { id: id.to_string(), state });
        }
        Ok(open)
    }

    /// What the lines would get at that time, without taking anything: an answer for each, and the state with those in
    /// it that are new, not one of them started.
    pub fn try_import(
        &self,
        actor: &Actor,
        wishes: &[CreateReservation],
        now: Timestamp,
    ) -> Result<(Vec<ImportedLine>, Fsm), Rejection> {
        let mut trial = self.as_of(now);
        let (lines, _) = trial.judge_lines(actor, wishes, None);
        Ok((lines?, trial))
    }

    /// Judges all lines, each with those before it booked on trial; and what is booked, also where a line is refused.
    fn judge_lines(
        &mut self,
        actor: &Actor,
        wishes: &[CreateReservation],
        import: Option<&ImportId>,
    ) -> (Result<Vec<ImportedLine>, Rejection>, Vec<ReservationId>) {
        let (mut lines, mut problems, mut booked) = (Vec::new(), Vec::new(), Vec::new());
        if wishes.len() > IMPORT_LINES_MAX {
            let what = "lines of one import".to_owned();
            let limit = IMPORT_LINES_MAX as u64;
            return (Err(Rejection::LimitReached { what, limit }), booked);
        }
        self.settle_index();
        let mut there = self.there(wishes);
        let line_of =
            LazyCell::new(|| (0..).zip(wishes).map(|(at, w)| (w.id.as_str(), at)).collect());
        for (at, wish) in (0..).zip(wishes) {
            match self.line(actor, wish, there.remove(&wish.id)) {
                Ok(LineDecision::Book(granted)) => {
                    let (imported, import) = (Some(wish.window), import.cloned());
                    let made = scheduled(wish, granted, self.now);
                    self.book_on_trial(Reservation { imported, import, ..made });
                    booked.push(wish.id.clone());
                    lines.push(ImportedLine::Created(wish.id.clone()));
                }
                Ok(LineDecision::Leave(line)) => lines.push(line),
                Err(why) => {
                    let taken_by = taken_by(&why, &line_of);
                    problems.push(LineProblem { line: at, why, taken_by });
                }
            }
        }
        match problems.is_empty() {
            true => (Ok(lines), booked),
            false => (Err(Rejection::LinesRefused { problems, more: 0 }), booked),
        }
    }

    /// Judges one line on this state, which holds those before it; `there` is the same from an earlier import.
    fn line(
        &self,
        actor: &Actor,
        wish: &CreateReservation,
        there: Option<ReservationId>,
    ) -> Result<LineDecision, Rejection> {
        check_owner(actor, &wish.owner)?;
        if wish.window.ends_at > wish.window.starts_at && wish.window.ends_at <= self.now {
            return Ok(LineDecision::Leave(ImportedLine::Over));
        }
        if let Some(id) = there {
            return Ok(LineDecision::Leave(ImportedLine::There(id)));
        }
        // A reservation that is under way began when nobody was looking: what is left of it counts.
        let began = wish.window.starts_at < self.now && self.now < wish.window.ends_at;
        let rest = began.then(|| {
            let window = Window { starts_at: self.now, ..wish.window };
            CreateReservation { window, ..wish.clone() }
        });
        self.check_reservation(actor, rest.as_ref().unwrap_or(wish)).map(LineDecision::Book)
    }

    /// For each line that an earlier import made: its reservation, also one that was extended or released
    /// since. Two equal lines are two reservations.
    fn there(&self, wishes: &[CreateReservation]) -> BTreeMap<ReservationId, ReservationId> {
        let mut free = Earlier::of(self, wishes);
        let mut there = BTreeMap::new();
        let now = self.now;
        // Those that are certain first, so that no other line takes them.
        let kinds = [
            (of_line as Place, is_of_line as Kin),
            (of_start, has_window),
            (of_start, serves_line),
            (of_gpus, has_its_gpus),
        ];
        for (place, kin) in kinds {
            let judged = |wish: &&CreateReservation| {
                let window = wish.window;
                window.ends_at > now.max(window.starts_at) && !there.contains_key(&wish.id)
            };
            let judged: Vec<_> = wishes.iter().filter(judged).collect();
            for wish in judged {
                let Some(place) = place(wish, now) else { continue };
                if let Some(id) = free.take(&wish.owner, &place, |r| kin(r, wish, now)) {
                    there.insert(wish.id.clone(), id.clone());
                }
            }
        }
        there
    }
}

/// What a wish names, which is a part of what must be the same.
type Names<'a> = (Option<&'a NodeName>, Option<&'a GpuUuid>);

/// Where a reservation that may be there for a line is looked up: an import has thousands of lines, and an owner may
/// have thousands of reservations.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    /// The window of the line that made it.
    Line(Window, Names<'a>),
    Start(Timestamp, Names<'a>),
    /// It has begun, so the start that is written for it says little.
    Begun(Names<'a>),
    /// Its window, and the first of its GPUs.
    Gpus(Window, &'a GpuUuid),
}

type Place = for<'a> fn(&'a CreateReservation, Timestamp) -> Option<Key<'a>>;

fn of_line(wish: &CreateReservation, _: Timestamp) -> Option<Key<'_>> {
    Some(Key::Line(wish.window, names(&wish.gpus)))
}

fn of_start(wish: &CreateReservation, now: Timestamp) -> Option<Key<'_>> {
    Some(by_start(wish.window, &wish.gpus, now))
}

fn of_gpus(wish: &CreateReservation, _: Timestamp) -> Option<Key<'_>> {
    wish.gpus.uuids.iter().min().map(|first| Key::Gpus(wish.window, first))
}

fn names(gpus: &GpuRequest) -> Names<'_> {
    (gpus.node.as_ref(), gpus.uuids.first())
}

fn by_start(window: Window, gpus: &GpuRequest, now: Timestamp) -> Key<'_> {
    match window.starts_at <= now {
        true => Key::Begun(names(gpus)),
        false => Key::Start(window.starts_at, names(gpus)),
    }
}

/// Reservations that lines may have made, and that no line of this import has yet.
struct Earlier<'a> {
    /// In each list what ends first comes first: a later line may need the others.
    all: BTreeMap<&'a UserName, BTreeMap<Key<'a>, Vec<&'a Reservation>>>,
    taken: BTreeSet<&'a ReservationId>,
}

impl<'a> Earlier<'a> {
    fn of(fsm: &'a Fsm, wishes: &'a [CreateReservation]) -> Self {
        let mut all: BTreeMap<&UserName, BTreeMap<Key<'_>, Vec<&Reservation>>> =
            wishes.iter().map(|wish| (&wish.owner, BTreeMap::new())).collect();
        let end = |r: &Reservation| {
            r.imported.map_or(r.window.ends_at, |w| w.ends_at.max(r.window.ends_at))
        };
        let lasts = |r: &&Reservation| end(r) > fsm.now && !r.undone;
        for r in fsm.reservations.all().filter(lasts) {
            let Some(of_owner) = all.get_mut(&r.owner) else { continue };
            let places = [
                Some(by_start(r.window, &r.wish, fsm.now)),
                r.imported.map(|line| Key::Line(line, names(&r.wish))),
                r.gpus.iter().min().map(|first| Key::Gpus(r.window, first)),
            ];
            for place in places.into_iter().flatten() {
                of_owner.entry(place).or_default().push(r);
            }
        }
        let lists = all.values_mut().flat_map(BTreeMap::values_mut);
        // Of equals the first by id, as they came.
        lists.for_each(|list| list.sort_by_key(|r| (r.window.ends_at, !r.is_open())));
        Self { all, taken: BTreeSet::new() }
    }

    fn take(
        &mut self,
        owner: &UserName,
        place: &Key<'a>,
        is_it: impl Fn(&Reservation) -> bool,
    ) -> Option<&'a ReservationId> {
        let Self { all, taken } = self;
        let list = all.get_mut(owner)?.get_mut(place)?;
        // Another line may have found it in another list.
        let at = list.iter().position(|r| is_it(r) && !taken.contains(&r.id))?;
        let id = &list.remove(at).id;
        taken.insert(id);
        Some(id)
    }
}

/// Whether a reservation of the same owner is what a line asks for, at a time.
type Kin = fn(&Reservation, &CreateReservation, Timestamp) -> bool;

/// Made by this exact line.
fn is_of_line(r: &Reservation, wish: &CreateReservation, _: Timestamp) -> bool {
    r.imported == Some(wish.window) && asks_alike(r, wish)
}

/// It has exactly the line's window: made by another line and changed to it, or by hand.
fn has_window(r: &Reservation, wish: &CreateReservation, _: Timestamp) -> bool {
    let counts = r.imported.is_some() || goes_on(r);
    counts && r.window == wish.window && asks_alike(r, wish)
}

/// It serves the line: made by hand to cover it, or by a line with the same end whose start was written in another way
/// (`now`). Once it is over, two starts in the past prove nothing: its owner may have released another one of that day.
fn serves_line(r: &Reservation, wish: &CreateReservation, now: Timestamp) -> bool {
    let starts = match goes_on(r) {
        true => starts_alike(r, wish, now),
        false => r.window.starts_at == wish.window.starts_at,
    };
    let ends = match r.imported {
        Some(line) => line.ends_at == wish.window.ends_at,
        None => goes_on(r) && r.window.ends_at >= wish.window.ends_at,
    };
    starts && ends && asks_alike(r, wish)
}

/// It has the line's window and the GPUs that the line names, whatever it was made for: the line comes from an export.
fn has_its_gpus(r: &Reservation, wish: &CreateReservation, _: Timestamp) -> bool {
    let sorted = |gpus: &[GpuUuid]| gpus.iter().cloned().collect::<BTreeSet<_>>();
    let named = !wish.gpus.uuids.is_empty() && sorted(&wish.gpus.uuids) == sorted(&r.gpus);
    let same = r.note == wish.note && r.project == wish.project;
    goes_on(r) && r.window == wish.window && named && same
}

/// Neither released nor over. A reservation that was made by hand and is released or over serves no line.
fn goes_on(r: &Reservation) -> bool {
    matches!(r.state, ReservationState::Scheduled | ReservationState::Active)
}

/// The same start; or both are passed: what was under way began when it was made.
fn starts_alike(r: &Reservation, wish: &CreateReservation, now: Timestamp) -> bool {
    let (one, other) = (r.window.starts_at, wish.window.starts_at);
    one == other || (one <= now && other <= now)
}

fn asks_alike(r: &Reservation, wish: &CreateReservation) -> bool {
    r.wish == wish.gpus && r.note == wish.note && r.project == wish.project
}

/// The line whose reservation stands in the way, and would be there only with this import.
fn taken_by(why: &Rejection, line_of: &BTreeMap<&str, u32>) -> Option<u32> {
    let Rejection::GpusHeld { holdings, .. } = why else { return None };
    holdings.iter().find_map(|held| line_of.get(held.holder.as_str()).copied())
}
