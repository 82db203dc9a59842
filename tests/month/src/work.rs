//! What happens in the month, from a seed: the jobs that people send, reservations, and faults of nodes.
//!
//! The figures are those of the issue that asked for the month. What it left open was chosen here: run times end at
//! a week, weeks 1 and 4 are offered 80 % and 70 % of the fleet, one burst comes in week 2 and one in week 3.

use crate::draw::{Draw, whole};
use crate::lab::Lab;
use crate::span::{DAY, HOUR, MINUTE, Span, WEEK, hours};

/// Offered load of each week, in percent of what reservations leave.
const LOAD: [u64; 4] = [80, 130, 130, 70];
const SIZES: [u32; 4] = [1, 2, 4, 8];
const SIZES_PERCENT: [u64; 4] = [60, 15, 15, 10];
/// With a median of 3 hours, 5 % of all run times are above 48 hours.
const RUN_MEDIAN: f64 = 3.0;
const RUN_SIGMA: f64 = 1.685;
const RUN_MIN: u64 = MINUTE;
const RUN_MAX: u64 = WEEK;
/// Limits are 1 + 3 times e to a bell curve: the median is 4 times the run time, and none is too short.
const LIMIT_SIGMA: f64 = 0.8;
const SAVES_MIN: f64 = 5.0;
const SAVES_MAX: f64 = 240.0;
const NEVER_SAVE_PERCENT: u64 = 20;
const URGENT_PERCENT: u64 = 5;
const SCAVENGER_PERCENT: u64 = 20;
/// So many jobs name a model of GPU.
const MODEL_PERCENT: u64 = 15;
pub(crate) const BURST: usize = 200;
/// Reservations of a week, and faults of nodes in the month.
const RESERVATIONS: u64 = 6;
const FAULTS: u64 = 7;

/// How urgent a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Urgent,
    Normal,
    Scavenger,
}

impl Class {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Class::Urgent => "urgent",
            Class::Normal => "normal",
            Class::Scavenger => "scavenger",
        }
    }
}

/// One job.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) owner: usize,
    pub(crate) sent: u64,
    pub(crate) gpus: u32,
    pub(crate) model: Option<&'static str>,
    pub(crate) class: Class,
    pub(crate) runs: u64,
    pub(crate) limit: u64,
    /// Time between two saves; `None` where it never saves.
    pub(crate) saves: Option<u64>,
}

/// GPUs of a node that the queue does not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) machine: usize,
    pub(crate) gpus: u32,
    pub(crate) span: Span,
}

/// All that happens.
#[derive(Debug, Clone)]
pub(crate) struct Month {
    pub(crate) seed: u64,
    pub(crate) lab: Lab,
    pub(crate) work: Vec<Work>,
    pub(crate) reserved: Vec<Taken>,
    pub(crate) faults: Vec<Taken>,
}

impl Month {
    pub(crate) fn new(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let lab = Lab::new(&mut draw);
        let reserved = reservations(&lab, &mut draw.fork());
        let faults = faults(&lab, &mut draw.fork());
        let mut month = Self { seed, lab, work: Vec::new(), reserved, faults };
        for (week, load) in (0..).zip(LOAD) {
            month.add_week(week, load, &mut draw.fork());
        }
        month.work.sort_by_key(|work| work.sent);
        month
    }

    /// GPU-milliseconds that reservations and faults leave to the queue in that time.
    pub(crate) fn left_to_the_queue(&self, span: Span) -> u64 {
        let all = u64::from(self.lab.gpus()) * span.length();
        let of = |taken: &Taken| u64::from(taken.gpus) * taken.span.both(span).length();
        let gone: u64 = self.reserved.iter().chain(&self.faults).map(of).sum();
        let pairs = self.reserved.iter().flat_map(|r| self.faults.iter().map(move |f| (r, f)));
        let both = pairs
            .filter(|(r, f)| r.machine == f.machine)
            .map(|(r, f)| u64::from(r.gpus.min(f.gpus)) * r.span.both(f.span).both(span).length());
        (all + both.sum::<u64>()).saturating_sub(gone)
    }

    fn add_week(&mut self, week: u64, load: u64, draw: &mut Draw) {
        let span = Span { from: week * WEEK, to: (week + 1) * WEEK };
        let offered = hours(self.left_to_the_queue(span) * load / 100);
        let mut sum = 0.0;
        if load > 100 {
            let at = span.from + draw.between(DAY, 3 * DAY);
            let owner = self.somebody(at, draw);
            for _ in 0..BURST {
                sum += self.add(owner, at, draw);
            }
        }
        while sum < offered {
            let at = span.from + time_of_week(draw);
            let owner = self.somebody(at, draw);
            sum += self.add(owner, at, draw);
        }
    }

    /// Somebody who sends jobs by then.
    fn somebody(&self, at: u64, draw: &mut Draw) -> usize {
        let people = self.lab.people.iter();
        let busy: Vec<u64> = people.map(|p| if p.from <= at { p.busy } else { 0 }).collect();
        draw.weighted(&busy)
    }

    /// The GPU-hours of the job.
    fn add(&mut self, owner: usize, sent: u64, draw: &mut Draw) -> f64 {
        let gpus = SIZES[draw.weighted(&SIZES_PERCENT)];
        let fits = |gpus: u32| self.lab.machines.iter().filter(move |m| m.gpus >= gpus);
        let models: Vec<&'static str> = fits(gpus).map(|machine| machine.model).collect();
        let model = draw.chance(MODEL_PERCENT).then(|| models[draw.place(models.len())]);
        let drawn = draw.log_normal(RUN_MEDIAN, RUN_SIGMA) * hours_in_millis();
        let runs = whole(drawn).clamp(RUN_MIN, RUN_MAX);
        let factor = 1.0 + draw.log_normal(3.0, LIMIT_SIGMA);
        let minutes = whole(factor * drawn.min(hours_in_millis() * 168.0) / 60_000.0).max(5);
        let limit = (minutes * MINUTE).max(runs + 5 * MINUTE).min(60 * DAY);
        let gap = whole(draw.log_uniform(SAVES_MIN, SAVES_MAX)) * MINUTE;
        let saves = (!draw.chance(NEVER_SAVE_PERCENT)).then_some(gap);
        let class = match draw.weighted(&[URGENT_PERCENT, 75, SCAVENGER_PERCENT]) {
            0 => Class::Urgent,
            1 => Class::Normal,
            _ => Class::Scavenger,
        };
        // A few people send all that is urgent.
        let urgent: Vec<usize> =
            (0..self.lab.people.len()).filter(|at| self.lab.people[*at].may_use_urgent).collect();
        let owner = match class {
            Class::Urgent => urgent[draw.place(urgent.len())],
            Class::Normal | Class::Scavenger => owner,
        };
        self.work.push(Work { owner, sent, gpus, model, class, runs, limit, saves });
        f64::from(gpus) * hours(runs)
    }
}

fn hours_in_millis() -> f64 {
    3_600_000.0
}

/// Two thirds by day, from 9 to 19 o'clock.
fn time_of_week(draw: &mut Draw) -> u64 {
    let day = draw.between(0, 6) * DAY;
    match draw.chance(66) {
        true => day + draw.between(9 * HOUR, 19 * HOUR),
        false => day + draw.between(0, DAY - 1),
    }
}

/// Courses and people at their desks: by day, a part of a node or all of it. None is on the same node as another one at
/// the same time.
fn reservations(lab: &Lab, draw: &mut Draw) -> Vec<Taken> {
    let mut all: Vec<Taken> = Vec::new();
    for week in 0..4 {
        for _ in 0..RESERVATIONS {
            let machine = draw.place(lab.machines.len());
            let most = u64::from(lab.machines[machine].gpus);
            let gpus = u32::try_from(draw.between(1, most)).unwrap_or(1);
            let from = week * WEEK + draw.between(0, 6) * DAY + draw.between(8, 14) * HOUR;
            let span = Span { from, to: from + draw.between(2, 24) * HOUR };
            let clashes =
                |other: &Taken| other.machine == machine && other.span.both(span).length() > 0;
            if !all.iter().any(clashes) {
                all.push(Taken { machine, gpus, span });
            }
        }
    }
    all
}

fn faults(lab: &Lab, draw: &mut Draw) -> Vec<Taken> {
    let mut all: Vec<Taken> = Vec::new();
    for _ in 0..FAULTS {
        let machine = draw.place(lab.machines.len());
        let from = draw.between(0, 4 * WEEK - DAY);
        let span = Span { from, to: from + draw.between(30 * MINUTE, 8 * HOUR) };
        let clashes =
            |other: &Taken| other.machine == machine && other.span.both(span).length() > 0;
        if !all.iter().any(clashes) {
            all.push(Taken { machine, gpus: lab.machines[machine].gpus, span });
        }
    }
    all
}
