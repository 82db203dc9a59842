//! How much jobs and reservations of a project may hold and use, where an admin set that.
//!
//! Called by each plan at a job's turn, and by the FSM for the re-check and where somebody reserves. What runs and what is
//! booked is read once for each project with a limit; a project without one costs nothing.

use std::collections::BTreeMap;

use super::limits::{Awaited, Newcomer};
use super::tally::{end_of, is_within_a_reservation, use_of_reservation};
use crate::allocation::Allocation;
use crate::fair_share::{Amount, Rate, UseOf};
use crate::id::{JobId, ReservationId};
use crate::job::{Job, JobSpec};
use crate::name::{ProjectName, UserName};
use crate::project::ProjectLimits;
use crate::reason::{OverLimit, ProjectLimit};
use crate::rejection::Rejection;
use crate::reservation::{Reservation, ReservationState};
use crate::state::Fsm;
use crate::time::{Millis, Timestamp, Window};

const MINUTE: Millis = Millis::minutes(1);

/// What has GPUs of the fleet, or will have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holder {
    Job(JobId),
    Reservation(ReservationId),
}

/// What one job or reservation has, from when until when.
#[derive(Debug, Clone)]
struct Hold {
    by: Holder,
    owner: UserName,
    window: Window,
    rate: Rate,
    gpus: u32,
}

/// What the limits of a project are compared with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Committed {
    /// What was used by now, as it counts now, with what runs.
    used: BTreeMap<UserName, Amount>,
    holds: Vec<Hold>,
    /// GPUs held now, and all that is yet to come of the holds: of all, and of each person.
    all: Sums,
    each: BTreeMap<UserName, Sums>,
}

/// Saves a walk through all holds for most questions.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    used: Amount,
    ahead: Amount,
    gpus_now: u32,
    gpus_ever: u32,
}

impl Committed {
    pub(crate) fn of(fsm: &Fsm, project: &ProjectName, awaited: Awaited) -> Self {
        let mut this = Self::default();
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        for (_, user, used) in fsm.fair_share().used().filter(|(of, _, _)| *of == project) {
            this.use_up(user, used.now(now, half_life));
        }
        let running = fsm.allocations().values().filter_map(|a| Some((a, fsm.job(&a.job)?)));
        for (a, job) in running.filter(|(_, job)| job.spec.project == *project) {
            if !is_within_a_reservation(fsm, a) {
                this.add_attempt(a, job, fsm);
            }
        }
        for r in fsm.open_reservations().filter(|r| r.project == *project) {
            this.add_reservation(r, fsm);
        }
        if awaited == Awaited::Counts {
            for (id, place) in fsm.preemptions() {
                let job = fsm.job(id).filter(|job| job.spec.project == *project);
                if let Some(job) = job {
                    this.add_job(job, place.starts_at.max(now), now);
                }
            }
        }
        this
    }

    fn use_up(&mut self, user: &UserName, amount: Amount) {
        let used = self.used.entry(user.clone()).or_default();
        *used = used.plus(amount);
        for sums in [&mut self.all, self.each.entry(user.clone()).or_default()] {
            sums.used = sums.used.plus(amount);
        }
    }

    fn add_attempt(&mut self, a: &Allocation, job: &Job, fsm: &Fsm) {
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        let rate = Rate::of(a.gpus.len(), a.cpu_millis);
        let (from, to) = (a.started_at.unwrap_or(now), end_of(a, job, now));
        self.use_up(&job.owner, UseOf { rate, from, to }.now(now, half_life));
        let by = Holder::Job(job.id.clone());
        let gpus = count(a.gpus.len());
        // One that should be over still has them.
        let window = Window { starts_at: now, ends_at: to.max(now + Millis(1)) };
        self.add(Hold { by, owner: job.owner.clone(), window, rate, gpus }, now);
    }

    fn add_reservation(&mut self, r: &Reservation, fsm: &Fsm) {
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        if r.state == ReservationState::Active
            && let Some(used) = use_of_reservation(fsm, r)
        {
            self.use_up(&r.owner, used.now(now, half_life));
        }
        if r.state == ReservationState::Ending || r.is_cancelled() {
            return;
        }
        // One that waits to move counts where it will be.
        let (window, gpus) = match &r.next {
            Some(next) => (next.window, next.gpus.len()),
            None => (r.window, r.gpus.len()),
        };
        let (by, owner) = (Holder::Reservation(r.id.clone()), r.owner.clone());
        self.add(Hold { by, owner, window, rate: Rate::of(gpus, 0), gpus: count(gpus) }, now);
    }

    fn add_job(&mut self, job: &Job, starts_at: Timestamp, now: Timestamp) {
        let window = Window { starts_at, ends_at: starts_at + job.time_left() };
        let gpus = job.spec.gpus.count;
        let rate = Rate::of(gpus as usize, 0);
        let (by, owner) = (Holder::Job(job.id.clone()), job.owner.clone());
        self.add(Hold { by, owner, window, rate, gpus }, now);
    }

    fn add(&mut self, hold: Hold, now: Timestamp) {
        let ahead = hold.rate.times(hold.window.ends_at.since(hold.window.starts_at.max(now)));
        let is_now = hold.window.starts_at <= now && now < hold.window.ends_at;
        for sums in [&mut self.all, self.each.entry(hold.owner.clone()).or_default()] {
            sums.ahead = sums.ahead.plus(ahead);
            sums.gpus_ever = sums.gpus_ever.saturating_add(hold.gpus);
            sums.gpus_now += if is_now { hold.gpus } else { 0 };
        }
        self.holds.push(hold);
    }

    /// Without what that holder has, which is about to have something else.
    fn without(self, by: &Holder, now: Timestamp) -> Self {
        let mut this = Self::default();
        for (user, amount) in &self.used {
            this.use_up(user, *amount);
        }
        for hold in self.holds.into_iter().filter(|hold| hold.by != *by) {
            this.add(hold, now);
        }
        this
    }

    fn sums(&self, of: Option<&UserName>) -> Sums {
        of.map_or(self.all, |user| self.each.get(user).copied().unwrap_or_default())
    }

    /// What was used, as it counts now, with what is held or booked to its end; of one person where one is named.
    pub(crate) fn amount(&self, of: Option<&UserName>) -> Amount {
        let sums = self.sums(of);
        sums.used.plus(sums.ahead)
    }

    /// GPUs that are held now.
    pub(crate) fn gpus_now(&self, of: Option<&UserName>) -> u32 {
        self.sums(of).gpus_now
    }

    /// How many GPUs are held from which time on, in order; the first is `from`.
    fn steps(&self, of: Option<&UserName>, from: Timestamp) -> Vec<(Timestamp, u32)> {
        let mut changes: BTreeMap<Timestamp, i64> = BTreeMap::from([(from, 0)]);
        let theirs = self.holds.iter().filter(|hold| of.is_none_or(|user| hold.owner == *user));
        for hold in theirs.filter(|hold| hold.window.ends_at > from) {
            let gpus = i64::from(hold.gpus);
            *changes.entry(hold.window.starts_at.max(from)).or_default() += gpus;
            *changes.entry(hold.window.ends_at).or_default() -= gpus;
        }
        let mut held = 0;
        let step = |(at, change)| {
            held += change;
            (at, u32::try_from(held).unwrap_or(0))
        };
        changes.into_iter().map(step).collect()
    }

    /// When more than `room` GPUs are held first within the window, and how many then.
    fn first_over(&self, of: Option<&UserName>, window: Window, room: u32) -> Option<Over> {
        let sums = self.sums(of);
        if sums.gpus_ever <= room {
            return None;
        }
        let steps = self.steps(of, window.starts_at);
        let within = steps.into_iter().take_while(|(at, _)| *at < window.ends_at);
        within.into_iter().find(|(_, held)| *held > room).map(|(at, held)| Over { at, held })
    }

    /// The most GPUs that are held at one time within the window.
    fn most_at_once(&self, of: Option<&UserName>, window: Window) -> u32 {
        let steps = self.steps(of, window.starts_at);
        let within = steps.into_iter().take_while(|(at, _)| *at < window.ends_at);
        within.map(|(_, held)| held).max().unwrap_or(0)
    }

    /// From when on at most `room` GPUs are held for that long, if nothing else comes.
    fn room_from(
        &self,
        of: Option<&UserName>,
        (now, length): (Timestamp, Millis),
        room: u32,
    ) -> Timestamp {
        let mut from = now;
        let mut steps = self.steps(of, now).into_iter().peekable();
        while let Some((at, held)) = steps.next() {
            if at >= from + length {
                break;
            }
            if held > room {
                from = steps.peek().map_or(at, |(next, _)| *next);
            }
        }
        from
    }
}

/// More is held than leaves room.
struct Over {
    at: Timestamp,
    held: u32,
}

fn count(gpus: usize) -> u32 {
    u32::try_from(gpus).unwrap_or(u32::MAX)
}

/// What a plan or a command counts while it gives places.
#[derive(Debug)]
pub(crate) struct OfProjects {
    awaited: Awaited,
    known: BTreeMap<ProjectName, Committed>,
    /// What wanted least of those that wait for use to fade: in a project, or by a person in it.
    fading: BTreeMap<(ProjectName, Option<UserName>), Amount>,
}

impl OfProjects {
    pub(super) fn new(awaited: Awaited) -> Self {
        Self { awaited, known: BTreeMap::new(), fading: BTreeMap::new() }
    }

    fn known(&mut self, fsm: &Fsm, project: &ProjectName) -> &mut Committed {
        let awaited = self.awaited;
        let all = || Committed::of(fsm, project, awaited);
        self.known.entry(project.clone()).or_insert_with(all)
    }

    /// The limit that keeps it from free GPUs, if one does.
    pub(super) fn reached(&mut self, fsm: &Fsm, new: &Newcomer<'_>) -> Option<ProjectLimit> {
        let limits = limits_for(fsm, new.spec)?;
        let committed = self.known(fsm, &new.spec.project);
        let over =
            |each: bool, over| ProjectLimit { project: new.spec.project.clone(), each, over };
        let of = |each: bool| each.then_some(new.owner);
        let of_gpus = [(false, limits.gpus), (true, limits.gpus_each)];
        for (each, most) in of_gpus {
            let passed = most.and_then(|most| gpus_passed(fsm, committed, of(each), new, most));
            if let Some(passed) = passed {
                return Some(over(each, passed));
            }
        }
        let of_hours = [(false, limits.gpu_hours), (true, limits.gpu_hours_each)];
        for (each, most) in of_hours {
            let (has, wanted) = (committed.amount(of(each)), new.amount());
            let Some(most) = most.filter(|most| has.plus(wanted) > Amount::of_gpu_hours(*most))
            else {
                continue;
            };
            let whose = (new.spec.project.clone(), of(each).cloned());
            let least = self.fading.entry(whose).or_insert(wanted);
            *least = wanted.min(*least);
            return Some(over(each, OverLimit::GpuHours { most, has, wanted }));
        }
        None
    }

    /// By when at the latest it could start as far as that limit goes, if nothing else of the project comes first.
    pub(super) fn falls_at(
        &mut self,
        fsm: &Fsm,
        new: &Newcomer<'_>,
        limit: &ProjectLimit,
    ) -> Option<Timestamp> {
        let committed = self.known(fsm, &limit.project);
        let of = limit.each.then_some(new.owner);
        match limit.over {
            OverLimit::Gpus { most, wanted, .. } => {
                let room = most.checked_sub(wanted)?;
                Some(committed.room_from(of, (fsm.now(), new.length), room))
            }
            OverLimit::GpuHours { most, wanted, .. } => {
                faded(fsm, committed, of, (Amount::of_gpu_hours(most), wanted))
            }
        }
    }

    /// When the first of those that wait for use to fade could start, if nothing happens until then.
    pub(super) fn look_at(&self, fsm: &Fsm) -> Option<Timestamp> {
        let times = self.fading.iter().filter_map(|((project, of), wanted)| {
            let limits = limits_of(fsm, project)?;
            let most = if of.is_some() { limits.gpu_hours_each } else { limits.gpu_hours }?;
            let most = Amount::of_gpu_hours(most);
            faded(fsm, self.known.get(project)?, of.as_ref(), (most, *wanted))
        });
        times.min()
    }

    /// It starts now.
    pub(super) fn count(&mut self, fsm: &Fsm, job: &Job) {
        if limits_for(fsm, &job.spec).is_some() {
            self.known(fsm, &job.spec.project).add_job(job, fsm.now(), fsm.now());
        }
    }
}

/// When enough of it has faded, as if all that is held were used at its end; in whole minutes, so that it stays what it is
/// while plans follow each other. Nothing where it never is.
fn faded(
    fsm: &Fsm,
    committed: &Committed,
    of: Option<&UserName>,
    (most, wanted): (Amount, Amount),
) -> Option<Timestamp> {
    let room = most.minus(wanted)?;
    let theirs = committed.holds.iter().filter(|hold| of.is_none_or(|user| hold.owner == *user));
    let last = theirs.map(|hold| hold.window.ends_at).max();
    let from = last.unwrap_or(fsm.now()).max(fsm.now());
    let at = from + committed.amount(of).fades_to(room, fsm.fair_share().half_life);
    Some(Timestamp(at.0.div_ceil(MINUTE.0) * MINUTE.0))
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
    committed: &Committed,
    of: Option<&UserName>,
    new: &Newcomer<'_>,
    most: u32,
) -> Option<OverLimit> {
    let (wanted, now) = (new.spec.gpus.count, fsm.now());
    let has = committed.gpus_now(of);
    let Some(room) = most.checked_sub(wanted).filter(|room| has <= *room) else {
        return Some(OverLimit::Gpus { most, has, wanted, longest: None });
    };
    let window = Window { starts_at: now, ends_at: now + new.length };
    let Over { at, held } = committed.first_over(of, window, room)?;
    Some(OverLimit::Gpus { most, has: held, wanted, longest: Some(at.since(now)) })
}

/// A job that alone wants more than its project allows would never start.
pub(super) fn check(fsm: &Fsm, spec: &JobSpec) -> Result<(), Rejection> {
    let Some(limits) = limits_for(fsm, spec) else { return Ok(()) };
    let (project, wanted) = (&spec.project, spec.gpus.count);
    let smallest = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
    if let Some(most) = smallest(limits.gpus, limits.gpus_each).filter(|most| wanted > *most) {
        let problem = format!("{wanted} is more than project {project} allows: {most}");
        return Err(Rejection::field("gpus", problem));
    }
    let amount = Rate::of(wanted as usize, 0).times(spec.time_limit);
    let most = smallest(limits.gpu_hours, limits.gpu_hours_each);
    match most.filter(|most| amount > Amount::of_gpu_hours(*most)) {
        None => Ok(()),
        Some(most) => {
            let longest =
                Millis(Amount::of_gpu_hours(most).gpu_millis() / u64::from(wanted.max(1)));
            let problem = format!(
                "on {wanted} GPUs for {} it may use {amount}, and project {project} allows {most}: at most {longest} (-t)",
                spec.time_limit
            );
            Err(Rejection::field("time_limit", problem))
        }
    }
}

/// A job that runs, or waits, is to have that time limit.
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
    let others = Committed::of(fsm, &job.spec.project, Awaited::Counts);
    let others = others.without(&Holder::Job(job.id.clone()), fsm.now());
    let ran = a.started_at.map_or(Millis::ZERO, |began| fsm.now().since(began));
    let left = job.time_left().saturating_sub(ran);
    let adds = Rate::of(a.gpus.len(), 0).times(left);
    check_hours(&others, limits, (&job.spec.project, &job.owner), adds)
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
    if let Some(id) = of {
        others = others.without(&Holder::Reservation(id.clone()), fsm.now());
    }
    let of_gpus = [(None, limits.gpus), (Some(owner), limits.gpus_each)];
    for (person, most) in of_gpus {
        let Some(most) = most else { continue };
        if gpus > most as usize {
            let problem = format!("{gpus} is more than project {project} allows: {most}");
            return Err(Rejection::field("gpus.count", problem));
        }
        let held = others.most_at_once(person, added);
        if held as usize + gpus > most as usize {
            let who = person.map_or_else(|| project.to_string(), ToString::to_string);
            let what = format!(
                "GPUs at once in project {project}{} ({who} has {held} then already)",
                if person.is_some() { " for each person" } else { "" },
            );
            return Err(Rejection::LimitReached { what, limit: u64::from(most) });
        }
    }
    let left = window.ends_at.since(window.starts_at.max(fsm.now()));
    check_hours(&others, limits, (project, owner), Rate::of(gpus, 0).times(left))
}

fn check_hours(
    others: &Committed,
    limits: ProjectLimits,
    (project, owner): (&ProjectName, &UserName),
    adds: Amount,
) -> Result<(), Rejection> {
    let of_hours = [(None, limits.gpu_hours), (Some(owner), limits.gpu_hours_each)];
    for (person, most) in of_hours {
        let has = others.amount(person);
        if let Some(most) = most.filter(|most| has.plus(adds) > Amount::of_gpu_hours(*most)) {
            let who = person.map_or_else(|| project.to_string(), ToString::to_string);
            let what = format!(
                "GPU-hours in project {project}{} ({who} has used or booked {has}, and this adds {adds})",
                if person.is_some() { " for each person" } else { "" },
            );
            return Err(Rejection::LimitReached { what, limit: u64::from(most) });
        }
    }
    Ok(())
}
