//! Why a job waits, and what keeps it from each node: from the planner's verdicts to data that outlives the plan.
//!
//! Called by the planner and by `explain`. No sentence is made here: `view::text` does that, where somebody reads it.

use super::ask::{Ask, Source};
use super::foresight::Foreseen;
use super::planner::Planner;
use super::satisfiable;
use super::verdict::{KeptFor as KeptAt, Verdict, lacking, verdict};
use crate::calendar::{By, Calendar};
use crate::gpu::Gpu;
use crate::reason::{Emptying, Few, KeptFor, Obstacle, TakenBy, TakenGpus, Wait, WaitReason};
use crate::rejection::Rejection;
use crate::reservation::Reservation;
use crate::state::Fsm;
use crate::state::wish::{gpus_of, unfit};

/// Why the job waits.
pub(super) fn wait(planner: &Planner<'_>, ask: &Ask<'_>, foreseen: Option<&Foreseen>) -> Wait {
    let nodes = planner.capacity.nodes.len();
    let verdicts: Vec<(Verdict, usize)> =
        (0..nodes).map(|at| (verdict(planner, ask, at), at)).collect();
    let possible = verdicts.iter().filter(|(v, _)| !v.is_never());
    // Of equals, the node on which it is expected to start.
    let best = possible.min_by_key(|(v, at)| {
        let (class, detail) = v.rank();
        (class, foreseen.is_none_or(|f| f.node != *at), detail, *at)
    });
    let Some((best, at)) = best.copied() else {
        return WaitReason::NeverFits(never_fits(planner, ask)).alone();
    };
    let with = |which| verdicts.iter().filter(move |(v, _)| *v == which).map(|(_, at)| *at);
    let obstacle = |at: usize| obstacle(planner, ask, at, best);
    let reason = match best {
        Verdict::Excluded => Some(WaitReason::Excluded),
        Verdict::Closed => {
            Some(WaitReason::Closed(with(Verdict::Closed).filter_map(obstacle).collect()))
        }
        Verdict::Held { .. } if ask.source == Source::Anywhere => {
            let wanted = ask.wish.text();
            obstacle(at).map(|obstacle| WaitReason::Gpus { wanted, obstacle })
        }
        _ => obstacle(at).map(WaitReason::Node),
    };
    let excluded = with(Verdict::Excluded).map(|at| {
        let node = &planner.capacity.nodes[at].node.name;
        (node.clone(), excluded_because(ask, node))
    });
    // What fits is placed, so there is always an obstacle; a plan that is wrong about it says the harmless thing.
    Wait { reason: reason.unwrap_or(WaitReason::NextPlan), excluded: excluded.collect() }
}

fn never_fits(planner: &Planner<'_>, ask: &Ask<'_>) -> String {
    match satisfiable(planner.capacity.fsm, ask.owner, ask.spec) {
        Err(Rejection::NeverFits { why }) => why,
        Err(other) => other.to_string(),
        Ok(()) => "no node of the fleet has what it asks for".to_owned(),
    }
}

fn excluded_because(ask: &Ask<'_>, node: &crate::name::NodeName) -> String {
    let why = ask.excluded.and_then(|nodes| nodes.get(node));
    why.map_or_else(|| "excluded".to_owned(), Clone::clone)
}

/// What keeps the job from a node, by the verdict on it; `None` where it fits.
pub(super) fn obstacle(
    planner: &Planner<'_>,
    ask: &Ask<'_>,
    at: usize,
    verdict: Verdict,
) -> Option<Obstacle> {
    let capacity = &planner.capacity.nodes[at];
    let node = capacity.node.name.clone();
    Some(match verdict {
        Verdict::Fits => return None,
        Verdict::OwnReservation { pool, longest } => {
            let reservation = planner.capacity.pools[pool].reservation.id.clone();
            Obstacle::OwnReservation { reservation, longest }
        }
        Verdict::Shorter { longest, kept_for } => {
            Obstacle::TooLong { longest, then: kept(planner, at, kept_for) }
        }
        Verdict::Kept { kept_for } => Obstacle::Kept(kept(planner, at, kept_for)),
        Verdict::Cpu { wanted, free, of, offer } => Obstacle::Cpu { node, wanted, free, of, offer },
        Verdict::Memory { wanted, free, of } => Obstacle::Memory { node, wanted, free, of },
        Verdict::Held { .. } => Obstacle::Taken(taken(planner, ask, at)),
        Verdict::Unfit { .. } => {
            let gpus = gpus_of(planner.capacity.fsm, capacity.node);
            let meant = gpus.filter(|gpu| ask.wish.means(gpu));
            Obstacle::Unfit(meant.filter_map(|gpu| unfit(capacity.node, gpu)).collect())
        }
        Verdict::Closed => {
            let why = capacity.closed.clone()?;
            Obstacle::Closed { node, why }
        }
        Verdict::Excluded => {
            let why = excluded_because(ask, &node);
            Obstacle::Excluded { node, why }
        }
        Verdict::TooSmall => {
            let (least, room) = (ask.least(capacity), capacity.division.room());
            let most = room.of(ask.count());
            match least.cpu_millis > most.cpu_millis {
                true => {
                    let (has, wanted) = (most.cpu_millis, least.cpu_millis);
                    let of = lacking(wanted, room.all.cpu_millis);
                    Obstacle::TooFewCores { node, has, wanted, of }
                }
                false => {
                    let (has, wanted) = (most.memory_bytes, least.memory_bytes);
                    let of = lacking(wanted, room.all.memory_bytes);
                    Obstacle::TooLittleMemory { node, has, wanted, of }
                }
            }
        }
        Verdict::Lacks { has } => Obstacle::TooFewGpus { node, has, wanted: ask.count() },
        Verdict::Shut => match &ask.source {
            Source::Shut(shut) => Obstacle::Reservation(shut.reservation.clone()),
            Source::Anywhere | Source::Pool(_) => Obstacle::BoundElsewhere,
        },
        Verdict::Elsewhere => Obstacle::BoundElsewhere,
    })
}

fn kept(planner: &Planner<'_>, at: usize, kept_for: KeptAt) -> KeptFor {
    let node = &planner.capacity.nodes[at];
    if let KeptAt::Reservation { gpu: place } = kept_for
        && let Some(gpu) = gpus_of(planner.capacity.fsm, node.node).nth(place)
        && let Some(r) = promised_to(planner.capacity.fsm, gpu)
    {
        return KeptFor::Reservation { gpu: gpu.name(), owner: r.owner.clone(), id: r.id.clone() };
    }
    let job = match kept_for {
        KeptAt::Job { place } => planner.kept.get(place).and_then(|kept| kept.job.clone()),
        KeptAt::Reservation { .. } => None,
    };
    KeptFor::Job { job, node: node.node.name.clone() }
}

/// The first reservation that the GPU is promised to and that does not hold it yet.
fn promised_to<'a>(fsm: &'a Fsm, gpu: &Gpu) -> Option<&'a Reservation> {
    let open = fsm.open_reservations_on(&gpu.node);
    let promised = open.filter(|r| r.lease.is_none() && r.gpus.contains(&gpu.uuid));
    let coming = fsm.reservations_coming_to(&gpu.node);
    let coming = coming.filter(|(_, next)| next.gpus.contains(&gpu.uuid));
    let coming = coming.map(|(r, next)| (next.window.starts_at, r));
    let all = promised.map(|r| (r.window.starts_at, r)).chain(coming);
    all.min_by_key(|(starts_at, _)| *starts_at).map(|(_, r)| r)
}

/// Who has the GPUs of the node that are meant.
fn taken(planner: &Planner<'_>, ask: &Ask<'_>, at: usize) -> Few<TakenGpus> {
    let node = &planner.capacity.nodes[at];
    let (from, free) = match ask.source {
        Source::Pool(pool) => {
            let pool = &planner.capacity.pools[pool];
            (pool.all, pool.free)
        }
        Source::Anywhere | Source::Shut(_) => (node.healthy, node.free),
    };
    let taken = ask.meant(node) & from & !free;
    let mut all: Vec<TakenGpus> = Vec::new();
    let fsm = planner.capacity.fsm;
    let calendar = Calendar::of_nodes(fsm, [&node.node.name]);
    let gpus = gpus_of(fsm, node.node).enumerate();
    for (_, gpu) in gpus.filter(|(place, _)| taken >> place & 1 == 1) {
        let by = match ask.source {
            Source::Pool(_) => taken_inside(fsm, gpu),
            Source::Anywhere | Source::Shut(_) => taken_by(fsm, &calendar, gpu),
        };
        match all.iter_mut().find(|known| known.by == by) {
            Some(known) => known.gpus.push(gpu.name()),
            None => all.push(TakenGpus { gpus: vec![gpu.name()], by }),
        }
    }
    all.into_iter().collect()
}

fn taken_by(fsm: &Fsm, calendar: &Calendar<'_>, gpu: &Gpu) -> TakenBy {
    let windows = calendar.on(&gpu.uuid);
    let current = windows.iter().find(|busy| busy.window.starts_at <= fsm.now());
    let Some(busy) = current else { return TakenBy::EarlierJob };
    let owner = busy.by.owner().clone();
    match (busy.by, busy.releasing) {
        (By::Job(a), false) => TakenBy::Job { job: a.job.clone(), owner },
        (By::Reservation(r), false) if r.lease.is_some() => {
            TakenBy::Reservation { id: r.id.clone(), owner }
        }
        (By::Reservation(_), false) => TakenBy::EarlierJob,
        (By::Emptying(id, _), false) => TakenBy::NotEmpty { after: id.clone(), owner },
        (By::Job(a), true) => TakenBy::Emptying { after: Emptying::Job(a.job.clone()), owner },
        (By::Reservation(r), true) => {
            TakenBy::Emptying { after: Emptying::Reservation(r.id.clone()), owner }
        }
        (By::Emptying(id, _), true) => {
            TakenBy::Emptying { after: Emptying::Attempt(id.clone()), owner }
        }
    }
}

/// Within a reservation only its own jobs stand in the way.
fn taken_inside(fsm: &Fsm, gpu: &Gpu) -> TakenBy {
    let child = fsm.hold(&gpu.uuid).and_then(|hold| hold.child.as_ref());
    let Some(child) = child else { return TakenBy::EarlierJob };
    match fsm.allocations_on(&gpu.node).find(|a| a.lease.as_ref() == Some(child)) {
        Some(a) => TakenBy::Job { job: a.job.clone(), owner: a.owner.clone() },
        None => TakenBy::BeingEmptied,
    }
}
