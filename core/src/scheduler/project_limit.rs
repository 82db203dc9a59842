//! How much jobs and reservations of a project may hold and use, where an admin set that.
//!
//! Called by each plan at a job's turn, and by the FSM for the re-check and where somebody reserves. What runs and what is
//! booked is read once for each project with a limit; a project without one costs nothing.

use std::collections::BTreeMap;

use super::committed::{Committed, Holder, Over};
use super::limits::{Awaited, Newcomer};
use super::planner::FORESEEN_JOBS_MAX;
use crate::allocation::Allocation;
use crate::command::CreateReservation;
use crate::fair_share::{Amount, Rate};
use crate::id::ReservationId;
use crate::job::{Job, JobSpec};
use crate::name::{ProjectName, UserName};
use crate::project::ProjectLimits;
use crate::reason::{OverLimit, ProjectLimit};
use crate::rejection::Rejection;
use crate::state::Fsm;
use crate::state::charged::is_within_a_reservation;
use crate::time::{Millis, Timestamp, Window};

const HOUR: Millis = Millis::hours(1);

/// What a plan or a command counts while it gives places.
#[derive(Debug)]
pub(crate) struct OfProjects {
    awaited: Awaited,
    known: BTreeMap<ProjectName, Committed>,
    /// The same with jobs that wait, where they were foreseen; and how many these are.
    foreseen: BTreeMap<ProjectName, (Committed, u32)>,
    /// What wanted least of those that wait for use to fade: in a project, or by a person in it.
    fading: BTreeMap<(ProjectName, Option<UserName>), Amount>,
}

impl OfProjects {
    pub(super) fn new(awaited: Awaited) -> Self {
        let (known, foreseen, fading) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { awaited, known, foreseen, fading }
    }

    fn known(&mut self, fsm: &Fsm, project: &ProjectName) -> &mut Committed {
        let awaited = self.awaited;
        let all = || Committed::of(fsm, project, awaited);
        self.known.entry(project.clone()).or_insert_with(all)
    }

    /// The limit that keeps it from free GPUs, if one does.
    pub(super) fn reached(&mut self, fsm: &Fsm, new: &Newcomer<'_>) -> Option<ProjectLimit> {
        let limits = limits_for(fsm, new.spec)?;
        let project = &new.spec.project;
        let (each, over) = match new.id.filter(|id| fsm.preemptions().contains_key(id)) {
            None => passed(fsm, self.known(fsm, project), limits, new)?,
            // What is freed for it does not count against it.
            Some(id) => {
                let all = self.known(fsm, project).clone();
                let mut others = all.without(&Holder::Job(id.clone()), fsm);
                passed(fsm, &mut others, limits, new)?
            }
        };
        if let OverLimit::GpuHours { wanted, .. } = &over {
            let whose = (project.clone(), each.then(|| new.owner.clone()));
            let least = self.fading.entry(whose).or_insert(*wanted);
            *least = (*wanted).min(*least);
        }
        let each = each.then(|| new.owner.clone());
        Some(ProjectLimit { project: project.clone(), each, over })
    }

    /// When it could start as far as that limit goes, if all that is held or booked lasts to its end. Jobs that were asked about
    /// before it start first; beyond [`FORESEEN_JOBS_MAX`] of them nothing is foreseen.
    pub(super) fn foresee(
        &mut self,
        fsm: &Fsm,
        new: &Newcomer<'_>,
        limit: &ProjectLimit,
    ) -> Option<Timestamp> {
        let now = fsm.now();
        let known = self.known.get(&limit.project)?;
        let foreseen = self.foreseen.entry(limit.project.clone());
        let (foreseen, jobs) = foreseen.or_insert_with(|| (known.clone(), 0));
        if *jobs >= FORESEEN_JOBS_MAX {
            return None;
        }
        *jobs += 1;
        let of = limit.each.as_ref();
        let at = match limit.over {
            OverLimit::Gpus { most, wanted, .. } => {
                foreseen.room_from(of, (now, new.length), most.checked_sub(wanted)?)
            }
            OverLimit::GpuHours { most, wanted, .. } => {
                foreseen.fades_at(fsm, of, Amount::of_gpu_hours(most).minus(wanted)?)?
            }
        };
        foreseen.add_waiting(new, new.id?, at, fsm);
        Some(at)
    }

    /// When the first of those that wait for use to fade could start, if nothing happens until then.
    pub(super) fn look_at(&self, fsm: &Fsm) -> Option<Timestamp> {
        let times = self.fading.iter().filter_map(|((project, of), wanted)| {
            let limits = limits_of(fsm, project)?;
            let most = if of.is_some() { limits.gpu_hours_each } else { limits.gpu_hours }?;
            let room = Amount::of_gpu_hours(most).minus(*wanted)?;
            let at = self.known.get(project)?.fades_at(fsm, of.as_ref(), room);
            // Where much is held something ends soon; if not, at the next hour.
            Some(at.unwrap_or(Timestamp((fsm.now().0 / HOUR.0 + 1) * HOUR.0)))
        });
        times.min()
    }

    /// It starts now.
    pub(super) fn count(&mut self, fsm: &Fsm, job: &Job) {
        if limits_for(fsm, &job.spec).is_some() {
            let new = Newcomer::of_job(job);
            self.known(fsm, &job.spec.project).add_waiting(&new, &job.id, fsm.now(), fsm);
        }
    }
}

/// The limit that the job would pass, and whether it is one for each person.
fn passed(
    fsm: &Fsm,
    committed: &mut Committed,
    limits: ProjectLimits,
    new: &Newcomer<'_>,
) -> Option<(bool, OverLimit)> {
    let of = |each: bool| each.then_some(new.owner);
    for (each, most) in [(false, limits.gpus), (true, limits.gpus_each)] {
        let over = most.and_then(|most| gpus_passed(fsm, committed, of(each), new, most));
        if let Some(over) = over {
            return Some((each, over));
        }
    }
    for (each, most) in [(false, limits.gpu_hours), (true, limits.gpu_hours_each)] {
        let (has, wanted) = (committed.amount(of(each)), new.amount());
        let most = most.filter(|most| has.plus(wanted) > Amount::of_gpu_hours(*most));
        if let Some(most) = most {
            return Some((each, OverLimit::GpuHours { most, has, wanted }));
        }
    }
    None
}

/// Those that a job of that kind waits for.
fn limits_for(fsm: &Fsm, spec: &JobSpec) -> Option<ProjectLimits> {
    // In a reservation the reservation counts.
    let counts = spec.reservation.is_none() && spec.gpus.count > 0;
    limits_of(fsm, &spec.project).filter(|_| counts)
}

/// What is compared with the limits of a project; nothing where it has none.
pub(crate) fn committed(fsm: &Fsm, project: &ProjectName) -> Option<Committed> {
    limits_of(fsm, project).map(|_| Committed::of(fsm, project, Awaited::CountsNot))
}

fn limits_of(fsm: &Fsm, project: &ProjectName) -> Option<ProjectLimits> {
    let limits = fsm.projects().get(project)?.limits;
    (!limits.is_none()).then_some(limits)
}

fn gpus_passed(
    fsm: &Fsm,
    committed: &mut Committed,
    of: Option<&UserName>,
    new: &Newcomer<'_>,
    most: u32,
) -> Option<OverLimit> {
    let (wanted, now) = (new.spec.gpus.count, fsm.now());
    let has = committed.gpus_now(of);
    let Some(room) = most.checked_sub(wanted).filter(|room| has <= *room) else {
        return Some(OverLimit::Gpus { most, has, wanted, longest: None });
    };
    let Over { at, held } = committed.first_over(of, (now, now + new.length), room)?;
    let longest = Some(new.time_used + at.since(now));
    Some(OverLimit::Gpus { most, has: held, wanted, longest })
}

/// A job that alone wants more than its project allows would never start.
pub(super) fn check(fsm: &Fsm, spec: &JobSpec) -> Result<(), Rejection> {
    let Some(limits) = limits_for(fsm, spec) else { return Ok(()) };
    let (project, wanted) = (&spec.project, spec.gpus.count);
    for (allows, most) in [("allows", limits.gpus), ("allows each person", limits.gpus_each)] {
        if let Some(most) = most.filter(|most| wanted > *most) {
            let problem = format!("{wanted} is more than project {project} {allows}: {most}");
            return Err(Rejection::field("gpus", problem));
        }
    }
    let amount = Rate::of(wanted as usize, 0).times(spec.time_limit);
    let of_hours = [("allows", limits.gpu_hours), ("allows each person", limits.gpu_hours_each)];
    for (allows, most) in of_hours {
        let Some(most) = most.filter(|most| amount > Amount::of_gpu_hours(*most)) else { continue };
        let longest = Amount::of_gpu_hours(most).gpu_millis() / u64::from(wanted.max(1));
        let problem = format!(
            "on {wanted} GPUs for {} it may use {amount}, and project {project} {allows} {most}: at most {} (-t)",
            spec.time_limit,
            Millis(longest),
        );
        return Err(Rejection::field("time_limit", problem));
    }
    Ok(())
}

/// A job that runs, or waits, is to have the time limit in its spec.
pub(crate) fn check_time_limit(
    fsm: &Fsm,
    job: &Job,
    a: Option<&Allocation>,
) -> Result<(), Rejection> {
    let Some(a) = a else { return check(fsm, &job.spec) };
    let Some(limits) = limits_for(fsm, &job.spec) else { return Ok(()) };
    if is_within_a_reservation(fsm, a) {
        return Ok(());
    }
    let (now, project, owner) = (fsm.now(), &job.spec.project, &job.owner);
    let (by, all) = (Holder::Job(job.id.clone()), Committed::of(fsm, project, Awaited::Counts));
    // What it has used is no news, and counts too.
    let used = all.used_by(&by, fsm);
    let others = all.without(&by, fsm);
    let ran = a.started_at.map_or(Millis::ZERO, |began| now.since(began));
    let ends_at = now + job.time_left().saturating_sub(ran);
    let had_until = a.own_limit_at.or(a.time_limit_at).unwrap_or(now);
    let added = Window { starts_at: had_until.max(now), ends_at };
    check_gpus(&others, limits, (project, owner), (a.gpus.len(), added))?;
    let adds = used.plus(Rate::of(a.gpus.len(), 0).times(ends_at.since(now)));
    check_hours(&others, limits, (project, owner), adds)
}

/// What somebody wants to reserve for a project.
pub(crate) struct Booking<'a> {
    pub(crate) project: &'a ProjectName,
    pub(crate) owner: &'a UserName,
    /// From its start to its end.
    pub(crate) window: Window,
    /// What of it they have not had before.
    pub(crate) added: Window,
    pub(crate) gpus: usize,
    /// The reservation that is to have this window, where it is there already.
    pub(crate) of: Option<&'a ReservationId>,
}

/// Whether the limits of the project allow it.
pub(crate) fn check_booking(fsm: &Fsm, booking: &Booking<'_>) -> Result<(), Rejection> {
    let Some(limits) = limits_of(fsm, booking.project) else { return Ok(()) };
    let Booking { project, owner, window, added, gpus, of } = *booking;
    let mut others = Committed::of(fsm, project, Awaited::Counts);
    let mut used = Amount::default();
    if let Some(id) = of {
        let by = Holder::Reservation(id.clone());
        used = others.used_by(&by, fsm);
        others = others.without(&by, fsm);
    }
    check_gpus(&others, limits, (project, owner), (gpus, added))?;
    let left = Rate::of(gpus, 0).times(window.ends_at.since(window.starts_at.max(fsm.now())));
    check_hours(&others, limits, (project, owner), used.plus(left))
}

/// GPU-hours of the dates of a series together. Each date by itself is checked elsewhere.
#[derive(Debug, Default)]
pub(crate) struct SeriesHours {
    /// What the others have, read once: all dates are of one owner and one project.
    others: Option<Committed>,
    /// Of the dates so far.
    sum: Amount,
}

impl SeriesHours {
    /// One more date, which does not count where it is refused. Its reservations have the same window.
    pub(crate) fn add(&mut self, fsm: &Fsm, date: &[CreateReservation]) -> Result<(), Rejection> {
        let Some(wish) = date.first() else { return Ok(()) };
        let Some(limits) = limits_of(fsm, &wish.project) else { return Ok(()) };
        let read = || Committed::of(fsm, &wish.project, Awaited::Counts);
        let others = self.others.get_or_insert_with(read);
        let starts_at = wish.window.starts_at.max(fsm.now());
        let length = wish.window.ends_at.since(starts_at);
        let gpus = date.iter().map(|wish| wish.gpus.count as usize).sum();
        let sum = self.sum.plus(Rate::of(gpus, 0).times(length));
        check_hours(others, limits, (&wish.project, &wish.owner), sum)?;
        self.sum = sum;
        Ok(())
    }
}

fn check_gpus(
    others: &Committed,
    limits: ProjectLimits,
    (project, owner): (&ProjectName, &UserName),
    (gpus, window): (usize, Window),
) -> Result<(), Rejection> {
    for (person, most) in [(None, limits.gpus), (Some(owner), limits.gpus_each)] {
        let Some(most) = most else { continue };
        let (of, who) = whose(person);
        if gpus > most as usize {
            let problem = format!("{gpus} is more than project {project} allows{of}: {most}");
            return Err(Rejection::field("gpus.count", problem));
        }
        let held = others.most_at_once(person, window);
        if held as usize + gpus > most as usize {
            let what = format!(
                "GPUs at once in project {project}{of} ({who} has {held} at that time, and this would be {gpus} more; fleet project show {project})"
            );
            return Err(Rejection::LimitReached { what, limit: u64::from(most) });
        }
    }
    Ok(())
}

fn check_hours(
    others: &Committed,
    limits: ProjectLimits,
    (project, owner): (&ProjectName, &UserName),
    adds: Amount,
) -> Result<(), Rejection> {
    for (person, most) in [(None, limits.gpu_hours), (Some(owner), limits.gpu_hours_each)] {
        let has = others.amount(person);
        if let Some(most) = most.filter(|most| has.plus(adds) > Amount::of_gpu_hours(*most)) {
            let (of, who) = whose(person);
            let what = format!(
                "GPU-hours in project {project}{of} (without this {who} has used or booked {has}, with it {}; fleet project show {project})",
                has.plus(adds),
            );
            return Err(Rejection::LimitReached { what, limit: u64::from(most) });
        }
    }
    Ok(())
}

/// Whose limit it is, and who would pass it.
fn whose(person: Option<&UserName>) -> (&'static str, &str) {
    match person {
        Some(user) => (" for each person", user.as_str()),
        None => ("", "the project"),
    }
}
