//! Windows in agents' hands: handed out ahead, changed only with the agent's word, settled by what it did.
//!
//! Called by the handlers of reservations, by time and by agents' reports. Nothing here waits for an answer
//! or concludes anything from a silence: what was handed out counts as given until the agent says otherwise.

use std::collections::BTreeSet;

use super::{Fsm, Turn, cluster::check_text};
use crate::allocation::StopWhy;
use crate::ending::Usage;
use crate::event::Event;
use crate::gpu::GPUS_PER_NODE_MAX;
use crate::id::{AllocationId, ReservationId};
use crate::lease::Epoch;
use crate::name::{NodeName, ProjectName, UserName};
use crate::node::{Liveness, Node};
use crate::rejection::Rejection;
use crate::reservation::{
    GpuRequest, RESERVATION_LENGTH_MAX, Reservation, ReservationState, SHARED_WITH_MAX,
};
use crate::time::{Timestamp, Window};
use crate::window::{
    DesiredWindow, EnforcementSwitch, HAND_OUT_AHEAD, HandedOut, WINDOWS_PER_NODE_MAX,
    WindowReport, Withdrawal,
};

impl Fsm {
    /// The calendar that the controller sends to a node: every window in its hands, and those it must release.
    pub(crate) fn desired_windows(&self, node: &NodeName) -> Vec<DesiredWindow> {
        let told = self.reservations.counting_on(node).filter_map(|r| {
            let given = r.handed_out.as_ref()?;
            let withdrawn = given.withdrawn.is_some();
            let wanted = r.is_open() || (withdrawn && !given.taken);
            wanted.then(|| DesiredWindow {
                reservation: r.id.clone(),
                revision: given.revision,
                lease: given.lease.clone(),
                epoch: given.epoch,
                owner: r.owner.clone(),
                gpus: r.gpus.clone(),
                window: r.window,
                withdrawn,
                at_end: r.at_end,
                with: r.with.clone(),
            })
        });
        told.collect()
    }

    /// When time alone next puts a window into an agent's hands.
    pub(super) fn hand_out_at(&self, r: &Reservation) -> Option<Timestamp> {
        let ahead = r.window.starts_at - HAND_OUT_AHEAD;
        let waits = r.state == ReservationState::Scheduled && r.handed_out.is_none();
        (waits && ahead > self.now).then_some(ahead)
    }

    /// Puts everything that begins soon into its agent's hands.
    pub(super) fn hand_out_due(&mut self, turn: &mut Turn<'_>) {
        let soon = self.now + HAND_OUT_AHEAD;
        let mut due: Vec<(Timestamp, ReservationId)> = self
            .due_reservations()
            .filter(|r| r.handed_out.is_none() && r.window.starts_at <= soon)
            .filter(|r| matches!(r.state, ReservationState::Scheduled | ReservationState::Active))
            .map(|r| (r.window.starts_at, r.id.clone()))
            .collect();
        due.sort();
        for (_, id) in due {
            self.hand_out(turn, &id);
        }
    }

    /// Puts one window into its agent's hands, if it begins soon and the agent's hands are not full.
    pub(super) fn hand_out(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let now = self.now;
        let Some(r) = self.reservations.get(id) else { return };
        let begins = r.window.starts_at <= now;
        let early = r.window.starts_at > now + HAND_OUT_AHEAD;
        if r.handed_out.is_some() || early || r.offered_until().is_some() {
            return;
        }
        let Some(node) = self.nodes.get(&r.node) else { return };
        // A silent agent gets nothing new into its hands, so that it can be taken back without it. One that was
        // not asked yet after a restore may hold a newer order than this state knows of.
        if node.uncounted || (!begins && node.liveness != Liveness::Ready) {
            return;
        }
        let held = |other: &&Reservation| other.handed_out.is_some();
        if !begins
            && self.reservations.open_on(&r.node).filter(held).count() >= WINDOWS_PER_NODE_MAX
        {
            return;
        }
        let (node, held_until) = (r.node.clone(), r.window.ends_at);
        // One that has begun has a lease already.
        let lease = r.lease.as_ref().and_then(|id| self.leases.get(id));
        let given = lease.map(|lease| (lease.id.clone(), lease.epoch));
        let (lease, epoch) = given.unwrap_or_else(|| turn.next_lease());
        let given = HandedOut {
            lease,
            epoch,
            revision: turn.epoch,
            taken: false,
            held_until,
            withdrawn: None,
            opened_at: None,
            closed_at: None,
            leased: false,
        };
        turn.say(Event::WindowHandedOut { reservation: id.clone(), node, revision: turn.epoch });
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.handed_out = Some(given);
        }
    }

    /// A new order for a window in an agent's hands: what it had counts until it answers.
    pub(super) fn revise(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        withdrawn: Option<Withdrawal>,
    ) {
        let Some(mut r) = self.reservations.get_mut(id) else { return };
        let ends_at = r.window.ends_at;
        let Some(given) = &mut r.handed_out else { return };
        given.revision = turn.epoch;
        given.taken = false;
        given.held_until = given.held_until.max(ends_at);
        given.withdrawn = withdrawn;
    }

    /// Whether the reservation cannot start before its agent has released the window: it was cancelled, or
    /// other GPUs are to take the place of broken ones. A silent agent keeps its window and opens it.
    pub(super) fn waits_for_its_node(&mut self, turn: &mut Turn<'_>, id: &ReservationId) -> bool {
        let Some(r) = self.reservations.get(id) else { return false };
        let Some(given) = &r.handed_out else { return false };
        if given.withdrawn.is_some() {
            return true;
        }
        // One that was not asked yet after a restore is no reason to move.
        let heard = |n: &Node| n.liveness == Liveness::Ready && !n.uncounted;
        let heard = self.nodes.get(&r.node).is_some_and(heard);
        let Some(why) = self.unfit(r).filter(|_| heard) else { return false };
        if self.better_place(id).is_none() {
            return false;
        }
        let node = self.reservations.get(id).map(|r| r.node.clone());
        let delay = format!(
            "{why}; it moves once {} has released it",
            node.as_ref().map_or("", |n| n.as_str())
        );
        turn.say(Event::ReservationDelayed { reservation: id.clone(), why: delay.clone() });
        if let Some(mut r) = self.reservations.get_mut(id) {
            r.reason = Some(delay);
        }
        self.revise(turn, id, Some(Withdrawal::Moving { why }));
        true
    }

    /// What an agent says of one window.
    pub(super) fn window_reported(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        report: &WindowReport,
    ) {
        let id = &report.reservation;
        let Some(r) = self.reservations.get(id) else {
            self.adopt_window(turn, node, report);
            return;
        };
        // No log gave an order that is newer than this exact entry.
        if report.revision > turn.epoch {
            return;
        }
        let known = r.handed_out.as_ref().map(|given| (given.revision, given.taken));
        let uncounted = self.nodes.get(node).is_some_and(|n| n.uncounted);
        let (newest, taken) = known.unwrap_or_default();
        if r.node != *node {
            let open = r.state.is_ahead() || r.state == ReservationState::Cancelled;
            if uncounted && open && report.revision > newest && !report.withdrawn {
                // It was moved there after the backup.
                self.ended_reservations.retain(|ended| ended != id);
                self.adopt_window(turn, node, report);
            }
            return;
        }
        // What this state never handed out, it handed out after the backup.
        if known.is_none() && !uncounted {
            return;
        }
        self.was_accepted_after_the_backup(id);
        self.note_own_doing(turn, node, report);
        self.note_end_of_ending(report);
        if report.revision > newest {
            self.take_newer(turn, node, report);
        } else if report.revision == newest && !taken {
            turn.say(Event::WindowTaken { reservation: id.clone(), node: node.clone() });
            let moved = withdraws_to_move(self.reservations.get(id));
            self.taken(turn, id);
            if moved {
                // What the node says of the old place says nothing of the new one.
                return;
            }
        }
        if report.revision >= newest && report.closed_at.is_some() {
            self.closed_by_node(turn, node, id);
        }
    }

    /// A node that was away ended the window alone, and somebody has released it meanwhile: its order is older, and its
    /// time is right.
    fn note_end_of_ending(&mut self, report: &WindowReport) {
        let r = self.reservations.get(&report.reservation);
        let ending = r.filter(|r| r.state == ReservationState::Ending);
        if let (Some(lease), Some(at)) = (ending.and_then(|r| r.lease.clone()), report.closed_at) {
            self.note_end(&lease, at);
        }
    }

    /// What the node did on its own, once.
    fn note_own_doing(&mut self, turn: &mut Turn<'_>, node: &NodeName, report: &WindowReport) {
        let id = &report.reservation;
        let Some(r) = self.reservations.get(id) else { return };
        let (owner, gpus) = (r.owner.clone(), r.gpus.clone());
        let Some(given) = &r.handed_out else { return };
        let (opened, closed) = (given.opened_at, given.closed_at);
        // Its time passed before its node spoke, so nobody counted what the node did.
        let over = matches!(r.state, ReservationState::Ended | ReservationState::Cancelled);
        let uncounted = over && opened.is_none() && report.opened_at.is_some();
        if let Some(at) = report.opened_at.filter(|at| opened != Some(*at)) {
            // It opens again what it had closed.
            self.tell_what_its_node_opened(turn, id);
            let mut r = self.reservations.get_mut(id);
            if let Some(given) = r.as_mut().and_then(|r| r.handed_out.as_mut()) {
                given.opened_at = Some(at);
            }
            drop(r);
            self.note_opening(id);
            let (reservation, node, gpus) = (id.clone(), node.clone(), gpus.clone());
            turn.say(Event::WindowOpenedByNode { reservation, node, at, owner, gpus });
        }
        if let Some(at) = report.closed_at.filter(|at| closed != Some(*at)) {
            let mut r = self.reservations.get_mut(id);
            if let Some(given) = r.as_mut().and_then(|r| r.handed_out.as_mut()) {
                given.closed_at = Some(at);
            }
            drop(r);
            let (reservation, node) = (id.clone(), node.clone());
            turn.say(Event::WindowClosedByNode { reservation, node, at, gpus });
        }
        if uncounted {
            self.charge_what_its_node_opened(turn, id);
        }
    }

    /// The agent has the newest order on its disk: what waited for that happens now.
    fn taken(&mut self, turn: &mut Turn<'_>, id: &ReservationId) {
        let now = self.now;
        let Some(mut r) = self.reservations.get_mut(id) else { return };
        let Window { starts_at, ends_at } = r.window;
        let scheduled = r.state == ReservationState::Scheduled;
        let Some(given) = &mut r.handed_out else { return };
        given.taken = true;
        let withdrawn = given.withdrawn.clone();
        given.held_until = if withdrawn == Some(Withdrawal::Ended) { now } else { ends_at };
        drop(r);
        if matches!(withdrawn, Some(Withdrawal::Moving { .. })) {
            // Its node may have opened it by then. One that is over was counted at its end.
            if scheduled {
                self.charge_what_its_node_opened(turn, id);
            }
            if let Some(mut r) = self.reservations.get_mut(id) {
                r.handed_out = None;
            }
        }
        match withdrawn {
            Some(Withdrawal::Cancelled { by }) if scheduled => {
                let reason = Some(format!("by {by}"));
                self.finish_reservation(turn, id, ReservationState::Cancelled, reason);
                turn.say(Event::ReservationCancelled { reservation: id.clone(), by });
            }
            Some(Withdrawal::Moving { .. }) if scheduled && starts_at <= now => {
                self.start_reservation(turn, id);
            }
            Some(Withdrawal::Edited { .. }) if scheduled => self.settle_edit(turn, id),
            None | Some(_) => {}
        }
    }

    /// The agent has an order that this state never gave: it was restored from a backup. The agent's word
    /// counts as far as nobody else was promised the GPUs meanwhile.
    fn take_newer(&mut self, turn: &mut Turn<'_>, node: &NodeName, report: &WindowReport) {
        let id = &report.reservation;
        let Some(r) = self.reservations.get(id) else { return };
        if report.withdrawn {
            match r.state {
                ReservationState::Scheduled => {
                    let by = node.to_string();
                    let why =
                        format!("cancelled before the controllers were restored, {node} says");
                    self.finish_reservation(turn, id, ReservationState::Cancelled, Some(why));
                    turn.say(Event::ReservationCancelled { reservation: id.clone(), by });
                }
                ReservationState::Active => {
                    let why = format!("released before the controllers were restored, {node} says");
                    self.end_reservation(turn, id, &why);
                }
                ReservationState::Offered { .. }
                | ReservationState::Ending
                | ReservationState::Ended
                | ReservationState::Cancelled => {}
            }
            return;
        }
        let moved = r.gpus != report.gpus || r.window.starts_at != report.window.starts_at;
        let may_move = matches!(r.state, ReservationState::Scheduled | ReservationState::Ended);
        if moved && may_move {
            // It was moved after the backup; by the state of the backup it may even be over.
            self.ended_reservations.retain(|ended| ended != id);
            self.adopt_window(turn, node, report);
            return;
        }
        if !r.is_open() {
            self.revise(turn, id, Some(Withdrawal::Ended));
            return;
        }
        let free_until = self.free_until(id, &report.gpus, report.window);
        let ends_at = report.window.ends_at;
        if free_until < ends_at {
            self.revise(turn, id, None);
            return;
        }
        let (with, now) = (self.shared_as_said(report), self.now);
        let Some(mut r) = self.reservations.get_mut(id) else { return };
        let changed = r.window.ends_at != ends_at;
        r.window.ends_at = ends_at;
        r.with = with;
        r.next = None;
        r.mark_changed(node.to_string(), now);
        if let Some(given) = &mut r.handed_out {
            given.revision = report.revision;
            given.withdrawn = None;
        }
        drop(r);
        self.taken(turn, id);
        if changed {
            turn.say(Event::ReservationExtended { reservation: id.clone(), ends_at });
        }
        if self.reservations.get(id).is_some_and(|r| r.handed_out.is_some()) {
            turn.say(Event::WindowTaken { reservation: id.clone(), node: node.clone() });
        }
    }

    /// The first instant of the window at which somebody else was promised one of the GPUs; its end if nobody
    /// was.
    pub(super) fn free_until(
        &self,
        id: &ReservationId,
        gpus: &[crate::name::GpuUuid],
        window: Window,
    ) -> Timestamp {
        let own = self.reservations.get(id).map(|r| &r.node);
        let theirs = gpus.iter().filter_map(|uuid| Some(&self.gpus.get(uuid)?.node));
        let nodes: BTreeSet<&NodeName> = own.into_iter().chain(theirs).collect();
        let claims = |other: &&Reservation| {
            other.state.is_ahead() || other.state == ReservationState::Active
        };
        let here = nodes.iter().flat_map(|node| self.reservations.open_on(node)).filter(claims);
        let here = here.map(|other| (other, &other.gpus, other.claim()));
        let coming = nodes.iter().flat_map(|node| self.reservations.coming_to(node));
        let coming = coming.map(|(other, next)| (other, &next.gpus, next.window));
        here.chain(coming)
            .filter(|(other, _, _)| other.id != *id)
            .filter(|(_, theirs, _)| theirs.iter().any(|gpu| gpus.contains(gpu)))
            .filter(|(_, _, claim)| claim.overlaps(&window))
            .map(|(_, _, claim)| claim.starts_at.max(window.starts_at))
            .fold(window.ends_at, Timestamp::min)
    }

    /// The node's calendar ran on without us and this window is over there.
    fn closed_by_node(&mut self, turn: &mut Turn<'_>, node: &NodeName, id: &ReservationId) {
        let why = format!("its time is over; {node} ended it on its own");
        let r = self.reservations.get(id);
        let closed = r.and_then(|r| Some((r.lease.clone()?, r.handed_out.as_ref()?.closed_at?)));
        if let Some((lease, at)) = closed {
            self.note_end(&lease, at);
        }
        match self.reservations.get(id).map(|r| &r.state) {
            Some(ReservationState::Scheduled) => {
                self.finish_reservation(turn, id, ReservationState::Ended, Some(served(node)));
                turn.say(Event::ReservationEnded { reservation: id.clone() });
            }
            Some(ReservationState::Active) => self.end_reservation(turn, id, &why),
            Some(ReservationState::Ended) => {
                if let Some(mut r) = self.reservations.get_mut(id) {
                    r.reason = Some(served(node));
                }
            }
            Some(
                ReservationState::Offered { .. }
                | ReservationState::Ending
                | ReservationState::Cancelled,
            )
            | None => {}
        }
    }

    /// A window that this state does not know, at least not there: granted on the node by root, or made or moved there
    /// after the backup that the controllers were restored from. It counts as given, as far as nobody else was promised
    /// its GPUs. If the window moved, the fields that agents do not get stay as they were.
    fn adopt_window(&mut self, turn: &mut Turn<'_>, node: &NodeName, report: &WindowReport) {
        let ours = |gpu| self.gpus.get(gpu).is_some_and(|g| g.node == *node);
        let over = report.closed_at.is_some() || report.window.ends_at <= self.now;
        if report.withdrawn
            || !report.gpus.iter().all(ours)
            || self.has_all_reservations().is_some()
        {
            return;
        }
        let id = report.reservation.clone();
        let from = report.window.starts_at;
        let rest = Window { starts_at: from.max(self.now), ends_at: report.window.ends_at };
        let free_until = match over {
            true => report.window.ends_at,
            false => self.free_until(&id, &report.gpus, rest),
        };
        turn.say(Event::WindowAdopted {
            reservation: id.clone(),
            node: node.clone(),
            owner: report.owner.clone(),
            gpus: report.gpus.clone(),
            starts_at: from,
            ends_at: free_until,
            granted: report.granted.clone(),
        });
        // The GPUs were promised to somebody else from the start of the window on: the agent must release it.
        let no_room = !over && free_until <= rest.starts_at;
        let (lease, epoch) = turn.next_lease();
        let mut reservation = Reservation {
            node: node.clone(),
            gpus: report.gpus.clone(),
            window: Window { starts_at: from, ends_at: free_until.max(from) },
            state: ReservationState::Scheduled,
            lease: None,
            reason: None,
            handed_out: Some(HandedOut {
                lease,
                epoch,
                revision: turn.epoch,
                taken: over,
                held_until: free_until.max(from),
                withdrawn: no_room.then_some(Withdrawal::Ended),
                opened_at: None,
                closed_at: None,
                leased: false,
            }),
            usage: Usage::default(),
            released_at: None,
            next: None,
            risk: None,
            moved_at: None,
            ..self.as_first_reserved(node, report)
        };
        reservation.mark_changed(node.to_string(), self.now);
        self.was_placed_after_the_backup(&mut reservation);
        let count = u32::try_from(report.gpus.len()).unwrap_or(u32::MAX);
        if reservation.wish.count != count {
            // An edit after the backup asked for more or fewer.
            reservation.wish.count = count;
            reservation.wish.uuids.clear();
        }
        reservation.with = self.shared_as_said(report);
        self.reservations.insert(reservation);
        self.note_own_doing(turn, node, report);
        if over || no_room {
            let why = if over { served(node) } else { "others were promised its GPUs".to_owned() };
            self.finish_reservation(turn, &id, ReservationState::Ended, Some(why));
            turn.say(Event::ReservationEnded { reservation: id });
        } else if from <= self.now {
            self.start_reservation(turn, &id);
        }
    }

    /// The users that share the window by its node's report, without closed accounts.
    fn shared_as_said(&self, report: &WindowReport) -> BTreeSet<UserName> {
        let enabled = |user: &&UserName| self.check_enabled(user).is_ok();
        report.with.iter().filter(enabled).cloned().collect()
    }

    /// What was asked for, of a window to be adopted: as this state knows it, else as far as its node does.
    fn as_first_reserved(&self, node: &NodeName, report: &WindowReport) -> Reservation {
        let known = self.reservations.get(&report.reservation);
        if let Some(known) = known.filter(|r| r.owner == report.owner) {
            return known.clone();
        }
        let note = report.granted.as_ref().map_or(String::new(), |grant| grant.reason.clone());
        Reservation {
            id: report.reservation.clone(),
            owner: report.owner.clone(),
            project: ProjectName::default_project(),
            node: node.clone(),
            gpus: report.gpus.clone(),
            wish: GpuRequest {
                count: u32::try_from(report.gpus.len()).unwrap_or(u32::MAX),
                uuids: report.gpus.clone(),
                ..GpuRequest::default()
            },
            window: report.window,
            note,
            state: ReservationState::Scheduled,
            lease: None,
            created_at: self.now,
            reason: None,
            handed_out: None,
            at_end: None,
            usage: Usage::default(),
            with: BTreeSet::new(),
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

    /// An operator vouches that nothing runs on the GPU: nobody will open a window on it that was taken back.
    pub(super) fn settle_withdrawn(&mut self, turn: &mut Turn<'_>, gpu: &crate::name::GpuUuid) {
        let waits = |r: &&Reservation| {
            let given = r.handed_out.as_ref().filter(|given| !given.taken);
            r.gpus.contains(gpu) && given.is_some_and(|given| given.withdrawn.is_some())
        };
        let Some(node) = self.gpus.get(gpu).map(|gpu| &gpu.node) else { return };
        let ids: Vec<ReservationId> =
            self.reservations.counting_on(node).filter(waits).map(|r| r.id.clone()).collect();
        for id in ids {
            self.taken(turn, &id);
        }
    }

    /// While no controller answered, the node stopped an attempt whose time was over, for somebody else's sake.
    pub(super) fn stopped_alone(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &AllocationId,
        epoch: Epoch,
        (why, at): (&StopWhy, Timestamp),
    ) {
        let known = self.allocations.get(id).is_some_and(|a| a.node == *node && a.epoch == epoch);
        let may = matches!(why, StopWhy::TimeLimit | StopWhy::ReservationEnded);
        if known && *why == StopWhy::TimeLimit && self.gave_way_alone(turn, id, at) {
            return;
        }
        if known && may {
            self.stop_allocation(turn, id, why.clone());
        }
    }

    pub(super) fn enforcement_switched(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        switch: &EnforcementSwitch,
    ) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        // Each is said again with every connection, in the order in which they were made.
        if node.enforcement.as_ref().is_some_and(|known| known.at >= switch.at) {
            return;
        }
        node.enforcement = Some(switch.clone());
        turn.say(Event::EnforcementSwitched { node: name.clone(), switch: switch.clone() });
    }
}

/// Whether the order that its agent has yet to answer takes the window to another place.
fn withdraws_to_move(r: Option<&Reservation>) -> bool {
    let given = r.and_then(|r| r.handed_out.as_ref());
    let withdrawn = given.and_then(|given| given.withdrawn.as_ref());
    matches!(withdrawn, Some(Withdrawal::Moving { .. } | Withdrawal::Edited { .. }))
}

fn served(node: &NodeName) -> String {
    format!("{node} served it on its own, while no controller answered")
}

/// Checks what an agent says of a window before any of it is believed.
pub(super) fn check_window_report(report: &WindowReport) -> Result<(), Rejection> {
    if report.gpus.is_empty() || report.gpus.len() > GPUS_PER_NODE_MAX {
        return Err(Rejection::field("window.gpus", format!("must be 1 to {GPUS_PER_NODE_MAX}")));
    }
    let Window { starts_at, ends_at } = report.window;
    if ends_at > Timestamp::MAX_ACCEPTED || ends_at.since(starts_at) > RESERVATION_LENGTH_MAX {
        return Err(Rejection::field("window.ends_at", "too late, or too long"));
    }
    if report.with.len() > SHARED_WITH_MAX {
        return Err(Rejection::field("window.with", format!("at most {SHARED_WITH_MAX} users")));
    }
    match &report.granted {
        None => Ok(()),
        Some(grant) => {
            check_text("window.granted.by", &grant.by)?;
            check_text("window.granted.reason", &grant.reason)
        }
    }
}

/// Checks what root typed before it is stored and shown.
pub(super) fn check_switch(switch: &EnforcementSwitch) -> Result<(), Rejection> {
    check_text("enforcement.by", &switch.by)?;
    check_text("enforcement.reason", &switch.reason)
}
