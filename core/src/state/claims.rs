//! What is taken of one node's GPUs, in time order, so that a window costs what is near it and not all that is booked.
//!
//! Part of the calendar's index: derived, never stored.

use std::ops::RangeInclusive;

use super::wish::GpuSet;
use crate::time::{Millis, Timestamp, Window};

#[cfg(test)]
mod tests;

/// How finely claims are counted when nodes are compared.
pub(crate) const HOUR: Millis = Millis::hours(1);

/// GPUs of one node that are taken for a while, by what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) gpus: GpuSet,
}

/// How many GPUs are taken in an hour: by claims that cover it whole, and by any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) whole: u32,
    pub(crate) any: u32,
}

/// All claims on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    in_order: Vec<Claim>,
    /// Of the longest of them: one that begins earlier than this before a window is not in its way.
    longest: Millis,
    first_end: Option<Timestamp>,
}

/// The hours that a window touches.
pub(crate) fn hours(window: &Window) -> RangeInclusive<u64> {
    let last = window.ends_at.0.saturating_sub(1).max(window.starts_at.0);
    window.starts_at.0 / HOUR.0..=last / HOUR.0
}

impl Claim {
    pub(crate) fn overlaps(&self, window: &Window) -> bool {
        self.from < window.ends_at && window.starts_at < self.until
    }

    pub(crate) fn hours(&self) -> RangeInclusive<u64> {
        hours(&Window { starts_at: self.from, ends_at: self.until })
    }
}

impl FromIterator<Claim> for Claims {
    fn from_iter<I: IntoIterator<Item = Claim>>(claims: I) -> Self {
        let mut in_order: Vec<Claim> = claims.into_iter().collect();
        in_order.sort_unstable();
        let longest = in_order.iter().map(|c| c.until.since(c.from)).max().unwrap_or_default();
        let first_end = in_order.iter().map(|claim| claim.until).min();
        Self { in_order, longest, first_end }
    }
}

impl Claims {
    pub(crate) fn as_slice(&self) -> &[Claim] {
        &self.in_order
    }

    pub(crate) fn contains(&self, claim: &Claim) -> bool {
        self.in_order.binary_search(claim).is_ok()
    }

    pub(crate) fn insert(&mut self, claim: Claim) {
        let at = self.in_order.partition_point(|other| *other <= claim);
        self.in_order.insert(at, claim);
        self.longest = self.longest.max(claim.until.since(claim.from));
        self.first_end = Some(self.first_end.map_or(claim.until, |end| end.min(claim.until)));
    }

    /// Those that the window overlaps, in time order.
    pub(crate) fn in_the_way(&self, window: Window) -> impl Iterator<Item = &Claim> {
        let longest = self.longest;
        let first = self.in_order.partition_point(|c| c.from + longest <= window.starts_at);
        let near = self.in_order[first..].iter().take_while(move |c| c.from < window.ends_at);
        near.filter(move |claim| claim.overlaps(&window))
    }

    /// The GPUs that somebody has at some time in the window.
    pub(crate) fn taken(&self, window: Window) -> GpuSet {
        self.in_the_way(window).fold(0, |taken, claim| taken | claim.gpus)
    }

    pub(crate) fn taken_in(&self, hour: u64) -> Taken {
        let window =
            Window { starts_at: Timestamp(hour * HOUR.0), ends_at: Timestamp((hour + 1) * HOUR.0) };
        let (mut whole, mut any): (GpuSet, GpuSet) = (0, 0);
        for claim in self.in_the_way(window) {
            any |= claim.gpus;
            if claim.from <= window.starts_at && window.ends_at <= claim.until {
                whole |= claim.gpus;
            }
        }
        Taken { whole: whole.count_ones(), any: any.count_ones() }
    }

    /// How many GPUs are taken in the fullest hour that the window touches.
    pub(crate) fn most_taken(&self, window: &Window) -> u32 {
        let touched = hours(window);
        let whole_hours = Window {
            starts_at: Timestamp(*touched.start() * HOUR.0),
            ends_at: Timestamp((*touched.end() + 1) * HOUR.0),
        };
        // The hour with the most is one in which a claim begins, or the first.
        let begins =
            self.in_the_way(whole_hours).map(|c| (*touched.start()).max(*c.hours().start()));
        begins.map(|hour| self.taken_in(hour).any).max().unwrap_or(0)
    }

    /// Whether the end of one of them has come.
    pub(crate) fn any_ended(&self, now: Timestamp) -> bool {
        self.first_end.is_some_and(|end| end <= now)
    }

    /// The claims that one of the two has and the other has not: first those of `self`.
    pub(crate) fn differences<'a>(&'a self, other: &'a Self) -> (Vec<&'a Claim>, Vec<&'a Claim>) {
        let (one, two) = (self.as_slice(), other.as_slice());
        // Mostly one has changed, so what is equal at both ends is left out first.
        let before = one.iter().zip(two).take_while(|(a, b)| a == b).count();
        let (one, two) = (&one[before..], &two[before..]);
        let behind = one.iter().rev().zip(two.iter().rev()).take_while(|(a, b)| a == b).count();
        let (one, two) = (&one[..one.len() - behind], &two[..two.len() - behind]);
        let only_in_one = one.iter().filter(|claim| !other.contains(claim));
        let only_in_two = two.iter().filter(|claim| !self.contains(claim));
        (only_in_one.collect(), only_in_two.collect())
    }
}
