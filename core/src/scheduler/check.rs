//! The re-check of one line of a plan, against the state as it is when the line is applied.
//!
//! Called by the FSM for each line, on every replica. A plan was made on an earlier state: whatever
//! changed since makes its line stale, and the next plan comes soon.

use super::Approved;
use super::ask::{Ask, Source};
use super::capacity::Capacity;
use super::limits::{JobLimits, Newcomer};
use crate::command::Placement;
use crate::id::JobId;
use crate::job::JobState;
use crate::reason::WaitReason;
use crate::rejection::Rejection;
use crate::state::Fsm;
use crate::state::share::Share;
use crate::state::wish::{GpuSet, gpus_of, place_of, said, unfit};

fn stale(job: &JobId, why: impl ToString) -> Rejection {
    Rejection::PlanStale { what: job.to_string(), why: why.to_string() }
}

/// Checks one line of a plan against the state as it is now; `limits` knows what the lines before it took.
pub(crate) fn check(
    fsm: &Fsm,
    placement: &Placement,
    limits: &mut JobLimits,
) -> Result<Approved, Rejection> {
    let id = &placement.job;
    let job = fsm.job(id).ok_or_else(|| stale(id, "the job is gone"))?;
    if job.state != JobState::Queued {
        return Err(stale(id, format!("it is {}", job.state.word())));
    }
    if !fsm.is_in_queue(job) {
        return Err(stale(id, "it is not in the queue now"));
    }
    if let Some(node) = fsm.may_run_unseen(job) {
        return Err(stale(id, WaitReason::MayRunOn(node.clone()).alone()));
    }
    let node = fsm.node(&placement.node).ok_or_else(|| stale(id, "the node is gone"))?;
    let capacity = Capacity::of_node(fsm, node);
    let ask = Ask::of_job(&capacity, job);
    check_node(&capacity, &ask, placement).map_err(|why| stale(id, why))?;
    let approved = check_gpus(&capacity, &ask, placement).map_err(|why| stale(id, why))?;
    if approved.parent.is_none()
        && let Some(reason) = limits.reached(fsm, Newcomer::of_job(job))
    {
        return Err(stale(id, reason.alone()));
    }
    Ok(approved)
}

fn check_node(capacity: &Capacity<'_>, ask: &Ask<'_>, line: &Placement) -> Result<(), String> {
    let [node] = capacity.nodes.as_slice() else { return Err("the node is gone".to_owned()) };
    if let Some(why) = &node.closed {
        return Err(format!("{} is {why}", line.node));
    }
    if !ask.admits(node) {
        return Err(format!("the job does not fit {}", line.node));
    }
    let share = Share { cpu_millis: line.cpu_millis, memory_bytes: line.memory_bytes };
    if !node.division.allows(ask.spec, share) {
        return Err("its share of the node is another now".to_owned());
    }
    if !share.fits_in(node.room.of(ask.count())) {
        return Err(format!("{} has not that much CPU and memory free", line.node));
    }
    Ok(())
}

fn check_gpus(
    capacity: &Capacity<'_>,
    ask: &Ask<'_>,
    line: &Placement,
) -> Result<Approved, String> {
    let [node] = capacity.nodes.as_slice() else { return Err("the node is gone".to_owned()) };
    let mut set = 0;
    for uuid in &line.gpus {
        let Some(place) = place_of(node.node, uuid) else {
            return Err(format!("{} has no {uuid}", line.node));
        };
        set |= place;
    }
    // A GPU that is named twice makes the set smaller than the list.
    if set.count_ones() != ask.count() || line.gpus.len() != ask.count() as usize {
        return Err(format!("it wants {} GPUs, the line has {}", ask.count(), line.gpus.len()));
    }
    if set & !ask.meant(node) != 0 {
        return Err("a GPU is not one that the job asked for".to_owned());
    }
    let named = line.gpus.iter().filter_map(|uuid| capacity.fsm.gpu(uuid));
    if let Some(why) = named.filter_map(|gpu| unfit(node.node, gpu)).next() {
        return Err(why.to_string());
    }
    match &ask.source {
        Source::Shut(shut) => Err(shut.reservation.to_string()),
        Source::Pool(pool) => in_pool(capacity, *pool, set),
        Source::Anywhere if set & !node.free == 0 => on_free_gpus(capacity, ask, set),
        Source::Anywhere => own_pool(capacity, ask, set),
    }
}

fn in_pool(capacity: &Capacity<'_>, at: usize, set: GpuSet) -> Result<Approved, String> {
    let pool = &capacity.pools[at];
    if set & !pool.free != 0 {
        return Err(format!("a GPU of {} is taken", pool.reservation.id));
    }
    let parent = (set != 0).then(|| pool.lease.clone());
    Ok(Approved { parent, ends_by: Some(pool.reservation.window.ends_at) })
}

/// The GPUs are not free: then they must all be of one reservation of the owner.
fn own_pool(capacity: &Capacity<'_>, ask: &Ask<'_>, set: GpuSet) -> Result<Approved, String> {
    let ends_at = capacity.fsm.now() + ask.length;
    let own = capacity.pools.iter().position(|pool| {
        pool.reservation.owner == *ask.owner
            && (!ask.spec.time_limit_given || ends_at <= pool.reservation.window.ends_at)
            && set & !pool.free == 0
    });
    match own {
        Some(pool) => in_pool(capacity, pool, set),
        None => Err("a GPU is taken".to_owned()),
    }
}

fn on_free_gpus(capacity: &Capacity<'_>, ask: &Ask<'_>, set: GpuSet) -> Result<Approved, String> {
    let [node] = capacity.nodes.as_slice() else { return Err("the node is gone".to_owned()) };
    let mut first = None;
    for at in (0..node.gpus() as usize).filter(|at| set >> at & 1 == 1) {
        let Some(from) = node.promised(at) else { continue };
        if from < ask.until {
            let gpu = gpus_of(capacity.fsm, node.node).nth(at).map(said).unwrap_or_default();
            return Err(format!("{gpu} is promised to a reservation before the job's end"));
        }
        first = Some(first.map_or(from, |earlier: crate::time::Timestamp| earlier.min(from)));
    }
    // A start that takes long must not push the job's end into the reservation.
    Ok(Approved { parent: None, ends_by: first.map(|from| from - ask.spec.stop_grace) })
}
