//! What the jobs and reservations of a project have and will have, to be compared with its limits.
//!
//! Read once for a plan or a command (`project_limit.rs`).

use std::collections::BTreeMap;

use super::limits::{Awaited, Newcomer};
use super::tally::{end_of, use_of_reservation};
use crate::allocation::Allocation;
use crate::fair_share::{Amount, Rate, UseOf};
use crate::id::{JobId, ReservationId};
use crate::job::Job;
use crate::name::{ProjectName, UserName};
use crate::reservation::{Reservation, ReservationState};
use crate::state::Fsm;
use crate::state::charged::is_within_a_reservation;
use crate::time::{Millis, Timestamp, Window};

const MINUTE: Millis = Millis::minutes(1);
/// With more jobs and reservations of a project than this it is not worked out when their use has faded.
const FADING_HOLDS_MAX: usize = 256;

/// What has GPUs of the fleet, or will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    Job(JobId),
    Reservation(ReservationId),
}

/// What one job or reservation has, from when until when.
#[derive(Debug, Clone)]
struct Hold {
    by: Holder,
    owner: UserName,
    /// What of it is yet to come.
    window: Window,
    /// Since when it is used.
    from: Timestamp,
    rate: Rate,
    gpus: u32,
}

impl Hold {
    /// What it comes to at that time, with what is then yet to come, if it lasts to its end.
    fn amount_at(&self, at: Timestamp, half_life: Millis) -> Amount {
        let (rate, from, to) = (self.rate, self.from, self.window.ends_at);
        let to_come = rate.times(to.since(at.max(from)));
        UseOf { rate, from, to }.now(at, half_life).plus(to_come)
    }
}

/// What the limits of a project are compared with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Committed {
    /// What was used by what has ended, as it counts now.
    used: BTreeMap<UserName, Amount>,
    holds: Vec<Hold>,
    /// What it all comes to now: of all, and of each person.
    all: Sums,
    each: BTreeMap<UserName, Sums>,
    /// How many GPUs are held from now on, of those that were asked for: thousands of jobs may ask before one starts.
    steps: BTreeMap<Option<UserName>, Vec<(Timestamp, u32)>>,
}

/// Saves a walk through all holds for most questions.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    used: Amount,
    held: Amount,
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
        for r in fsm.open_reservations().filter(|r| r.project == *project && !r.stands_in()) {
            this.add_reservation(r, fsm);
        }
        if awaited == Awaited::Counts {
            for (id, place) in fsm.preemptions() {
                let job = fsm.job(id).filter(|job| job.spec.project == *project);
                // As if it had its GPUs: nothing may start meanwhile that would keep it from them.
                if let Some(job) = job {
                    let waits = place.starts_at.since(now);
                    let new = Newcomer::of_job(job);
                    let new = Newcomer { length: waits + new.length, ..new };
                    this.add_waiting(&new, id, now, fsm);
                }
            }
        }
        this
    }

    fn use_up(&mut self, user: &UserName, amount: Amount) {
        let used = self.used.entry(user.clone()).or_default();
        *used = used.plus(amount);
        self.add_used(user, amount);
    }

    fn add_used(&mut self, user: &UserName, amount: Amount) {
        for sums in [&mut self.all, self.each.entry(user.clone()).or_default()] {
            sums.used = sums.used.plus(amount);
        }
    }

    fn add_attempt(&mut self, a: &Allocation, job: &Job, fsm: &Fsm) {
        let now = fsm.now();
        let rate = Rate::of(a.gpus.len(), a.cpu_millis);
        // A reservation may have cut its time short. If that goes away, the job has its own time again.
        let end = end_of(a, job, now);
        let (from, to) =
            (a.started_at.unwrap_or(now), a.own_limit_at.map_or(end, |own| own.max(end)));
        let by = Holder::Job(job.id.clone());
        // One that should be over still has them.
        let window = Window { starts_at: now, ends_at: to.max(now + Millis(1)) };
        let gpus = count(a.gpus.len());
        self.add(Hold { by, owner: job.owner.clone(), window, from, rate, gpus }, fsm);
    }

    fn add_reservation(&mut self, r: &Reservation, fsm: &Fsm) {
        let used = Some(r).filter(|r| r.state == ReservationState::Active);
        let used = used.and_then(|r| use_of_reservation(fsm, r));
        if r.state == ReservationState::Ending || r.is_cancelled() {
            return;
        }
        // One that waits to move counts where it will be.
        let (window, gpus) = match &r.next {
            Some(next) => (next.window, next.gpus.len()),
            None => (r.window, r.gpus.len()),
        };
        let from = used.map_or(window.starts_at, |used| used.from);
        let (by, owner) = (Holder::Reservation(r.id.clone()), r.owner.clone());
        let rate = Rate::of(gpus, 0);
        self.add(Hold { by, owner, window, from, rate, gpus: count(gpus) }, fsm);
    }

    fn add(&mut self, hold: Hold, fsm: &Fsm) {
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        let amount = hold.amount_at(now, half_life);
        let is_now = hold.window.starts_at <= now && now < hold.window.ends_at;
        for sums in [&mut self.all, self.each.entry(hold.owner.clone()).or_default()] {
            sums.held = sums.held.plus(amount);
            sums.gpus_ever = sums.gpus_ever.saturating_add(hold.gpus);
            sums.gpus_now += if is_now { hold.gpus } else { 0 };
        }
        self.holds.push(hold);
        self.steps.clear();
    }

    /// What the holder used by now, as it counts now.
    pub(super) fn used_by(&self, by: &Holder, fsm: &Fsm) -> Amount {
        let own = self.holds.iter().find(|hold| hold.by == *by);
        let used = own.map(|own| UseOf { rate: own.rate, from: own.from, to: fsm.now() });
        used.map_or(Amount::default(), |used| used.now(fsm.now(), fsm.fair_share().half_life))
    }

    /// A job that waits, as if it started then.
    pub(super) fn add_waiting(&mut self, new: &Newcomer<'_>, id: &JobId, at: Timestamp, fsm: &Fsm) {
        let window = Window { starts_at: at, ends_at: at + new.length };
        let (by, owner, gpus) = (Holder::Job(id.clone()), new.owner.clone(), new.spec.gpus.count);
        let rate = Rate::of(gpus as usize, 0);
        self.add(Hold { by, owner, window, from: at, rate, gpus }, fsm);
    }

    /// Without what that holder has, which is about to have something else.
    pub(super) fn without(self, by: &Holder, fsm: &Fsm) -> Self {
        let mut this = Self::default();
        for (user, amount) in &self.used {
            this.use_up(user, *amount);
        }
        for hold in self.holds.into_iter().filter(|hold| hold.by != *by) {
            this.add(hold, fsm);
        }
        this
    }

    fn sums(&self, of: Option<&UserName>) -> Sums {
        of.map_or(self.all, |user| self.each.get(user).copied().unwrap_or_default())
    }

    /// What was used, as it counts now, with what is held or booked to its end; of one person where one is named.
    pub(crate) fn amount(&self, of: Option<&UserName>) -> Amount {
        let sums = self.sums(of);
        sums.used.plus(sums.held)
    }

    /// From when on it comes to no more than `room`, if all lasts to its end and nothing else comes; in whole minutes, so that
    /// it stays what it is while plans follow each other.
    ///
    /// Nothing where there is so much that this would take long.
    pub(super) fn fades_at(
        &self,
        fsm: &Fsm,
        of: Option<&UserName>,
        room: Amount,
    ) -> Option<Timestamp> {
        if self.holds.len() > FADING_HOLDS_MAX {
            return None;
        }
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        let used = self.sums(of).used;
        let theirs = || self.holds.iter().filter(|hold| of.is_none_or(|user| hold.owner == *user));
        let fits = |minute: u64| {
            let at = Timestamp(minute.saturating_mul(MINUTE.0));
            let held = theirs().map(|hold| hold.amount_at(at, half_life));
            held.fold(used.faded(at.since(now), half_life), Amount::plus) <= room
        };
        let last = theirs().map(|hold| hold.window.ends_at).max().unwrap_or(now).max(now);
        // It only falls, and by then nothing is left.
        let (mut least, mut most) = (
            now.0.div_ceil(MINUTE.0),
            (last + Millis(half_life.0.saturating_mul(64))).0 / MINUTE.0 + 1,
        );
        while least < most {
            let middle = u64::midpoint(least, most);
            match fits(middle) {
                true => most = middle,
                false => least = middle + 1,
            }
        }
        Some(Timestamp(least.saturating_mul(MINUTE.0)))
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

    /// When more than `room` GPUs are held first, from now on and before that time, and how many then.
    pub(super) fn first_over(
        &mut self,
        of: Option<&UserName>,
        (now, until): (Timestamp, Timestamp),
        room: u32,
    ) -> Option<Over> {
        if self.sums(of).gpus_ever <= room {
            return None;
        }
        let of = of.cloned();
        if !self.steps.contains_key(&of) {
            let steps = self.steps(of.as_ref(), now);
            self.steps.insert(of.clone(), steps);
        }
        let mut within = self.steps.get(&of)?.iter().take_while(|(at, _)| *at < until);
        within.find(|(_, held)| *held > room).map(|(at, held)| Over { at: *at, held: *held })
    }

    /// The most GPUs that are held at one time within the window.
    pub(super) fn most_at_once(&self, of: Option<&UserName>, window: Window) -> u32 {
        let steps = self.steps(of, window.starts_at);
        let within = steps.into_iter().take_while(|(at, _)| *at < window.ends_at);
        within.map(|(_, held)| held).max().unwrap_or(0)
    }

    /// From when on at most `room` GPUs are held for that long, if nothing else comes.
    pub(super) fn room_from(
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
pub(super) struct Over {
    pub(super) at: Timestamp,
    pub(super) held: u32,
}

fn count(gpus: usize) -> u32 {
    u32::try_from(gpus).unwrap_or(u32::MAX)
}
