//! What the controller must hear, until it has it: a level, rebuilt into batches for each connection.
//!
//! The reconcile task, the inventory and health put facts in and take obsolete ones out; the link sends
//! what was not acknowledged on its connection, in order, one batch at a time. A new connection begins
//! by saying everything again: each report is harmless to repeat.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fleet_core::allocation::{EndReport, StopWhy};
use fleet_core::checkpoint::{CheckpointNote, Content, Presence, Resumed};
use fleet_core::command::Report;
use fleet_core::ending::{GpuHolder, HolderStep, WindowUse};
use fleet_core::gpu_use::NodeUse;
use fleet_core::health::Condition;
use fleet_core::holdings::{FoundAttempt, HeldReservation};
use fleet_core::id::{AllocationId, JobId, LeaseId, ReservationId};
use fleet_core::idle::IdleSeen;
use fleet_core::image::ImageUsed;
use fleet_core::lease::Epoch;
use fleet_core::node::NodeFacts;
use fleet_core::time::{Millis, Timestamp};
use fleet_core::window::{EnforcementSwitch, WindowReport};
use tokio::sync::Notify;

use crate::checkpoint::CheckpointSeen;

/// Reports in one batch. The controller takes 2,000.
const BATCH_MAX: usize = 500;
/// Checkpoints of one attempt that wait to be said; of more, the oldest are left out.
const CHECKPOINTS_MAX: usize = 64;

/// Reports about holders that wait to be said; the log has them all.
const HOLDERS_WAITING_MAX: usize = 256;

/// What a report is about: a later one of the same key takes its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Facts,
    Conditions,
    Started(AllocationId),
    Deferral(AllocationId),
    Checkpoint(AllocationId, u64),
    /// With the earlier attempt whose it is, if it is not this one's.
    CheckpointChanged(AllocationId, Option<u32>, u64),
    CheckpointNoted(AllocationId, &'static str),
    Probed(AllocationId),
    FilesRemoved(JobId),
    Resumed(AllocationId),
    Ended(AllocationId),
    Released(LeaseId),
    Found(AllocationId),
    Holdings,
    Window(ReservationId),
    StoppedAlone(AllocationId),
    Enforcement(Timestamp),
    Use(ReservationId),
    Idle(ReservationId),
    /// By the beginning of what was measured.
    Measured(Timestamp),
    Holders(u64),
    Reboot,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    report: Report,
    put_at: Instant,
    /// Acknowledged on this connection.
    said: bool,
    /// Not taken: some controller did not know what it means, maybe.
    refused: bool,
    /// Said a second time on this connection.
    again: bool,
}

impl Entry {
    /// What was idle for some time when it was put in was so for longer when it is said, maybe hours later.
    fn report_now(&self) -> Report {
        match &self.report {
            Report::Idle { reservation, seen: IdleSeen::Idle { for_ms } } => {
                let waited = u64::try_from(self.put_at.elapsed().as_millis()).unwrap_or(0);
                let seen = IdleSeen::Idle { for_ms: *for_ms + Millis(waited) };
                Report::Idle { reservation: reservation.clone(), seen }
            }
            report => report.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// By order of becoming true.
    entries: BTreeMap<u64, Entry>,
    places: BTreeMap<Key, u64>,
    next: u64,
    /// So many reports are sent one by one, since a batch with them was refused.
    cautious: usize,
}

/// Handle on what is to be said. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Outbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// Reports under way, by the places they came from.
#[derive(Debug)]
pub struct Batch {
    places: Vec<u64>,
    pub reports: Vec<Report>,
}

impl State {
    fn put(&mut self, key: Key, report: Report) {
        if let Some(at) = self.places.get(&key).copied() {
            if self.entries.get(&at).is_some_and(|entry| entry.report == report) {
                return;
            }
            self.entries.remove(&at);
        }
        self.next += 1;
        self.places.insert(key.clone(), self.next);
        let put_at = Instant::now();
        let entry = Entry { key, report, put_at, said: false, refused: false, again: false };
        self.entries.insert(self.next, entry);
    }

    fn take_out(&mut self, key: &Key) {
        if let Some(at) = self.places.remove(key) {
            self.entries.remove(&at);
        }
    }

    /// Drops the unsent answers to an earlier request. A controller that asks again gets all of them again.
    fn drop_recount(&mut self) {
        let answers = |key: &&Key| matches!(key, Key::Found(_) | Key::Holdings);
        let keys: Vec<Key> = self.places.keys().filter(answers).cloned().collect();
        keys.iter().for_each(|key| self.take_out(key));
    }

    fn checkpoints_of(&self, id: &AllocationId) -> Vec<Key> {
        let (from, to) = (Key::Checkpoint(id.clone(), 0), Key::Checkpoint(id.clone(), u64::MAX));
        self.places.range(from..=to).map(|(key, _)| key.clone()).collect()
    }

    /// Of the checkpoints that were said only the newest is of use to a new connection.
    fn thin_checkpoints(&mut self, id: &AllocationId) {
        let keys = self.checkpoints_of(id);
        let Some((_, older)) = keys.split_last() else { return };
        for (at, key) in older.iter().enumerate() {
            let said =
                self.places.get(key).and_then(|p| self.entries.get(p)).is_some_and(|e| e.said);
            if said || at + CHECKPOINTS_MAX < keys.len() {
                self.take_out(key);
            }
        }
    }
}

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: Key, report: Report) {
        self.state().put(key, report);
        self.0.changed.notify_one();
    }

    /// The inventory as it is now.
    pub fn facts(&self, facts: NodeFacts) {
        self.put(Key::Facts, Report::Facts { facts });
    }

    /// All conditions that hold now.
    pub fn conditions(&self, conditions: Vec<Condition>) {
        self.put(Key::Conditions, Report::Conditions { conditions });
    }

    pub fn started(
        &self,
        allocation: &AllocationId,
        epoch: Epoch,
        at: Timestamp,
        image: Option<ImageUsed>,
    ) {
        let key = Key::Started(allocation.clone());
        self.put(key, Report::Started { allocation: allocation.clone(), epoch, at, image });
    }

    pub fn deferral_taken(&self, allocation: &AllocationId, order: u32, checkpoint_seq: u64) {
        let key = Key::Deferral(allocation.clone());
        let allocation = allocation.clone();
        self.put(key, Report::DeferralTaken { allocation, order, checkpoint_seq });
    }

    /// `path`: as the job sees it.
    pub fn checkpoint(&self, allocation: &AllocationId, seen: &CheckpointSeen, path: String) {
        let report = Report::Checkpoint {
            allocation: allocation.clone(),
            seq: seen.seq,
            path,
            size_bytes: seen.size_bytes,
            completed_at: Timestamp(seen.completed_at_unix_ms),
            // From its completion until it was checked and flushed: when it is sent this is taken from its whole age.
            age: Millis(seen.counted_at_unix_ms.saturating_sub(seen.completed_at_unix_ms)),
            facts: seen.facts.clone(),
        };
        let mut state = self.state();
        state.put(Key::Checkpoint(allocation.clone(), seen.seq), report);
        state.thin_checkpoints(allocation);
        drop(state);
        self.0.changed.notify_one();
    }

    /// A checkpoint that was said is gone, or is found to be something else; `attempt`: the earlier attempt that made it.
    pub fn checkpoint_changed(
        &self,
        allocation: &AllocationId,
        (attempt, seq): (Option<u32>, u64),
        content: Option<Content>,
        presence: Option<Presence>,
    ) {
        let key = Key::CheckpointChanged(allocation.clone(), attempt, seq);
        let allocation = allocation.clone();
        self.put(key, Report::CheckpointChanged { allocation, seq, attempt, content, presence });
    }

    pub fn checkpoint_noted(&self, allocation: &AllocationId, note: CheckpointNote) {
        let key = Key::CheckpointNoted(allocation.clone(), note.kind());
        self.put(key, Report::CheckpointNoted { allocation: allocation.clone(), note });
    }

    /// Whether an attempt of another node could continue here.
    pub fn probed(&self, allocation: &AllocationId, problem: Option<String>) {
        let key = Key::Probed(allocation.clone());
        self.put(key, Report::Probed { allocation: allocation.clone(), problem });
    }

    /// What fleet wrote beside the checkpoints of a job is gone, or why some of it is not.
    pub fn files_removed(&self, job: &JobId, problem: Option<String>) {
        let key = Key::FilesRemoved(job.clone());
        self.put(key, Report::FilesRemoved { job: job.clone(), problem });
    }

    /// What an attempt resumes from; said before it starts.
    pub fn resumed(&self, allocation: &AllocationId, epoch: Epoch, resumed: Resumed) {
        let key = Key::Resumed(allocation.clone());
        self.put(key, Report::Resumed { allocation: allocation.clone(), epoch, resumed });
    }

    pub fn ended(&self, allocation: &AllocationId, epoch: Epoch, report: EndReport) {
        let key = Key::Ended(allocation.clone());
        self.put(key, Report::Ended { allocation: allocation.clone(), epoch, report });
    }

    pub fn released(&self, lease: &LeaseId, epoch: Epoch) {
        let key = Key::Released(lease.clone());
        self.put(key, Report::Released { lease: lease.clone(), epoch });
    }

    /// A release that was said and is waited for all the same: once more on this connection.
    pub fn released_again(&self, lease: &LeaseId) {
        let mut state = self.state();
        let at = state.places.get(&Key::Released(lease.clone())).copied();
        let entry = at.and_then(|at| state.entries.get_mut(&at));
        if let Some(entry) = entry.filter(|entry| entry.said && !entry.again) {
            (entry.said, entry.again) = (false, true);
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// What the node holds, said once to a controller that was restored from a backup; everything else
    /// is said again behind it, for what the controller learns by it.
    pub fn recount(&self, found: Vec<FoundAttempt>, reservations: Vec<HeldReservation>) {
        let mut state = self.state();
        // An earlier answer, or what is left of it, is not part of this one.
        state.drop_recount();
        let allocations = found.iter().map(|one| one.allocation.clone()).collect();
        for one in found {
            state.put(Key::Found(one.allocation.clone()), Report::Found(Box::new(one)));
        }
        state.put(Key::Holdings, Report::Holdings { allocations, reservations });
        // Windows first: a reservation that the controller learns from them is not lost.
        let first =
            |key: &Key| matches!(key, Key::Facts | Key::Found(_) | Key::Holdings | Key::Window(_));
        let behind: Vec<u64> = state
            .entries
            .iter()
            .filter(|(_, entry)| !first(&entry.key))
            .map(|(at, _)| *at)
            .collect();
        for at in behind {
            let Some(entry) = state.entries.remove(&at) else { continue };
            state.next += 1;
            let place = state.next;
            state.places.insert(entry.key.clone(), place);
            state.entries.insert(place, Entry { said: false, ..entry });
        }
        drop(state);
        self.0.changed.notify_one();
    }

    /// What is on this node's disk of a window, and what was done with it.
    pub fn window(&self, report: WindowReport) {
        self.put(Key::Window(report.reservation.clone()), Report::Window(Box::new(report)));
    }

    /// Stopped while no controller answered; said before its end is.
    pub fn stopped_alone(&self, id: &AllocationId, epoch: Epoch, why: StopWhy, at: Timestamp) {
        let allocation = id.clone();
        let report = Report::StoppedAlone { allocation, epoch, why, at };
        self.put(Key::StoppedAlone(id.clone()), report);
    }

    pub fn enforcement(&self, switch: EnforcementSwitch) {
        self.put(Key::Enforcement(switch.at), Report::Enforcement(switch));
    }

    /// Reports what became of the reboot that was ordered with the wish of `since`.
    pub fn reboot(&self, since: Timestamp, problem: Option<String>) {
        self.put(Key::Reboot, Report::Reboot { since, problem });
    }

    /// What is seen on the GPUs of an open window. That nobody is there for some time is still true when it is said
    /// again, and was so for longer.
    pub fn use_seen(&self, id: &ReservationId, seen: WindowUse, came: bool) {
        let report = Report::Use { reservation: id.clone(), seen, came };
        self.put(Key::Use(id.clone()), report);
    }

    /// Whether the GPUs of an open window compute.
    pub fn idle_seen(&self, id: &ReservationId, seen: IdleSeen) {
        let report = Report::Idle { reservation: id.clone(), seen };
        self.put(Key::Idle(id.clone()), report);
    }

    /// Who is on GPUs that are not theirs, and what was done about it: said once.
    pub fn holders(
        &self,
        reservation: Option<ReservationId>,
        step: HolderStep,
        holders: Vec<GpuHolder>,
    ) {
        let mut state = self.state();
        let waiting = state.places.keys().filter(|key| matches!(key, Key::Holders(_))).count();
        if waiting < HOLDERS_WAITING_MAX {
            let key = Key::Holders(state.next);
            state.put(key, Report::Holders { reservation, step, holders });
        }
        drop(state);
        self.0.changed.notify_one();
    }

    /// What was measured of the GPUs in a part of an hour.
    pub fn measured(&self, seen: NodeUse) {
        self.put(Key::Measured(seen.from), Report::GpuUse(Box::new(seen)));
    }

    /// Takes out what was measured from then on, once a controller has answered: it has counted that, or refused it.
    pub fn take_measured(&self, from: Timestamp) -> bool {
        let mut state = self.state();
        let key = Key::Measured(from);
        let at = state.places.get(&key).copied();
        let said = at.and_then(|at| state.entries.get(&at)).is_some_and(|entry| entry.said);
        if said {
            state.take_out(&key);
        }
        said
    }

    /// It is too old to be counted.
    pub fn drop_measured(&self, from: Timestamp) {
        self.state().take_out(&Key::Measured(from));
    }

    /// The window is not open any more.
    pub fn drop_use(&self, id: &ReservationId) {
        self.state().take_out(&Key::Use(id.clone()));
    }

    /// The same, of whether it computes.
    pub fn drop_idle(&self, id: &ReservationId) {
        self.state().take_out(&Key::Idle(id.clone()));
    }

    /// Whether a controller has what there is to say of the window.
    pub fn window_is_said(&self, id: &ReservationId) -> bool {
        let state = self.state();
        let at = state.places.get(&Key::Window(id.clone()));
        at.and_then(|at| state.entries.get(at)).is_some_and(|entry| entry.said && !entry.refused)
    }

    /// It is over and on record.
    pub fn drop_window(&self, id: &ReservationId) {
        self.state().take_out(&Key::Window(id.clone()));
    }

    /// Controllers that were restored from a backup may not know of the windows any more.
    pub fn windows_again(&self) {
        for entry in self.state().entries.values_mut() {
            if matches!(entry.key, Key::Window(_)) {
                entry.said = false;
            }
        }
        self.0.changed.notify_one();
    }

    /// Nothing of this attempt needs to be said any more.
    pub fn forget(&self, id: &AllocationId) {
        let mut state = self.state();
        let started = [Key::Started(id.clone()), Key::StoppedAlone(id.clone())];
        for key in started.into_iter().chain([Key::Deferral(id.clone()), Key::Ended(id.clone())]) {
            state.take_out(&key);
        }
        let of_it = |key: &&Key| match key {
            Key::CheckpointChanged(of, ..) | Key::CheckpointNoted(of, _) | Key::Resumed(of) => {
                of == id
            }
            _ => false,
        };
        let told: Vec<Key> = state.places.keys().filter(of_it).cloned().collect();
        for key in state.checkpoints_of(id).into_iter().chain(told) {
            state.take_out(&key);
        }
    }

    /// The controller does not know the lease any more.
    pub fn drop_release(&self, lease: &LeaseId) {
        self.state().take_out(&Key::Released(lease.clone()));
    }

    /// A new connection: everything is to be said on it, but the facts, which were in its first message.
    pub fn begin(&self, facts: &NodeFacts) {
        let mut state = self.state();
        state.cautious = 0;
        // Half an answer would be taken for a whole one, by controllers that have not asked.
        state.drop_recount();
        for entry in state.entries.values_mut() {
            entry.again = false;
            entry.said = match &entry.report {
                Report::Facts { facts: known } => known == facts,
                // Many, and replicated once they are acknowledged.
                Report::Window(_) => entry.said && !entry.refused,
                _ => false,
            };
        }
        drop(state);
        self.0.changed.notify_one();
    }

    /// Whether starts are all that was not said yet.
    pub fn has_only_starts(&self) -> bool {
        let state = self.state();
        let mut unsaid = state.entries.values().filter(|entry| !entry.said).peekable();
        unsaid.peek().is_some() && unsaid.all(|entry| matches!(entry.key, Key::Started(_)))
    }

    /// The next batch of what was not said yet.
    pub fn next_batch(&self, now: Timestamp) -> Option<Batch> {
        let mut state = self.state();
        let max = if state.cautious > 0 { 1 } else { BATCH_MAX };
        state.cautious = state.cautious.saturating_sub(1);
        // An attempt with its whole order is long: each goes alone, so that no batch gets too large.
        let alone = |entry: &Entry| matches!(entry.key, Key::Found(_));
        let mut unsaid = state.entries.iter().filter(|(_, entry)| !entry.said).peekable();
        let max = if unsaid.peek().is_some_and(|(_, entry)| alone(entry)) { 1 } else { max };
        let unsaid = unsaid.enumerate().take_while(|(n, (_, entry))| *n == 0 || !alone(entry));
        let unsaid = unsaid.map(|(_, one)| one).take(max);
        let (places, mut reports): (Vec<u64>, Vec<Report>) =
            unsaid.map(|(at, entry)| (*at, entry.report_now())).unzip();
        for report in &mut reports {
            if let Report::Checkpoint { completed_at, age, .. } = report {
                *age = now.since(*completed_at).saturating_sub(*age);
            }
        }
        (!places.is_empty()).then_some(Batch { places, reports })
    }

    /// The batch is in the log; or refused, whole.
    pub fn answered(&self, batch: &Batch, refused: bool) {
        let mut state = self.state();
        if refused && batch.places.len() > 1 {
            // One of them is bad: said singly, it alone is refused.
            state.cautious = batch.places.len();
            drop(state);
            self.0.changed.notify_one();
            return;
        }
        for at in &batch.places {
            let once = match state.entries.get_mut(at) {
                Some(entry) => {
                    entry.said = true;
                    entry.refused = refused;
                    matches!(
                        entry.key,
                        Key::Found(_)
                            | Key::Holdings
                            | Key::Holders(_)
                            | Key::CheckpointChanged(..)
                            | Key::CheckpointNoted(..)
                            | Key::Probed(_)
                            | Key::FilesRemoved(_)
                            | Key::Resumed(_)
                    )
                    .then(|| entry.key.clone())
                }
                None => None,
            };
            if let Some(key) = once {
                state.take_out(&key);
            }
        }
        let ids: Vec<AllocationId> = batch
            .places
            .iter()
            .filter_map(|at| match state.entries.get(at).map(|entry| &entry.key) {
                Some(Key::Checkpoint(id, _)) => Some(id.clone()),
                _ => None,
            })
            .collect();
        for id in ids {
            state.thin_checkpoints(&id);
        }
    }

    /// Reports that no controller has acknowledged on this connection.
    pub fn waiting(&self) -> usize {
        self.state().entries.values().filter(|entry| !entry.said).count()
    }

    /// Returns when there may be something new to say.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::allocation::AttemptEnd;

    use super::*;
    use crate::checkpoint::Source;

    const NOW: Timestamp = Timestamp(10_000);

    fn id(n: u32) -> AllocationId {
        AllocationId::parse(&format!("alloc-{n}-1")).unwrap()
    }

    fn epoch() -> Epoch {
        Epoch { incarnation: 1, index: 1 }
    }

    fn end() -> EndReport {
        crate::allocations::without_exit(AttemptEnd::Exited { code: 0 }, false, Timestamp(1))
    }

    fn seen(seq: u64) -> CheckpointSeen {
        let path = format!("/c/{seq}");
        CheckpointSeen {
            seq,
            path,
            size_bytes: 1,
            completed_at_unix_ms: 9_000,
            source: Source::Observed,
            counted_at_unix_ms: 9_000,
            facts: fleet_core::checkpoint::Facts::default(),
        }
    }

    #[test]
    fn what_is_acknowledged_is_said_again_only_on_a_new_connection() {
        let outbox = Outbox::default();
        assert!(!outbox.has_only_starts());
        outbox.started(&id(1), epoch(), NOW, None);
        assert!(outbox.has_only_starts());
        outbox.ended(&id(1), epoch(), end());
        assert!(!outbox.has_only_starts());
        let batch = outbox.next_batch(NOW).unwrap();
        assert!(matches!(batch.reports[..], [Report::Started { .. }, Report::Ended { .. }]));
        outbox.answered(&batch, false);
        assert!(outbox.next_batch(NOW).is_none());
        let first = batch.reports.clone();
        outbox.begin(&facts());
        assert_eq!(outbox.next_batch(NOW).unwrap().reports, first);
        outbox.forget(&id(1));
        assert!(outbox.next_batch(NOW).is_none());
    }

    #[test]
    fn a_refused_batch_is_taken_apart_so_that_only_the_bad_one_is_lost() {
        let outbox = Outbox::default();
        for n in 0..3 {
            outbox.started(&id(n), epoch(), NOW, None);
        }
        outbox.answered(&outbox.next_batch(NOW).unwrap(), true);
        for n in 0..3 {
            let one = outbox.next_batch(NOW).unwrap();
            assert_eq!(one.reports.len(), 1);
            outbox.answered(&one, n == 1);
        }
        assert!(outbox.next_batch(NOW).is_none());
    }

    #[test]
    fn a_recount_says_each_attempt_alone_then_what_is_held_then_everything_again() {
        let outbox = Outbox::default();
        outbox.started(&id(1), epoch(), NOW, None);
        outbox.answered(&outbox.next_batch(NOW).unwrap(), false);
        outbox.recount(vec![found(1), found(2)], Vec::new());
        let mut said = Vec::new();
        while let Some(batch) = outbox.next_batch(NOW) {
            said.push(batch.reports.len());
            let first = matches!(batch.reports[0], Report::Found(_));
            assert_eq!(first, said.len() < 3, "{batch:?}");
            outbox.answered(&batch, false);
        }
        assert_eq!(said, [1, 1, 2], "what is held, and behind it what was said before");
        outbox.begin(&facts());
        let again = outbox.next_batch(NOW).unwrap();
        assert!(matches!(again.reports[..], [Report::Started { .. }]), "a recount is said once");
    }

    #[test]
    fn half_an_answer_is_never_taken_for_a_whole_one() {
        let outbox = Outbox::default();
        outbox.recount(vec![found(1), found(2)], Vec::new());
        outbox.answered(&outbox.next_batch(NOW).unwrap(), false);
        // Another controller, restored once more, has not heard the first half.
        outbox.begin(&facts());
        assert!(outbox.next_batch(NOW).is_none(), "it has not asked yet");
        outbox.recount(vec![found(1), found(2)], Vec::new());
        outbox.answered(&outbox.next_batch(NOW).unwrap(), false);
        // Asked again on the same connection: the whole answer, its end behind all of it.
        outbox.recount(vec![found(2), found(1)], Vec::new());
        let mut said = Vec::new();
        while let Some(batch) = outbox.next_batch(NOW) {
            said.extend(batch.reports.clone());
            outbox.answered(&batch, false);
        }
        let holdings = matches!(said.last(), Some(Report::Holdings { .. }));
        assert!(said.len() == 3 && holdings, "{said:?}");
    }

    #[test]
    fn a_window_is_said_once_unless_it_was_refused() {
        let outbox = Outbox::default();
        let window = WindowReport {
            reservation: ReservationId::parse("res-r").unwrap(),
            revision: epoch(),
            owner: fleet_core::name::UserName::parse("ada").unwrap(),
            gpus: Vec::new(),
            window: fleet_core::time::Window { starts_at: NOW, ends_at: NOW },
            withdrawn: false,
            opened_at: None,
            closed_at: None,
            granted: None,
            with: Default::default(),
        };
        for (refused, again) in [(true, true), (false, false)] {
            outbox.window(window.clone());
            outbox.answered(&outbox.next_batch(NOW).unwrap(), refused);
            assert_eq!(outbox.window_is_said(&window.reservation), !refused);
            assert!(outbox.next_batch(NOW).is_none(), "not on this connection");
            outbox.begin(&facts());
            assert_eq!(outbox.next_batch(NOW).is_some(), again);
        }
        outbox.windows_again();
        assert!(outbox.next_batch(NOW).is_some(), "to controllers that were restored");
    }

    #[test]
    fn a_release_that_is_still_waited_for_is_said_once_more_on_a_connection() {
        let outbox = Outbox::default();
        let lease = LeaseId::parse("lease-1").unwrap();
        outbox.released(&lease, epoch());
        outbox.released_again(&lease);
        for connection in 0..2 {
            for _ in 0..2 {
                outbox.answered(&outbox.next_batch(NOW).unwrap(), false);
                outbox.released_again(&lease);
            }
            assert!(outbox.next_batch(NOW).is_none(), "connection {connection}: not for ever");
            outbox.begin(&facts());
        }
    }

    #[test]
    fn what_changes_while_it_is_under_way_is_said_again() {
        let outbox = Outbox::default();
        outbox.conditions(Vec::new());
        let under_way = outbox.next_batch(NOW).unwrap();
        let mut facts = facts();
        facts.kernel = "other".to_owned();
        outbox.facts(facts);
        outbox.answered(&under_way, false);
        assert!(matches!(outbox.next_batch(NOW).unwrap().reports[..], [Report::Facts { .. }]));
    }

    #[test]
    fn of_the_checkpoints_that_were_said_only_the_newest_is_kept() {
        let outbox = Outbox::default();
        for seq in 1..=3 {
            outbox.checkpoint(&id(1), &seen(seq), format!("/c/{seq}"));
        }
        let batch = outbox.next_batch(NOW).unwrap();
        assert_eq!(batch.reports.len(), 3);
        let Report::Checkpoint { age, .. } = &batch.reports[0] else { panic!("a checkpoint") };
        assert_eq!(age.0, 1_000);
        outbox.answered(&batch, false);
        outbox.begin(&facts());
        let again = outbox.next_batch(NOW).unwrap();
        assert!(matches!(again.reports[..], [Report::Checkpoint { seq: 3, .. }]));
    }

    fn found(n: u32) -> FoundAttempt {
        let order = fleet_node::testing::order(&[]);
        let (allocation, epoch) = (id(n), epoch());
        FoundAttempt { allocation, epoch, lease: None, order, accepted_at: NOW, end: None }
    }

    fn facts() -> NodeFacts {
        NodeFacts::bare(fleet_core::node::MachineIdentity::default())
    }
}
