//! What the month is judged by, with the thresholds of the issue that asked for it. None is ever lowered here: what does
//! not hold is said to not hold.

use crate::due::shares;
use crate::record::Record;
use crate::span::{AT_LOAD, DAY, HOUR, MINUTE, MONTH, Span, hours};
use crate::work::{Class, Month};

/// Each window of this length counts, one beginning every [`STEP`].
pub(crate) const WINDOW: u64 = 3 * DAY;
pub(crate) const STEP: u64 = 6 * HOUR;
/// Of the share due, somebody with work waiting gets at least so much.
pub(crate) const SHARE_MIN: f64 = 0.9;
/// A first job starts within this time, or as early as was foreseen; and so many of them.
const FIRST_WITHIN: u64 = 30 * MINUTE;
pub(crate) const FIRST_MIN: f64 = 0.95;
/// Useful GPU-hours, beside those of the order of submission.
pub(crate) const USEFUL_MIN: f64 = 0.97;
/// GPU-hours that preemption made jobs compute twice, beside the useful ones.
pub(crate) const TWICE_MAX: f64 = 0.01;
/// Mean wait of jobs on 8 GPUs, beside that of jobs on one.
pub(crate) const WAIT_MAX: f64 = 3.0;
/// Somebody whose jobs wait sees one of them start in this time: the bound after which a job comes before all others
/// (`scheduler::WAITS_MAX`), and as long as the longest job may hold the GPUs that it needs.
pub(crate) const DROUGHT_MAX: u64 = 14 * DAY;

/// The figures of one month under one policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Over all windows and all people with work waiting throughout: received of due.
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) first_jobs: usize,
    pub(crate) first_jobs_in_time: usize,
    pub(crate) useful: f64,
    pub(crate) twice: f64,
    /// Mean wait to the first start, in hours, of jobs on 1, 2, 4 and 8 GPUs.
    pub(crate) waits: [f64; 4],
    /// The longest time in which somebody had jobs waiting and none of them started.
    pub(crate) drought: u64,
    /// Part of the GPU-hours left to the queue at load that jobs held.
    pub(crate) held_at_load: f64,
}

/// One person in one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) due: f64,
    pub(crate) received: f64,
}

impl Ratio {
    pub(crate) fn value(&self) -> f64 {
        self.received / self.due.max(0.01)
    }
}

impl Figures {
    pub(crate) fn of(month: &Month, record: &Record) -> Self {
        let jobs = || month.work.iter().zip(&record.jobs);
        let sum = |of: &dyn Fn(&crate::record::JobRecord) -> u64| -> f64 {
            jobs().map(|(work, job)| f64::from(work.gpus) * hours(of(job))).sum()
        };
        let first =
            || jobs().filter(|(work, job)| job.first_of_owner && work.class != Class::Scavenger);
        let in_time = first().filter(|(work, job)| {
            let by = job.foreseen.unwrap_or(0).max(work.sent + FIRST_WITHIN);
            job.started().is_some_and(|at| at <= by)
        });
        let held: f64 =
            jobs().map(|(work, job)| f64::from(work.gpus) * hours(job.ran_within(AT_LOAD))).sum();
        Self {
            ratios: ratios(month, record),
            first_jobs: first().count(),
            first_jobs_in_time: in_time.count(),
            useful: sum(&|job| job.useful),
            twice: sum(&|job| job.lost_to_preemption),
            waits: [1, 2, 4, 8].map(|gpus| mean_wait(month, record, gpus)),
            drought: drought(month, record),
            held_at_load: held / hours(month.left_to_the_queue(AT_LOAD)),
        }
    }

    pub(crate) fn worst(&self) -> f64 {
        self.ratios.iter().map(Ratio::value).fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn short(&self) -> usize {
        self.ratios.iter().filter(|ratio| ratio.value() < SHARE_MIN).count()
    }

    pub(crate) fn wait_of_eight(&self) -> f64 {
        self.waits[3] / self.waits[0].max(0.01)
    }
}

fn ratios(month: &Month, record: &Record) -> Vec<Ratio> {
    let mut all = Vec::new();
    let mut from = AT_LOAD.from;
    while from + WINDOW <= AT_LOAD.to {
        let window = Span { from, to: from + WINDOW };
        let shares = shares(month, record, window);
        let waited = shares.iter().filter(|share| share.waited_throughout);
        all.extend(waited.map(|share| Ratio { due: share.due, received: share.received }));
        from += STEP;
    }
    all
}

/// In hours, to the first start. Of jobs that the classes let wait for everybody else, nothing is promised.
fn mean_wait(month: &Month, record: &Record, gpus: u32) -> f64 {
    let of = month.work.iter().zip(&record.jobs);
    let of = of.filter(|(work, _)| work.gpus == gpus && work.class != Class::Scavenger);
    let waits: Vec<f64> = of
        .map(|(work, job)| hours(job.started().unwrap_or(MONTH).saturating_sub(work.sent)))
        .collect();
    waits.iter().sum::<f64>() / (waits.len().max(1) as f64)
}

fn drought(month: &Month, record: &Record) -> u64 {
    let mut worst = 0;
    for person in 0..month.lab.people.len() {
        let of = month.work.iter().zip(&record.jobs);
        let of = of.filter(|(work, _)| work.owner == person && work.class != Class::Scavenger);
        let (mut starts, mut waits): (Vec<u64>, Vec<Span>) = (Vec::new(), Vec::new());
        for (work, job) in of {
            starts.extend(job.ran.iter().map(|ran| ran.from));
            waits.extend(job.waits(work.sent, MONTH));
        }
        starts.sort_unstable();
        for wait in waits {
            // From when it waits to the next start of any of theirs.
            let next = starts.partition_point(|at| *at <= wait.from);
            let until = starts.get(next).copied().unwrap_or(MONTH).min(wait.to);
            worst = worst.max(until.saturating_sub(wait.from));
        }
    }
    worst
}
