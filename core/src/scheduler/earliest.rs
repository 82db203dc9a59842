//! Before which time no job can start on a node, by the claims on its GPUs: a few numbers for each node, worked out once
//! for a plan. So a job that looks for its start passes by most nodes of a large fleet without a look at their claims.

use std::cmp::Reverse;

use crate::state::claims::Claim;
use crate::state::wish::GpuSet;
use crate::time::{Millis, Timestamp};

/// GPUs by a time, the earliest first.
type ByTime = Vec<(Timestamp, GpuSet)>;

/// A bound for each start on the node.
#[derive(Debug)]
pub(super) struct Earliest {
    /// The GPUs by the first time at which none of the claims of now is on them.
    first_free: ByTime,
    /// The GPUs by the end of the last claim on them.
    free_at_last: ByTime,
    /// The longest time between now and the last claim for which one of the GPUs is free.
    longest_gap: Millis,
}

impl Earliest {
    /// Of these GPUs; `claims`: all that are on the node from now on, by their beginning.
    pub(super) fn of(claims: &[Claim], gpus: GpuSet, now: Timestamp) -> Self {
        // By the GPU's place: when it is free first, and at last.
        let mut free = [(now, now); GpuSet::BITS as usize];
        let mut longest_gap = Millis::ZERO;
        for claim in claims {
            let mut claimed = claim.gpus & gpus;
            while claimed != 0 {
                let (first, last) = &mut free[claimed.trailing_zeros() as usize];
                claimed &= claimed - 1;
                longest_gap = longest_gap.max(claim.from.since(*last));
                *last = claim.until.max(*last);
                if claim.from <= now {
                    *first = *last;
                }
            }
        }
        let by_time = |time: fn(&(Timestamp, Timestamp)) -> Timestamp| {
            let places = free.iter().enumerate().filter(|(place, _)| gpus >> place & 1 == 1);
            let mut by_time: ByTime =
                places.map(|(place, free)| (time(free), 1 << place)).collect();
            by_time.sort_unstable_by_key(|(at, _)| Reverse(*at));
            by_time.reverse();
            by_time
        };
        Self {
            first_free: by_time(|free| free.0),
            free_at_last: by_time(|free| free.1),
            longest_gap,
        }
    }

    /// No job of that length starts before on that many of these GPUs. `None`: there are not so many.
    pub(super) fn start(&self, gpus: GpuSet, count: u32, length: Millis) -> Option<Timestamp> {
        // It fits between no two claims, so it starts behind the last.
        let free = if length > self.longest_gap { &self.free_at_last } else { &self.first_free };
        let Some(nth) = count.checked_sub(1) else {
            return Some(Timestamp(0));
        };
        let meant = free.iter().filter(|(_, gpu)| gpu & gpus != 0);
        meant.map(|(from, _)| *from).nth(nth as usize)
    }
}

#[cfg(test)]
mod tests;
