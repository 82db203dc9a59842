//! The reconcile task: plan, act, listen, again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fleet_core::allocation::AttemptEnd;
use fleet_core::desired::{DesiredLease, DesiredNode};
use fleet_core::holdings::{FoundAttempt, HeldReservation};
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::lease::{Epoch, LeaseHolder};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Pulse;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use super::calendar::{Calendar, CalendarParts};
use super::probes::Probes;
use super::reboot::Reboots;
use super::recount;
use super::removals::Removals;
use crate::allocations::{
    self, Asker, AttemptOrder, AttemptParts, Begin, Happening, Programs, Tell, end_unrecorded,
    without_exit,
};
use crate::attempts::{self, AllocationDir, Record, RecordError, Registry, Shown};
use crate::chain::chain;
use crate::clock;
use crate::fence::Epochs;
use crate::handles::{Gpus, Owners};
use crate::leases::{Floors, Proof, prove};
use crate::outbox::Outbox;
use crate::shutdown::{self, Notice};
use crate::terminals;
use fleet_node::epochs::Claim;
use fleet_node::plan::{Action, plan, waited_for};
use fleet_node::retention::Forgotten;
use fleet_node::{AttemptPhase, LastSaves, Release, Retention, Row, Table};

/// What attempts' tasks have told and was not taken yet.
const HAPPENINGS_MAX: usize = 1_024;
/// How often it is looked for records whose time is over.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// Stands for a deferral that an earlier run of the agent answered; real ones count from 1.
const NO_DEFERRAL: u32 = 0;

/// What the task is made of.
#[derive(Debug)]
pub struct ReconcilerParts {
    /// For the tasks of the attempts that it starts.
    pub attempts: Arc<AttemptParts>,
    pub programs: Arc<Programs>,
    pub machine: OwnMachine,
    pub retention: Retention,
    pub owners: Owners,
    pub gpus: Gpus,
    pub terminals: terminals::Handle,
    pub shutdown: shutdown::Handle,
    pub epochs: Epochs,
    pub floors: Floors,
    pub registry: Registry,
    pub outbox: Outbox,
    /// The newest document that may be acted upon.
    pub desired: watch::Receiver<Option<DesiredNode>>,
    /// When a heartbeat was sent that a controller answered.
    pub heard: watch::Receiver<Duration>,
    /// The leases of the newest document, for the inventory.
    pub leases: watch::Sender<Option<Vec<DesiredLease>>>,
    pub pulse: Pulse,
}

/// The machine of this agent.
#[derive(Debug, Clone)]
pub struct OwnMachine {
    pub boot_id: String,
    /// Other agents run on it too, so this one must not reboot it.
    pub is_shared: bool,
}

/// What was found here for controllers that ask, and the reservations that this node received.
type Found = (Result<Vec<FoundAttempt>, RecordError>, Vec<HeldReservation>);

/// One live attempt's task.
#[derive(Debug)]
struct Running {
    orders: mpsc::Sender<AttemptOrder>,
    /// The job asked for heartbeats.
    fenced: bool,
}

/// See the module's doc.
#[derive(Debug)]
pub struct Reconciler {
    pub(super) parts: ReconcilerParts,
    pub(super) table: Table,
    pub(super) calendar: Calendar,
    running: BTreeMap<AllocationId, Running>,
    phases: BTreeMap<AllocationId, watch::Sender<AttemptPhase>>,
    tell: mpsc::Sender<(AllocationId, Happening)>,
    happenings: mpsc::Receiver<(AllocationId, Happening)>,
    proofs: JoinSet<(LeaseId, Epoch)>,
    pub(super) proving: BTreeMap<LeaseId, AbortHandle>,
    forgotten: Forgotten,
    /// Answers to controllers that were restored, and the number of the newest.
    counts: JoinSet<(u64, Found)>,
    counted: u64,
    /// An order did not get through.
    again: bool,
    /// Whether this machine is about to go down, and who is waited for.
    pub(super) leaving: watch::Receiver<Notice>,
    pub(super) last_saves: LastSaves,
    pub(super) reboots: Reboots,
    pub(super) probes: Probes,
    pub(super) removals: Removals,
}

impl Reconciler {
    /// Rebuilds what is known from the disk and takes up every attempt that has not ended.
    pub fn rebuild(parts: ReconcilerParts, calendar: CalendarParts) -> Result<Self, RecordError> {
        let (tell, happenings) = mpsc::channel(HAPPENINGS_MAX);
        let forgotten = Forgotten::new(parts.retention, Vec::new());
        let leaving = parts.shutdown.notice();
        let mut this = Self {
            parts,
            table: Table::default(),
            calendar: Calendar::new(calendar),
            running: BTreeMap::new(),
            phases: BTreeMap::new(),
            tell,
            happenings,
            proofs: JoinSet::new(),
            proving: BTreeMap::new(),
            forgotten,
            counts: JoinSet::new(),
            counted: 0,
            again: false,
            leaving,
            last_saves: LastSaves::default(),
            reboots: Reboots::default(),
            probes: Probes::default(),
            removals: Removals::default(),
        };
        this.say_calendar_again();
        let mut over = Vec::new();
        for id in attempts::list(this.parts.registry.folder())? {
            let dir = this.parts.registry.dir(&id);
            if let Some(at) = dir.forgotten_at() {
                over.push((at, id));
                continue;
            }
            match dir.record() {
                Ok(Some(record)) => this.take_up(record, dir),
                // Killed before the order was written: nothing was started.
                Ok(None) => over.push((clock::now(), id)),
                Err(error) => {
                    // Left as it is: what runs there is not touched, and somebody must look.
                    tracing::error!(%id, error = chain(&error), "an attempt's record is unreadable");
                }
            }
        }
        this.forgotten = Forgotten::new(this.parts.retention, over);
        Ok(this)
    }

    fn take_up(&mut self, record: Record, dir: AllocationDir) {
        let id = record.id.clone();
        tracing::info!(%id, "attempt taken up");
        let mut row = Row::starting(record.epoch, record.lease.clone(), record.order.clone());
        // A request that is still open may have been called off while no agent was there.
        row.deferral = dir.asked().ok().filter(|asked| asked.open.is_some()).and(Some(NO_DEFERRAL));
        self.table.rows.insert(id.clone(), row);
        self.spawn(id, record, dir);
    }

    /// Runs until the link is gone.
    pub async fn run(mut self) {
        let mut retention = interval(RETENTION_EVERY);
        retention.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut gpus = self.parts.gpus.driver.snapshots();
        loop {
            self.keep_driver();
            tokio::select! {
                woken = self.calendar.woken() => {
                    self.calendar_woken(woken);
                    self.keep_calendar();
                    continue;
                }
                changed = self.parts.desired.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let since = self.parts.desired.borrow().as_ref().and_then(|d| d.recount);
                    if let Some(since) = since {
                        self.recount(since);
                    }
                }
                Some((id, happening)) = self.happenings.recv() => {
                    self.happened(&id, happening);
                    self.say_waited();
                }
                Ok(()) = self.leaving.changed() => self.take_notice(),
                Some(proven) = self.proofs.join_next() => {
                    if let Ok((lease, epoch)) = proven {
                        self.proven(&lease, epoch);
                    }
                }
                Some(found) = self.counts.join_next() => {
                    if let Ok((number, found)) = found {
                        self.tell_found(number, found);
                    }
                    continue;
                }
                Some((since, step)) = self.reboots.next() => self.reboot_stepped(since, step),
                Some((allocation, answer)) = self.probes.next() => {
                    self.looked(&allocation, answer);
                    continue;
                }
                Some((job, problem)) = self.removals.next() => {
                    self.files_removed(&job, problem);
                    continue;
                }
                Ok(()) = self.parts.heard.changed() => {
                    self.heard();
                    if !std::mem::take(&mut self.again) {
                        continue;
                    }
                }
                _ = retention.tick() => {
                    self.remove_old();
                    continue;
                }
                // A process that kept the agent from releasing the driver may have gone.
                Ok(()) = gpus.changed() => continue,
                () = self.parts.pulse.asked() => continue,
            }
            self.reconcile();
            self.keep_calendar();
        }
    }

    /// Shows whose the GPUs are, to the inventory.
    pub(super) fn show_leases(&self) {
        let desired = self.parts.desired.borrow().clone();
        // One that asks what is here does not say whose the GPUs are.
        let Some(desired) = desired.filter(|desired| desired.recount.is_none()) else { return };
        let mut leases = desired.leases;
        self.calendar.add_leases(&mut leases);
        self.parts.leases.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&leases);
            if changed {
                *known = Some(leases);
            }
            changed
        });
    }

    fn reconcile(&mut self) {
        let desired = self.parts.desired.borrow_and_update().clone();
        // One that asks orders nothing, and what it does not name is not over.
        let desired = desired.filter(|desired| desired.recount.is_none());
        let Some(mut desired) = desired else { return };
        if let Err(error) = self.parts.gpus.driver.numbers().take(&desired) {
            let error = chain(&error);
            tracing::warn!(error, "the GPUs' numbers are not on the disk");
        }
        self.take_windows(&desired);
        self.show_leases();
        // Before anything begins that asks it.
        self.keep_driver();
        self.calendar.add_leases(&mut desired.leases);
        for action in plan(&desired, &self.table) {
            let action = match action {
                // The controllers may not know yet what was released while none answered.
                Action::DropRelease { lease } if self.calendar.keeps_release(&lease) => continue,
                // Held, not refused: it begins when the shutdown is given up, or after it.
                Action::Start { .. } if self.is_leaving() => continue,
                Action::Start { id, epoch, lease, order, reserved_for } => {
                    match self.calendar.in_the_way(&desired, &id) {
                        Some(why) => Action::SayPromised { id, epoch, lease, why },
                        None => Action::Start { id, epoch, lease, order, reserved_for },
                    }
                }
                action => action,
            };
            tracing::debug!(?action, "reconcile");
            // Read what the table is about to lose.
            let before = match &action {
                Action::Forget { id } | Action::Replace { id } => self.table.rows.get(id).cloned(),
                _ => None,
            };
            self.table.note(&action);
            self.act(action, before);
        }
        for lease in waited_for(&desired, &self.table) {
            self.parts.outbox.released_again(lease);
        }
        self.reboot_if_ordered(&desired);
        self.look_for(&desired.probes);
        self.remove_files_of(&desired.removals);
    }

    pub(super) fn act(&mut self, action: Action, before: Option<Row>) {
        match action {
            Action::Start { id, epoch, lease, order, reserved_for } => {
                let (boot_id, at) = (self.parts.machine.boot_id.clone(), clock::now());
                let record = Record::new(id, epoch, lease, boot_id, at, *order);
                self.start(Record { reserved_for, ..record });
            }
            Action::Adopt { id, epoch, lease } => self.adopt(&id, epoch, lease),
            Action::Supersede { id } => {
                tracing::warn!(%id, "another grant of this id takes its place");
                let why = "its place was granted again".to_owned();
                self.order(&id, AttemptOrder::Stop { grace: Duration::ZERO, why });
            }
            Action::Stop { id, grace, why } => {
                tracing::info!(%id, why, grace_ms = grace.0, "stopping an attempt");
                self.order(&id, AttemptOrder::Stop { grace: Duration::from_millis(grace.0), why });
            }
            Action::SayNeverStarted { id, epoch, .. } => {
                // Somebody cancelled it before the order to start it came: an ordinary thing.
                tracing::info!(%id, "the attempt was stopped before it started");
                let message = "stopped before it started".to_owned();
                self.say_without_record(&id, epoch, AttemptEnd::CannotStart { message }, true);
            }
            Action::SayPromised { id, epoch, why, .. } => {
                tracing::warn!(%id, why, "the attempt cannot start: its GPU is promised");
                self.say_without_record(&id, epoch, AttemptEnd::NodeFault { message: why }, false);
            }
            Action::SayLost { id, epoch, .. } => self.say_lost(id, epoch),
            Action::AnswerDeferral { id, order, checkpoint_seq } => {
                self.parts.outbox.deferral_taken(&id, order, checkpoint_seq);
                self.order(&id, AttemptOrder::AskCheckpoint(Asker::Deferral(order)));
            }
            Action::AskCheckpoint { id, order } => {
                self.order(&id, AttemptOrder::AskCheckpoint(Asker::Person(order)));
            }
            Action::CallOffDeferral { id } => self.order(&id, AttemptOrder::CallOffCheckpoint),
            Action::Forget { id } => self.forget(id, before.as_ref()),
            Action::Replace { id } => self.let_go(&id),
            Action::Prove { lease, epoch, gpus, reserved_for } => {
                self.prove(lease, epoch, gpus, reserved_for);
            }
            Action::DropRelease { lease } => {
                self.parts.outbox.drop_release(&lease);
                if let Some(task) = self.proving.remove(&lease) {
                    task.abort();
                }
            }
        }
    }

    fn start(&mut self, record: Record) {
        let id = record.id.clone();
        let dir = self.parts.registry.dir(&id);
        tracing::info!(%id, owner = %record.order.owner, gpus = record.order.gpus.len(), "attempt begins");
        self.forgotten.take_back(&id);
        self.spawn(id, record, dir);
    }

    fn spawn(&mut self, id: AllocationId, record: Record, dir: AllocationDir) {
        let (phase, seen) = watch::channel(AttemptPhase::Starting);
        let (status, said) = watch::channel(String::new());
        let shown = Shown {
            phase: seen,
            gpus: record.order.gpus.clone(),
            owner: Some(record.order.owner.clone()),
            status: said,
        };
        self.parts.registry.insert(id.clone(), shown);
        self.phases.insert(id.clone(), phase);
        let fenced = record.order.spec.stop_after.is_some();
        let begin = Begin::new(Arc::clone(&self.parts.attempts), record, dir, status.clone());
        let tell = Tell { id: id.clone(), to: self.tell.clone() };
        let orders = allocations::spawn(begin, tell, status);
        self.running.insert(id, Running { orders, fenced });
    }

    /// The attempt that the new grant names runs already: only its epoch and its lease change.
    fn adopt(&mut self, id: &AllocationId, epoch: Epoch, lease: Option<LeaseId>) {
        tracing::info!(%id, ?epoch, "attempt continues under a new grant");
        let dir = self.parts.registry.dir(id);
        let rewritten = dir.record().and_then(|record| match record {
            Some(record) => dir.write_record(&Record { epoch, lease: lease.clone(), ..record }),
            None => Ok(()),
        });
        if let Err(error) = rewritten {
            tracing::warn!(%id, error = chain(&error), "the new epoch is not written down");
        }
        let gpus = self.table.rows.get(id).map(|row| row.gpus().to_vec()).unwrap_or_default();
        let claim = Claim { allocation: id.clone(), epoch, lease, gpus };
        let epochs = self.parts.epochs.clone();
        tokio::spawn(async move {
            if let Err(error) = epochs.claim(claim).await {
                tracing::warn!(%error, "the new epoch is not durable");
            }
        });
        if self.table.rows.get(id).is_some_and(|row| row.phase == AttemptPhase::Running) {
            self.parts.outbox.started(id, epoch, clock::now(), dir.image().ok().flatten());
        }
    }

    pub(super) fn order(&mut self, id: &AllocationId, order: AttemptOrder) {
        let Some(running) = self.running.get(id) else { return };
        let stop = matches!(order, AttemptOrder::Stop { .. });
        let asks = matches!(order, AttemptOrder::AskCheckpoint(Asker::Person(_)));
        if let Err(error) = running.orders.try_send(order) {
            match &error {
                TrySendError::Full(_) => tracing::warn!(%id, "order not passed on yet"),
                // It has ended by itself, and the word of that comes next.
                TrySendError::Closed(_) => tracing::debug!(%id, "it has ended before the order"),
            }
            // Planned again with the next heartbeat.
            if let Some(row) = self.table.rows.get_mut(id).filter(|_| stop) {
                row.stop_grace = None;
                self.again = true;
            }
            if let Some(row) = self.table.rows.get_mut(id).filter(|_| asks) {
                row.asked = None;
                self.again = true;
            }
        }
    }

    fn say_without_record(
        &mut self,
        id: &AllocationId,
        epoch: Epoch,
        end: AttemptEnd,
        stopped: bool,
    ) {
        let report = without_exit(end, stopped, clock::now());
        self.parts.registry.insert(id.clone(), Shown::ended());
        self.parts.outbox.ended(id, epoch, report);
    }

    /// What might be left of it goes first: after this it may run elsewhere.
    fn say_lost(&mut self, id: AllocationId, epoch: Epoch) {
        tracing::error!(%id, "the controller believes it runs here, and there is no record of it");
        let (programs, tell) = (Arc::clone(&self.parts.programs), self.tell.clone());
        if let Some(row) = self.table.rows.get_mut(&id) {
            row.phase = AttemptPhase::Running;
        }
        self.parts.registry.insert(id.clone(), Shown::ended());
        tracing::debug!(%id, ?epoch, "looking for what is left of it");
        tokio::spawn(async move {
            let named = id.clone();
            let ended = spawn_blocking(move || end_unrecorded(&programs, &named)).await;
            let message = match ended {
                Ok(Ok(true)) => "the node has no record of it".to_owned(),
                Ok(Ok(false)) => {
                    "the node has no record of it; processes survive SIGKILL".to_owned()
                }
                Ok(Err(error)) => format!("the node has no record of it: {}", chain(&error)),
                Err(error) => format!("the node has no record of it: {error}"),
            };
            let report = without_exit(AttemptEnd::Lost { message }, false, clock::now());
            // The task that takes it lives as long as the agent.
            drop(tell.send((id, Happening::Ended(Box::new(report)))).await);
        });
    }

    fn happened(&mut self, id: &AllocationId, happening: Happening) {
        let Some(row) = self.table.rows.get_mut(id) else { return };
        let epoch = row.epoch;
        match happening {
            Happening::Started { at, image } => {
                row.phase = AttemptPhase::Running;
                self.show(id, AttemptPhase::Running);
                self.parts.outbox.started(id, epoch, at, image);
            }
            Happening::Checkpoint { seen, path } => {
                row.checkpoint_seq = row.checkpoint_seq.max(seen.seq);
                self.parts.outbox.checkpoint(id, &seen, path);
            }
            Happening::Resumed(resumed) => self.parts.outbox.resumed(id, epoch, *resumed),
            Happening::CheckpointChanged { attempt, seq, content, presence } => {
                self.parts.outbox.checkpoint_changed(id, (attempt, seq), content, presence);
            }
            Happening::CheckpointNote(note) => self.parts.outbox.checkpoint_noted(id, note),
            Happening::Ended(report) => {
                row.phase = AttemptPhase::Ended;
                self.running.remove(id);
                self.show(id, AttemptPhase::Ended);
                self.parts.outbox.ended(id, epoch, *report);
            }
            Happening::Stale { why } => {
                tracing::error!(%id, why, "an outdated order is refused");
                self.table.rows.remove(id);
                self.table.refused.insert(id.clone(), epoch);
                self.running.remove(id);
                self.phases.remove(id);
                self.parts.registry.remove(id);
                self.remove_dirs(vec![id.clone()]);
            }
        }
    }

    fn show(&self, id: &AllocationId, phase: AttemptPhase) {
        if let Some(shown) = self.phases.get(id) {
            shown.send_replace(phase);
        }
    }

    fn forget(&mut self, id: AllocationId, before: Option<&Row>) {
        self.let_go(&id);
        // One that never ran here has nothing on disk.
        if before.is_none_or(|row| row.order.is_none()) {
            return;
        }
        self.forgotten.add(clock::now(), id.clone());
        let dir = self.parts.registry.dir(&id);
        spawn_blocking(move || {
            let unmounted = fleet_image::unmount(dir.path());
            if let Err(error) = unmounted {
                tracing::warn!(%id, error = chain(&error), "image not unmounted");
            } else if let Err(error) = dir.forget() {
                tracing::warn!(%id, error = chain(&error), "record not cleaned up");
            }
        });
    }

    /// Nothing of it is to be said or shown any more.
    fn let_go(&mut self, id: &AllocationId) {
        self.parts.outbox.forget(id);
        self.parts.registry.remove(id);
        self.phases.remove(id);
        self.running.remove(id);
    }

    fn prove(
        &mut self,
        lease: LeaseId,
        epoch: Epoch,
        gpus: Vec<GpuUuid>,
        reserved_for: BTreeSet<UserName>,
    ) {
        let of_lease = |row: &Row| row.lease.as_ref() == Some(&lease) && row.order.is_some();
        let attempts = self.table.rows.iter().filter(|(_, row)| of_lease(row));
        let Gpus { driver, gate, observers, holders } = self.parts.gpus.clone();
        let proof = Proof {
            driver,
            gate,
            holders,
            observers,
            users: self.parts.owners.users.clone(),
            floors: self.parts.floors.clone(),
            registry: self.parts.registry.clone(),
            outbox: self.parts.outbox.clone(),
            lease: lease.clone(),
            gpus,
            reserved_for,
            attempts: attempts.map(|(id, _)| id.clone()).collect(),
        };
        let named = lease.clone();
        let task = self.proofs.spawn(async move {
            prove(proof).await;
            (named, epoch)
        });
        if let Some(earlier) = self.proving.insert(lease, task) {
            earlier.abort();
        }
    }

    fn proven(&mut self, lease: &LeaseId, epoch: Epoch) {
        self.proving.remove(lease);
        let Some(release) = self.table.releases.get_mut(lease) else { return };
        if release.0 == epoch {
            release.1 = Release::Released;
            tracing::info!(%lease, "GPUs proven empty");
            self.parts.outbox.released(lease, epoch);
        }
    }

    fn heard(&mut self) {
        let sent = *self.parts.heard.borrow_and_update();
        for running in self.running.values().filter(|running| running.fenced) {
            // A task that is busy hears of the next one; room is kept for stops.
            if running.orders.capacity() > running.orders.max_capacity() / 2 {
                drop(running.orders.try_send(AttemptOrder::Heard(sent)));
            }
        }
    }

    /// Looks what is here, for controllers that were restored from a backup.
    fn recount(&mut self, since: Timestamp) {
        let registry = self.parts.registry.clone();
        let rows = self.table.rows.clone();
        let leases = self.parts.leases.borrow().clone().unwrap_or_default();
        let reservations: Vec<HeldReservation> = leases
            .into_iter()
            .filter_map(|lease| match lease.holder {
                LeaseHolder::Reservation(id) => {
                    Some(HeldReservation { id, owner: lease.owner, gpus: lease.gpus })
                }
                LeaseHolder::Allocation(_) => None,
            })
            .collect();
        self.counted += 1;
        let number = self.counted;
        self.counts.spawn_blocking(move || {
            (number, (recount::found(&registry, &rows, since), reservations))
        });
    }

    /// Tells what was found, unless those who asked have asked again, or ask no more.
    fn tell_found(&self, number: u64, (found, reservations): Found) {
        let asks = self.parts.desired.borrow().as_ref().is_some_and(|d| d.recount.is_some());
        if number != self.counted || !asks {
            return;
        }
        match found {
            Ok(found) => {
                tracing::info!(
                    attempts = found.len(),
                    reservations = reservations.len(),
                    "the controllers were restored from a backup; reporting what is here"
                );
                self.parts.outbox.recount(found, reservations);
            }
            Err(error) => {
                tracing::error!(error = chain(&error), "what is here cannot be read");
            }
        }
    }

    fn remove_old(&mut self) {
        let due = self.forgotten.due(clock::now());
        self.remove_dirs(due);
    }

    fn remove_dirs(&self, ids: Vec<AllocationId>) {
        if ids.is_empty() {
            return;
        }
        let dirs: Vec<AllocationDir> = ids.iter().map(|id| self.parts.registry.dir(id)).collect();
        spawn_blocking(move || {
            for dir in dirs {
                let removed = fleet_image::unmount(dir.path())
                    .map_err(|error| chain(&error))
                    .and_then(|()| dir.remove().map_err(|error| chain(&error)));
                if let Err(error) = removed {
                    tracing::warn!(dir = %dir.path().display(), error, "old record not removed");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
