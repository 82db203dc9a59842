//! Idle reservations: what nodes say of them, and their release where the site wants that.
//!
//! Called by agents' reports, by time and by the handler of the rules. Silence never releases a reservation: the release
//! is due at a time, and happens when the node says after that time that the GPUs still compute nothing.

use std::collections::BTreeMap;

use super::{Fsm, Turn};
use crate::event::Event;
use crate::id::ReservationId;
use crate::idle::{DesiredIdle, IDLE_BELOW_MAX, IDLE_MAX, Idle, IdleEvent, IdleRules, IdleSeen};
use crate::name::NodeName;
use crate::rejection::Rejection;
use crate::reservation::{Reservation, ReservationState};
use crate::time::{Millis, Timestamp};

/// Clocks differ in rate by one part in so many.
const CLOCKS_DIFFER: u64 = 100;

impl Fsm {
    /// What a node measures on the GPUs of a window.
    pub(super) fn idle_seen(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &ReservationId,
        seen: IdleSeen,
    ) {
        let Some(known) = self.reservations.get(id) else { return };
        let begun = match known.state {
            // It may wait for the word of its node, which opened it alone.
            ReservationState::Scheduled | ReservationState::Active => true,
            ReservationState::Offered { .. }
            | ReservationState::Ending
            | ReservationState::Ended
            | ReservationState::Cancelled => false,
        };
        if known.node != *node || !begun {
            return;
        }
        let mut usage = known.usage.clone();
        usage.idle = match seen {
            IdleSeen::Idle { .. } if known.usage.idle.is_some() => known.usage.idle,
            IdleSeen::Idle { for_ms } if self.rules.idle.watches() => {
                Some(self.idle_since(known, for_ms))
            }
            IdleSeen::Idle { .. } | IdleSeen::Busy | IdleSeen::Unknown => None,
        };
        let (reservation, node, owner) = (id.clone(), node.clone(), known.owner.clone());
        let event = match (usage.idle, seen) {
            (Some(idle), _) if !usage.idle_said => {
                Some(IdleEvent::Began { reservation, node, owner, since: idle.since })
            }
            (_, IdleSeen::Busy) if usage.idle_said => Some(IdleEvent::Ended { reservation, node }),
            _ => None,
        };
        if let Some(event) = event {
            usage.idle_said = matches!(event, IdleEvent::Began { .. });
            turn.say(Event::Idle(event));
        }
        if usage != known.usage
            && let Some(mut r) = self.reservations.get_mut(id)
        {
            r.usage = usage;
        }
        if let IdleSeen::Idle { for_ms } = seen {
            self.release_confirmed(turn, id, for_ms);
        }
    }

    fn idle_since(&self, r: &Reservation, length: Millis) -> Idle {
        let lease = r.lease.as_ref().and_then(|lease| self.leases.get(lease));
        let opened = lease.map_or(r.window.starts_at, |lease| lease.granted_at);
        let since = (self.now - length).max(opened).min(self.now);
        Idle { since, release_at: self.release_of_idle(since), asked: false }
    }

    /// When one that is idle since then is released. Its users have time from now on: they read of it first.
    fn release_of_idle(&self, since: Timestamp) -> Option<Timestamp> {
        let rules = self.rules.idle;
        let at = (since + rules.release).max(self.now + rules.notice());
        rules.releases().then_some(at)
    }

    /// Other rules hold, or the clock was set back: nothing is released sooner than its users can read of it.
    pub(super) fn idle_counts_from_now(&mut self) {
        let idle = self.open_reservations().filter_map(|r| Some((r.id.clone(), r.usage.idle?)));
        let idle: Vec<(ReservationId, Idle)> = idle.collect();
        for (id, idle) in idle {
            let since = idle.since.min(self.now);
            let kept = Idle { since, release_at: self.release_of_idle(since), asked: false };
            if let Some(mut r) = self.reservations.get_mut(&id) {
                r.usage.idle = self.rules.idle.watches().then_some(kept);
            }
        }
    }

    /// It begins: its users have read of no release yet.
    pub(super) fn begins_idle(&self, r: &Reservation) -> Option<Idle> {
        let idle = r.usage.idle?;
        Some(Idle { release_at: self.release_of_idle(idle.since), asked: false, ..idle })
    }

    /// When the release of an idle reservation is next due by time alone.
    pub(super) fn idle_release_due(&self, r: &Reservation) -> Option<Timestamp> {
        let idle = r.usage.idle.filter(|idle| !idle.asked)?;
        let counts = r.state == ReservationState::Active && self.is_heard(&r.node);
        idle.release_at.filter(|_| counts)
    }

    /// Asks the nodes of those that are due. A leader that was just elected may not have heard yet that one is in use again.
    pub(super) fn ask_before_idle_release(&mut self) {
        let now = self.now;
        let due: Vec<ReservationId> = self
            .due_reservations()
            .filter(|r| self.idle_release_due(r).is_some_and(|at| at <= now))
            .map(|r| r.id.clone())
            .collect();
        for id in due {
            if let Some(mut r) = self.reservations.get_mut(&id)
                && let Some(idle) = &mut r.usage.idle
            {
                idle.asked = true;
            }
        }
    }

    /// Its node has just said for how long it is idle.
    fn release_confirmed(&mut self, turn: &mut Turn<'_>, id: &ReservationId, length: Millis) {
        let Some(r) = self.reservations.get(id) else { return };
        let due = |idle: &Idle| idle.asked && idle.release_at.is_some_and(|at| at <= self.now);
        let Some(idle) = r.usage.idle.filter(due) else { return };
        if r.state != ReservationState::Active || !self.is_heard(&r.node) {
            return;
        }
        let after = self.rules.idle.release;
        if length + Millis(after.0 / CLOCKS_DIFFER) < after {
            // The fleet's clock made a step. Its node counts by one that makes none.
            let again = self.idle_since(r, length);
            if let Some(mut r) = self.reservations.get_mut(id) {
                r.usage.idle = Some(again);
            }
            return;
        }
        let (reservation, node, owner) = (id.clone(), r.node.clone(), r.owner.clone());
        let since = idle.since;
        turn.say(Event::Idle(IdleEvent::Released { reservation, node, owner, since, after }));
        // Not by its node, whose word this is.
        let now = self.now;
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.mark_released("fleet".to_owned(), now);
        }
        self.end_reservation(turn, id, &format!("idle for {after}"));
    }

    /// What an agent hears of the idle reservations on its node.
    pub(super) fn desired_idle(&self, node: &NodeName) -> BTreeMap<ReservationId, DesiredIdle> {
        let of = |r: &Reservation| {
            let idle = r.usage.idle.filter(|_| r.state == ReservationState::Active)?;
            let desired = DesiredIdle { release_at: idle.release_at?, confirm: idle.asked };
            Some((r.id.clone(), desired))
        };
        self.reservations.open_on(node).filter_map(of).collect()
    }
}

/// Refuses rules that contradict each other.
pub(super) fn check_idle_rules(rules: &IdleRules) -> Result<(), Rejection> {
    let IdleRules { after, below_percent, release } = *rules;
    if after > IDLE_MAX {
        return Err(Rejection::field("idle_after", format!("at most {IDLE_MAX}; 0 is never")));
    }
    if !(1..=IDLE_BELOW_MAX).contains(&below_percent) {
        let why = format!("{below_percent} must be a percentage from 1 to {IDLE_BELOW_MAX}");
        return Err(Rejection::field("idle_below", why));
    }
    if release > IDLE_MAX {
        return Err(Rejection::field("idle_release", format!("at most {IDLE_MAX}; 0 is never")));
    }
    if release > Millis::ZERO && after == Millis::ZERO {
        let why = "must be never too, where no reservation is called idle".to_owned();
        return Err(Rejection::field("idle_release", why));
    }
    if release > Millis::ZERO && release <= after {
        let why = format!("{release} must be longer than {after}, after which it is called idle");
        return Err(Rejection::field("idle_release", why));
    }
    Ok(())
}
