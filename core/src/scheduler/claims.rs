//! Places that are held for running jobs that must leave theirs, so that a busy fleet drains.
//!
//! A job that must leave goes at its next checkpoint, and needs a place then. On a full fleet a freed GPU would always go
//! to the queue first. So each plan holds one place for each such job, behind interrupted work and before all new work:
//! the first that gets free, from the time on at which the job is expected to save. Nothing is stored: the claim follows
//! from the state and its time, so it is the same on every member and after every election.

use super::ask::Ask;
use super::planner::Planner;
use crate::allocation::{Allocation, CauseKey, StopWhy};
use crate::calendar::HeldPlace;
use crate::calendar::{RELEASE_ALLOWANCE, known_end};
use crate::job::Job;
use crate::state::Fsm;
use crate::state::wish::uuids_of;
use crate::time::{Millis, Timestamp, Window};

/// Most places that are held at once.
pub(crate) const CLAIMS_MAX: usize = 64;
/// Shortest time for which a place is held around an expected checkpoint; and how long, once, where no gap is known.
pub(crate) const HOLD_MIN: Millis = Millis::minutes(15);
/// Longest time for which a place is held for one job since it saved last, over all checkpoints that are expected.
pub(crate) const HOLD_MAX: Millis = Millis::hours(4);
/// A save is expected no later than the longest gap and this part of it, in percent, but at least [`SLACK_MIN`].
const SLACK_PERCENT: u64 = 10;
const SLACK_MIN: Millis = Millis::minutes(2);
/// After this many expected checkpoints that did not come, nothing is held until one is seen.
const EXPECTED_MAX: u64 = 2;

/// When a place is held for the job, if it is: from the earliest time at which its next checkpoint is expected, to the
/// latest.
pub(crate) fn hold(
    job: &Job,
    leaving_since: Timestamp,
    now: Timestamp,
) -> Option<(Timestamp, Timestamp)> {
    let gaps = job.gaps();
    let last = job.newest_saved().map(|last| last.completed_at);
    let (Some(last), Some(shortest), Some(longest)) = (last, gaps.iter().min(), gaps.iter().max())
    else {
        let until = leaving_since + HOLD_MIN;
        return (now <= until).then_some((leaving_since, until));
    };
    let mut left = HOLD_MAX;
    (1..=EXPECTED_MAX).find_map(|nth| {
        let (earliest, latest) = nth_save(last, (*shortest, *longest), nth);
        let latest = latest.max(earliest + HOLD_MIN).min(earliest + left);
        left = left.saturating_sub(latest.since(earliest));
        (now <= latest && earliest < latest).then_some((earliest, latest))
    })
}

/// When its `nth` save from now on is expected, at the earliest and at the latest.
fn nth_save(
    last: Timestamp,
    (shortest, longest): (Millis, Millis),
    nth: u64,
) -> (Timestamp, Timestamp) {
    let slack = Millis(longest.0.saturating_mul(SLACK_PERCENT) / 100).max(SLACK_MIN);
    let earliest = last + Millis(shortest.0.saturating_mul(nth));
    (earliest, last + Millis(longest.0.saturating_mul(nth)) + slack)
}

/// When it is expected to save next, at the earliest and at the latest; `None` where no gap is known, or where saves that
/// were expected did not come.
pub(crate) fn next_save(job: &Job, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let gaps = job.gaps();
    let (shortest, longest) = (*gaps.iter().min()?, *gaps.iter().max()?);
    let last = job.newest_saved()?.completed_at;
    let mut all = (1..=EXPECTED_MAX).map(|nth| nth_save(last, (shortest, longest), nth));
    all.find(|(_, latest)| now <= *latest)
}

/// Evicted, and not ended yet: its place is held through the grace.
fn is_on_its_way(allocation: &Allocation) -> bool {
    let why = allocation.stop.as_ref().map(|stop| &stop.why);
    matches!(why, Some(StopWhy::Evicted { .. }))
}

/// It is being stopped for others by its class; why they are no reason any more does not matter then.
fn was_preempted(allocation: &Allocation) -> bool {
    let why = allocation.stop.as_ref().map(|stop| &stop.why);
    matches!(why, Some(StopWhy::Evicted { by_class: true, .. }))
}

/// Whether it would start elsewhere, so that a place is worth holding. One that is on its way is queued again before all
/// new work, also without a checkpoint: without a place of its own it would take another one's.
fn wants_a_place(fsm: &Fsm, allocation: &Allocation, job: &Job) -> bool {
    allocation.deferral.is_some()
        && allocation.stop.as_ref().is_none_or(|_| is_on_its_way(allocation))
        && (job.spec.checkpoint.is_some() || is_on_its_way(allocation))
        && job.spec.reservation.is_none()
        && !job.cancel_requested
        && !allocation.causes.contains_key(&CauseKey::Owner)
        // It is queued again in its own class, behind the job that it leaves for.
        && !allocation.is_preempted()
        && !was_preempted(allocation)
        && (fsm.evictions_frozen().is_none() || allocation.must_leave_by_decision())
}

/// A running job for which a place is held, and when.
struct Leaving<'a> {
    job: &'a Job,
    allocation: &'a Allocation,
    window: Window,
}

/// The jobs for which places are held now, by submission.
fn leaving(fsm: &Fsm) -> Vec<Leaving<'_>> {
    let now = fsm.now();
    let mut leaving: Vec<Leaving<'_>> = fsm
        .deferring()
        .filter_map(|allocation| {
            let job = fsm.job(&allocation.job).filter(|job| wants_a_place(fsm, allocation, job))?;
            let (starts_at, ends_at) = match is_on_its_way(allocation) {
                true => (now, now.max(known_end(fsm, allocation)) + RELEASE_ALLOWANCE),
                false => hold(job, allocation.deferral.as_ref()?.since, now)?,
            };
            Some(Leaving { job, allocation, window: Window { starts_at, ends_at } })
        })
        .collect();
    leaving.sort_by_key(|leaving| leaving.job.queue.submitted);
    leaving.truncate(CLAIMS_MAX);
    leaving
}

/// Holds their places in a plan. What gets free only after its hold is over is not said to be held.
pub(super) fn hold_places<'a>(planner: &mut Planner<'a>, fsm: &'a Fsm) -> Vec<HeldPlace> {
    let mut places = Vec::new();
    for Leaving { job, allocation, window } in leaving(fsm) {
        let ask = Ask::of_job(&planner.capacity, job);
        let Some(held) = planner.claim(&ask, window.starts_at).cloned() else { continue };
        let node = planner.capacity.nodes[held.node].node;
        let window = Window { starts_at: held.starts_at, ..window };
        if window.starts_at < window.ends_at {
            let (allocation, gpus) = (allocation.id.clone(), uuids_of(node, held.gpus));
            places.push(HeldPlace { allocation, node: node.name.clone(), gpus, window });
        }
    }
    places
}

/// The interrupted jobs that a plan serves, in their order: before everything else.
pub(super) fn interrupted(fsm: &Fsm) -> impl Iterator<Item = &Job> {
    let first = fsm.queue().take_while(|job| job.queue.rank == 0);
    first.filter(|job| fsm.may_run_unseen(job).is_none())
}

/// The places that are held and that a new promise in the window would take.
pub(crate) fn held_within(fsm: &Fsm, window: &Window) -> Vec<HeldPlace> {
    // Called for every new reservation, so it reads the whole queue only where that matters.
    let matters = leaving(fsm).iter().any(|l| l.window.overlaps(window));
    if !matters {
        return Vec::new();
    }
    let mut planner = super::before_holds(fsm);
    let mut places = hold_places(&mut planner, fsm);
    places.retain(|place| place.window.overlaps(window));
    places
}

/// Holds the places of those who still run and come before `job`: it must not take one by saving earlier than they do.
pub(super) fn hold_places_before<'a>(planner: &mut Planner<'a>, fsm: &'a Fsm, job: &Job) {
    let before = |leaver: &Leaving<'_>| {
        leaver.job.queue.submitted < job.queue.submitted && leaver.allocation.stop.is_none()
    };
    for leaver in leaving(fsm).into_iter().filter(before) {
        let ask = Ask::of_job(&planner.capacity, leaver.job);
        planner.claim(&ask, leaver.window.starts_at);
    }
}

/// The next instants at which time alone begins or ends a hold.
pub(crate) fn edges(fsm: &Fsm, allocation: &Allocation) -> impl Iterator<Item = Timestamp> {
    let now = fsm.now();
    let waits = allocation.deferral.as_ref().filter(|_| allocation.stop.is_none());
    let held = waits.and_then(|deferral| {
        let job = fsm.job(&allocation.job).filter(|job| wants_a_place(fsm, allocation, job))?;
        hold(job, deferral.since, now)
    });
    // A plan is made when the time is reached, so the end is the first instant without the hold.
    let edges = held.map(|(from, until)| [from, until + Millis(1)]);
    edges.into_iter().flatten().filter(move |at| *at > now)
}
