//! The ends of windows: those in use are extended while nobody else wants their GPUs, those that nobody came for
//! are released, and what the fleet's rules say about both.
//!
//! Called by time, by agents' reports and by the handlers of the commands. Only a node's explicit word that nobody is
//! there releases a window: silence and doubt never do. A user seen in a silent node's last report counts as there.

use std::collections::BTreeMap;

use super::idle::check_idle_rules;
use super::{Fsm, Turn, cluster::check_text};
use crate::ending::{
    EXTEND_LEAD, EndPolicy, GRACE_MAX, GpuHolder, HOLDERS_MAX, HolderStep, NO_SHOW_MAX, NoLonger,
    ReservationRules, WindowUse, one_step_more,
};
use crate::event::Event;
use crate::id::{LeaseId, ReservationId};
use crate::lease::LeaseHolder;
use crate::name::NodeName;
use crate::node::{Liveness, Node};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{RESERVATION_LENGTH_MAX, Reservation, ReservationState};
use crate::scheduler::project_limit::{Booking, check_booking};
use crate::time::{Millis, Timestamp, Window};

impl Fsm {
    /// What happens at the end of this one.
    pub fn at_end(&self, r: &Reservation) -> EndPolicy {
        r.at_end.unwrap_or(self.rules.at_end)
    }

    pub(super) fn set_rules(
        &mut self,
        turn: &mut Turn<'_>,
        rules: ReservationRules,
    ) -> Result<Reply, Rejection> {
        if rules.no_show > NO_SHOW_MAX {
            return Err(Rejection::field("no_show", format!("at most {NO_SHOW_MAX}; 0 is never")));
        }
        if rules.grace > GRACE_MAX {
            return Err(Rejection::field("grace", format!("at most {GRACE_MAX}")));
        }
        check_idle_rules(&rules.idle)?;
        let before = std::mem::replace(&mut self.rules, rules);
        if before.idle != rules.idle {
            self.idle_counts_from_now();
        }
        if before != rules {
            let by = turn.actor.display_name();
            turn.say(Event::ReservationRulesSet { rules, before, by });
        }
        Ok(Reply::Done)
    }

    pub(super) fn set_at_end(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        at_end: EndPolicy,
    ) -> Result<Reply, Rejection> {
        let r = self.accepted_reservation(id)?;
        if r.state == ReservationState::Ending {
            let state = "ending".to_owned();
            return Err(Rejection::AlreadyEnded { id: id.to_string(), state });
        }
        if r.at_end == Some(at_end) {
            return Ok(Reply::Done);
        }
        let withdrawn = r.handed_out.as_ref().and_then(|given| given.withdrawn.clone());
        let (by, now) = (turn.actor.display_name(), self.now);
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.at_end = Some(at_end);
            r.mark_changed(by.clone(), now);
        }
        // Its node ends what is left there by itself, so it must know.
        self.revise(turn, id, withdrawn);
        turn.say(Event::ReservationAtEndSet { reservation: id.clone(), at_end, by });
        Ok(Reply::Done)
    }

    /// When time next changes something about a reservation that holds its lease. At once where it is to be extended.
    pub(super) fn active_due(&self, r: &Reservation) -> Timestamp {
        let ends_at = r.window.ends_at;
        let look = ends_at - EXTEND_LEAD;
        let end = match self.at_end(r) {
            EndPolicy::Stop | EndPolicy::Warn => ends_at,
            EndPolicy::ExtendIfFree if look > self.now => look,
            EndPolicy::ExtendIfFree if self.goes_on_until(r).is_some() => self.now,
            EndPolicy::ExtendIfFree => ends_at,
        };
        let releases = self.no_show_at(r).into_iter().chain(self.idle_release_due(r));
        releases.fold(end, Timestamp::min)
    }

    /// Until when a window that is about to end is extended. For people only: jobs have limits of their own.
    fn goes_on_until(&self, r: &Reservation) -> Option<Timestamp> {
        let ends_at = r.window.ends_at;
        let withdrawn = r.handed_out.as_ref().is_some_and(|given| given.withdrawn.is_some());
        if self.at_end(r) != EndPolicy::ExtendIfFree
            || r.state != ReservationState::Active
            || ends_at - EXTEND_LEAD > self.now
            || withdrawn
            || !r.usage.used
            || self.nodes.get(&r.node).is_some_and(|node| node.drain.is_some())
        {
            return None;
        }
        let more = one_step_more(ends_at, self.now).min(self.at_most_until(r).0);
        if more <= ends_at {
            return None;
        }
        let added = Window { starts_at: ends_at, ends_at: more };
        let until = self.free_until(&r.id, &r.gpus, added);
        let has_time = until > ends_at && until > self.now;
        (has_time && self.project_allows_until(r, until)).then_some(until)
    }

    /// Whether the limits of its project leave room for it until then.
    fn project_allows_until(&self, r: &Reservation, until: Timestamp) -> bool {
        let booking = Booking {
            project: &r.project,
            owner: &r.owner,
            window: Window { ends_at: until, ..r.window },
            added: Window { starts_at: r.window.ends_at.max(self.now), ends_at: until },
            gpus: r.gpus.len(),
            of: Some(&r.id),
        };
        check_booking(self, &booking).is_ok()
    }

    /// Until when a window may be extended at most, as is known long before, and why no longer.
    fn at_most_until(&self, r: &Reservation) -> (Timestamp, NoLonger) {
        if self.check_enabled(&r.owner).is_err() {
            return (r.window.ends_at, NoLonger::AccountClosed);
        }
        let longest = r.window.starts_at + RESERVATION_LENGTH_MAX;
        match self.own_next(r) {
            next if next < longest => (next, NoLonger::OwnNext),
            _ => (longest, NoLonger::Longest),
        }
    }

    /// The open windows of a node that cannot be extended although their policy says so: the agent warns their users.
    pub(crate) fn no_longer(&self, node: &NodeName) -> BTreeMap<ReservationId, NoLonger> {
        let active = |r: &&Reservation| r.state == ReservationState::Active;
        let why = |r: &Reservation| {
            let (most, why) = self.at_most_until(r);
            let ends = self.at_end(r) == EndPolicy::ExtendIfFree && most <= r.window.ends_at;
            ends.then(|| (r.id.clone(), why))
        };
        self.reservations.open_on(node).filter(active).filter_map(why).collect()
    }

    /// When the owner's next reservation begins, where there are limits: an extension beside it would add to it.
    fn own_next(&self, r: &Reservation) -> Timestamp {
        let next = self.reservations.open_of(&r.owner).filter(|other| {
            let later = other.id != r.id && other.window.starts_at >= r.window.ends_at;
            later && !other.is_cancelled()
        });
        match self.reservation_limits().is_empty() {
            true => Timestamp::MAX_ACCEPTED,
            false => next.map(|r| r.window.starts_at).min().unwrap_or(Timestamp::MAX_ACCEPTED),
        }
    }

    /// Extends windows in use that are about to end, where nobody else wants their GPUs.
    pub(super) fn let_due_go_on(&mut self, turn: &mut Turn<'_>) {
        let due: Vec<(ReservationId, Timestamp)> = self
            .due_reservations()
            .filter_map(|r| Some((r.id.clone(), self.goes_on_until(r)?)))
            .collect();
        let now = self.now;
        for (id, ends_at) in due {
            if let Some(mut r) = self.reservations.get_mut(&id) {
                r.window.ends_at = ends_at;
                r.mark_changed("fleet".to_owned(), now);
            }
            self.revise(turn, &id, None);
            turn.say(Event::ReservationWentOn { reservation: id, ends_at });
        }
    }

    /// When fleet releases a window because nobody came.
    fn no_show_at(&self, r: &Reservation) -> Option<Timestamp> {
        let since = r.usage.nobody_since?;
        let waits = r.state == ReservationState::Active
            && self.rules.no_show > Millis::ZERO
            && !r.usage.came
            && self.is_heard(&r.node);
        waits.then(|| since.max(r.window.starts_at) + self.rules.no_show)
    }

    /// Whether the word of a node counts now: it is heard, and has said what it holds.
    pub(super) fn is_heard(&self, node: &NodeName) -> bool {
        let heard = |node: &Node| node.liveness == Liveness::Ready && !node.uncounted;
        self.nodes.get(node).is_some_and(heard)
    }

    pub(super) fn release_no_shows(&mut self, turn: &mut Turn<'_>) {
        let now = self.now;
        let due: Vec<ReservationId> = self
            .due_reservations()
            .filter(|r| self.no_show_at(r).is_some_and(|at| at <= now))
            .map(|r| r.id.clone())
            .collect();
        let after = self.rules.no_show;
        for id in due {
            let Some(r) = self.reservations.get(&id) else { continue };
            let (node, owner) = (r.node.clone(), r.owner.clone());
            turn.say(Event::ReservationNotUsed { reservation: id.clone(), node, owner, after });
            self.end_reservation(turn, &id, &format!("nobody came for {after}"));
        }
    }

    /// What a node sees on the GPUs of a window.
    pub(super) fn use_seen(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &ReservationId,
        seen: WindowUse,
        came: bool,
    ) {
        let now = self.now;
        let known = self.reservations.get(id);
        let Some(known) = known.filter(|r| r.node == *node && r.is_open()) else { return };
        let granted = known.lease.as_ref().and_then(|lease| self.leases.get(lease));
        let granted_at = granted.map_or(now, |lease| lease.granted_at);
        let mut usage = known.usage.clone();
        usage.came |= came || seen == WindowUse::Used;
        usage.used = match seen {
            WindowUse::Used => true,
            WindowUse::Nobody { .. } | WindowUse::Others => false,
            // Not seen to have gone.
            WindowUse::Unclear => usage.used,
        };
        usage.nobody_since = match seen {
            WindowUse::Nobody { since_ms } => Some((now - since_ms).max(granted_at)),
            WindowUse::Used | WindowUse::Others | WindowUse::Unclear => None,
        };
        if usage.came && !known.usage.came {
            let (reservation, node) = (id.clone(), node.clone());
            turn.say(Event::ReservationUsed { reservation, node });
        }
        if usage != known.usage
            && let Some(mut r) = self.reservations.get_mut(id)
        {
            r.usage = usage;
        }
    }

    /// Records which users are on GPUs that are not theirs.
    pub(super) fn holders_seen(
        &self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        reservation: Option<&ReservationId>,
        step: HolderStep,
        holders: &[GpuHolder],
    ) {
        // A node speaks for its own.
        let ours =
            |holder: &&GpuHolder| self.gpus.get(&holder.gpu).is_some_and(|g| g.node == *node);
        let holders: Vec<GpuHolder> = holders.iter().filter(ours).cloned().collect();
        let on_node =
            |id: &&ReservationId| self.reservations.get(id).is_some_and(|r| r.node == *node);
        let reservation = reservation.filter(on_node).cloned();
        if !holders.is_empty() {
            turn.say(Event::HoldersSeen { node: node.clone(), reservation, step, holders });
        }
    }

    /// The agent went silent or restarted: it must report again that nobody is there, or that it is idle. After a reboot nobody is there.
    pub(super) fn forget_use(&mut self, node: &NodeName, rebooted: bool) {
        let forgets = |r: &&Reservation| {
            let usage = &r.usage;
            usage.nobody_since.is_some() || usage.idle.is_some() || (rebooted && usage.used)
        };
        let ids: Vec<ReservationId> =
            self.reservations.open_on(node).filter(forgets).map(|r| r.id.clone()).collect();
        for id in ids {
            if let Some(mut r) = self.reservations.get_mut(&id) {
                r.usage.nobody_since = None;
                r.usage.idle = None;
                r.usage.used &= !rebooted;
            }
        }
    }

    /// A job is placed under the lease: somebody came.
    pub(super) fn job_came(&mut self, parent: &LeaseId) {
        let Some(lease) = self.leases.get(parent) else { return };
        let LeaseHolder::Reservation(id) = lease.holder.clone() else { return };
        if let Some(mut r) = self.reservations.get_mut(&id) {
            r.usage.came = true;
            // What its node measured before says nothing of the job.
            r.usage.idle = None;
        }
    }
}

/// Checks what an agent says of processes before it is stored and shown.
pub(super) fn check_holders(holders: &[GpuHolder]) -> Result<(), Rejection> {
    if holders.len() > HOLDERS_MAX {
        let what = "holders in one report".to_owned();
        return Err(Rejection::LimitReached { what, limit: HOLDERS_MAX as u64 });
    }
    for holder in holders {
        check_text("holders.user", &holder.user)?;
        check_text("holders.command", &holder.command)?;
    }
    Ok(())
}
