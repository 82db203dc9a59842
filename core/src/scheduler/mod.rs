//! The scheduler: a pure plan over the state. The FSM checks each line again when it is applied.
//!
//! The leader loop proposes what [`placements`] says; the FSM calls [`check()`], [`elsewhere`],
//! [`satisfiable`] and [`could_start_now`]; the API calls [`plan`] and [`explain`]. Nothing here changes
//! state.
//!
//! How jobs are served: in the order of `order.rs`; packed onto the fullest node that fits, the closest GPUs
//! first; never on a GPU that is promised to a reservation before the job's end; and behind the
//! jobs whose places are kept only what delays none of them (backfill).

use std::collections::{BTreeMap, BTreeSet};

use crate::allocation::StopWhy;
use crate::calendar::HeldPlace;
use crate::command::{JobCommand, KeptPlace, Placement, Preempt};
use crate::id::{AllocationId, JobId, LeaseId};
use crate::job::{Job, JobSpec, RANK_NEW};
use crate::name::{ClassName, GpuUuid, NodeName, UserName};
use crate::reason::{Obstacle, Wait, WaitReason};
use crate::rejection::Rejection;
use crate::reservation::{GpuRequest, Reservation};
use crate::state::Fsm;
use crate::state::wish::{Wish, bytes, cores};
use crate::time::{Millis, Timestamp};

mod ask;
mod capacity;
mod check;
pub(crate) mod claims;
pub(crate) mod class_limit;
mod committed;
mod earliest;
mod foresight;
pub(crate) mod limits;
mod order;
mod planner;
pub(crate) mod preemption;
pub(crate) mod project_limit;
mod reasons;
mod shadow;
mod shares;
pub mod tally;
#[cfg(test)]
pub(crate) mod tests;
mod verdict;

use crate::state::share::Share;
use ask::Ask;
use capacity::Capacity;
use limits::{Awaited, JobLimits, Newcomer};
use order::Order;
use planner::{Fit, Planner, Reasons, Served};
use shares::Division;

pub(crate) use check::check;
pub use foresight::INSTANTS_MAX;
pub use order::WAITS_MAX;
pub(crate) use order::comes_first;
pub use planner::{FORESEEN_JOBS_MAX, PLACEMENTS_MAX};
pub use shares::CPU_MILLIS_WITHOUT_GPU;
pub use verdict::OFFER_MIN;

/// A job that waits loses its kept place if its start comes later than it was foreseen by more than this.
pub const PLACE_SLIPS_MAX: Millis = Millis::hours(1);

/// Lines of a plan in one command; the rest is planned again right after.
const LINES_MAX: usize = 256;

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
    /// Where it starts then, as far as that is foreseen.
    pub at: Option<(NodeName, Vec<GpuUuid>)>,
}

/// The places for jobs that must leave, held once in a plan: behind interrupted jobs and before all new work.
#[derive(Default)]
struct HeldPlaces {
    are_held: bool,
    places: Vec<HeldPlace>,
}

impl HeldPlaces {
    fn before<'a>(&mut self, planner: &mut Planner<'a>, fsm: &'a Fsm, job: &Job) {
        if job.queue.rank > 0 {
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

/// The queue as it was served once: what starts, and the planner as it stands then.
struct Round<'a> {
    planner: Planner<'a>,
    holds: HeldPlaces,
    placements: Vec<Placement>,
    kept: Vec<KeptPlace>,
    placed: BTreeSet<&'a JobId>,
    /// The first jobs that found no place, of classes that preempt.
    blocked: Vec<&'a Job>,
    running: Option<preemption::Running<'a>>,
    /// When it may come out differently although nothing happens.
    look_at: Option<Timestamp>,
}

/// Serves the queue in its order while anything can be placed, and says no word about the jobs that wait. `order` is asked
/// for only where something is free, `at_turn` is called with each job before it is served.
fn serve<'a>(
    fsm: &'a Fsm,
    reasons: Reasons,
    order: impl FnOnce() -> Order<'a>,
    mut at_turn: impl FnMut(&Planner<'a>, &'a Job),
) -> Round<'a> {
    let mut planner = Planner::new(Capacity::of(fsm), reasons);
    let mut holds = HeldPlaces::default();
    let (mut placements, mut placed) = (Vec::new(), BTreeSet::new());
    let freed = take_freed_places(&mut planner, fsm);
    for (job, fit) in &freed {
        placements.push(planner.placement(&job.id, fit));
        placed.insert(&job.id);
    }
    let mut blocked = Blocked::of(fsm);
    let mut limits = JobLimits::new(Awaited::Counts);
    let mut spent = planner.is_spent();
    let mut order = if spent && blocked.is_full() { Order::default() } else { order() };
    for (job, fit) in &freed {
        if fit.pool.is_none() {
            order.charge(job);
        }
    }
    while (!spent || !blocked.is_full())
        && let Some(job) = order.next()
    {
        if placed.contains(&job.id) {
            continue;
        }
        if spent {
            if fsm.may_run_unseen(job).is_none()
                && limits.reached(fsm, Newcomer::of_job(job)).is_none()
            {
                blocked.add(job);
            }
            continue;
        }
        holds.before(&mut planner, fsm, job);
        at_turn(&planner, job);
        if fsm.may_run_unseen(job).is_some() {
            continue;
        }
        let ask = Ask::of_job(&planner.capacity, job);
        let admitted = limits.reached(fsm, Newcomer::of_job(job)).is_none();
        let fit = match admitted {
            true => planner.start(&ask),
            false => planner.start_in_own_pool(&ask),
        };
        let Some(fit) = fit else {
            if admitted {
                blocked.add(job);
            }
            continue;
        };
        if fit.pool.is_none() {
            order.charge(job);
            limits.count(fsm, job);
        }
        placements.push(planner.placement(&job.id, &fit));
        placed.insert(&job.id);
        spent = planner.is_spent();
    }
    let kept = kept_places(fsm, &planner, &placed, spent);
    Round {
        planner,
        holds,
        placements,
        kept,
        placed,
        blocked: blocked.jobs,
        running: blocked.running,
        look_at: limits.look_at(fsm),
    }
}

/// Holds what was freed or will be, and gives it to the jobs that it was freed for, before all others. A place elsewhere
/// such a job gets in its turn, behind those that are held for jobs that must leave.
fn take_freed_places<'a>(planner: &mut Planner<'a>, fsm: &'a Fsm) -> Vec<(&'a Job, Fit)> {
    preemption::hold_places(planner, fsm);
    let mut placed = Vec::new();
    for job in preemption::waiting(fsm).into_iter().filter(|j| fsm.may_run_unseen(j).is_none()) {
        let Some((at, gpus)) = preemption::place_of_job(planner, fsm, job) else { continue };
        let ask = Ask::of_job(&planner.capacity, job);
        placed.extend(planner.start_at_its_place(&ask, at, gpus).map(|fit| (job, fit)));
    }
    placed
}

/// The fleet as a plan has it when it begins to hold places for jobs that must leave: what comes before is served.
fn before_holds(fsm: &Fsm) -> Planner<'_> {
    let mut planner = Planner::new(Capacity::of(fsm), Reasons::Unwanted);
    let freed = take_freed_places(&mut planner, fsm);
    let placed: BTreeSet<&JobId> = freed.iter().map(|(job, _)| &job.id).collect();
    let mut limits = JobLimits::new(Awaited::Counts);
    let mut order = Order::of(fsm);
    // The same steps as in `serve`: else a line of a plan would be refused again and again.
    while let Some(job) = order.next() {
        if placed.contains(&job.id) {
            continue;
        }
        if job.queue.rank >= RANK_NEW {
            break;
        }
        if fsm.may_run_unseen(job).is_some() {
            continue;
        }
        let ask = Ask::of_job(&planner.capacity, job);
        if limits.reached(fsm, Newcomer::of_job(job)).is_some() {
            planner.start_in_own_pool(&ask);
        } else if planner.start(&ask).is_some_and(|fit| fit.pool.is_none()) {
            limits.count(fsm, job);
        }
    }
    planner
}

/// The first jobs that found no place and that something might leave for.
struct Blocked<'a> {
    fsm: &'a Fsm,
    jobs: Vec<&'a Job>,
    /// The classes with jobs that wait, and whether anything might leave for one of them.
    might: BTreeMap<&'a ClassName, bool>,
    max: usize,
    /// Read where a job found no place.
    running: Option<preemption::Running<'a>>,
}

impl<'a> Blocked<'a> {
    fn of(fsm: &'a Fsm) -> Self {
        // Asked for after every change: nothing is looked for where nothing could leave.
        let max = if fsm.may_have_to_leave() { preemption::LOOKED_FOR_MAX } else { 0 };
        Self { fsm, jobs: Vec::new(), might: BTreeMap::new(), max, running: None }
    }

    fn is_full(&self) -> bool {
        self.jobs.len() >= self.max
    }

    fn add(&mut self, job: &'a Job) {
        if self.is_full() {
            return;
        }
        let class = &job.spec.class;
        let might = self.might.entry(class);
        let might = *might.or_insert_with(|| !self.fsm.classes_below(class).is_empty());
        let running = self.running.get_or_insert_with(|| preemption::Running::of(self.fsm));
        let might = might || running.has_open_ones_for(job);
        let leaves = self.fsm.preemptions().contains_key(&job.id);
        if might && !leaves && preemption::wants_a_place(job) {
            self.jobs.push(job);
        }
    }
}

/// Whose places are to be kept from now on. Who has one keeps it while shares change, until the job starts or its start
/// slips by more than [`PLACE_SLIPS_MAX`]: else small jobs of people who had little would keep a large one from ever
/// starting. What is `placed` leaves the list when it starts: it may still be refused. `spent`: nothing was left to give
/// before the plan came to all.
fn kept_places(
    fsm: &Fsm,
    planner: &Planner<'_>,
    placed: &BTreeSet<&JobId>,
    spent: bool,
) -> Vec<KeptPlace> {
    let known: BTreeMap<&JobId, (usize, &KeptPlace)> =
        fsm.kept_places().enumerate().map(|(at, kept)| (&kept.job, (at, kept))).collect();
    let seen: BTreeSet<&JobId> = planner.kept.iter().filter_map(|k| k.job.as_ref()).collect();
    let seen_now = planner.kept.iter().filter_map(|place| {
        let job = place.job.as_ref()?;
        match known.get(job) {
            Some((_, known)) if place.starts_at > known.starts_at + PLACE_SLIPS_MAX => None,
            Some((_, known)) => Some((*known).clone()),
            // What comes before all shares is first by itself, and only for a while.
            None if fsm.job(job).is_some_and(|job| order::comes_first(job, fsm.now())) => None,
            None => Some(KeptPlace { job: job.clone(), starts_at: place.starts_at }),
        }
    });
    // Of these the plan did not look for a place.
    let unseen = fsm.kept_places().filter(|known| !seen.contains(&known.job));
    let unseen = unseen
        .filter(|known| spent || planner.keeps_enough() || placed.contains(&known.job))
        .cloned();
    let mut kept: Vec<KeptPlace> = seen_now.chain(unseen).take(planner.kept_max).collect();
    // In the order that they had, so that nothing is proposed where nothing has changed.
    kept.sort_by_key(|kept| known.get(&kept.job).map_or(usize::MAX, |(at, _)| *at));
    kept
}

/// What the leader proposes: what starts, and whose places are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Next {
    pub placements: Vec<Placement>,
    pub kept: Vec<KeptPlace>,
    /// Work that is to leave for one of the others.
    pub preempt: Option<Preempt>,
    /// When to look again although nothing happens.
    pub look_at: Option<Timestamp>,
}

impl Next {
    /// What the leader proposes, in this order; nothing where all of it holds already.
    ///
    /// Places are kept before anything starts: what starts changes who would come first. Work leaves behind what starts:
    /// that may need nobody's place any more.
    pub fn commands(self, fsm: &Fsm) -> Vec<JobCommand> {
        let Next { mut placements, kept, preempt, look_at } = self;
        let holds = kept.iter().eq(fsm.kept_places()) && look_at == fsm.look_at();
        placements.truncate(LINES_MAX);
        let keep = (!holds).then_some(JobCommand::KeepPlaces { kept, look_at });
        let place = (!placements.is_empty()).then_some(JobCommand::Place { placements });
        let preempt = preempt.map(JobCommand::Preempt);
        [keep, place, preempt].into_iter().flatten().collect()
    }
}

/// What is to be done now. It is asked for after every change, and looks no further than it must.
pub fn next(fsm: &Fsm) -> Next {
    let Round { mut planner, placements, kept, blocked, running, look_at, .. } =
        serve(fsm, Reasons::Unwanted, || Order::of(fsm), |_, _| ());
    let choice = preemption::choose(&mut planner, fsm, running.as_ref(), &blocked);
    let look_at = look_at.into_iter().chain(choice.look_at).min();
    Next { placements, kept, preempt: choice.order, look_at }
}

/// What is to start now, in the order of the queue: the placements of [`plan`].
pub fn placements(fsm: &Fsm) -> Vec<Placement> {
    next(fsm).placements
}

/// Plans the whole queue at the state's own time.
pub fn plan(fsm: &Fsm) -> Plan {
    let order = Order::of(fsm);
    let Round { mut planner, mut holds, placements, placed, .. } =
        serve(fsm, Reasons::Wanted, || order.clone(), |_, _| ());
    holds.at_last(&mut planner, fsm);
    let mut limits = JobLimits::new(Awaited::Counts);
    let mut plan = Plan { placements, ..Plan::default() };
    // Those that wait are foreseen as they will be served, when each gets its turn.
    for (place, job) in (1..).zip(order::places(order)) {
        if placed.contains(&job.id) {
            continue;
        }
        let (reason, earliest) = match known_wait(fsm, job, &mut limits) {
            Some(known) => known,
            None => {
                let ask = Ask::of_job(&planner.capacity, job);
                planner.wait(&ask)
            }
        };
        plan.waiting.insert(job.id.clone(), Waiting { place, reason, earliest });
    }
    let of_job = |held: HeldPlace| (held.allocation.job().clone(), held);
    plan.held = holds.places.into_iter().map(of_job).collect();
    plan
}

/// Why a queued job waits, node by node; nothing for a job that is not queued.
pub fn explain(fsm: &Fsm, id: &JobId) -> Option<Explanation> {
    let order = Order::of(fsm);
    let job = fsm.queue().find(|job| job.id == *id)?;
    let mut verdicts = Vec::new();
    let Round { mut planner, mut holds, placements, placed, .. } = serve(
        fsm,
        Reasons::Wanted,
        || order.clone(),
        |planner, served| {
            if served.id == *id {
                verdicts = verdicts_on_all(planner, job);
            }
        },
    );
    if verdicts.is_empty() {
        verdicts = verdicts_on_all(&planner, job);
    }
    holds.at_last(&mut planner, fsm);
    let places = order::places(order);
    let at = places.iter().position(|other| other.id == *id)?;
    let place = u32::try_from(at + 1).unwrap_or(u32::MAX);
    if placed.contains(id) {
        let line = placements.into_iter().find(|line| line.job == *id);
        let at = line.map(|line| (line.node, line.gpus));
        return Some(Explanation { place, verdicts, reason: None, earliest: Some(fsm.now()), at });
    }
    let mut limits = JobLimits::new(Awaited::Counts);
    if let Some((reason, earliest)) = known_wait(fsm, job, &mut limits) {
        let freed = fsm.preemptions().get(id);
        let at = freed.map(|place| (place.node.clone(), place.gpus.clone()));
        return Some(Explanation { place, verdicts, reason: Some(reason), earliest, at });
    }
    let before = places.into_iter().take(at);
    for other in before.filter(|other| !placed.contains(&other.id)) {
        if known_wait(fsm, other, &mut limits).is_none() {
            let ask = Ask::of_job(&planner.capacity, other);
            planner.wait(&ask);
        }
    }
    let ask = Ask::of_job(&planner.capacity, job);
    let (reason, earliest) = planner.wait_in_full(&ask);
    let at = planner.expected(id).map(|foreseen| {
        let node = &planner.capacity.nodes[foreseen.node];
        (node.node.name.clone(), node.uuids(foreseen.gpus))
    });
    Some(Explanation { place, verdicts, reason: Some(reason), earliest, at })
}

/// Why a job waits, where that does not follow from what the nodes have; and when it starts.
fn known_wait(fsm: &Fsm, job: &Job, limits: &mut JobLimits) -> Option<(Wait, Option<Timestamp>)> {
    if let Some(node) = fsm.may_run_unseen(job) {
        return Some((WaitReason::MayRunOn(node.clone()).alone(), None));
    }
    if let Some(place) = fsm.preemptions().get(&job.id) {
        let jobs = preemption::leaving_jobs(fsm, place).into_iter().collect();
        let reason = WaitReason::Preempts { jobs, node: place.node.clone() };
        return Some((reason.alone(), Some(place.starts_at.max(fsm.now()))));
    }
    let (reason, at) = limits.foresee(fsm, Newcomer::of_job(job))?;
    Some((reason.alone(), at))
}

fn verdicts_on_all(planner: &Planner<'_>, job: &Job) -> Vec<NodeVerdict> {
    let ask = Ask::of_job(&planner.capacity, job);
    let nodes = (0..planner.capacity.nodes.len()).map(|at| {
        let verdict = verdict::verdict(planner, &ask, at);
        NodeVerdict {
            node: planner.capacity.nodes[at].node.name.clone(),
            obstacle: reasons::obstacle(planner, &ask, at, verdict),
        }
    });
    nodes.collect()
}

/// Where the job of `allocation` could resume right now if it left its place. A job that lost its place comes before a job that has one:
/// what other interrupted jobs will take does not count, nor the place that is kept for the first of them that waits, nor
/// those held for jobs that must leave and came before it.
pub fn elsewhere(fsm: &Fsm, allocation: &AllocationId) -> Option<NodeName> {
    let leaving = fsm.allocation(allocation)?;
    let mut capacity = Capacity::of(fsm);
    capacity.lift(leaving);
    let mut planner = Planner::new(capacity, Reasons::Unwanted);
    preemption::hold_places(&mut planner, fsm);
    // All attempts: it is asked when a job that must leave saved a checkpoint, and plans for the whole fleet anyway.
    let evicted = fsm.allocations().values().filter(|a| {
        a.id != *allocation
            && a.stop.as_ref().is_some_and(|stop| matches!(stop.why, StopWhy::Evicted { .. }))
    });
    let evicted = evicted.filter_map(|a| fsm.job(&a.job));
    // The queue serves interrupted work first, so it comes before everything else.
    let queued = claims::interrupted(fsm);
    // Not what is of a lower class: that is served behind the places that are held for jobs that must leave.
    let priority = |job: &Job| fsm.class(&job.spec.class).map(|class| class.priority);
    let own = fsm.job(&leaving.job).and_then(priority);
    let higher = evicted.chain(queued).filter(|job| priority(job) >= own);
    let mut ahead: Vec<&Job> = higher.take(AHEAD_MAX).collect();
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
    let Round { mut planner, mut holds, .. } =
        serve(fsm, Reasons::Wanted, || Order::of(fsm), |_, _| ());
    holds.at_last(&mut planner, fsm);
    let ask = Ask::new(&planner.capacity, owner, spec);
    let mut limits = JobLimits::new(Awaited::Counts);
    if let Some(reason) = limits.reached(fsm, Newcomer::of_spec(owner, spec))
        && planner.start_in_own_pool(&ask).is_none()
    {
        return Err(Rejection::NotNow { why: reason.alone().to_string() });
    }
    match planner.serve(&ask) {
        Served::Placed(_) => Ok(()),
        Served::Waits { reason, .. } => Err(Rejection::NotNow { why: reason.to_string() }),
    }
}
