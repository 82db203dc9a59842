//! Edits of several reservations of a series, as a course moves to another hour: all of them, or none.
//!
//! Called by `apply` for `EditSeries`, and by the edge for a trial. The times of each date come in with the command, as they do
//! when a series is made. Each reservation is changed as it would be alone (`edit.rs`), and sees what those before it gave up
//! or took.

use std::collections::BTreeSet;

use super::cluster::check_text;
use super::reservations::check_owner;
use super::series::{is_of, is_of_the_date, without_next};
use super::{Fsm, Turn};
use crate::actor::Actor;
use crate::command::{ReservationCommand, SeriesChange};
use crate::id::{ReservationId, SeriesId};
use crate::name::NodeName;
use crate::rejection::{DateProblem, Rejection};
use crate::reply::Reply;
use crate::reservation::{Reservation, SERIES_LENGTH_MAX};
use crate::time::{Timestamp, Window};

impl Fsm {
    /// Everything that can be refused before a reservation is changed.
    pub(super) fn check_series_edit(
        &self,
        actor: &Actor,
        id: &SeriesId,
        changes: &[SeriesChange],
        rule: Option<&str>,
    ) -> Result<(), Rejection> {
        if let Some(rule) = rule {
            check_text("rule", rule)?;
        }
        if changes.is_empty() || changes.len() > SERIES_LENGTH_MAX {
            let problem =
                format!("1 to {SERIES_LENGTH_MAX} reservations, these are {}", changes.len());
            return Err(Rejection::field("changes", problem));
        }
        let each: BTreeSet<&ReservationId> = changes.iter().map(|one| &one.reservation).collect();
        if each.len() < changes.len() {
            return Err(Rejection::field("changes", "each reservation is changed once"));
        }
        for id_of_one in each {
            let found = self.reservations.get(id_of_one).filter(|r| is_of(r, id));
            let found = found.ok_or_else(|| {
                Rejection::field("changes", format!("{id_of_one} is not a reservation of {id}"))
            })?;
            check_owner(actor, &found.owner)?;
        }
        Ok(())
    }

    pub(super) fn edit_series(
        &mut self,
        turn: &mut Turn<'_>,
        id: &SeriesId,
        changes: &[SeriesChange],
        rule: Option<&str>,
    ) -> Result<Reply, Rejection> {
        self.check_series_edit(turn.actor, id, changes, rule)?;
        // Where one cannot be changed, those before it are as they were.
        let (before, said, granted) = (self.clone(), turn.events.len(), turn.granted);
        let edited = self.edit_each(turn, changes).and_then(|()| self.check_apart(id, changes));
        if let Err(why) = edited {
            *self = before;
            turn.events.truncate(said);
            turn.granted = granted;
            return Err(why);
        }
        for one in changes {
            if let (Some(rule), Some(mut r)) = (rule, self.reservations.get_mut(&one.reservation))
                && let Some(series) = &mut r.series
            {
                rule.clone_into(&mut series.rule);
            }
        }
        let mut reservations: Vec<ReservationId> =
            changes.iter().map(|one| one.reservation.clone()).collect();
        reservations.sort_by_key(|one| (self.starts_of(one), one.clone()));
        Ok(Reply::SeriesEdited { reservations })
    }

    /// Names all dates that cannot be changed, not only the first one.
    fn edit_each(
        &mut self,
        turn: &mut Turn<'_>,
        changes: &[SeriesChange],
    ) -> Result<(), Rejection> {
        let mut problems = Vec::new();
        for one in self.in_order(changes) {
            let edited = self.edit_reservation(turn, &one.reservation, &one.change, one.seen);
            match edited {
                Ok(_) => {}
                Err(why) if is_of_the_date(&why) => {
                    let window = self.window_after(one);
                    problems.push(DateProblem { window, why: without_next(why) });
                }
                // It would be the same for each date, or nobody could choose around it.
                Err(why) => return Err(why),
            }
        }
        problems.sort_by_key(|problem| problem.window.starts_at);
        match problems.is_empty() {
            true => Ok(()),
            false => {
                let of = u32::try_from(changes.len()).unwrap_or(u32::MAX);
                Err(Rejection::DatesRefused { problems, of, more: 0 })
            }
        }
    }

    /// Where all move later the last one goes first, so that none is in the way of the one before it.
    fn in_order<'a>(&self, changes: &'a [SeriesChange]) -> Vec<&'a SeriesChange> {
        let mut ordered: Vec<&SeriesChange> = changes.iter().collect();
        ordered.sort_by_key(|one| (self.starts_of(&one.reservation), one.reservation.clone()));
        let moves_later = ordered.iter().any(|one| {
            one.change.starts_at.is_some_and(|at| at > self.starts_of(&one.reservation))
        });
        if moves_later {
            ordered.reverse();
        }
        ordered
    }

    /// The reservations of one date stay on different nodes.
    fn check_apart(&self, id: &SeriesId, changes: &[SeriesChange]) -> Result<(), Rejection> {
        let mut taken: BTreeSet<(Timestamp, NodeName)> = BTreeSet::new();
        let mut problems = Vec::new();
        let changed = |r: &Reservation| changes.iter().any(|one| one.reservation == r.id);
        for r in self.reservations.open().filter(|r| is_of(r, id)) {
            let place = r.wanted();
            let is_other = taken.insert((place.window.starts_at, place.node.clone()));
            if !is_other && changed(r) {
                let why = format!("two of its reservations would be on {}", place.node);
                let why = Rejection::NotNow { why };
                problems.push(DateProblem { window: place.window, why });
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => {
                let of = u32::try_from(changes.len()).unwrap_or(u32::MAX);
                Err(Rejection::DatesRefused { problems, of, more: 0 })
            }
        }
    }

    fn starts_of(&self, id: &ReservationId) -> Timestamp {
        self.reservations.get(id).map(|r| r.wanted().window.starts_at).unwrap_or_default()
    }

    fn window_after(&self, one: &SeriesChange) -> Window {
        let before = self.reservations.get(&one.reservation).map(|r| r.wanted().window);
        let before = before
            .unwrap_or(Window { starts_at: Timestamp::default(), ends_at: Timestamp::default() });
        super::edit::moved(before, &one.change)
    }

    /// What the reservations would be, or the dates that cannot be changed, without changing anything.
    pub fn try_edit_series(
        &self,
        actor: &Actor,
        command: &ReservationCommand,
        now: Timestamp,
    ) -> Result<(Vec<Reservation>, Vec<DateProblem>), Rejection> {
        match self.after(actor, command, now) {
            Ok((after, Reply::SeriesEdited { reservations })) => {
                let found = reservations.iter().filter_map(|id| after.reservations.get(id));
                Ok((found.cloned().collect(), Vec::new()))
            }
            Ok((_, _)) => Ok((Vec::new(), Vec::new())),
            Err(Rejection::DatesRefused { problems, .. }) => Ok((Vec::new(), problems)),
            Err(why) => Err(why),
        }
    }
}
