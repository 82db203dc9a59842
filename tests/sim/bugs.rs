//! Known bugs, to be found: each takes away one thing the design relies on.
//!
//! A simulation that finds nothing proves something only if it would find these. They live in the
//! simulation's own wrappers (around the disk, the state machine, the agent's fences and the clients' reads)
//! and nowhere in the product.

use std::borrow::Cow;
use std::sync::Arc;

use fleet_controller::raft::Apply;
use fleet_core::class::Class;
use fleet_core::command::{
    Command, Envelope, GpuCommand, JobCommand, NodeCommand, ReservationCommand,
};
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::lease::{Lease, LeaseHolder};
use fleet_core::name::{ClassName, UserName};
use fleet_core::node::Liveness;
use fleet_core::offer::OfferEvent;
use fleet_core::reply::Reply;
use fleet_core::time::Millis;
use fleet_core::{Actor, AuthMethod, Fsm, Who, scheduler};

use crate::held;
use crate::scene::Scene;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A vote is answered before it is on the disk.
    VoteNotSynced,
    /// An entry is acknowledged before it is on the disk.
    LogNotSynced,
    /// After a restart an entry is applied although it was applied before.
    AppliedTwice,
    /// The node takes an order under a lower epoch than it has seen.
    EpochCheckOff,
    /// The node follows documents that are older than the newest it has seen.
    FenceOff,
    /// A node that is not heard of has its GPUs given to others.
    SilenceFreesGpus,
    /// A controller answers reads from what it knows, without asking whether it still leads.
    StaleReads,
    /// An attempt that a document does not mention is stopped.
    AbsenceStops,
    /// A checkpoint from before the order to leave is counted again, as one that came after it.
    StaleCheckpointTriggers,
    /// A checkpoint that was cut counts as whole.
    TornCounts,
    /// A GPU that gets free goes to the queue, also if it is held for somebody.
    QueueFirst,
    /// A request that is sent again is carried out again.
    RequestsForgotten,
    /// The release is reported before the GPU is empty.
    ReleasedBeforeEmpty,
    /// Fleet time is whatever the leader's wall clock says.
    WallClockBelieved,
    /// A reservation that moves has its new place at once, and nobody counts the one that its node may still open.
    OldStartForgotten,
    /// Work of a lower class leaves as soon as it has saved, whatever its class guarantees.
    GuaranteeForgotten,
    /// The calendar's index does not hear that a reservation was released.
    ReleaseNotIndexed,
    /// The waiting list serves the second one first.
    SecondServedFirst,
    /// A reservation that moves loses those who share it.
    HoldersForgotten,
    /// What is approved takes the GPUs of a reservation, of which nothing is left.
    ApprovedOverOthers,
    /// Who declined an offer may be asked again at once.
    PauseForgotten,
}

/// One of them: the name to ask for it by, and a seed that finds it.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) bug: Bug,
    pub(crate) seed: u64,
    /// It is looked for in weeks.
    pub(crate) week: bool,
}

const fn known(name: &'static str, bug: Bug, seed: u64) -> Known {
    Known { name, bug, seed, week: false }
}

const fn in_weeks(name: &'static str, bug: Bug, seed: u64) -> Known {
    Known { name, bug, seed, week: true }
}

/// All of them.
pub(crate) const ALL: &[Known] = &[
    known("vote-not-synced", Bug::VoteNotSynced, 5),
    known("log-not-synced", Bug::LogNotSynced, 5),
    known("applied-twice", Bug::AppliedTwice, 5),
    known("epoch-check-off", Bug::EpochCheckOff, 18),
    known("fence-off", Bug::FenceOff, 2),
    known("silence-frees-gpus", Bug::SilenceFreesGpus, 12),
    known("stale-reads", Bug::StaleReads, 4),
    known("absence-stops", Bug::AbsenceStops, 2),
    known("stale-checkpoint-triggers", Bug::StaleCheckpointTriggers, 29),
    known("torn-counts", Bug::TornCounts, 33),
    known("queue-first", Bug::QueueFirst, 4),
    known("requests-forgotten", Bug::RequestsForgotten, 2),
    known("released-before-empty", Bug::ReleasedBeforeEmpty, 1),
    known("wall-clock-believed", Bug::WallClockBelieved, 23),
    known("old-start-forgotten", Bug::OldStartForgotten, 11),
    known("guarantee-forgotten", Bug::GuaranteeForgotten, 29),
    known("release-not-indexed", Bug::ReleaseNotIndexed, 3),
    in_weeks("second-served-first", Bug::SecondServedFirst, 1),
    in_weeks("holders-forgotten", Bug::HoldersForgotten, 2),
    in_weeks("approved-over-others", Bug::ApprovedOverOthers, 2),
    in_weeks("pause-forgotten", Bug::PauseForgotten, 2),
];

pub(crate) fn named(name: &str) -> Option<Bug> {
    ALL.iter().find(|known| known.name == name).map(|known| known.bug)
}

impl Bug {
    /// What must stand in unsynced bytes for a sync of them to be left out.
    pub(crate) fn never_sync(self) -> Option<&'static str> {
        match self {
            Bug::VoteNotSynced => Some("{\"vote\":"),
            Bug::LogNotSynced => Some("{\"entry\":"),
            _ => None,
        }
    }
}

/// How `controller` applies entries: as the product does, watched, and with the bug if there is one.
pub(crate) fn apply(scene: &Arc<Scene>, controller: u64) -> Apply {
    let scene = Arc::clone(scene);
    let restarted_at = scene.oracle().newest_index();
    let mut_first = std::sync::Mutex::new(restarted_at > 0);
    Apply::with(move |fsm: &mut Fsm, index: u64, envelope: &Envelope| {
        let before = held::anybody_leaves(fsm).then(|| fsm.clone());
        let outcome = match scene.bug {
            Some(bug) => with_bug(bug, fsm, index, envelope, &mut_first),
            None => fsm.apply(index, envelope),
        };
        scene.applied(controller, (index, envelope), &outcome, (before.as_ref(), fsm));
        outcome
    })
}

fn with_bug(
    bug: Bug,
    fsm: &mut Fsm,
    index: u64,
    envelope: &Envelope,
    first_after_restart: &std::sync::Mutex<bool>,
) -> Outcome {
    let mut changed = envelope.clone();
    match (bug, &mut changed.command) {
        (Bug::RequestsForgotten, _) => changed.request = None,
        (
            Bug::AppliedTwice,
            Command::Node(NodeCommand::Report { .. }) | Command::Job(JobCommand::Submit(_)),
        ) => {
            let mut first = first_after_restart.lock().expect("nobody panics with it");
            if std::mem::take(&mut *first) {
                drop(fsm.apply(index, envelope));
            }
        }
        (Bug::SilenceFreesGpus, Command::Node(NodeCommand::SetLiveness { node, liveness, .. }))
            if *liveness != Liveness::Ready =>
        {
            // One GPU for each time the leader notices the silence.
            let runs_there = |lease: &&Lease| {
                lease.node == *node && matches!(lease.holder, LeaseHolder::Allocation(_))
            };
            let lease = fsm.leases().values().find(runs_there);
            if let Some(gpu) = lease.and_then(|lease| lease.gpus.first()).cloned() {
                let reason = "it was silent for too long".to_owned();
                changed.actor = root();
                changed.command = Command::Gpu(GpuCommand::DeclareFree { gpu, reason });
            }
        }
        _ => {}
    }
    if bug == Bug::ApprovedOverOthers
        && let Some((over, outcome)) = approved_over_others(fsm, index, &changed)
    {
        *fsm = over;
        return outcome;
    }
    let before = match (bug, &changed.command) {
        (Bug::ReleaseNotIndexed, Command::Reservation(ReservationCommand::Release { .. })) => {
            Some(fsm.clone())
        }
        _ => None,
    };
    let swapped = match bug {
        Bug::SecondServedFirst => swap_who_is_served(fsm, index, &changed),
        _ => None,
    };
    let outcome = fsm.apply(index, &changed);
    if let Some(back) = swapped.and_then(|two| with_swapped(fsm, two)) {
        *fsm = back;
    }
    if let Some(before) = before {
        fsm.plant_derived_of(&before);
    }
    match bug {
        Bug::QueueFirst => queue_first(fsm, index, envelope, outcome),
        Bug::GuaranteeForgotten => hasty(fsm, index, envelope, outcome),
        Bug::HoldersForgotten => {
            if let Some(alone) = without_holders(fsm, &outcome) {
                *fsm = alone;
            }
            outcome
        }
        Bug::PauseForgotten => {
            if let Some(hasty) = without_pauses(fsm, &outcome) {
                *fsm = hasty;
            }
            outcome
        }
        Bug::OldStartForgotten => {
            if matches!(envelope.command, Command::Reservation(ReservationCommand::Edit { .. }))
                && let Some(moved) = moved_at_once(fsm)
            {
                *fsm = moved;
            }
            outcome
        }
        _ => outcome,
    }
}

/// Has the next one on the waiting list tried in the place of the one that this entry would serve.
fn swap_who_is_served(fsm: &mut Fsm, index: u64, envelope: &Envelope) -> Option<(u64, u64)> {
    let waits = fsm.waitlist().without_place().nth(1).is_some();
    let outcome = waits.then(|| fsm.clone().apply(index, envelope))?;
    let served = outcome.events.iter().find_map(|event| match event {
        Event::ReservationCreated { reservation, .. } => fsm.waitlist().waits(reservation),
        _ => None,
    })?;
    let waiting = fsm.waitlist().all().filter(|(_, waiter)| waiter.placed.is_none());
    let mut from = waiting.skip_while(|(_, waiter)| waiter.wish.id != served.wish.id);
    let two = (from.next()?.0, from.next()?.0);
    drop(from);
    *fsm = with_swapped(fsm, two)?;
    Some(two)
}

/// The same state, in which these two on the waiting list have each other's turn, as far as they are on it.
fn with_swapped(fsm: &Fsm, (one, other): (u64, u64)) -> Option<Fsm> {
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    let waiters = document.pointer_mut("/fsm/waitlist/waiters")?.as_object_mut()?;
    let (first, second) = (waiters.remove(&one.to_string()), waiters.remove(&other.to_string()));
    waiters.extend(first.map(|waiter| (other.to_string(), waiter)));
    waiters.extend(second.map(|waiter| (one.to_string(), waiter)));
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

/// The same state, in which what has moved just now is shared with nobody.
fn without_holders(fsm: &Fsm, outcome: &Outcome) -> Option<Fsm> {
    let moved = outcome.events.iter().find_map(|event| match event {
        Event::ReservationMoved { reservation, waits_for: None, .. }
        | Event::ReservationEditDone { reservation, .. } => Some(reservation),
        _ => None,
    })?;
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    let all = document.pointer_mut("/fsm/reservations")?.as_object_mut()?;
    all.get_mut(moved.as_str())?.as_object_mut()?.remove("with")?;
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

/// The same state, in which nobody has declined an offer.
fn without_pauses(fsm: &Fsm, outcome: &Outcome) -> Option<Fsm> {
    let declined = |event: &Event| matches!(event, Event::Offer(offer) if matches!(**offer, OfferEvent::Declined { .. }));
    outcome.events.iter().any(declined).then_some(())?;
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    for waiter in document.pointer_mut("/fsm/waitlist/waiters")?.as_object_mut()?.values_mut() {
        if let Some(terms) = waiter.get_mut("offer").and_then(serde_json::Value::as_object_mut) {
            terms.remove("ended_at");
        }
    }
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

/// What is approved and would have to wait takes the place of a reservation, whose owner is not told.
fn approved_over_others(fsm: &Fsm, index: u64, envelope: &Envelope) -> Option<(Fsm, Outcome)> {
    let Command::Reservation(ReservationCommand::Approve { .. }) = &envelope.command else {
        return None;
    };
    let waits = fsm.clone().apply(index, envelope).reply;
    matches!(waits, Ok(Reply::ReservationWaits { .. })).then_some(())?;
    fsm.reservations().filter(|one| one.is_open()).find_map(|one| {
        let mut over = without_reservation(fsm, one.id.as_str())?;
        let outcome = over.apply(index, envelope);
        matches!(outcome.reply, Ok(Reply::ReservationCreated { .. })).then_some((over, outcome))
    })
}

/// The same state without that reservation.
fn without_reservation(fsm: &Fsm, id: &str) -> Option<Fsm> {
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    document.pointer_mut("/fsm/reservations")?.as_object_mut()?.remove(id)?;
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

/// Starts what a plan would that knows of no held places.
fn queue_first(fsm: &mut Fsm, index: u64, envelope: &Envelope, mut outcome: Outcome) -> Outcome {
    if !held::anybody_leaves(fsm) {
        return outcome;
    }
    let placements = forgetful(fsm).map(|fsm| scheduler::placements(&fsm)).unwrap_or_default();
    if !placements.is_empty() {
        let command = Command::Job(JobCommand::Place { placements });
        let plan =
            Envelope { actor: Actor::controller(), request: None, command, ..envelope.clone() };
        outcome.events.extend(fsm.apply(index, &plan).events);
    }
    outcome
}

/// Orders what a plan would that knows of no guarantee.
fn hasty(fsm: &mut Fsm, index: u64, envelope: &Envelope, mut outcome: Outcome) -> Outcome {
    let low = ClassName::parse("scavenger").expect("a legal name");
    let class = fsm.class(&low).map(Cow::into_owned);
    let class = class.filter(|class| class.min_run > Millis::ZERO);
    let runs = fsm.jobs_of_class(&low).any(|job| job.allocation().is_some());
    let (Some(class), true) = (class, runs && fsm.queue().next().is_some()) else {
        return outcome;
    };
    let without = Class { min_run: Millis::ZERO, ..class.clone() };
    let Some(mut hasty) = with_class(fsm, &low, &without) else { return outcome };
    if let Some(order) = scheduler::next(&hasty).preempt {
        let command = Command::Job(JobCommand::Preempt(order));
        let plan =
            Envelope { actor: Actor::controller(), request: None, command, ..envelope.clone() };
        outcome.events.extend(hasty.apply(index, &plan).events);
        if let Some(changed) = with_class(&hasty, &low, &class) {
            *fsm = changed;
        }
    }
    outcome
}

/// The same state, with that class as it is said.
fn with_class(fsm: &Fsm, name: &ClassName, class: &Class) -> Option<Fsm> {
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    let classes = document.pointer_mut("/fsm/classes")?.as_object_mut()?;
    classes.insert(name.to_string(), serde_json::to_value(class).ok()?);
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

/// The same state, in which each reservation that waits to move has moved, and its node gets that as its newest order.
fn moved_at_once(fsm: &Fsm) -> Option<Fsm> {
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    for reservation in document.pointer_mut("/fsm/reservations")?.as_object_mut()?.values_mut() {
        let reservation = reservation.as_object_mut()?;
        let Some(serde_json::Value::Object(next)) = reservation.remove("next") else { continue };
        reservation.extend(next);
        let given = reservation.get_mut("handed_out")?.as_object_mut()?;
        given.insert("withdrawn".to_owned(), serde_json::Value::Null);
    }
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

/// The same state with the word that jobs must leave taken out of it, so that nothing is held for them.
fn forgetful(fsm: &Fsm) -> Option<Fsm> {
    let mut document: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).ok()?;
    let allocations = document.pointer_mut("/fsm/allocations")?.as_object_mut()?;
    for allocation in allocations.values_mut() {
        allocation.as_object_mut()?.insert("deferral".to_owned(), serde_json::Value::Null);
    }
    Fsm::from_snapshot(&serde_json::to_vec(&document).ok()?).ok()
}

fn root() -> Actor {
    let name = UserName::parse("root").expect("a legal name");
    Actor {
        who: Who::User { name, admin: true, groups: Default::default() },
        method: AuthMethod::Internal,
        serial: None,
    }
}
