//! Two small months made by hand, each of which shows one planted bug by a measure of the large one.

use crate::bugs::Bug;
use crate::draw::Draw;
use crate::due::shares;
use crate::lab::Lab;
use crate::measures::{Figures, SHARE_MIN, TWICE_MAX, WINDOW};
use crate::run::{Policy, run_until};
use crate::span::{DAY, HOUR, MINUTE, Span, WEEK};
use crate::work::{Class, Month, Work};

/// What a scene measured, and whether the threshold holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) what: &'static str,
    pub(crate) value: f64,
    pub(crate) holds: bool,
    pub(crate) violations: usize,
}

/// The scene that must show the bug.
pub(crate) fn scene_of(bug: Bug, with: Option<Bug>) -> Measured {
    match bug {
        Bug::ShareNotDecayed => comes_back(with),
        Bug::VictimByAge => leaves(with),
    }
}

fn empty() -> Month {
    let lab = Lab::new(&mut Draw::new(1));
    Month { seed: 1, lab, work: Vec::new(), reserved: Vec::new(), faults: Vec::new() }
}

/// Somebody has three quarters of the fleet for a week, then nothing for two weeks while six others of the project share all of
/// it. In week 4 everybody has more work than fits. What was used three weeks before hardly counts by then.
fn comes_back(bug: Option<Bug>) -> Measured {
    let mut month = empty();
    let last = month.lab.people.last().map_or(0, |person| person.project);
    let people: Vec<usize> =
        (0..month.lab.people.len()).filter(|at| month.lab.people[*at].project == last).collect();
    let (heavy, others) = (people[0], &people[1..]);
    let mut turn = 0;
    let mut other = || {
        turn += 1;
        others[turn % others.len()]
    };
    let (runs, limit) = (12 * HOUR - MINUTE, 12 * HOUR);
    for half_day in 0..50 {
        let sent = half_day * 12 * HOUR;
        // 16 jobs on 4 GPUs fill the fleet.
        let (own, of_others) = match sent {
            _ if sent < WEEK => (12, 4),
            _ if sent < 3 * WEEK => (0, 16),
            _ => (16, 32),
        };
        let owners = (0..own).map(|_| heavy).chain((0..of_others).map(|_| other()));
        month
            .work
            .extend(owners.map(|owner| job((owner, sent), 4, Class::Normal, (runs, limit), None)));
    }
    let record = run_until(3 * WEEK + WINDOW, &month, Policy::Fleet, bug);
    let window = Span { from: 3 * WEEK, to: 3 * WEEK + WINDOW };
    let share = shares(&month, &record, window)[heavy];
    let value = share.received / share.due.max(0.01);
    let violations = record.violations.len();
    Measured { what: "part of the share due", value, holds: value >= SHARE_MIN, violations }
}

/// Scavengers fill the fleet; every second one never saves, the others save each ten minutes. From the second day on
/// somebody takes one of their places each 20 minutes.
fn leaves(bug: Option<Bug>) -> Measured {
    let mut month = empty();
    for at in 0..64 {
        let saves = (at % 2 == 1).then_some(10 * MINUTE);
        let times = (200 * HOUR, 20 * DAY);
        month.work.push(job((0, at * MINUTE), 1, Class::Scavenger, times, saves));
    }
    for third in 72..216 {
        let times = (2 * HOUR, 3 * HOUR);
        month.work.push(job((1, third * 20 * MINUTE), 1, Class::Normal, times, None));
    }
    let record = run_until(3 * DAY, &month, Policy::Fleet, bug);
    let figures = Figures::of(&month, &record);
    let value = figures.twice / figures.useful.max(0.01);
    let violations = record.violations.len();
    Measured { what: "work computed twice", value, holds: value <= TWICE_MAX, violations }
}

fn job(
    (owner, sent): (usize, u64),
    gpus: u32,
    class: Class,
    (runs, limit): (u64, u64),
    saves: Option<u64>,
) -> Work {
    Work { owner, sent, gpus, model: None, class, runs, limit, saves }
}
