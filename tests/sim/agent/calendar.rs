//! The calendar in a simulated node's hands: production's [`Promises`] and [`Contact`], on the machine's disk.
//!
//! What production's `reconcile/calendar.rs` does with them, in its order: orders are on the disk before they are
//! confirmed, the controllers lead while one answers, and the promises are kept alone while none does. Root's
//! grants on the node are left out.

use fleet_core::desired::{DesiredNode, Order};
use fleet_core::id::LeaseId;
use fleet_node::Step;
use fleet_node::plan::Action;
use fleet_node::promises::Stage;

use super::Agent;

/// Shortest time between two stores for the sake of what attempts were promised.
const STORE_ATTEMPTS_EVERY_US: u64 = 1_000_000;

impl Agent {
    /// After a start: what was stopped for others' sake must be known before its end is said.
    pub(super) fn say_calendar_again(&mut self) {
        for (id, promise) in &self.promises.attempts {
            if let Some((why, at)) = &promise.stopped {
                self.outbox.stopped_alone(id, promise.epoch, why.clone(), *at);
            }
        }
        self.say_promises();
    }

    fn say_promises(&self) {
        for (id, held) in &self.promises.windows {
            self.outbox.window(held.report(id));
        }
    }

    fn store_promises(&mut self) {
        let mut machine = self.scene.machine(self.post.at);
        machine.promises = self.promises.clone();
        machine.fleet_time = self.line.anchor();
        drop(machine);
        (self.attempts_dirty, self.stored_us) = (false, self.scene.now_us());
        self.say_promises();
    }

    /// Takes the orders of a document over.
    pub(super) fn take_windows(&mut self, document: &DesiredNode) {
        let (scene, name) = (&self.scene, &self.name);
        let old = |id: &_| scene.say(name, &format!("ignores an older order for {id}"));
        let taken = self.promises.take(document, old);
        self.attempts_dirty |= taken.attempts;
        if !taken.windows {
            return;
        }
        self.store_promises();
        // If a window continues after this node closed it, the node does not release its GPUs any more.
        let ending = |lease: &LeaseId| document.leases.iter().any(|l| l.id == *lease && l.ending);
        let reopened = self.promises.windows.values().filter(|held| {
            matches!(held.stage, Stage::Waiting | Stage::Open)
                && !held.withdrawn
                && held.closed_at.is_none()
                && self.table.releases.contains_key(&held.lease)
                && !ending(&held.lease)
        });
        let reopened: Vec<LeaseId> = reopened.map(|held| held.lease.clone()).collect();
        for lease in reopened {
            self.note_and_act(Action::DropRelease { lease });
        }
    }

    /// What becomes of a planned action because of what this node did alone.
    pub(super) fn with_calendar(&self, document: &DesiredNode, action: Action) -> Option<Action> {
        let keeps = |lease: &LeaseId| {
            let mut held = self.promises.windows.values();
            held.any(|held| held.lease == *lease && held.closed_at.is_some())
        };
        match action {
            Action::DropRelease { lease } if keeps(&lease) => None,
            Action::Start { id, epoch, lease, order, reserved_for } => {
                let wanted = document.allocations.iter().find(|wanted| wanted.id == id);
                let within = wanted.and_then(|wanted| match &wanted.order {
                    Order::Start(_) => wanted.within.as_ref(),
                    Order::Keep | Order::Stop { .. } => None,
                });
                let now = self.line.now();
                let in_the_way =
                    now.and_then(|now| self.promises.closed_to(&order.gpus, within, now));
                match in_the_way {
                    Some(window) => {
                        let why = format!("its GPUs are {window}'s");
                        Some(Action::SayPromised { id, epoch, lease, why })
                    }
                    None => Some(Action::Start { id, epoch, lease, order, reserved_for }),
                }
            }
            action => Some(action),
        }
    }

    /// The windows opened here alone, as leases beside those of the document.
    pub(super) fn add_leases(&self, document: &mut DesiredNode) {
        let Some(now) = self.line.now() else { return };
        for lease in self.promises.leases(now) {
            if !document.leases.iter().any(|known| known.holder == lease.holder) {
                document.leases.push(lease);
            }
        }
    }

    /// Brings the calendar to this moment.
    pub(super) fn keep_calendar(&mut self, document: Option<&DesiredNode>) {
        // What attempts were promised may wait.
        if self.attempts_dirty && self.scene.now_us() > self.stored_us + STORE_ATTEMPTS_EVERY_US {
            self.store_promises();
        }
        let Some(now) = self.line.now() else { return };
        if self.line.is_alone() {
            for step in self.promises.keep(now, &self.table) {
                self.step(step, now);
            }
            return;
        }
        let mut changed = document.is_some_and(|d| self.promises.follow(&d.leases, now));
        let outbox = &self.outbox;
        for id in self.promises.tidy(now, &self.table, |id| outbox.window_is_said(id)) {
            self.outbox.drop_window(&id);
            changed = true;
        }
        if changed {
            self.store_promises();
        }
    }

    fn step(&mut self, step: Step, now: fleet_core::Timestamp) {
        match step {
            Step::Opened(id) => {
                self.scene.say(&self.name, &format!("opens {id} alone"));
                self.store_promises();
            }
            Step::Closed(id) => {
                self.scene.say(&self.name, &format!("closes {id} alone"));
                self.store_promises();
            }
            Step::Overruns { .. } => {}
            // No job here answers a request.
            Step::Ask(_) => self.store_promises(),
            Step::Prove { lease, epoch, gpus, reserved_for } => {
                self.note_and_act(Action::Prove { lease, epoch, gpus, reserved_for });
            }
            Step::Stop { id, epoch, grace, why, said } => {
                if self.table.rows.get(&id).is_some_and(|row| row.stop_grace.is_some()) {
                    return;
                }
                if let Some(promise) = self.promises.attempts.get_mut(&id) {
                    promise.stopped = Some((why.clone(), now));
                }
                self.store_promises();
                self.outbox.stopped_alone(&id, epoch, why, now);
                // The log holds no order for it, but the promise to somebody else. The promises' own tests check
                // whether there is one; the judge checks here that the node stops no other attempt.
                self.scene.oracle().promised_to_another(&id);
                self.note_and_act(Action::Stop { id, grace, why: said });
            }
        }
    }

    fn note_and_act(&mut self, action: Action) {
        self.table.note(&action);
        self.act(action);
    }
}
