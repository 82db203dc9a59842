//! Slurm's multifactor priorities with Fair Tree, as a reference: how the same month goes under the rules that most
//! labs know. Reported and never required.
//!
//! Written from the rules in SchedMD/slurm and no copy of its code. Each step names where the rule is:
//! `fair_tree.c` is `src/plugins/priority/multifactor/fair_tree.c` at f61475e, by line; `priority_multifactor.c` is the
//! file beside it at f105baa, by function. Each waiting job has a place in the calendar of the plan, in the order of
//! priority, as `sched/backfill` keeps them; nobody leaves for anybody.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use fleet_core::calendar::busy;
use fleet_core::command::Placement;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::scheduler::Next;
use fleet_core::{Fsm, Timestamp};

use crate::agents::job_of;
use crate::lab::{Lab, PEOPLE};
use crate::span::{DAY, MINUTE, Span, from_stamp, hours};
use crate::work::{Class, Month};

/// `DECAY_INTERVAL` of `priority_multifactor.c`: 300 seconds.
const DECAY_INTERVAL: u64 = 5 * MINUTE;
/// `PriorityDecayHalfLife` and `PriorityMaxAge`, whose defaults are 7 days both.
const HALF_LIFE: u64 = 7 * DAY;
const MAX_AGE: u64 = 7 * DAY;
/// `PriorityWeightAge`, `PriorityWeightFairshare` and `PriorityWeightQOS`: the quality of service decides first, then the
/// share, and age among people of about the same share.
const WEIGHT_AGE: f64 = 1_000.0;
const WEIGHT_FAIRSHARE: f64 = 10_000.0;
const WEIGHT_QOS: f64 = 100_000.0;
/// Jobs that get a place in the calendar of one plan (`bf_max_job_test`, smaller here: a month has many plans).
const TESTED_MAX: usize = 50;

/// What it remembers between two plans.
#[derive(Debug)]
pub(crate) struct Multifactor {
    month: Month,
    /// `usage_raw` of each person, in GPU-hours.
    usage: Vec<f64>,
    last_ran: u64,
    factors: Vec<f64>,
}

/// A node as a plan sees it: for each GPU that works, when somebody has it.
struct Calendar {
    node: NodeName,
    model: String,
    cpu_millis_each: u64,
    memory_each: u64,
    gpus: Vec<(GpuUuid, Vec<Span>)>,
}

impl Multifactor {
    pub(crate) fn new(month: &Month) -> Self {
        let (usage, factors) = (vec![0.0; PEOPLE], vec![1.0; PEOPLE]);
        Self { month: month.clone(), usage, last_ran: 0, factors }
    }

    /// What starts now.
    pub(crate) fn next(&mut self, fsm: &Fsm, now: u64) -> Next {
        self.decay(fsm, now);
        let mut queue: Vec<(f64, usize)> = fsm
            .queue()
            .map(|job| job_of(&job.id))
            .map(|job| (self.priority(job, now), job))
            .collect();
        // Of equal ones, what was submitted first.
        queue.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut calendars = calendars(fsm, now);
        let mut placements = Vec::new();
        for (_, job) in queue.into_iter().take(TESTED_MAX) {
            placements.extend(self.place(&mut calendars, job, now));
        }
        Next { placements, ..Next::default() }
    }

    /// `_decay_thread` of `priority_multifactor.c`: at each interval, what was used fades, and what ran since is added.
    fn decay(&mut self, fsm: &Fsm, now: u64) {
        if now < self.last_ran + DECAY_INTERVAL {
            return;
        }
        let since = now - self.last_ran;
        let faded = 0.5_f64.powf(hours(since) / hours(HALF_LIFE));
        self.usage.iter_mut().for_each(|usage| *usage *= faded);
        for a in fsm.allocations().values() {
            let owner = self.month.work[job_of(&a.job)].owner;
            let began = a.started_at.map_or(now, from_stamp).max(self.last_ran);
            let gpus = f64::from(u32::try_from(a.gpus.len()).unwrap_or(0));
            self.usage[owner] += gpus * hours(now.saturating_sub(began));
        }
        self.last_ran = now;
        self.fair_tree();
    }

    /// `_calc_tree_fs`, `fair_tree.c:319`: accounts by their level, the people of each by theirs; rank over number.
    fn fair_tree(&mut self) {
        let of_project = |at: usize| {
            let people = self.month.lab.people.iter().enumerate();
            people.filter(move |(_, person)| person.project == at).map(|(person, _)| person)
        };
        let all: f64 = self.usage.iter().sum();
        let shares: f64 = Lab::projects().map(|(at, _)| f64::from(Lab::weight_of(at))).sum();
        let mut accounts: Vec<(f64, usize, f64)> = Lab::projects()
            .map(|(at, _)| {
                let used: f64 = of_project(at).map(|person| self.usage[person]).sum();
                (level(f64::from(Lab::weight_of(at)) / shares, used, all), at, used)
            })
            .collect();
        accounts.sort_by(|a, b| higher_first(a.0, b.0)); // fair_tree.c:146-147, 333
        let (mut rank, mut without_ties) = (PEOPLE, PEOPLE); // fair_tree.c:354-360
        for (_, project, used) in accounts {
            let people: Vec<usize> = of_project(project).collect();
            let share = 1.0 / (people.len().max(1) as f64);
            let mut people: Vec<(f64, usize)> =
                people.into_iter().map(|at| (level(share, self.usage[at], used), at)).collect();
            people.sort_by(|a, b| higher_first(a.0, b.0));
            let mut before = f64::NAN;
            for (level, person) in people {
                if level.total_cmp(&before) != Ordering::Equal {
                    rank = without_ties; // fair_tree.c:354-355
                }
                self.factors[person] = rank as f64 / PEOPLE as f64; // fair_tree.c:357-358
                without_ties -= 1; // fair_tree.c:360
                before = level;
            }
        }
    }

    /// `_get_priority_internal` of `priority_multifactor.c`: the weighted sum of the factors.
    fn priority(&self, job: usize, now: u64) -> f64 {
        let work = &self.month.work[job];
        // `_get_priority_factors`: age up to the largest age.
        let age = (hours(now.saturating_sub(work.sent)) / hours(MAX_AGE)).min(1.0);
        let qos = match work.class {
            Class::Urgent => 1.0,
            Class::Normal => 0.5,
            Class::Scavenger => 0.0,
        };
        age * WEIGHT_AGE + self.factors[work.owner] * WEIGHT_FAIRSHARE + qos * WEIGHT_QOS
    }

    /// The earliest place for the job, on any node; the line of the plan where that is now.
    fn place(&self, calendars: &mut [Calendar], job: usize, now: u64) -> Option<Placement> {
        let work = &self.month.work[job];
        let count = work.gpus as usize;
        let fits = |calendar: &&mut Calendar| {
            calendar.gpus.len() >= count && work.model.is_none_or(|model| model == calendar.model)
        };
        let mut best: Option<(u64, usize, &mut Calendar)> = None;
        for calendar in calendars.iter_mut().filter(fits) {
            let before = best.as_ref().map(|(at, left, _)| (*at, *left));
            let Some((at, left)) = calendar.earliest(count, work.limit, now) else { continue };
            if before.is_none_or(|before| (at, left) < before) {
                best = Some((at, left, calendar));
            }
        }
        let (at, _, calendar) = best?;
        let span = Span { from: at, to: at + work.limit + MINUTE };
        let mut taken = Vec::new();
        for (gpu, spans) in &mut calendar.gpus {
            if taken.len() < count && is_free(spans, span) {
                spans.push(span);
                taken.push(gpu.clone());
            }
        }
        let gpus = u64::from(work.gpus);
        (at == now).then(|| Placement {
            job: crate::agents::job_id(job),
            node: calendar.node.clone(),
            gpus: taken,
            cpu_millis: calendar.cpu_millis_each * gpus,
            memory_bytes: calendar.memory_each * gpus,
        })
    }
}

/// `_calc_assoc_fs`, `fair_tree.c:169`: S / U; infinite where nothing was used, as it is meant (`fair_tree.c:198-202`).
fn level(share: f64, used: f64, of_parent: f64) -> f64 {
    if of_parent <= 0.0 || used <= 0.0 {
        return f64::INFINITY; // fair_tree.c:79-82
    }
    share / (used / of_parent) // fair_tree.c:84-85, 179-180, 202
}

fn higher_first(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

fn is_free(spans: &[Span], span: Span) -> bool {
    spans.iter().all(|taken| taken.both(span).length() == 0)
}

impl Calendar {
    /// The first time at which `count` GPUs stay free for `length`, and how many other GPUs are free then.
    fn earliest(&self, count: usize, length: u64, now: u64) -> Option<(u64, usize)> {
        let ends = self.gpus.iter().flat_map(|(_, spans)| spans.iter().map(|span| span.to));
        let mut instants: Vec<u64> = ends.chain([now]).filter(|at| *at >= now).collect();
        instants.sort_unstable();
        instants.dedup();
        instants.into_iter().find_map(|from| {
            let span = Span { from, to: from + length + MINUTE };
            let free = self.gpus.iter().filter(|(_, spans)| is_free(spans, span)).count();
            Some((from, free.checked_sub(count)?))
        })
    }
}

fn calendars(fsm: &Fsm, now: u64) -> Vec<Calendar> {
    let open = fsm.nodes().values().filter(|node| node.closed().is_none());
    let calendar = |node: &fleet_core::node::Node| {
        let mut gpus: BTreeMap<u32, (GpuUuid, Vec<Span>)> = BTreeMap::new();
        let mut model = String::new();
        for gpu in fsm.gpus_of(&node.name) {
            let spans = busy(fsm, &gpu.uuid).into_iter().map(|busy| Span {
                from: from_stamp(busy.window.starts_at),
                // What is late is there for a moment longer.
                to: end(busy.window.ends_at, now),
            });
            gpus.insert(gpu.index, (gpu.uuid.clone(), spans.collect()));
            model.clone_from(&gpu.model);
        }
        let count = u64::from(u32::try_from(gpus.len()).unwrap_or(1)).max(1);
        Calendar {
            node: node.name.clone(),
            model,
            cpu_millis_each: node.facts.cpu_millis / count,
            memory_each: node.facts.memory_bytes / count,
            gpus: gpus.into_values().collect(),
        }
    };
    open.map(calendar).collect()
}

fn end(at: Timestamp, now: u64) -> u64 {
    from_stamp(at).max(now + MINUTE)
}
