//! The reconcile task's part in the calendar: follows the controllers while one answers, keeps the windows in
//! hand while none does, and makes durable what it confirms.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fleet_core::desired::{DesiredLease, DesiredNode};
use fleet_core::id::{AllocationId, LeaseId, ReservationId};
use fleet_core::lease::LeaseHolder;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::window::{Enforcement, EnforcementSwitch, NodeGrant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};

use super::task::Reconciler;
use crate::ahead::{Contact, Shelf, ShelfError};
use crate::allocations::{Asker, AttemptOrder};
use crate::chain::chain;
use crate::gate::Wanted;
use crate::holders::Orders;
use crate::local::{Answer, Ask, GrantWish, LocalView, SeenAttempt};
use crate::terminals::Known;
use fleet_node::plan::Action;
use fleet_node::promises::Stage;
use fleet_node::{AttemptPhase, Grant, Promises, Refused, Release, Row, Step};

/// Longest time between two looks at the calendar: the link may be lost meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Shortest, should something not settle.
const LOOK_MIN: Duration = Duration::from_millis(20);
/// How often the time is stored, for a boot without controllers.
const STORE_TIME_EVERY: Duration = Duration::from_secs(600);
/// Shortest time between two stores for the sake of what attempts were promised.
const STORE_ATTEMPTS_EVERY: Duration = Duration::from_secs(1);
/// Pause after the promises could not be stored.
const STORE_AGAIN: Duration = Duration::from_secs(5);

/// What the calendar is made of.
#[derive(Debug)]
pub struct CalendarParts {
    pub promises: Promises,
    pub shelf: Shelf,
    pub line: Contact,
    /// From the socket on this node.
    pub asks: mpsc::Receiver<Ask>,
}

/// Somebody waits until what was asked for is on the disk.
#[derive(Debug)]
struct Waiting {
    tell: oneshot::Sender<Answer>,
    undo: Undo,
}

/// What is taken back if it cannot be stored.
#[derive(Debug)]
enum Undo {
    Grant(ReservationId),
    /// With the end that it had.
    Revoke(ReservationId, Timestamp),
    Switch(Timestamp),
}

/// The calendar as the reconcile task holds it.
#[derive(Debug)]
pub(super) struct Calendar {
    pub(super) promises: Promises,
    shelf: Shelf,
    line: Contact,
    asks: mpsc::Receiver<Ask>,
    /// They differ from what is stored.
    dirty: bool,
    /// It differs in what attempts were promised only. Nothing is confirmed by that, and nobody loses anything
    /// by it unless the agent dies and no controller answers: it may wait.
    attempts_dirty: bool,
    stored: Instant,
    saves: JoinSet<(Promises, Result<(), ShelfError>)>,
    waiting: Vec<Waiting>,
    in_save: Vec<Waiting>,
    /// Said once that it overruns.
    overruns: BTreeSet<AllocationId>,
    /// Said once that the time is not known.
    no_time: bool,
    was_alone: bool,
    /// When the calendar is checked again, whatever else happens until then.
    look_at: Instant,
}

/// What woke the calendar.
pub(super) enum Woken {
    Ask(Ask),
    Saved(Box<Promises>, Result<(), ShelfError>),
    Look,
}

impl Calendar {
    pub(super) fn new(parts: CalendarParts) -> Self {
        let CalendarParts { promises, shelf, line, asks } = parts;
        Self {
            promises,
            shelf,
            line,
            asks,
            dirty: false,
            attempts_dirty: false,
            stored: Instant::now(),
            saves: JoinSet::new(),
            waiting: Vec::new(),
            in_save: Vec::new(),
            overruns: BTreeSet::new(),
            no_time: false,
            was_alone: false,
            look_at: Instant::now(),
        }
    }

    /// Returns when there is something to do for the calendar. A caller that drops this future and calls again waits
    /// for the same moment: GPUs are sampled more often than the calendar is checked, and must not put it off for ever.
    pub(super) async fn woken(&mut self) -> Woken {
        tokio::select! {
            Some(ask) = self.asks.recv() => Woken::Ask(ask),
            Some(saved) = self.saves.join_next() => match saved {
                Ok((promises, result)) => Woken::Saved(Box::new(promises), result),
                Err(error) => {
                    tracing::error!(%error, "the calendar's thread died");
                    self.dirty = true;
                    Woken::Look
                }
            },
            () = tokio::time::sleep_until(self.look_at.into()) => Woken::Look,
        }
    }

    /// The fleet's time, as well as it is known.
    fn now(&self) -> Option<Timestamp> {
        self.line.now()
    }

    /// Whether the lease belongs to a window that this node has closed by itself: its release is to be kept.
    pub(super) fn keeps_release(&self, lease: &LeaseId) -> bool {
        self.promises.windows.values().any(|held| held.lease == *lease && held.closed_at.is_some())
    }

    /// Adds the leases of open windows that the newest document does not have.
    pub(super) fn add_leases(&self, leases: &mut Vec<DesiredLease>) {
        let Some(now) = self.now() else { return };
        for lease in self.promises.leases(now) {
            if !leases.iter().any(|known| known.holder == lease.holder) {
                leases.push(lease);
            }
        }
    }

    /// The window that an order for an attempt must be older than, because somebody else has its GPUs.
    pub(super) fn in_the_way(&self, desired: &DesiredNode, id: &AllocationId) -> Option<String> {
        let now = self.now()?;
        let wanted = desired.allocations.iter().find(|wanted| wanted.id == *id)?;
        let fleet_core::desired::Order::Start(order) = &wanted.order else { return None };
        let window = self.promises.closed_to(&order.gpus, wanted.within.as_ref(), now)?;
        Some(format!(
            "its GPUs are {window}'s, which this node opened while no controller answered"
        ))
    }
}

/// A lease without a known end.
fn grants_of<'a>(owner: &'a UserName, gpus: &'a [GpuUuid]) -> impl Iterator<Item = Grant> + 'a {
    gpus.iter().map(|gpu| Grant { owner: owner.clone(), gpu: gpu.clone(), until: None })
}

impl Reconciler {
    /// After a start: what was stopped for others' sake must be known before its end is said.
    pub(super) fn say_calendar_again(&mut self) {
        for (id, promise) in &self.calendar.promises.attempts {
            if let Some((why, at)) = &promise.stopped {
                self.parts.outbox.stopped_alone(id, promise.epoch, why.clone(), *at);
            }
        }
        self.say_promises(&self.calendar.promises.clone());
    }

    fn say_promises(&self, promises: &Promises) {
        for (id, held) in &promises.windows {
            self.parts.outbox.window(held.report(id));
        }
        for switch in &promises.switches {
            self.parts.outbox.enforcement(switch.clone());
        }
    }

    /// How long the calendar may sleep.
    fn calendar_wait(&self) -> Duration {
        let calendar = &self.calendar;
        let next = calendar.now().and_then(|now| {
            let next = calendar.promises.next_instant(now, &self.table)?;
            Some(Duration::from_millis(next.since(now).0))
        });
        next.map_or(LOOK_EVERY, |next| next.clamp(LOOK_MIN, LOOK_EVERY))
    }

    pub(super) fn calendar_woken(&mut self, woken: Woken) {
        match woken {
            Woken::Ask(ask) => self.asked(ask),
            Woken::Saved(promises, result) => self.saved(&promises, result),
            Woken::Look => {}
        }
    }

    /// Takes the orders of the newest document over.
    pub(super) fn take_windows(&mut self, desired: &DesiredNode) {
        let old = |id: &ReservationId| {
            tracing::warn!(reservation = %id, "an order for a window is older than the one held; ignored");
        };
        let promises = &mut self.calendar.promises;
        let taken = promises.take(desired, old);
        self.calendar.attempts_dirty |= taken.attempts;
        if !taken.windows {
            return;
        }
        self.calendar.dirty = true;
        // A window that continues after this node closed it must not be released any more.
        let reopened: Vec<LeaseId> = promises
            .windows
            .values()
            .filter(|held| matches!(held.stage, Stage::Waiting | Stage::Open) && !held.withdrawn)
            .filter(|held| {
                held.closed_at.is_none() && self.table.releases.contains_key(&held.lease)
            })
            .map(|held| held.lease.clone())
            .collect();
        let ending = |lease: &LeaseId| desired.leases.iter().any(|l| l.id == *lease && l.ending);
        for lease in reopened.into_iter().filter(|lease| !ending(lease)) {
            let action = Action::DropRelease { lease };
            self.table.note(&action);
            self.act(action, None);
        }
    }

    /// Brings the calendar to this moment, and the gate with it.
    pub(super) fn keep_calendar(&mut self) {
        self.advance_calendar();
        self.want_gate();
        self.order_about_holders();
        self.calendar.look_at = Instant::now() + self.calendar_wait();
    }

    fn advance_calendar(&mut self) {
        let alone = self.calendar.line.is_alone();
        if std::mem::replace(&mut self.calendar.was_alone, alone) != alone {
            let windows = self.calendar.promises.windows.len();
            match alone {
                true => tracing::info!(windows, "no controller answers: the calendar is kept here"),
                false => tracing::info!("a controller answers and leads again"),
            }
        }
        let Some(now) = self.calendar.now() else {
            if alone && !self.calendar.promises.windows.is_empty() && !self.calendar.no_time {
                tracing::error!(
                    "the time is not known; no window opens or closes before a controller answers"
                );
                self.calendar.no_time = true;
            }
            return self.store_calendar();
        };
        self.calendar.no_time = false;
        if alone {
            let steps = self.calendar.promises.keep(now, &self.table);
            for step in steps {
                self.step(step, now);
            }
        } else {
            self.calendar.overruns.clear();
            // One that only asks cannot know which leases there are.
            let desired = self.parts.desired.borrow();
            if let Some(desired) = desired.as_ref().filter(|desired| desired.recount.is_none()) {
                self.calendar.dirty |= self.calendar.promises.follow(&desired.leases, now);
            }
            drop(desired);
            let outbox = &self.parts.outbox;
            let gone =
                self.calendar.promises.tidy(now, &self.table, |id| outbox.window_is_said(id));
            for id in &gone {
                outbox.drop_window(id);
            }
            self.calendar.dirty |= !gone.is_empty();
        }
        self.store_calendar();
    }

    /// Says what becomes of those who are left on GPUs whose window is over.
    fn order_about_holders(&self) {
        let promises = &self.calendar.promises;
        let releases = &self.table.releases;
        let proving = |lease: &LeaseId| {
            releases.get(lease).is_some_and(|(_, release)| *release == Release::Proving)
        };
        let over = self.calendar.now().map(|now| promises.over(now, proving)).unwrap_or_default();
        // Root's switch on the node lowers what an admin ordered.
        let mode = promises.enforce.map(|ordered| ordered.at_most(promises.enforcement()));
        let desired = self.parts.desired.borrow();
        let idle = desired.as_ref().map(|desired| desired.idle.clone()).unwrap_or_default();
        let rules = promises.rules;
        self.parts.gpus.holders.order(Orders { rules, mode, over, idle });
    }

    /// Says who may open which GPU now: whose windows are open, and whose jobs have it. The terminals hear the same.
    fn want_gate(&self) {
        let promises = &self.calendar.promises;
        let desired = self.parts.desired.borrow();
        let desired = desired.as_ref().filter(|desired| desired.recount.is_none());
        let mut grants = promises.open_to(self.calendar.now());
        for lease in desired.iter().flat_map(|desired| &desired.leases).filter(|l| !l.ending) {
            // One that this node holds as a window is open as long as that is.
            if let LeaseHolder::Reservation(id) = &lease.holder
                && !promises.windows.contains_key(id)
            {
                for user in lease.users() {
                    grants.extend(grants_of(user, &lease.gpus));
                }
            }
        }
        for row in self.table.rows.values().filter(|row| row.is_live()) {
            if let Some(order) = &row.order {
                grants.extend(grants_of(&order.owner, &order.gpus));
            }
        }
        let ordered = desired.and_then(|desired| desired.enforce);
        let ceiling = promises.enforcement();
        let mode = promises.enforce.map(|ordered| ordered.at_most(ceiling));
        // On a drained node no window continues, and only there the agent must release the driver.
        let drained = desired.is_some_and(|desired| desired.release_driver);
        let no_longer = desired.map(|desired| desired.no_longer.clone()).unwrap_or_default();
        let running = promises.running(mode, drained, &no_longer);
        self.parts.terminals.know(Known { running, grants: grants.clone() });
        self.parts.gpus.gate.want(Wanted { ordered, ceiling, grants });
    }

    fn step(&mut self, step: Step, now: Timestamp) {
        match step {
            Step::Opened(id) => {
                tracing::info!(reservation = %id, "window opened, no controller answers");
                self.calendar.dirty = true;
                self.show_leases();
            }
            Step::Closed(id) => {
                tracing::info!(reservation = %id, "window closed, no controller answers");
                self.calendar.dirty = true;
                self.show_leases();
            }
            Step::Overruns { id, why } => {
                if self.calendar.overruns.insert(id.clone())
                    && self.calendar.promises.enforcement() == Enforcement::Warn
                {
                    tracing::warn!(%id, %why, "it is past its time and in somebody's way; enforcement is not on");
                }
            }
            Step::Prove { lease, epoch, gpus, reserved_for } => {
                let action = Action::Prove { lease, epoch, gpus, reserved_for };
                self.table.note(&action);
                self.act(action, None);
            }
            Step::Ask(id) => {
                tracing::info!(%id, "asked for a checkpoint: a reservation begins soon, no controller answers");
                self.calendar.dirty = true;
                self.order(&id, AttemptOrder::AskCheckpoint(Asker::Calendar));
            }
            Step::Stop { id, epoch, grace, why, said } => {
                if self.table.rows.get(&id).is_some_and(|row| row.stop_grace.is_some()) {
                    return;
                }
                tracing::info!(%id, %why, "stopped for somebody else's sake, no controller answers");
                if let Some(promise) = self.calendar.promises.attempts.get_mut(&id) {
                    promise.stopped = Some((why.clone(), now));
                    self.calendar.dirty = true;
                }
                self.parts.outbox.stopped_alone(&id, epoch, why.clone(), now);
                self.stop_alone(id, grace, &said);
            }
        }
    }

    fn stop_alone(&mut self, id: AllocationId, grace: Millis, why: &str) {
        let action = Action::Stop { id: id.clone(), grace, why: why.to_owned() };
        self.table.note(&action);
        let grace = Duration::from_millis(grace.0);
        self.order(&id, AttemptOrder::Stop { grace, why: why.to_owned() });
    }

    /// Begins to store the promises, unless that is under way.
    fn store_calendar(&mut self) {
        let calendar = &mut self.calendar;
        let age = calendar.stored.elapsed();
        let attempts_are_old = calendar.attempts_dirty && age > STORE_ATTEMPTS_EVERY;
        let due = calendar.dirty || attempts_are_old || age > STORE_TIME_EVERY;
        if !calendar.saves.is_empty() || !due {
            return;
        }
        calendar.dirty = false;
        calendar.attempts_dirty = false;
        calendar.stored = Instant::now();
        calendar.in_save.append(&mut calendar.waiting);
        let (promises, shelf, time) =
            (calendar.promises.clone(), calendar.shelf.clone(), calendar.line.anchor());
        calendar.saves.spawn(async move {
            let copy = promises.clone();
            let stored = spawn_blocking(move || shelf.store(&copy, time)).await;
            let stored = stored.unwrap_or_else(|error| Err(ShelfError::Thread(error.to_string())));
            if stored.is_err() {
                tokio::time::sleep(STORE_AGAIN).await;
            }
            (promises, stored)
        });
    }

    fn saved(&mut self, promises: &Promises, result: Result<(), ShelfError>) {
        let waiting = std::mem::take(&mut self.calendar.in_save);
        match result {
            Ok(()) => {
                self.say_promises(promises);
                for one in waiting {
                    // Who asked may have given up; it is done all the same.
                    drop(one.tell.send(Answer::Done));
                }
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!(
                    error = why,
                    "the calendar is not durable; nothing of it is confirmed"
                );
                self.calendar.dirty = true;
                for one in waiting {
                    self.undo(&one.undo);
                    drop(one.tell.send(Answer::NotDurable(why.clone())));
                }
            }
        }
    }

    fn undo(&mut self, undo: &Undo) {
        let promises = &mut self.calendar.promises;
        match undo {
            Undo::Grant(id) => drop(promises.windows.remove(id)),
            Undo::Revoke(id, ends_at) => promises.revive(id, *ends_at),
            Undo::Switch(at) => promises.switches.retain(|switch| switch.at != *at),
        }
        self.show_leases();
    }

    fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Look(tell) => drop(tell.send(Box::new(self.seen()))),
            Ask::Grant(wish, tell) => {
                let id = wish.id.clone();
                let done = self.grant(wish);
                self.answer(tell, done.map(|()| Undo::Grant(id)));
            }
            Ask::Revoke(id, tell) => {
                let now = self.calendar.now();
                let done = now.ok_or(Refused::NoTime);
                let done = done.and_then(|now| self.calendar.promises.revoke(&id, now));
                self.answer(tell, done.map(|ended_at| Undo::Revoke(id, ended_at)));
            }
            Ask::Enforce { mode, by, reason, tell } => {
                let at = self.calendar.now().unwrap_or_else(crate::clock::now);
                let switch = EnforcementSwitch { mode, by, reason, at };
                let at = self.calendar.promises.set_switch(switch);
                self.calendar.overruns.clear();
                tracing::warn!(
                    mode = mode.word(),
                    "enforcement without controllers was switched by root"
                );
                self.answer(tell, Ok(Undo::Switch(at)));
            }
        }
    }

    /// Done, but only said to be when it is on the disk; or refused.
    fn answer(&mut self, tell: oneshot::Sender<Answer>, done: Result<Undo, Refused>) {
        match done {
            Ok(undo) => {
                self.calendar.dirty = true;
                self.calendar.waiting.push(Waiting { tell, undo });
                self.show_leases();
            }
            Err(refused) => drop(tell.send(Answer::Refused(refused))),
        }
    }

    fn grant(&mut self, wish: GrantWish) -> Result<(), Refused> {
        if !self.calendar.line.is_alone() {
            return Err(Refused::NotAlone);
        }
        let now = self.calendar.now().ok_or(Refused::NoTime)?;
        let GrantWish { id, owner, gpus, length, by, reason } = wish;
        let window = Window { starts_at: now, ends_at: now + length };
        tracing::warn!(reservation = %id, %owner, gpus = gpus.len(), "root granted GPUs without a controller");
        let grant = NodeGrant { by, reason };
        self.calendar.promises.grant(id, owner, gpus, window, grant, &self.table)
    }

    /// The node's own view, for the socket.
    fn seen(&self) -> LocalView {
        let attempt = |(id, row): (&AllocationId, &Row)| {
            let order = row.order.as_ref()?;
            let promise = self.calendar.promises.attempts.get(id);
            Some(SeenAttempt {
                id: id.clone(),
                job: order.job.clone(),
                owner: order.owner.clone(),
                gpus: order.gpus.clone(),
                starting: row.phase == AttemptPhase::Starting,
                stopping: row.stop_grace.is_some(),
                ends_at: promise.and_then(|promise| promise.ends_at),
                within: promise.and_then(|promise| promise.within.clone()),
            })
        };
        let rows = self.table.rows.iter().filter(|(_, row)| row.is_live());
        LocalView {
            promises: self.calendar.promises.clone(),
            attempts: rows.filter_map(attempt).collect(),
            now: self.calendar.now(),
            alone: self.calendar.line.is_alone(),
            heard_at: self.calendar.line.heard_at(),
            overruns: self.calendar.overruns.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::id::ClusterId;

    use super::*;

    #[tokio::test]
    async fn what_comes_often_does_not_put_the_calendar_off() {
        let state = tempfile::tempdir().unwrap();
        let mut calendar = Calendar::new(CalendarParts {
            promises: Promises::default(),
            shelf: Shelf::new(state.path(), ClusterId::parse("fleet-test").unwrap()),
            line: Contact::new(None, "boot"),
            asks: mpsc::channel(1).1,
        });
        let begun = Instant::now();
        calendar.look_at = begun + Duration::from_millis(100);
        let mut samples = 0;
        loop {
            tokio::select! {
                woken = calendar.woken() => {
                    assert!(matches!(woken, Woken::Look));
                    break;
                }
                () = tokio::time::sleep(Duration::from_millis(5)) => samples += 1,
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "put off by {samples} samples");
        }
        assert!(samples > 0 && begun.elapsed() >= Duration::from_millis(100), "{samples}");
    }
}
