//! The share of the fleet that each person was due in a window of time: max-min fair, as `docs/queue.md` promises it.
//!
//! What is divided is what reservations and faults left to the queue. Projects share it by their weights, and the people
//! of a project share equally what it gets. Nobody is due more than they had work for; what they do not want goes to the
//! others, first of the same project. Scavenger jobs want nothing: they run where nobody else wants the GPUs.

use crate::lab::{Lab, PEOPLE};
use crate::record::Record;
use crate::span::{Span, hours};
use crate::work::{Class, Month};

/// GPU-hours of one person in one window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Share {
    pub(crate) wanted: f64,
    pub(crate) due: f64,
    pub(crate) received: f64,
    /// At every moment of the window some job of theirs waited.
    pub(crate) waited_throughout: bool,
}

/// All people in one window.
pub(crate) fn shares(month: &Month, record: &Record, window: Span) -> Vec<Share> {
    let mut shares = vec![Share::default(); PEOPLE];
    let mut waits: Vec<Vec<Span>> = vec![Vec::new(); PEOPLE];
    for (work, job) in month.work.iter().zip(&record.jobs) {
        if work.class == Class::Scavenger || work.sent >= window.to {
            continue;
        }
        if job.finished.is_some_and(|at| at <= window.from) {
            continue;
        }
        let (share, gpus) = (&mut shares[work.owner], f64::from(work.gpus));
        let had = job.ran_within(window);
        share.received += gpus * hours(had);
        let before = Span { from: 0, to: window.from };
        let left = work.runs.saturating_sub(job.ran_within(before));
        let there = Span { from: work.sent.max(window.from), to: window.to };
        share.wanted += gpus * hours(left.min(there.length()).max(had));
        waits[work.owner].extend(job.waits(work.sent, window.to));
    }
    for (share, waits) in shares.iter_mut().zip(waits) {
        share.waited_throughout = covers(waits, window);
    }
    let wanted: Vec<f64> = shares.iter().map(|share| share.wanted).collect();
    let capacity = hours(month.left_to_the_queue(window));
    for (share, due) in shares.iter_mut().zip(due(month, capacity, &wanted)) {
        share.due = due;
    }
    shares
}

/// Whether these stretches leave no gap in the window.
fn covers(mut waits: Vec<Span>, window: Span) -> bool {
    waits.sort_by_key(|wait| wait.from);
    let mut until = window.from;
    for wait in waits {
        if wait.from > until {
            break;
        }
        until = until.max(wait.to);
    }
    until >= window.to
}

/// What each person is due of that many GPU-hours.
fn due(month: &Month, capacity: f64, wanted: &[f64]) -> Vec<f64> {
    let projects: Vec<usize> = Lab::projects().map(|(at, _)| at).collect();
    let people_of = |at: usize| {
        let people = month.lab.people.iter().enumerate();
        people.filter(move |(_, person)| person.project == at).map(|(person, _)| person)
    };
    let by_project: Vec<(f64, f64)> = projects
        .iter()
        .map(|at| {
            let sum = people_of(*at).map(|person| wanted[person]).sum();
            (f64::from(Lab::weight_of(*at)), sum)
        })
        .collect();
    let mut all = vec![0.0; wanted.len()];
    for (at, gets) in projects.iter().zip(max_min(capacity, &by_project)) {
        let people: Vec<usize> = people_of(*at).collect();
        let equal: Vec<(f64, f64)> = people.iter().map(|person| (1.0, wanted[*person])).collect();
        for (person, gets) in people.into_iter().zip(max_min(gets, &equal)) {
            all[person] = gets;
        }
    }
    all
}

/// Divides `capacity` among (weight, wanted): nobody gets more than they want, and nobody who gets less has less for
/// their weight than somebody else.
fn max_min(capacity: f64, of: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|a, b| (of[*a].1 / of[*a].0).total_cmp(&(of[*b].1 / of[*b].0)));
    let (mut left, mut weights) = (capacity, of.iter().map(|(weight, _)| weight).sum::<f64>());
    let mut all = vec![0.0; of.len()];
    for at in order {
        let (weight, wanted) = of[at];
        all[at] = wanted.min(left * weight / weights);
        left -= all[at];
        weights -= weight;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_does_not_want_goes_to_the_others_by_their_weights() {
        assert_eq!(max_min(12.0, &[(1.0, 2.0), (1.0, 9.0), (1.0, 9.0)]), [2.0, 5.0, 5.0]);
        assert_eq!(max_min(12.0, &[(1.0, 99.0), (2.0, 99.0)]), [4.0, 8.0]);
        assert_eq!(max_min(12.0, &[(1.0, 1.0), (2.0, 3.0)]), [1.0, 3.0]);
    }

    #[test]
    fn a_gap_between_two_waits_is_seen() {
        let window = Span { from: 10, to: 20 };
        let span = |from, to| Span { from, to };
        assert!(covers(vec![span(15, 30), span(0, 15)], window));
        assert!(!covers(vec![span(0, 14), span(15, 30)], window));
        assert!(!covers(vec![span(0, 19)], window));
    }
}
