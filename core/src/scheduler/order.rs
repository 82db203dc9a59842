//! The order in which a plan serves the queue: class by class, and within a class interrupted work, then what has
//! waited longer than a bound, then the jobs whose places are kept already, then those whose owners have had least of
//! their share.
//!
//! Projects come by what their people had, divided by the project's weight; within a project people are equal. So what
//! nobody in one project wants goes to its other people first, then to the other projects. What a plan gives counts at
//! once: of two people who start with nothing, each gets every second place, however many jobs one of them has sent.
//! Jobs of one person are served as they were submitted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::fair_share::{Amount, Rate};
use crate::id::JobId;
use crate::job::{Job, RANK_NEW};
use crate::name::{ClassName, ProjectName, UserName};
use crate::state::Fsm;
use crate::time::{Millis, Timestamp};

use super::shares::CPU_MILLIS_WITHOUT_GPU;
use super::tally::Tally;

/// A job that has waited for longer comes before all others that are new, by submission, whatever its owner had. Of one
/// person that is one job at a time.
pub const WAITS_MAX: Millis = Millis::days(7);

/// Loads of projects are compared per unit of their weight, in this many parts.
const PARTS: u128 = 1 << 20;

/// Less comes first; of equals, what was submitted first. The last is the place in its list.
type Key = (u128, u64, usize);

#[derive(Debug, Clone)]
struct Person<'a> {
    jobs: VecDeque<&'a Job>,
    load: Amount,
}

#[derive(Debug, Clone)]
struct Group<'a> {
    weight: u64,
    load: Amount,
    people: Vec<Person<'a>>,
    order: BTreeSet<Key>,
}

impl Group<'_> {
    /// Of one person, while they have jobs that wait.
    fn key(&self, person: usize) -> Option<Key> {
        let of = self.people.get(person)?;
        Some((u128::from(of.load.0), of.jobs.front()?.queue.submitted, person))
    }
}

/// The jobs of one class, as they are served.
#[derive(Debug, Clone, Default)]
struct InClass<'a> {
    /// Those that come before all others of it, in this order.
    first: VecDeque<&'a Job>,
    groups: Vec<Group<'a>>,
    order: BTreeSet<Key>,
    /// Where each person is in it, and each project.
    people: BTreeMap<Account<'a>, (usize, usize)>,
    projects: BTreeMap<&'a ProjectName, usize>,
}

type Account<'a> = (&'a ProjectName, &'a UserName);

/// The queue, as it is served: class by class, the highest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Order<'a> {
    half_life: Millis,
    now: InClass<'a>,
    /// The jobs of lower classes, by submission; of the highest of them last.
    lower: Vec<Vec<&'a Job>>,
    /// The state, for those.
    fsm: Option<&'a Fsm>,
    /// What the plan gave to each so far: it counts in lower classes too.
    given: BTreeMap<Account<'a>, Amount>,
}

impl<'a> Order<'a> {
    pub(super) fn of(fsm: &'a Fsm) -> Self {
        let mut classes: BTreeMap<&ClassName, Vec<&Job>> = BTreeMap::new();
        for job in fsm.queue() {
            classes.entry(&job.spec.class).or_default().push(job);
        }
        let mut lower: Vec<((u32, &ClassName), Vec<&Job>)> = classes
            .into_iter()
            .map(|(name, jobs)| {
                let priority = fsm.class(name).map_or(0, |class| class.priority);
                ((priority, name), jobs)
            })
            .collect();
        // Of equal classes, by name.
        lower.sort_by_key(|((priority, name), _)| (*priority, Reverse(*name)));
        let mut this = Self {
            half_life: fsm.fair_share().half_life,
            now: InClass::default(),
            lower: lower.into_iter().map(|(_, jobs)| jobs).collect(),
            fsm: Some(fsm),
            given: BTreeMap::new(),
        };
        this.open_next();
        this
    }

    /// Begins with the next lower class. False where there is none.
    fn open_next(&mut self) -> bool {
        let (Some(fsm), Some(jobs)) = (self.fsm, self.lower.pop()) else { return false };
        self.now = InClass::of(fsm, jobs, &self.given);
        true
    }

    /// The next job, which is then no longer in it.
    pub(super) fn next(&mut self) -> Option<&'a Job> {
        loop {
            if let Some(job) = self.now.next() {
                return Some(job);
            }
            if !self.open_next() {
                return None;
            }
        }
    }

    /// The job got a place that no reservation had paid for: its owner's other jobs come later.
    pub(super) fn charge(&mut self, job: &'a Job) {
        let cpu = job.spec.cpu_millis.unwrap_or(CPU_MILLIS_WITHOUT_GPU);
        let rate = Rate::of(job.spec.gpus.count as usize, cpu);
        let load = rate.times(job.time_left().min(self.half_life));
        let account = (&job.spec.project, &job.owner);
        let given = self.given.entry(account).or_default();
        *given = given.plus(load);
        self.now.charge(account, load);
    }
}

impl<'a> InClass<'a> {
    fn of(fsm: &'a Fsm, jobs: Vec<&'a Job>, given: &BTreeMap<Account<'a>, Amount>) -> Self {
        let mut this = Self::default();
        let kept: BTreeMap<&JobId, usize> = fsm.kept_places().map(|k| &k.job).zip(0..).collect();
        let mut new = Vec::new();
        let mut with_places = BTreeMap::new();
        let mut overdue = BTreeSet::new();
        for job in jobs {
            let is_first = match job.queue.rank < RANK_NEW {
                true => true,
                // One of each person: else a long list of one would keep all others waiting.
                false => is_overdue(job, fsm.now()) && overdue.insert(&job.owner),
            };
            if is_first {
                this.first.push_back(job);
            } else if let Some(place) = kept.get(&job.id) {
                with_places.insert(*place, job);
            } else {
                new.push(job);
            }
        }
        this.first.extend(with_places.into_values());
        if !new.is_empty() {
            this.add_all(fsm, new);
            for (account, load) in given {
                this.charge(*account, *load);
            }
        }
        this
    }

    fn add_all(&mut self, fsm: &'a Fsm, jobs: Vec<&'a Job>) {
        let tally = Tally::of(fsm);
        for job in jobs {
            let (project, owner) = (&job.spec.project, &job.owner);
            let (group, person) = *self.people.entry((project, owner)).or_insert_with(|| {
                let of = tally.projects.get(project);
                let group = *self.projects.entry(project).or_insert_with(|| {
                    let load = of.into_iter().flat_map(BTreeMap::values);
                    let load = load.fold(Amount(0), |all, had| all.plus(had.load()));
                    let weight = tally.weight(fsm, project);
                    let (people, order) = (Vec::new(), BTreeSet::new());
                    self.groups.push(Group { weight, load, people, order });
                    self.groups.len() - 1
                });
                let had = of.and_then(|people| people.get(owner)).copied().unwrap_or_default();
                let people = &mut self.groups[group].people;
                people.push(Person { jobs: VecDeque::new(), load: had.load() });
                (group, people.len() - 1)
            });
            self.groups[group].people[person].jobs.push_back(job);
        }
        for group in 0..self.groups.len() {
            let people = &self.groups[group];
            let keys = (0..people.people.len()).filter_map(|person| people.key(person)).collect();
            self.groups[group].order = keys;
            self.order.extend(self.key(group));
        }
    }

    /// Of one project, while it has jobs that wait.
    fn key(&self, group: usize) -> Option<Key> {
        let of = self.groups.get(group)?;
        let (_, submitted, _) = of.order.first()?;
        Some((u128::from(of.load.0) * PARTS / u128::from(of.weight.max(1)), *submitted, group))
    }

    fn next(&mut self) -> Option<&'a Job> {
        if let Some(job) = self.first.pop_front() {
            return Some(job);
        }
        let (_, _, group) = self.order.pop_first()?;
        let of = &mut self.groups[group];
        let (_, _, person) = of.order.pop_first()?;
        let job = of.people[person].jobs.pop_front();
        let key = of.key(person);
        of.order.extend(key);
        let key = self.key(group);
        self.order.extend(key);
        job
    }

    /// Somebody got that much more.
    fn charge(&mut self, account: Account<'a>, load: Amount) {
        // Somebody without jobs of this class had it for their project all the same.
        let (group, person) = match self.people.get(&account).copied() {
            Some((group, person)) => (group, Some(person)),
            None => match self.projects.get(account.0) {
                Some(group) => (*group, None),
                None => return,
            },
        };
        if let Some(key) = self.key(group) {
            self.order.remove(&key);
        }
        let of = &mut self.groups[group];
        of.load = of.load.plus(load);
        if let Some(person) = person {
            if let Some(key) = of.key(person) {
                of.order.remove(&key);
            }
            of.people[person].load = of.people[person].load.plus(load);
            let key = of.key(person);
            of.order.extend(key);
        }
        let key = self.key(group);
        self.order.extend(key);
    }
}

/// Whether it comes before all shares: interrupted, or it has waited for too long.
pub(crate) fn comes_first(job: &Job, now: Timestamp) -> bool {
    job.queue.rank < RANK_NEW || is_overdue(job, now)
}

/// By since when it could have started, as far as it is its owner's wish.
fn is_overdue(job: &Job, now: Timestamp) -> bool {
    let since = job.spec.begin.map_or(job.queued_at, |begin| begin.max(job.queued_at));
    now.since(since) > WAITS_MAX
}

/// The place of each job that waits, from 1, if each is served in its turn: of jobs that wait the next place of their
/// owner comes later than of somebody who waits for the first.
pub(super) fn places<'a>(mut order: Order<'a>) -> Vec<&'a Job> {
    let mut places = Vec::new();
    while let Some(job) = order.next() {
        if job.spec.reservation.is_none() {
            order.charge(job);
        }
        places.push(job);
    }
    places
}
