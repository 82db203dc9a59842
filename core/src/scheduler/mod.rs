//! The scheduler: a pure plan over the state. The FSM checks each line again when it is applied.
//!
//! The leader loop proposes what [`placements`] says; the FSM calls [`check()`], [`elsewhere`],
//! [`satisfiable`] and [`could_start_now`]; the API calls [`plan`] and [`explain`]. Nothing here changes
//! state.
//!
//! How jobs are served: in queue order; packed onto the fullest node that fits, the closest GPUs
//! first; never on a GPU that is promised to a reservation before the job's end; and behind the
//! first job that waits only what does not delay it (EASY backfill).

use std::collections::BTreeMap;

use crate::allocation::StopWhy;
use crate::calendar::HeldPlace;
use crate::command::Placement;
use crate::id::{AllocationId, JobId, LeaseId};
use crate::job::{Job, JobSpec};
use crate::name::{NodeName, UserName};
use crate::reason::{Obstacle, Wait, WaitReason};
use crate::rejection::Rejection;
use crate::reservation::{GpuRequest, Reservation};
use crate::state::Fsm;
use crate::state::wish::{Wish, bytes, cores};
use crate::time::Timestamp;

mod ask;
mod capacity;
mod check;
pub(crate) mod claims;
mod foresight;
mod planner;
mod reasons;
mod shares;
#[cfg(test)]
pub(crate) mod tests;
mod verdict;

use crate::state::share::Share;
use ask::Ask;
use capacity::Capacity;
use planner::{Planner, Served};
use shares::Division;

pub use check::check;
pub use foresight::INSTANTS_MAX;
pub use planner::{FORESEEN_JOBS_MAX, PLACEMENTS_MAX};
pub use shares::CPU_MILLIS_WITHOUT_GPU;
pub use verdict::OFFER_MIN;

/// Most interrupted jobs whose next places `elsewhere` leaves aside for them.
pub const AHEAD_MAX: usize = 1_000;

/// Why a queued job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Place in the queue, from 1.
    pub place: u32,
    pub reason: Wait,
    /// When it could start by what is known now.
    pub earliest: Option<Timestamp>,
}

/// What to start now, and why the rest waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub placements: Vec<Placement>,
    pub waiting: BTreeMap<JobId, Waiting>,
    /// Places that are held for running jobs that must leave theirs.
    pub held: BTreeMap<JobId, HeldPlace>,
}

/// What the FSM needs to know of a placement that it found good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approved {
    /// The reservation's lease the GPUs are taken from.
    pub parent: Option<LeaseId>,
    /// The attempt is stopped by then, whatever its time limit says.
    pub ends_by: Option<Timestamp>,
}

/// How one node stands to a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeVerdict {
    pub node: NodeName,
    /// What keeps the job from it; `None` where it starts there.
    pub obstacle: Option<Obstacle>,
}

/// Everything that is known about why a job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Place in the queue, from 1.
    pub place: u32,
    /// One line a node, in name order.
    pub verdicts: Vec<NodeVerdict>,
    /// Why it waits; `None` where it starts in this round.
    pub reason: Option<Wait>,
    /// When it could start by what is known now.
    pub earliest: Option<Timestamp>,
}

/// The places for jobs that must leave, held once in a plan: behind interrupted jobs and before all new work.
#[derive(Default)]
struct HeldPlaces {
    are_held: bool,
    places: Vec<HeldPlace>,
}

impl HeldPlaces {
    fn before<'a>(&mut self, planner: &mut Planner<'a>, fsm: &'a Fsm, job: &Job) {
        if job.queue.class > 0 {
            self.at_last(planner, fsm);
        }
    }

    /// Also where no new work waits.
    fn at_last<'a>(&mut self, planner: &mut Planner<'a>, fsm: &'a Fsm) {
        if !std::mem::replace(&mut self.are_held, true) {
            self.places = claims::hold_places(planner, fsm);
        }
    }
}

/// What is to start now, in queue order: the placements of [`plan`], without a word about the jobs that
/// wait. It is asked for after every change, and looks no further than it must.
pub fn placements(fsm: &Fsm) -> Vec<Placement> {
    let mut planner = Planner::new(Capacity::of(fsm));
    let mut placements = Vec::new();
    let mut spent = planner.is_spent();
    let mut holds = HeldPlaces::default();
    for job in fsm.queue() {
        if spent {
            break;
        }
        holds.before(&mut planner, fsm, job);
        if fsm.may_run_unseen(job).is_some() {
            continue;
        }
        let ask = Ask::of_job(&planner.capacity, job);
        if let Some(fit) = planner.start(&ask) {
            placements.push(planner.placement(&job.id, &fit));
            spent = planner.is_spent();
        }
    }
    placements
}

/// Plans the whole queue at the state's own time.
pub fn plan(fsm: &Fsm) -> Plan {
    let mut planner = Planner::new(Capacity::of(fsm));
    let mut plan = Plan::default();
    let mut holds = HeldPlaces::default();
    for (place, job) in (1..).zip(fsm.queue()) {
        holds.before(&mut planner, fsm, job);
        if let Some(node) = fsm.may_run_unseen(job) {
            let reason = WaitReason::MayRunOn(node.clone()).alone();
            plan.waiting.insert(job.id.clone(), Waiting { place, reason, earliest: None });
            continue;
        }
        let ask = Ask::of_job(&planner.capacity, job);
        match planner.serve(&ask) {
            Served::Placed(fit) => plan.placements.push(planner.placement(&job.id, &fit)),
            Served::Waits { reason, earliest } => {
                plan.waiting.insert(job.id.clone(), Waiting { place, reason, earliest });
            }
        }
    }
    holds.at_last(&mut planner, fsm);
    let of_job = |held: HeldPlace| (held.allocation.job().clone(), held);
    plan.held = holds.places.into_iter().map(of_job).collect();
    plan
}

/// Why a queued job waits, node by node; nothing for a job that is not queued.
pub fn explain(fsm: &Fsm, id: &JobId) -> Option<Explanation> {
    let mut planner = Planner::new(Capacity::of(fsm));
    let mut holds = HeldPlaces::default();
    for (place, job) in (1..).zip(fsm.queue()) {
        holds.before(&mut planner, fsm, job);
        let unseen = fsm.may_run_unseen(job);
        let ask = Ask::of_job(&planner.capacity, job);
        if job.id != *id {
            if unseen.is_none() {
                planner.serve(&ask);
            }
            continue;
        }
        let verdicts = (0..planner.capacity.nodes.len()).map(|at| {
            let verdict = verdict::verdict(&planner, &ask, at);
            NodeVerdict {
                node: planner.capacity.nodes[at].node.name.clone(),
                obstacle: reasons::obstacle(&planner, &ask, at, verdict),
            }
        });
        let verdicts = verdicts.collect();
        if let Some(node) = unseen {
            let reason = Some(WaitReason::MayRunOn(node.clone()).alone());
            return Some(Explanation { place, verdicts, reason, earliest: None });
        }
        let (reason, earliest) = match planner.serve_in_full(&ask) {
            Served::Placed(_) => (None, Some(fsm.now())),
            Served::Waits { reason, earliest } => (Some(reason), earliest),
        };
        return Some(Explanation { place, verdicts, reason, earliest });
    }
    None
}

/// Where the job of `allocation` could resume right now if it left its place. A job that lost its place comes before a job that has one:
/// what other interrupted jobs will take does not count, nor the place that is kept for the first of them that waits, nor
/// those held for jobs that must leave and came before it.
pub fn elsewhere(fsm: &Fsm, allocation: &AllocationId) -> Option<NodeName> {
    let leaving = fsm.allocation(allocation)?;
    let mut capacity = Capacity::of(fsm);
    capacity.lift(leaving);
    let mut planner = Planner::new(capacity);
    // All attempts: it is asked when a job that must leave saved a checkpoint, and plans for the whole fleet anyway.
    let evicted = fsm.allocations().values().filter(|a| {
        a.id != *allocation
            && a.stop.as_ref().is_some_and(|stop| matches!(stop.why, StopWhy::Evicted { .. }))
    });
    let evicted = evicted.filter_map(|a| fsm.job(&a.job));
    // The queue serves interrupted work first, so it comes before everything else.
    let queued = claims::interrupted(fsm);
    let mut ahead: Vec<&Job> = evicted.chain(queued).take(AHEAD_MAX).collect();
    ahead.sort_by_key(|job| job.queue.submitted);
    for job in ahead {
        let ask = Ask::of_job(&planner.capacity, job);
        planner.start(&ask);
    }
    let job = fsm.job(&leaving.job)?;
    claims::hold_places_before(&mut planner, fsm, job);
    let ask = Ask::of_job(&planner.capacity, job);
    let fit = planner.find(&ask)?;
    Some(planner.capacity.nodes[fit.node].node.name.clone())
}

/// Jobs run in reservations of their owner alone. A user that a reservation is shared with comes in by ssh.
pub(crate) fn may_run_in(reservation: &Reservation, owner: &UserName) -> Result<(), Rejection> {
    let (id, holder) = (&reservation.id, &reservation.owner);
    if holder == owner {
        return Ok(());
    }
    let shared = reservation.with.contains(owner);
    let note = if shared { " (--with gives access by ssh alone)" } else { "" };
    Err(Rejection::Denied { needs: format!("{holder}, who owns {id}{note},") })
}

/// Whether the fleet as it is built could ever run the job.
pub fn satisfiable(fsm: &Fsm, owner: &UserName, spec: &JobSpec) -> Result<(), Rejection> {
    let wish = Wish::new(&spec.gpus);
    wish.is_built(fsm)?;
    let within = match &spec.reservation {
        None => None,
        Some(id) => {
            let reservation =
                fsm.reservation(id).ok_or_else(|| Rejection::not_found("reservation", id))?;
            may_run_in(reservation, owner)?;
            let has = reservation.gpus.iter().filter_map(|uuid| fsm.gpu(uuid));
            let has = has.filter(|gpu| wish.means(gpu)).count();
            if has < spec.gpus.count as usize {
                let why = format!("reservation {id} has {has} of the {}", wish.text_of_gpus());
                return Err(Rejection::NeverFits { why });
            }
            Some(reservation)
        }
    };
    let on = |name: &NodeName| {
        spec.gpus.node.as_ref().is_none_or(|wanted| wanted == name)
            && within.is_none_or(|reservation| reservation.node == *name)
    };
    let nodes = || fsm.nodes().values().filter(|node| on(&node.name));
    let has_gpus = |node: &&crate::node::Node| {
        let meant = node.gpus.iter().filter_map(|uuid| fsm.gpu(uuid)).filter(|g| wish.means(g));
        meant.count() >= spec.gpus.count as usize
    };
    let (mut most, mut built) = (Share::default(), Share::default());
    for node in nodes().filter(has_gpus) {
        let division = Division::of(fsm, node);
        let (least, room) = (division.least(spec), division.room());
        if least.fits_in(room.of(spec.gpus.count)) {
            return Ok(());
        }
        (most, built) = (most.max(room.of(spec.gpus.count)), built.max(room.all));
    }
    Err(Rejection::NeverFits { why: too_small(spec, most, built) })
}

/// No node gives a job of its kind that much: the most that one gives, and what stays for GPUs if that is why.
fn too_small(spec: &JobSpec, most: Share, built: Share) -> String {
    let plural = if most.cpu_millis == 1_000 { "" } else { "s" };
    let (cores, memory) = (cores(most.cpu_millis), bytes(most.memory_bytes));
    if most != built {
        return format!(
            "no node has that much CPU and memory for jobs without GPUs: at most {cores} core{plural} and {memory}. \
             The rest stays for the node's GPUs. Ask for a GPU (-G 1) or for less (-c, --memory). \
             An admin can change the part: `fleet job defaults`"
        );
    }
    let such = if spec.gpus.count > 0 { " with such GPUs" } else { "" };
    format!("no node{such} has that much CPU and memory: at most {cores} core{plural} and {memory}")
}

/// Whether that node, as it is built, could ever run the job.
pub fn satisfiable_on(fsm: &Fsm, owner: &UserName, spec: &JobSpec, node: &NodeName) -> bool {
    let meant = spec.gpus.node.as_ref().is_none_or(|wanted| wanted == node);
    let gpus = GpuRequest { node: Some(node.clone()), ..spec.gpus.clone() };
    let there = JobSpec { gpus, ..spec.clone() };
    meant && satisfiable(fsm, owner, &there).is_ok()
}

/// Whether the job would start at once if it were submitted now; else why not.
pub fn could_start_now(fsm: &Fsm, owner: &UserName, spec: &JobSpec) -> Result<(), Rejection> {
    let mut planner = Planner::new(Capacity::of(fsm));
    let mut holds = HeldPlaces::default();
    for job in fsm.queue() {
        holds.before(&mut planner, fsm, job);
        if fsm.may_run_unseen(job).is_none() {
            let ask = Ask::of_job(&planner.capacity, job);
            planner.serve(&ask);
        }
    }
    holds.at_last(&mut planner, fsm);
    let ask = Ask::new(&planner.capacity, owner, spec);
    match planner.serve(&ask) {
        Served::Placed(_) => Ok(()),
        Served::Waits { reason, .. } => Err(Rejection::NotNow { why: reason.to_string() }),
    }
}
