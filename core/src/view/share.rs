//! Who is due how much of the fleet, and who had how much: what the order of the queue follows from.

use std::collections::BTreeMap;

use crate::fair_share::Amount;
use crate::job::{Job, RANK_NEW};
use crate::name::{ClassName, ProjectName, UserName};
use crate::scheduler::project_limit::committed;
use crate::scheduler::tally::{ACTIVE_FOR, Had, Tally};
use crate::scheduler::{Plan, comes_first};
use crate::state::Fsm;

/// Of a project or of a person in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// What they are due of the whole, in thousandths.
    pub due: u32,
    pub had: Had,
    /// Jobs that wait.
    pub waiting: u32,
    /// The place of the first of them in the queue.
    pub first_place: Option<u32>,
    /// What counts for limits in GPU-hours, where the project has limits.
    pub committed: Option<Amount>,
}

/// A project with its people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectShare {
    pub name: ProjectName,
    pub weight: u64,
    pub share: Share,
    /// Those who had something lately, who had least first.
    pub people: Vec<(UserName, Share)>,
}

/// All projects, who had least of their share first.
pub fn shares(fsm: &Fsm, plan: &Plan) -> Vec<ProjectShare> {
    let tally = Tally::of(fsm);
    let default = ProjectName::default_project();
    let mut names: Vec<&ProjectName> = fsm.projects().keys().collect();
    names.push(&default);
    // One that was removed is seen while something of it runs: a restore can bring that back.
    let holds = |people: &BTreeMap<&UserName, Had>| people.values().any(|had| had.holds > 0);
    names.extend(tally.projects.iter().filter(|(_, people)| holds(people)).map(|(name, _)| *name));
    names.sort_unstable();
    names.dedup();
    let waiting = waiting(fsm, plan);
    let since = fsm.now() - ACTIVE_FOR;
    let active = |name: &&ProjectName| {
        let people = tally.projects.get(*name).into_iter().flat_map(BTreeMap::values);
        people.into_iter().any(|had| had.last >= since)
    };
    let all: u64 = names.iter().copied().filter(active).map(|name| tally.weight(fsm, name)).sum();
    let mut shares: Vec<ProjectShare> = names
        .iter()
        .map(|name| {
            let weight = tally.weight(fsm, name);
            let due = if active(name) { part(weight, all) } else { 0 };
            project((*name).clone(), (weight, due), &tally, &waiting, fsm)
        })
        .collect();
    shares.sort_by_key(|project| {
        let per_weight = project.share.had.load().0 / project.weight.max(1);
        (per_weight, project.share.first_place.unwrap_or(u32::MAX), project.name.clone())
    });
    shares
}

/// How many jobs of a person in a project wait, and the place of the first.
type Waiting<'a> = BTreeMap<(&'a ProjectName, &'a UserName), (u32, Option<u32>)>;

fn waiting<'a>(fsm: &'a Fsm, plan: &Plan) -> Waiting<'a> {
    let mut waiting = Waiting::new();
    for job in fsm.queue() {
        let (number, first) = waiting.entry((&job.spec.project, &job.owner)).or_default();
        *number += 1;
        let place = plan.waiting.get(&job.id).map(|waiting| waiting.place);
        *first = match (*first, place) {
            (Some(first), Some(place)) => Some(first.min(place)),
            (first, place) => first.or(place),
        };
    }
    waiting
}

fn part(of: u64, all: u64) -> u32 {
    u32::try_from(of.saturating_mul(1_000) / all.max(1)).unwrap_or(1_000)
}

fn project(
    name: ProjectName,
    (weight, due): (u64, u32),
    tally: &Tally<'_>,
    waiting: &Waiting<'_>,
    fsm: &Fsm,
) -> ProjectShare {
    let due_each = due / u32::try_from(tally.people(fsm, &name)).unwrap_or(u32::MAX).max(1);
    let since = fsm.now() - ACTIVE_FOR;
    let limited = committed(fsm, &name);
    let in_all = |of: Option<&UserName>| limited.as_ref().map(|limited| limited.amount(of));
    let mut share = Share { due, committed: in_all(None), ..Share::default() };
    let mut people = Vec::new();
    for (user, had) in tally.projects.get(&name).into_iter().flatten() {
        let (number, first_place) = waiting.get(&(&name, *user)).copied().unwrap_or_default();
        share.had.used = share.had.used.plus(had.used);
        share.had.ahead = share.had.ahead.plus(had.ahead);
        share.had.holds += had.holds;
        share.had.last = share.had.last.max(had.last);
        share.waiting += number;
        share.first_place = match (share.first_place, first_place) {
            (Some(first), Some(place)) => Some(first.min(place)),
            (first, place) => first.or(place),
        };
        if had.last >= since {
            let committed = in_all(Some(user));
            let of = Share { due: due_each, had: *had, waiting: number, first_place, committed };
            people.push(((*user).clone(), of));
        }
    }
    people.sort_by_key(|(user, of)| {
        (of.had.load(), of.first_place.unwrap_or(u32::MAX), user.clone())
    });
    ProjectShare { name, weight, share, people }
}

/// What the place of a waiting job follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceBy {
    /// It had a place, and lost it.
    Interrupted,
    /// It has waited for too long.
    Waited,
    /// Its place is kept since an earlier plan.
    Kept,
    /// What its owner had; in a fleet with several projects also what the project is, whose people come before it.
    Share { owner: UserName, had: Had, project: Option<ProjectName> },
}

/// The class of a job that waits, if jobs of a higher class wait too.
pub fn behind_classes<'a>(fsm: &Fsm, job: &'a Job) -> Option<&'a ClassName> {
    let priority = |job: &Job| fsm.class(&job.spec.class).map(|class| class.priority);
    let mine = priority(job);
    fsm.queue().any(|other| priority(other) > mine).then_some(&job.spec.class)
}

pub fn place_by(fsm: &Fsm, job: &Job) -> PlaceBy {
    if job.queue.rank < RANK_NEW {
        return PlaceBy::Interrupted;
    }
    if comes_first(job, fsm.now()) {
        return PlaceBy::Waited;
    }
    if fsm.kept_places().any(|kept| kept.job == job.id) {
        return PlaceBy::Kept;
    }
    let tally = Tally::of(fsm);
    let people = tally.projects.get(&job.spec.project);
    let had = people.and_then(|people| people.get(&job.owner)).copied().unwrap_or_default();
    let project = (tally.projects.len() > 1).then(|| job.spec.project.clone());
    PlaceBy::Share { owner: job.owner.clone(), had, project }
}
