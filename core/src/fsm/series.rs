//! Series of reservations: made whole or not at all, and released together. `series_edit.rs` changes them.
//!
//! Called by `apply` for `CreateSeries` and `ReleaseSeries`, and by the edge for a trial. The dates come in with the
//! command: what a rule means in a time zone is the edge's business. Each date is placed as a single reservation is.
//! It must never make some of the dates where it was not asked to leave others out.

use std::collections::BTreeSet;

use super::cluster::check_text;
use super::reservations::{Granted, check_owner, scheduled};
use super::{Fsm, Turn};
use crate::actor::Actor;
use crate::calendar;
use crate::command::CreateReservation;
use crate::id::{ReservationId, SeriesId};
use crate::rejection::{DateProblem, Rejection, Slot};
use crate::reply::Reply;
use crate::reservation::{
    NODES_AT_ONCE_MAX, RESERVATIONS_OPEN_MAX, Reservation, ReservationState, SERIES_LENGTH_MAX,
    Series,
};
use crate::scheduler::claims;
use crate::scheduler::project_limit::{Booking, SeriesHours};
use crate::time::{Timestamp, Window};

/// After so many searches no later time is named.
const TOGETHER_TRIES_MAX: usize = 16;

/// What each date gets, in their order, and those that are not available.
type Judged<'a> = (Vec<(&'a CreateReservation, Granted)>, Vec<DateProblem>);

impl Fsm {
    /// Makes the reservations of all dates, or none; with `skip` those of the dates that are available.
    pub(super) fn create_series(
        &mut self,
        turn: &mut Turn<'_>,
        series: &Series,
        wishes: &[CreateReservation],
        skip: bool,
    ) -> Result<Reply, Rejection> {
        check_text("rule", &series.rule)?;
        let (granted, skipped) = self.judge_series(turn.actor, wishes, skip)?;
        let mut reservations = Vec::new();
        for (wish, granted) in granted {
            let made = scheduled(wish, granted, self.now);
            self.reservations.insert(Reservation { series: Some(series.clone()), ..made });
            self.say_booked(turn, wish);
            reservations.push(wish.id.clone());
        }
        // A start may look for other GPUs: only now are those of all dates taken.
        for id in &reservations {
            self.start_if_begun(turn, id);
        }
        Ok(Reply::SeriesCreated { id: series.id.clone(), reservations, skipped })
    }

    /// What the dates would get at that time, without taking anything; and those that are not available.
    pub fn try_series(
        &self,
        actor: &Actor,
        wishes: &[CreateReservation],
        now: Timestamp,
    ) -> Result<(Vec<Reservation>, Vec<DateProblem>), Rejection> {
        let trial = self.as_of(now);
        let (granted, problems) = trial.judge_dates(actor, wishes)?;
        let made = granted.into_iter().map(|(wish, granted)| scheduled(wish, granted, trial.now));
        Ok((made.collect(), problems))
    }

    /// Everything that could be refused, and what is granted otherwise.
    pub(super) fn judge_series<'a>(
        &self,
        actor: &Actor,
        wishes: &'a [CreateReservation],
        skip: bool,
    ) -> Result<Judged<'a>, Rejection> {
        let (granted, problems) = self.judge_dates(actor, wishes)?;
        if problems.is_empty() || (skip && !granted.is_empty()) {
            return Ok((granted, problems));
        }
        let of = u32::try_from(dates(wishes).count()).unwrap_or(u32::MAX);
        Err(Rejection::DatesRefused { problems, of, more: 0 })
    }

    /// Judges each date on the state as it is: no date takes GPUs from another, because they do not overlap. GPU-hours of a
    /// project add up.
    fn judge_dates<'a>(
        &self,
        actor: &Actor,
        wishes: &'a [CreateReservation],
    ) -> Result<Judged<'a>, Rejection> {
        check_dates(wishes)?;
        if self.reservations.is_full(RESERVATIONS_OPEN_MAX.saturating_sub(wishes.len() - 1)) {
            let what = "open reservations".to_owned();
            return Err(Rejection::LimitReached { what, limit: RESERVATIONS_OPEN_MAX as u64 });
        }
        let (mut granted, mut problems) = (Vec::new(), Vec::new());
        let is_admin = actor.is_admin();
        let mut hours = SeriesHours::default();
        for date in dates(wishes) {
            let Some(first) = date.first() else { continue };
            let judged = self.judge_date(actor, date).and_then(|all| {
                if !is_admin {
                    hours.add(self, date)?;
                }
                Ok(all)
            });
            match judged {
                Ok(all) => granted.extend(date.iter().zip(all)),
                Err(why) if is_of_the_date(&why) => {
                    let why = match dates(wishes).nth(1) {
                        Some(_) => without_next(why),
                        None => self.with_next_together(actor, date, why),
                    };
                    problems.push(DateProblem { window: first.window, why });
                }
                // It would be the same for each date.
                Err(why) => return Err(why),
            }
        }
        Ok((granted, problems))
    }

    /// What the reservations of one date get, each on another node.
    fn judge_date(
        &self,
        actor: &Actor,
        date: &[CreateReservation],
    ) -> Result<Vec<Granted>, Rejection> {
        if let [wish] = date {
            return Ok(vec![self.check_reservation(actor, wish)?]);
        }
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        let gpus = date.iter().map(|wish| wish.gpus.count as usize).sum();
        for wish in date {
            let window = self.check_wish(actor, wish)?;
            if taken.is_empty() {
                let (project, owner) = (&wish.project, &wish.owner);
                let asked = Booking { project, owner, window, added: window, gpus, of: None };
                self.check_limits(actor, &asked, true)?;
            }
            let held = claims::held_within(self, &window);
            let apart = (date.len(), taken.as_slice());
            let (node, gpus) = calendar::choose_apart(self, &wish.gpus, window, &held, apart)?;
            taken.push(node.clone());
            all.push((window, node, gpus));
        }
        Ok(all)
    }

    /// Names when all reservations of the date could begin together: one search after the other, each from where the one
    /// that found nothing could begin.
    fn with_next_together(
        &self,
        actor: &Actor,
        date: &[CreateReservation],
        why: Rejection,
    ) -> Rejection {
        let Rejection::GpusHeld { wanted, holdings, next } = why else { return why };
        if date.len() == 1 {
            return Rejection::GpusHeld { wanted, holdings, next };
        }
        let mut slot = next;
        for _ in 0..TOGETHER_TRIES_MAX {
            let Some(Slot { starts_at, .. }) = slot else { break };
            let at = |wish: &CreateReservation| {
                let length = wish.window.ends_at.since(wish.window.starts_at);
                let window = Window { starts_at, ends_at: starts_at + length };
                CreateReservation { window, ..wish.clone() }
            };
            let later: Vec<CreateReservation> = date.iter().map(at).collect();
            match self.judge_date(actor, &later) {
                Ok(all) => {
                    let first = all.into_iter().next();
                    let next = first.map(|(_, node, gpus)| Slot { starts_at, node, gpus });
                    return Rejection::GpusHeld { wanted, holdings, next };
                }
                Err(Rejection::GpusHeld { next, .. }) => {
                    slot = next.filter(|next| next.starts_at > starts_at);
                }
                Err(_) => break,
            }
        }
        Rejection::GpusHeld { wanted, holdings, next: None }
    }

    /// Releases what has not started of a series, or one of its reservations and those after it.
    pub(super) fn release_series(
        &mut self,
        turn: &mut Turn<'_>,
        id: &SeriesId,
        from: Option<&ReservationId>,
    ) -> Result<Reply, Rejection> {
        let reservations = self.releasable(turn.actor, id, from)?;
        for reservation in &reservations {
            self.release_stand_in_of(turn, reservation);
            self.release_reservation(turn, reservation)?;
        }
        Ok(Reply::SeriesReleased { reservations })
    }

    /// The reservations that such a release means, in the order of their starts.
    pub fn releasable(
        &self,
        actor: &Actor,
        id: &SeriesId,
        from: Option<&ReservationId>,
    ) -> Result<Vec<ReservationId>, Rejection> {
        let all = || self.reservations.all().filter(|r| is_of(r, id));
        if all().next().is_none() {
            return Err(Rejection::not_found("series", id));
        }
        let first = match from {
            None => None,
            Some(from) => {
                let found = all().find(|r| r.id == *from);
                let found = found.ok_or_else(|| Rejection::not_found("reservation", from))?;
                Some(found.wanted().window.starts_at)
            }
        };
        // Of one date there is nothing that could be meant to stay.
        let starts: BTreeSet<Timestamp> = all().map(|r| r.wanted().window.starts_at).collect();
        let of_one_date = starts.len() == 1 && all().count() > 1;
        let is_meant = |r: &Reservation| match (&r.state, first) {
            _ if r.is_cancelled() => false,
            (ReservationState::Scheduled, None) => true,
            (ReservationState::Active, None) => of_one_date,
            (ReservationState::Scheduled | ReservationState::Active, Some(first)) => {
                r.wanted().window.starts_at >= first
            }
            _ => false,
        };
        let mut meant: Vec<&Reservation> = all().filter(|r| is_meant(r)).collect();
        for r in &meant {
            check_owner(actor, &r.owner)?;
        }
        if meant.is_empty() {
            let state = "over, or released".to_owned();
            return Err(Rejection::AlreadyEnded { id: id.to_string(), state });
        }
        meant.sort_by_key(|r| (r.wanted().window.starts_at, r.id.clone()));
        Ok(meant.into_iter().map(|r| r.id.clone()).collect())
    }
}

pub(super) fn is_of(reservation: &Reservation, id: &SeriesId) -> bool {
    reservation.series.as_ref().is_some_and(|series| series.id == *id)
}

/// The reservations of each date.
fn dates(wishes: &[CreateReservation]) -> impl Iterator<Item = &[CreateReservation]> {
    wishes.chunk_by(|one, next| one.window == next.window)
}

/// As many dates as one series may have, in order, and none that reaches into the next.
fn check_dates(wishes: &[CreateReservation]) -> Result<(), Rejection> {
    if wishes.is_empty() {
        return Err(Rejection::field("dates", "a series needs at least one date"));
    }
    if wishes.len() > SERIES_LENGTH_MAX {
        let problem =
            format!("at most {SERIES_LENGTH_MAX} reservations, these are {}", wishes.len());
        return Err(Rejection::field("dates", problem));
    }
    if dates(wishes).any(|date| date.len() > NODES_AT_ONCE_MAX) {
        let problem = format!("at most {NODES_AT_ONCE_MAX} nodes at once");
        return Err(Rejection::field("nodes", problem));
    }
    let names_place =
        |wish: &CreateReservation| wish.gpus.node.is_some() || !wish.gpus.uuids.is_empty();
    if dates(wishes).any(|date| date.len() > 1 && date.iter().any(names_place)) {
        let problem = "several nodes cannot be on one node that is named";
        return Err(Rejection::field("nodes", problem));
    }
    let overlaps = |pair: &[CreateReservation]| {
        let [one, next] = pair else { return false };
        one.window != next.window && one.window.ends_at > next.window.starts_at
    };
    if wishes.windows(2).any(overlaps) {
        return Err(Rejection::field("dates", "each date must end before the next one starts"));
    }
    let ids: BTreeSet<&ReservationId> = wishes.iter().map(|wish| &wish.id).collect();
    if ids.len() < wishes.len() || wishes.iter().any(|wish| wish.adopts) {
        return Err(Rejection::field("dates", "each date has an id of its own and adopts nothing"));
    }
    Ok(())
}

/// Whether another date might be available.
pub(super) fn is_of_the_date(why: &Rejection) -> bool {
    match why {
        Rejection::GpusHeld { .. } | Rejection::NotNow { .. } | Rejection::LimitReached { .. } => {
            true
        }
        Rejection::InvalidField { field, .. } => field == "starts_at",
        Rejection::AboveLimit { why } => is_of_the_date(why),
        _ => false,
    }
}

/// Most holders that the refusal of one date names.
const DATE_HOLDINGS_MAX: usize = 8;

/// A series cannot move one date to the next free slot, and hundreds of refusals must fit into an answer that each
/// controller keeps for a while.
pub(super) fn without_next(why: Rejection) -> Rejection {
    match why {
        Rejection::GpusHeld { wanted, mut holdings, .. } => {
            holdings.truncate(DATE_HOLDINGS_MAX);
            Rejection::GpusHeld { wanted, holdings, next: None }
        }
        other => other,
    }
}
