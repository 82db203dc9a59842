//! The judge: what must hold after every step, and what must be true when all is calm.
//!
//! It sees each entry that any controller applies, each answer that a user got, and the machines
//! themselves. It must never learn what the product believes instead of what happened.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::Fsm;
use fleet_core::allocation::CauseKey;
use fleet_core::command::Envelope;
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::id::{AllocationId, JobId, ReservationId};
use fleet_core::job::Job;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::reservation::ReservationState;
use fleet_core::time::{Millis, Timestamp};
use fleet_core::view::reservation::Listed;

use crate::held;
use crate::run::Kind;
use crate::scene::{Scene, kind};
use crate::week::Week;
use crate::{preempted, promised};

/// How far fleet time may be ahead of the truth: a step that is taken over without a majority, and what
/// clocks of the simulation are wrong by without anybody noticing.
const AHEAD_MAX: Millis = Millis::secs(60);
/// How long a checkpoint's report may take to be applied once it was said to be fresh.
const REPORT_MAX_US: u64 = 40_000_000;
/// A checkpoint older than this triggers nothing.
const FRESH_US: u64 = 60_000_000;

/// In a week the state is judged as a whole only after so many entries: most of the time would be spent on that.
const WEEK_JUDGED_EVERY: u64 = 10;

/// A change that fleet acknowledged to a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Done {
    /// And who it is shared with.
    Reserved(ReservationId, Option<UserName>),
    Extended(ReservationId, Timestamp),
    /// The revision that it had afterwards.
    Edited(ReservationId, u64),
    Released(ReservationId),
    Submitted(JobId),
    Cancelled(JobId),
    Removed(u64),
}

#[derive(Debug, PartialEq, Eq)]
struct Acknowledged {
    done: Done,
    at_us: u64,
    /// The newest entry then: its own is not behind it.
    index: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    text: String,
    request: Option<String>,
    /// State of the audit chain after it: its number and hash cover everything before.
    audit: (u64, String),
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) violation: Option<String>,
    entries: BTreeMap<u64, Entry>,
    /// Attempts for which the log holds a reason to stop.
    may_stop: BTreeSet<AllocationId>,
    /// What was acknowledged, by request id.
    done: BTreeMap<String, Acknowledged>,
    /// Requests that were carried out and whose entries were lost with the disks. A node may bring back what
    /// came of one while its user, who has no answer yet, asks again.
    lost: BTreeSet<String>,
    /// For each restore, the last entry that the log from then on has in common with the one before.
    shared: Vec<u64>,
    /// How often each kind of event came, so that a world in which little happens is noticed.
    pub(crate) happened: BTreeMap<String, u64>,
    /// The number of each job's newest checkpoint, and with which entry it came.
    numbers: BTreeMap<JobId, Vec<(u64, u64)>>,
    /// What is judged of a week.
    pub(crate) week: Option<Box<Week>>,
    pub(crate) requests: u64,
    pub(crate) unanswered: u64,
}

impl Oracle {
    pub(crate) fn of(kind: Kind) -> Oracle {
        Oracle { week: (kind == Kind::Week).then(Box::default), ..Oracle::default() }
    }

    pub(crate) fn newest_index(&self) -> u64 {
        self.entries.last_key_value().map_or(0, |(index, _)| *index)
    }

    pub(crate) fn acknowledged(&mut self, request: String, done: Done, at_us: u64) {
        let index = self.newest_index();
        self.done.insert(request, Acknowledged { done, at_us, index });
    }

    /// The owner is about to move it: an end that was acknowledged before says nothing any more.
    pub(crate) fn moves(&mut self, id: &ReservationId) {
        self.done.retain(|_, one| !matches!(&one.done, Done::Extended(of, _) if of == id));
    }

    /// Whether this many nodes have joined.
    pub(crate) fn all_joined(&self, nodes: usize) -> bool {
        self.happened.get("NodeRegistered").is_some_and(|times| *times >= nodes as u64)
    }

    /// How often the fleet was restored.
    pub(crate) fn restores(&self) -> usize {
        self.shared.len()
    }

    /// All disks were lost, and the fleet continues from a backup that was begun at `begun_us`, after that many
    /// `restores`, and ends with entry `index`. What was acknowledged later may be lost; nothing else.
    pub(crate) fn restored(&mut self, index: u64, begun_us: u64, restores: usize) {
        let shared = self.shared[restores..].iter().copied().fold(index, u64::min);
        let lost = self.entries.split_off(&(shared + 1));
        self.lost.extend(lost.into_values().filter_map(|entry| entry.request));
        self.shared.push(shared);
        self.done.retain(|_, one| one.at_us <= begun_us && one.index <= index);
        for numbers in self.numbers.values_mut() {
            numbers.retain(|(index, _)| *index <= shared);
        }
        self.count("Restored");
    }

    /// Something came about that a world must not be without.
    pub(crate) fn count(&mut self, what: &str) {
        *self.happened.entry(what.to_owned()).or_default() += 1;
    }

    /// Whether it was acknowledged and may not be gone.
    pub(crate) fn holds(&self, done: &Done) -> bool {
        self.done.values().any(|known| known.done == *done)
    }

    pub(crate) fn acknowledgements(&self) -> usize {
        self.done.len()
    }

    /// A node without controllers stops it for the sake of a reservation that begins.
    pub(crate) fn promised_to_another(&mut self, id: &AllocationId) {
        self.may_stop.insert(id.clone());
    }

    pub(crate) fn may_stop(&self, id: &AllocationId) -> bool {
        self.may_stop.contains(id)
    }

    /// A controller applied an entry.
    pub(crate) fn applied(
        &mut self,
        scene: &Scene,
        controller: u64,
        (index, envelope): (u64, &Envelope),
        outcome: &Outcome,
        (before, fsm): (Option<&Fsm>, &Fsm),
    ) -> Result<(), String> {
        let now = scene.true_time();
        let (seq, hash) = fsm.audit_head();
        let entry = Entry {
            text: format!("{envelope:?} -> {:?}", outcome.reply),
            request: envelope.request.as_ref().map(|request| request.id.to_string()),
            audit: (seq, hash.unwrap_or_default().to_owned()),
        };
        if let Some(known) = self.entries.get(&index) {
            if *known == entry {
                return Ok(());
            }
            return Err(format!(
                "entry {index} is {} with audit record {} on controller {controller}, and was {} with {}",
                entry.text, entry.audit.0, known.text, known.audit.0
            ));
        }
        self.entries.insert(index, entry);
        for event in &outcome.events {
            *self.happened.entry(kind(event)).or_default() += 1;
        }
        let is_judged = self.week.is_none() || index.is_multiple_of(WEEK_JUDGED_EVERY);
        if is_judged {
            fsm.check_invariants()
                .map_err(|violation| format!("after entry {index}: {violation}"))?;
        }
        if fsm.now() > now + AHEAD_MAX {
            let ahead = fsm.now().since(now);
            return Err(format!("after entry {index} fleet time is {} s ahead", ahead.0 / 1_000));
        }
        if is_judged {
            promised::judge(scene, fsm).map_err(|what| format!("after entry {index}: {what}"))?;
        }
        if preempted::judge(&outcome.events, fsm)
            .map_err(|what| format!("after entry {index}: {what}"))?
        {
            self.count("Preempted");
        }
        if let Some(before) = before {
            held::judge((before, fsm), (index, envelope), &outcome.events)?;
        }
        if let Some(week) = &mut self.week {
            let counted = week.applied(envelope, outcome, fsm, scene.now_us());
            let counted = counted.map_err(|what| format!("after entry {index}: {what}"))?;
            counted.into_iter().for_each(|what| self.count(what));
        }
        outcome.events.iter().try_for_each(|event| self.event(scene, event, &outcome.events, fsm))
    }

    fn event(
        &mut self,
        scene: &Scene,
        event: &Event,
        all: &[Event],
        fsm: &Fsm,
    ) -> Result<(), String> {
        match event {
            Event::JobStopping { allocation, .. } => {
                self.may_stop.insert(allocation.clone());
            }
            Event::AttemptEnded { allocation, end, .. } => {
                self.may_stop.insert(allocation.clone());
                if end.to_string().contains("silent for longer than the job allows") {
                    self.count("Replaced");
                }
            }
            Event::EvictionStarted { allocation, after_checkpoint, .. } => {
                self.may_stop.insert(allocation.clone());
                if let Some(seq) = after_checkpoint {
                    self.count_crowd(fsm, allocation);
                    return eviction_is_due(scene, allocation, *seq);
                }
            }
            Event::ReservationMoved { waits_for: Some(_), .. } => self.count("LeftABadPlace"),
            Event::CheckpointRecorded { job, allocation, number, .. } => {
                return self.numbered(fsm, job, allocation, *number);
            }
            // A node that was not asked since a restore gets nothing, and what was given on there is
            // not given away by the end of what a backup believes.
            Event::GpusReleased { node, .. } if fsm.uncounted().any(|name| name == node) => {}
            Event::GpusReleased { lease, node, gpus, .. } => {
                let now = scene.now_us();
                let on = scene.machines.iter().map(|m| m.lock().expect("nobody panics with it"));
                let Some(machine) = on.into_iter().find(|m| m.name == *node) else { return Ok(()) };
                // One that was given on after the backup is not given away by that.
                let passed_on = |gpu: &GpuUuid| {
                    all.iter().any(|other| {
                        matches!(other, Event::AttemptAdopted { gpus, .. } if gpus.contains(gpu))
                    })
                };
                let mut kept = gpus.iter().filter(|gpu| !passed_on(gpu));
                if let Some(gpu) = kept.find(|gpu| machine.in_use(gpu, now)) {
                    let by = machine.on_gpu(gpu);
                    return Err(format!("{lease} is released while {gpu} is in use ({by:?})"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Numbers rise over a job's life; a late report is not before what a later attempt saved.
    fn numbered(
        &mut self,
        fsm: &Fsm,
        job: &JobId,
        allocation: &AllocationId,
        number: u64,
    ) -> Result<(), String> {
        let index = self.newest_index();
        let numbers = self.numbers.entry(job.clone()).or_default();
        if let Some((_, last)) = numbers.last().filter(|(_, last)| *last >= number) {
            return Err(format!("{job} has checkpoint {number} after {last}"));
        }
        numbers.push((index, number));
        let Some(job) = fsm.job(job) else { return Ok(()) };
        if job.allocation().is_some_and(|current| current != allocation) {
            self.count("HeardLate");
        }
        let ids: Vec<_> = job.checkpoints().map(|checkpoint| checkpoint.id()).collect();
        match ids.is_sorted_by(|newer, older| newer > older) {
            true => Ok(()),
            false => Err(format!("{} has its checkpoints in the order {ids:?}", job.id)),
        }
    }

    /// Its place was its own although others waited for such a one.
    fn count_crowd(&mut self, fsm: &Fsm, id: &AllocationId) {
        let Some(attempt) = fsm.allocation(id) else { return };
        let gpus = attempt.gpus.len();
        let drained = attempt.causes.contains_key(&CauseKey::Drain);
        let waits = |job: &&Job| job.queue.rank > 0 && job.spec.gpus.count as usize <= gpus;
        if !drained && fsm.queue().any(|job| waits(&job)) {
            self.count("LeftInACrowd");
        }
    }

    /// Whether all that was acknowledged is there, each once.
    pub(crate) fn check_acknowledged(&self, fsm: &Fsm) -> Result<(), String> {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for job in fsm.jobs().values() {
            *names.entry(&job.spec.name).or_default() += 1;
        }
        // One that a node brought back has lost its note.
        for reservation in fsm.reservations().filter(|r| !r.note.is_empty()) {
            *names.entry(&reservation.note).or_default() += 1;
        }
        let waiting = Listed::all(fsm).map(|listed| &listed.waiter().wish.note);
        for note in waiting.filter(|note| !note.is_empty()) {
            *names.entry(note).or_default() += 1;
        }
        let twice = |(name, count): &(&&str, &usize)| **count > 1 && !self.lost.contains(**name);
        if let Some((name, count)) = names.iter().find(twice) {
            return Err(format!("request {name} was carried out {count} times"));
        }
        for (request, Acknowledged { done, .. }) in &self.done {
            let holds = match done {
                Done::Reserved(id, with) => {
                    let listed = Listed::of(fsm, id).map(|listed| &listed.waiter().wish);
                    let listed = listed.map(|wish| (&wish.note, &wish.with));
                    let booked = fsm.reservation(id).map(|r| (&r.note, &r.with));
                    booked
                        .or(listed)
                        .is_some_and(|(note, shared)| note == request && with.iter().eq(shared))
                }
                Done::Extended(id, ends_at) => {
                    fsm.reservation(id).is_some_and(|r| r.window.ends_at >= *ends_at)
                }
                Done::Edited(id, revision) => {
                    fsm.reservation(id).is_some_and(|r| r.revision >= *revision)
                }
                Done::Released(id) => {
                    let ended = fsm.reservation(id).is_some_and(|r| {
                        !matches!(r.state, ReservationState::Scheduled | ReservationState::Active)
                    });
                    ended || fsm.waitlist().was_over(id).is_some()
                }
                Done::Removed(id) => fsm.roster().was_removed(*id),
                Done::Submitted(id) => fsm.job(id).is_some_and(|job| job.spec.name == *request),
                Done::Cancelled(id) => {
                    fsm.job(id).is_some_and(|job| job.cancel_requested || job.state.is_final())
                }
            };
            if !holds {
                return Err(format!("{done:?} was acknowledged ({request}) and is lost"));
            }
        }
        Ok(())
    }
}

/// An eviction after a checkpoint needs one that was made after the order to leave was taken, lately.
fn eviction_is_due(scene: &Scene, id: &AllocationId, seq: u64) -> Result<(), String> {
    let now = scene.now_us();
    for machine in &scene.machines {
        let machine = machine.lock().expect("nobody panics with it");
        let Some(attempt) = machine.attempts.get(id) else { continue };
        let made = attempt.saves.get(seq as usize - 1).map(|save| save.at_us);
        let Some(made) = made else {
            return Err(format!("{id} is evicted after checkpoint {seq}, which it never made"));
        };
        let answered = machine.deferrals_us.get(id).map(|(_, seq)| *seq);
        if answered.is_none_or(|answered| seq <= answered) {
            return Err(format!("{id} is evicted after checkpoint {seq}, made before the order"));
        }
        if now - made > FRESH_US + REPORT_MAX_US {
            return Err(format!(
                "{id} is evicted after checkpoint {seq}, made {} s ago",
                (now - made) / 1_000_000
            ));
        }
    }
    Ok(())
}
