//! One seed under all policies, the table of all seeds, and the verdict for each threshold.

use std::fmt;

use crate::measures::{
    DROUGHT_MAX, FIRST_MIN, Figures, SHARE_MIN, TWICE_MAX, USEFUL_MIN, WAIT_MAX,
};
use crate::record::Record;
use crate::run::{Policy, run};
use crate::span::{HOUR, MONTH, Span, hours};
use crate::work::Month;

/// Held GPUs are drawn as means over this time.
pub(crate) const BIN: u64 = 6 * HOUR;

/// One month under the fleet, in the order of submission, and under multifactor rules.
#[derive(Debug)]
pub(crate) struct Seed {
    pub(crate) number: u64,
    pub(crate) jobs: usize,
    pub(crate) fleet: Figures,
    pub(crate) fifo: Figures,
    pub(crate) multifactor: Figures,
    /// The part of all GPUs that jobs held, for each policy in this order.
    pub(crate) held: [Vec<f64>; 3],
    pub(crate) violations: Vec<String>,
}

impl Seed {
    pub(crate) fn run(number: u64) -> Self {
        let month = Month::new(number);
        let records = [Policy::Fleet, Policy::Fifo, Policy::Multifactor]
            .map(|policy| run(&month, policy, None));
        let [fleet, fifo, multifactor] = [0, 1, 2].map(|at| Figures::of(&month, &records[at]));
        let violations = records.iter().flat_map(|record| &record.violations);
        let violations = violations.map(|what| format!("seed {number}: {what}")).collect();
        let held = [0, 1, 2].map(|at| held(&month, &records[at]));
        Self { number, jobs: month.work.len(), fleet, fifo, multifactor, held, violations }
    }

    pub(crate) fn of(&self, policy: Policy) -> &Figures {
        match policy {
            Policy::Fleet => &self.fleet,
            Policy::Fifo => &self.fifo,
            Policy::Multifactor => &self.multifactor,
        }
    }

    fn useful_of_fifo(&self) -> f64 {
        self.fleet.useful / self.fifo.useful.max(0.01)
    }

    fn twice(&self) -> f64 {
        self.fleet.twice / self.fleet.useful.max(0.01)
    }
}

fn held(month: &Month, record: &Record) -> Vec<f64> {
    let of_all = f64::from(month.lab.gpus()) * hours(BIN);
    let bins = (0..MONTH / BIN).map(|bin| Span { from: bin * BIN, to: (bin + 1) * BIN });
    bins.map(|bin| {
        let of = month.work.iter().zip(&record.jobs);
        let sum: f64 = of.map(|(w, j)| f64::from(w.gpus) * hours(j.ran_within(bin))).sum();
        sum / of_all
    })
    .collect()
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fleet = &self.fleet;
        write!(
            f,
            "seed {:3}: {:4} jobs; {:3} of {:3} windows below their share (worst {:.2}); first jobs {}/{}; \
             useful {:.3} of FIFO; twice {:.2} %; waits of 8 GPUs {:.1} times those of 1; longest without a start {:.1} d",
            self.number,
            self.jobs,
            fleet.short(),
            fleet.ratios.len(),
            fleet.worst(),
            fleet.first_jobs_in_time,
            fleet.first_jobs,
            self.useful_of_fifo(),
            100.0 * self.twice(),
            fleet.wait_of_eight(),
            hours(fleet.drought) / 24.0
        )
    }
}

/// A row for each policy: means over the seeds.
pub(crate) fn means(seeds: &[Seed]) -> String {
    let mut text = String::from(
        "policy       below share  first jobs  useful GPU-h  twice   wait 1, 2, 4, 8 GPUs (h)   8/1   held at load\n",
    );
    let count = seeds.len().max(1) as f64;
    for policy in [Policy::Fleet, Policy::Fifo, Policy::Multifactor] {
        let all: Vec<&Figures> = seeds.iter().map(|seed| seed.of(policy)).collect();
        let mean = |of: &dyn Fn(&Figures) -> f64| all.iter().map(|f| of(f)).sum::<f64>() / count;
        let sum = |of: &dyn Fn(&Figures) -> usize| all.iter().map(|f| of(f)).sum::<usize>() as f64;
        let short = sum(&|f| f.short()) / sum(&|f| f.ratios.len()).max(1.0);
        let first = sum(&|f| f.first_jobs_in_time) / sum(&|f| f.first_jobs).max(1.0);
        let useful = mean(&|f| f.useful);
        let waits = [0, 1, 2, 3].map(|at| mean(&|f: &Figures| f.waits[at]));
        text.push_str(&format!(
            "{:12} {:9.1} %  {:8.1} %  {useful:12.0}  {:.2} %  {:5.1} {:5.1} {:5.1} {:6.1}  {:11.1}  {:9.1} %\n",
            format!("{policy:?}").to_lowercase(),
            100.0 * short,
            100.0 * first,
            100.0 * mean(&|f| f.twice) / useful.max(0.01),
            waits[0],
            waits[1],
            waits[2],
            waits[3],
            waits[3] / waits[0].max(0.01),
            100.0 * mean(&|f| f.held_at_load),
        ));
    }
    text
}

/// One threshold: over all seeds together, and in how many of them.
#[derive(Debug)]
pub(crate) struct Verdict {
    what: String,
    value: String,
    holds: bool,
    seeds_that_hold: usize,
    seeds: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = if self.holds { "reached" } else { "required, not reached" };
        let Self { what, value, seeds_that_hold, seeds, .. } = self;
        write!(f, "{said}: {what}: {value} (holds in {seeds_that_hold} of {seeds} seeds)")
    }
}

/// A threshold is reached where it holds in each seed. First jobs are few in a seed: of them, over all seeds.
pub(crate) fn verdicts(seeds: &[Seed]) -> Vec<Verdict> {
    let each = |what: &str, holds: &dyn Fn(&Seed) -> bool, value: String| {
        let seeds_that_hold = seeds.iter().filter(|seed| holds(seed)).count();
        let (what, holds) = (what.to_owned(), seeds_that_hold == seeds.len());
        Verdict { what, value, holds, seeds_that_hold, seeds: seeds.len() }
    };
    let worst = |of: &dyn Fn(&Seed) -> f64| seeds.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let least = |of: &dyn Fn(&Seed) -> f64| seeds.iter().map(of).fold(f64::INFINITY, f64::min);
    let first: usize = seeds.iter().map(|seed| seed.fleet.first_jobs).sum();
    let in_time: usize = seeds.iter().map(|seed| seed.fleet.first_jobs_in_time).sum();
    let part =
        |seed: &Seed| seed.fleet.first_jobs_in_time as f64 / seed.fleet.first_jobs.max(1) as f64;
    let all_first = in_time as f64 / first.max(1) as f64;
    let (short, windows): (usize, usize) = (
        seeds.iter().map(|seed| seed.fleet.short()).sum(),
        seeds.iter().map(|seed| seed.fleet.ratios.len()).sum(),
    );
    let mut first_jobs = each(
        "95 % of first jobs start within 30 min or as foreseen",
        &|seed| part(seed) >= FIRST_MIN,
        format!("{in_time} of {first}"),
    );
    first_jobs.holds = all_first >= FIRST_MIN;
    vec![
        each(
            "at least 0.9 of the share due in each 3 days at load",
            &|seed| seed.fleet.worst() >= SHARE_MIN,
            format!("{short} of {windows} windows of people are below"),
        ),
        first_jobs,
        each(
            "useful GPU-hours at least 0.97 of FIFO with backfill",
            &|seed| seed.useful_of_fifo() >= USEFUL_MIN,
            format!("least {:.3}", least(&|seed| seed.useful_of_fifo())),
        ),
        each(
            "at most 1 % computed twice by preemption",
            &|seed| seed.twice() <= TWICE_MAX,
            format!("most {:.2} %", 100.0 * worst(&|seed| seed.twice())),
        ),
        each(
            "jobs on 8 GPUs wait at most 3 times as long as on 1",
            &|seed| seed.fleet.wait_of_eight() <= WAIT_MAX,
            format!("most {:.1} times", worst(&|seed| seed.fleet.wait_of_eight())),
        ),
        each(
            "nobody with work waiting is without a start for 14 days",
            &|seed| seed.fleet.drought <= DROUGHT_MAX,
            format!("most {:.1} days", worst(&|seed| hours(seed.fleet.drought) / 24.0)),
        ),
        each(
            "no GPU has two jobs, nobody leaves before the guarantee, no line of a plan is refused",
            &|seed| seed.violations.is_empty(),
            format!("{} violations", seeds.iter().map(|seed| seed.violations.len()).sum::<usize>()),
        ),
    ]
}
