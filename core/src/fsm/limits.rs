//! Limits on reservations by group and by project: set by admins, held to where somebody reserves or makes a reservation longer.
//!
//! Admins are held to none, also where they reserve for somebody else.

use std::collections::BTreeSet;

use super::{Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::event::Event;
use crate::limits::{LIMITED_GROUPS_MAX, LimitsByGroup, ReservationLimits, of_member};
use crate::name::GroupName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::ReservationState;
use crate::scheduler::project_limit::{Booking, check_booking};
use crate::time::Window;

impl Fsm {
    /// The limits of all groups that have any.
    pub fn reservation_limits(&self) -> &LimitsByGroup {
        &self.limits
    }

    pub(super) fn set_limits(
        &mut self,
        turn: &mut Turn<'_>,
        group: &GroupName,
        limits: ReservationLimits,
    ) -> Result<Reply, Rejection> {
        if let Some((field, problem)) = limits.problem() {
            return Err(Rejection::field(field, problem));
        }
        if self.limits.len() >= LIMITED_GROUPS_MAX && !self.limits.contains_key(group) {
            let what = "groups with limits".to_owned();
            return Err(Rejection::LimitReached { what, limit: LIMITED_GROUPS_MAX as u64 });
        }
        if self.limits.insert(group.clone(), limits) != Some(limits) {
            let (group, by) = (group.clone(), turn.actor.display_name());
            turn.say(Event::ReservationLimitsSet { group, limits: Some(limits), by });
        }
        Ok(Reply::Done)
    }

    pub(super) fn remove_limits(
        &mut self,
        turn: &mut Turn<'_>,
        group: &GroupName,
    ) -> Result<Reply, Rejection> {
        if self.limits.remove(group).is_none() {
            return Err(Rejection::not_found("limits of group", group));
        }
        let by = turn.actor.display_name();
        turn.say(Event::ReservationLimitsSet { group: group.clone(), limits: None, by });
        Ok(Reply::Done)
    }

    /// Whether the actor may have this window, as far as limits go. `later`: it begins later than what they have; how far ahead
    /// somebody may reserve counts for such only.
    pub(super) fn check_limits(
        &self,
        actor: &Actor,
        asked: &Booking<'_>,
        later: bool,
    ) -> Result<(), Rejection> {
        let Who::User { admin: false, groups, .. } = &actor.who else { return Ok(()) };
        self.check_group_limits(groups, asked, later)?;
        check_booking(self, asked)
    }

    fn check_group_limits(
        &self,
        groups: &BTreeSet<GroupName>,
        asked: &Booking<'_>,
        later: bool,
    ) -> Result<(), Rejection> {
        let Some((from, limits)) = of_member(&self.limits, groups) else { return Ok(()) };
        let whose = from.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(", ");
        let Window { starts_at, ends_at } = asked.window;
        let length = ends_at.since(starts_at);
        if let Some(most) = limits.length.filter(|most| length > *most) {
            let problem = format!("at most {most} at a time (limit of {whose}), this is {length}");
            return Err(Rejection::field("ends_at", problem));
        }
        let ahead = starts_at.since(self.now);
        if let Some(most) = limits.ahead.filter(|most| ahead > *most && later) {
            let problem = format!("at most {most} ahead (limit of {whose}), this is {ahead}");
            return Err(Rejection::field("starts_at", problem));
        }
        let Some(most) = limits.gpus else { return Ok(()) };
        if asked.gpus > most as usize {
            let problem =
                format!("at most {most} at once (limit of {whose}), this is {}", asked.gpus);
            return Err(Rejection::field("gpus.count", problem));
        }
        let others = self.most_at_once(asked);
        if others + asked.gpus <= most as usize {
            return Ok(());
        }
        let owner = asked.owner;
        let what = format!(
            "GPUs reserved at once (limit of {whose}; {owner} has reserved {others} then already)"
        );
        Err(Rejection::LimitReached { what, limit: u64::from(most) })
    }

    /// How many GPUs the owner's other reservations have at the same time within the added window, at most. A
    /// released reservation does not count, even while its node has yet to release it.
    pub(super) fn most_at_once(&self, asked: &Booking<'_>) -> usize {
        // One that waits to move counts where it will be.
        let others: Vec<(Window, usize)> = self
            .reservations
            .open_of(asked.owner)
            .filter(|r| Some(&r.id) != asked.of && !r.stands_in())
            .filter(|r| r.state != ReservationState::Ending && !r.is_cancelled())
            .map(|r| r.next.as_ref().map_or((r.window, r.gpus.len()), |n| (n.window, n.gpus.len())))
            .filter(|(window, _)| window.overlaps(&asked.added))
            .collect();
        // The most is reached where one of them begins, or where the window does.
        let begins = others.iter().map(|(w, _)| w.starts_at.max(asked.added.starts_at));
        let at = |at| {
            let then = others.iter().filter(|(w, _)| w.starts_at <= at && at < w.ends_at);
            then.map(|(_, gpus)| gpus).sum()
        };
        begins.map(at).max().unwrap_or(0)
    }
}
