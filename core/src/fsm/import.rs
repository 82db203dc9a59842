//! A spreadsheet of reservations, taken over whole or not at all.
//!
//! Called by `apply` for `ImportReservations`, and by the edge for a trial. Lines are judged in their order,
//! each on what the ones before it took. What is there already and what is over is left out and said, so
//! that an import may be repeated. It must never take some lines and refuse others, nor bring back what
//! people gave back.

use std::collections::{BTreeMap, BTreeSet};

use super::reservations::{Granted, check_owner, scheduled};
use super::{Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::command::CreateReservation;
use crate::id::{ImportId, ReservationId};
use crate::name::{GpuUuid, UserName};
use crate::rejection::{LineProblem, Rejection};
use crate::reply::{ImportedLine, Reply};
use crate::reservation::{Reservation, ReservationState};
use crate::time::Timestamp;

/// Most lines of one import. They are one log entry, so that all are taken or none; no other write is applied meanwhile.
/// `make bench BENCH_ONLY=scale` says for how long.
pub const IMPORT_LINES_MAX: usize = 10_000;

/// What is to be done about one line.
enum LineDecision {
    Book(Granted),
    Leave(ImportedLine),
}

impl LineDecision {
    fn answer(&self, wish: &CreateReservation) -> ImportedLine {
        match self {
            LineDecision::Book(_) => ImportedLine::Created(wish.id.clone()),
            LineDecision::Leave(line) => line.clone(),
        }
    }
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
        let (plan, booked) = self.judge_lines(turn.actor, wishes);
        let plan = plan.inspect_err(|_| booked.iter().for_each(|id| self.unbook_trial(id)))?;
        let mut made_any = false;
        let mut lines = Vec::with_capacity(plan.len());
        for (wish, line) in wishes.iter().zip(plan) {
            lines.push(line.answer(wish));
            if let LineDecision::Book(granted) = line {
                self.book(turn, wish, granted);
                if let Some(mut made) = self.reservations.get_mut(&wish.id) {
                    made.imported = Some(wish.window);
                    made.import = import.cloned();
                    made_any = true;
                }
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

    /// What the lines would get, without taking anything: an answer for each, and the state with those in
    /// it that are new, not one of them started.
    pub fn try_import(
        &self,
        actor: &Actor,
        wishes: &[CreateReservation],
    ) -> Result<(Vec<ImportedLine>, Fsm), Rejection> {
        let (plan, trial) = self.trial(actor, wishes)?;
        let lines = wishes.iter().zip(plan).map(|(wish, line)| line.answer(wish));
        Ok((lines.collect(), trial))
    }

    fn trial(
        &self,
        actor: &Actor,
        wishes: &[CreateReservation],
    ) -> Result<(Vec<LineDecision>, Fsm), Rejection> {
        let mut trial = self.clone();
        let (plan, _) = trial.judge_lines(actor, wishes);
        Ok((plan?, trial))
    }

    /// Judges all lines, each with those before it booked on trial; and what is booked, also where a line is refused.
    fn judge_lines(
        &mut self,
        actor: &Actor,
        wishes: &[CreateReservation],
    ) -> (Result<Vec<LineDecision>, Rejection>, Vec<ReservationId>) {
        let (mut plan, mut problems, mut booked) = (Vec::new(), Vec::new(), Vec::new());
        if wishes.len() > IMPORT_LINES_MAX {
            let what = "lines of one import".to_owned();
            let limit = IMPORT_LINES_MAX as u64;
            return (Err(Rejection::LimitReached { what, limit }), booked);
        }
        self.settle_index();
        let mut there = self.there(wishes);
        for (at, wish) in (0..).zip(wishes) {
            match self.line(actor, wish, there.remove(&wish.id)) {
                Ok(line) => {
                    if let LineDecision::Book(granted) = &line {
                        self.book_on_trial(scheduled(wish, granted.clone(), self.now));
                        booked.push(wish.id.clone());
                    }
                    plan.push(line);
                }
                Err(why) => {
                    let taken_by = taken_by(&why, wishes);
                    problems.push(LineProblem { line: at, why, taken_by });
                }
            }
        }
        match problems.is_empty() {
            true => (Ok(plan), booked),
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
        let mut wish = wish.clone();
        if wish.window.ends_at > self.now {
            wish.window.starts_at = wish.window.starts_at.max(self.now);
        }
        self.check_reservation(actor, &wish).map(LineDecision::Book)
    }

    /// For each line that an earlier import made: its reservation, also one that was extended or released
    /// since. Two equal lines are two reservations.
    fn there(&self, wishes: &[CreateReservation]) -> BTreeMap<ReservationId, ReservationId> {
        let mut free: BTreeMap<&UserName, Vec<&Reservation>> = BTreeMap::new();
        let end = |r: &Reservation| {
            r.imported.map_or(r.window.ends_at, |w| w.ends_at.max(r.window.ends_at))
        };
        let lasts = |r: &&Reservation| end(r) > self.now && !r.undone;
        for reservation in self.reservations.all().filter(lasts) {
            free.entry(&reservation.owner).or_default().push(reservation);
        }
        let mut there = BTreeMap::new();
        // Those that are certain first, so that no other line takes them.
        let kinds = [is_of_line as Kin, has_window, serves_line, has_its_gpus];
        for kin in kinds {
            let judged = |wish: &&CreateReservation| {
                let window = wish.window;
                window.ends_at > self.now.max(window.starts_at)
            };
            for wish in wishes.iter().filter(judged) {
                let Some(alike) = free.get_mut(&wish.owner) else { continue };
                if there.contains_key(&wish.id) {
                    continue;
                }
                let found = (0..).zip(alike.iter()).filter(|(_, r)| kin(r, wish, self.now));
                // Of several the one that ends first: a later line may need the others.
                let found = found.min_by_key(|(_, r)| (r.window.ends_at, !r.is_open()));
                if let Some((at, _)) = found {
                    there.insert(wish.id.clone(), alike.remove(at).id.clone());
                }
            }
        }
        there
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
fn taken_by(why: &Rejection, wishes: &[CreateReservation]) -> Option<u32> {
    let Rejection::GpusHeld { holdings, .. } = why else { return None };
    let line = |holder: &str| wishes.iter().position(|wish| wish.id.as_str() == holder);
    holdings.iter().find_map(|held| line(&held.holder)).and_then(|at| u32::try_from(at).ok())
}
