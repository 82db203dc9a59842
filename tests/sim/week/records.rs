//! What the audit records say of each reservation, restated: its place, the one that it gets next, who may use it.
//!
//! It judges that no GPU is promised twice for one time, and counts what a week must be full of.

use std::collections::BTreeSet;

use fleet_core::command::{Command, ReservationCommand};
use fleet_core::event::Event;
use fleet_core::id::{ReservationId, SeriesId};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::risk::RiskEvent;
use fleet_core::time::{Timestamp, Window};

use super::{DATE_CHANGED, EDITED, MOVED, STAND_IN, SUPERSEDED, Week};
use crate::scene::BEGIN_MS;

/// GPUs for a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: String,
    pub(super) gpus: Vec<GpuUuid>,
    pub(super) window: Window,
}

impl Place {
    /// Whether both have a GPU at one time that is not over.
    pub(super) fn meets(&self, other: &Place, now: Timestamp) -> bool {
        let (a, b) = (&self.window, &other.window);
        a.overlaps(b)
            && a.ends_at.min(b.ends_at) > now
            && self.gpus.iter().any(|gpu| other.gpus.contains(gpu))
    }
}

/// One reservation.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) owner: UserName,
    pub(super) with: BTreeSet<UserName>,
    /// All who ever were to use it.
    pub(super) ever: BTreeSet<UserName>,
    pub(super) place: Place,
    /// What it gets once its node has released the place above, and what that counts as.
    pub(super) next: Option<(Place, Option<&'static str>)>,
    series: Option<SeriesId>,
    handed_out: bool,
    /// When its node said that it has the newest order.
    pub(super) taken_us: Option<u64>,
    /// When its place or its users changed last.
    pub(super) changed_us: u64,
    /// Its owner has released it, or its end has begun.
    pub(super) leaves: bool,
    pub(super) over: bool,
    /// The other one of a reservation and its stand-in.
    pub(super) twin: Option<ReservationId>,
    /// It was judged since its last change.
    pub(super) judged: bool,
}

impl Record {
    fn changed(&mut self, now_us: u64) {
        (self.changed_us, self.judged) = (now_us, false);
    }

    pub(super) fn users(&self) -> BTreeSet<UserName> {
        std::iter::once(&self.owner).chain(&self.with).cloned().collect()
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        let next = self.next.iter().map(|(place, _)| place);
        std::iter::once(&self.place).chain(next).filter(|_| !self.over)
    }
}

/// A time of the fleet, as a moment of the simulation.
pub(super) fn moment(at: Timestamp) -> u64 {
    at.0.saturating_sub(BEGIN_MS) * 1_000
}

impl Week {
    /// Who was named with a wish.
    pub(super) fn note_wishes(&mut self, command: &Command) {
        match command {
            Command::Reservation(ReservationCommand::Create(wish)) => {
                self.asked.insert(wish.id.clone(), wish.with.clone());
            }
            Command::Reservation(ReservationCommand::Wait { wish, .. }) => {
                self.asked.insert(wish.id.clone(), wish.with.clone());
            }
            Command::Reservation(ReservationCommand::CreateSeries { reservations, .. }) => {
                let all = reservations.iter().map(|wish| (wish.id.clone(), wish.with.clone()));
                self.asked.extend(all);
            }
            _ => {}
        }
    }

    /// A date of a series of which others are left.
    pub(super) fn count_dates(
        &self,
        command: &Command,
        events: &[Event],
        counted: &mut Vec<&'static str>,
    ) {
        let id = match command {
            Command::Reservation(ReservationCommand::Edit { id, .. })
            | Command::Reservation(ReservationCommand::Release { id }) => id,
            _ => return,
        };
        let Some(record) = self.records.get(id).filter(|record| !record.leaves) else { return };
        let others = self.records.iter().any(|(other, one)| {
            other != id && record.series.is_some() && one.series == record.series && !one.leaves
        });
        if others && !events.is_empty() {
            counted.push(DATE_CHANGED);
        }
    }

    /// One record.
    pub(super) fn note(
        &mut self,
        event: &Event,
        (now, now_us): (Timestamp, u64),
        counted: &mut Vec<&'static str>,
    ) -> Result<(), String> {
        match event {
            Event::ReservationCreated { .. } => return self.created(event, now_us),
            Event::Risk(risk) => return self.note_risk(risk, counted),
            _ => {}
        }
        let Some(record) = id_of(event).and_then(|id| self.records.get_mut(id)) else {
            return Ok(());
        };
        match event {
            Event::ReservationEdited { by, edit, waits_for, .. } => {
                let place = record.next.take().map_or_else(|| record.place.clone(), |(p, _)| p);
                let window = edit.window.map_or(place.window, |(_, is)| is);
                let place = match &edit.place {
                    Some((_, (node, gpus))) => {
                        Place { node: node.to_string(), gpus: gpus.clone(), window }
                    }
                    None => Place { window, ..place },
                };
                let matters = edit.window.is_some() || edit.place.is_some() || edit.with.is_some();
                let counts = (matters && record.handed_out && by != "fleet").then_some(EDITED);
                if let Some((_, is)) = &edit.with {
                    record.with.clone_from(is);
                    record.ever.extend(is.iter().cloned());
                }
                match waits_for {
                    Some(_) => record.next = Some((place, counts)),
                    None => {
                        record.place = place;
                        counted.extend(counts);
                    }
                }
                // Its node is to hear of it.
                record.taken_us = None;
                record.changed(now_us);
            }
            Event::ReservationMoved { node, gpus, waits_for, .. } => {
                let window = record.place.window;
                let place = Place { node: node.to_string(), gpus: gpus.clone(), window };
                match waits_for {
                    Some(_) => record.next = Some((place, Some(MOVED))),
                    None => {
                        record.place = place;
                        counted.push(MOVED);
                    }
                }
                record.changed(now_us);
            }
            Event::ReservationEditDone { node, gpus, starts_at, ends_at, .. } => {
                let window = Window { starts_at: *starts_at, ends_at: *ends_at };
                let place = Place { node: node.to_string(), gpus: gpus.clone(), window };
                match record.next.take() {
                    Some((wanted, counts)) if wanted == place => counted.extend(counts),
                    other => return Err(format!("got {place:?}, and was to get {other:?}")),
                }
                record.place = place;
                record.taken_us = None;
                record.changed(now_us);
            }
            Event::ReservationEditLapsed { .. } => record.next = None,
            Event::ReservationExtended { ends_at, .. } => record.place.window.ends_at = *ends_at,
            Event::ReservationStarted { gpus, .. } => record.place.gpus.clone_from(gpus),
            Event::WindowHandedOut { .. } => (record.handed_out, record.taken_us) = (true, None),
            Event::WindowTaken { .. } => record.taken_us = Some(now_us),
            // What it was to get is nobody's any more.
            Event::WindowWithdrawn { .. } => (record.leaves, record.next) = (true, None),
            Event::ReservationEnding { .. } => {
                record.leaves = true;
                record.place.window.ends_at = record.place.window.ends_at.min(now);
            }
            Event::ReservationEnded { .. } | Event::ReservationCancelled { .. } => {
                (record.leaves, record.over) = (true, true);
            }
            _ => {}
        }
        Ok(())
    }

    fn created(&mut self, event: &Event, now_us: u64) -> Result<(), String> {
        let Event::ReservationCreated {
            reservation,
            owner,
            node,
            gpus,
            starts_at,
            ends_at,
            with,
            series,
            ..
        } = event
        else {
            return Ok(());
        };
        let with: BTreeSet<UserName> = with.iter().cloned().collect();
        if let Some(asked) = self.asked.get(reservation).filter(|asked| **asked != with) {
            return Err(format!("{reservation} is for {with:?}, and was asked for {asked:?}"));
        }
        let window = Window { starts_at: *starts_at, ends_at: *ends_at };
        let record = Record {
            owner: owner.clone(),
            ever: std::iter::once(owner).chain(&with).cloned().collect(),
            with,
            place: Place { node: node.to_string(), gpus: gpus.clone(), window },
            next: None,
            series: series.clone(),
            handed_out: false,
            taken_us: None,
            changed_us: now_us,
            leaves: false,
            over: false,
            twin: None,
            judged: false,
        };
        match self.records.insert(reservation.clone(), record) {
            Some(_) => Err(format!("{reservation} is made a second time")),
            None => Ok(()),
        }
    }

    fn note_risk(
        &mut self,
        risk: &RiskEvent,
        counted: &mut Vec<&'static str>,
    ) -> Result<(), String> {
        match risk {
            RiskEvent::StandsIn { reservation, stand_in, .. } => {
                counted.push(STAND_IN);
                let Some(first) = self.records.get_mut(reservation) else { return Ok(()) };
                first.twin = Some(stand_in.clone());
                // Its own record follows in the same entry.
                self.asked.insert(stand_in.clone(), first.with.clone());
            }
            RiskEvent::Superseded { .. } => counted.push(SUPERSEDED),
            RiskEvent::Stays { .. } | RiskEvent::Over { .. } => {}
        }
        Ok(())
    }

    /// No GPU is promised twice for one time, with what is to be released still counted. What is over by now is no promise:
    /// one that begins late may move to a GPU that somebody had until a moment ago.
    pub(super) fn judge_overlaps(&self, events: &[Event], now: Timestamp) -> Result<(), String> {
        for id in events.iter().filter_map(id_of) {
            let Some(record) = self.records.get(id) else { continue };
            let others = self.records.iter().filter(|(other, _)| *other != id);
            for (other, one) in others {
                let twice = record.places().find(|a| one.places().any(|b| a.meets(b, now)));
                if let Some(place) = twice {
                    return Err(format!("{id} and {other} are both promised {place:?}"));
                }
            }
        }
        Ok(())
    }
}

/// The reservation that a record is about, of those that are judged here.
pub(crate) fn id_of(event: &Event) -> Option<&ReservationId> {
    match event {
        Event::ReservationCreated { reservation, .. }
        | Event::ReservationEdited { reservation, .. }
        | Event::ReservationEditDone { reservation, .. }
        | Event::ReservationEditLapsed { reservation, .. }
        | Event::ReservationMoved { reservation, .. }
        | Event::ReservationExtended { reservation, .. }
        | Event::ReservationStarted { reservation, .. }
        | Event::ReservationEnding { reservation, .. }
        | Event::ReservationEnded { reservation, .. }
        | Event::ReservationCancelled { reservation, .. }
        | Event::WindowHandedOut { reservation, .. }
        | Event::WindowTaken { reservation, .. }
        | Event::WindowWithdrawn { reservation, .. } => Some(reservation),
        _ => None,
    }
}
