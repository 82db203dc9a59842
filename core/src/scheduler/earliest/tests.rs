//! The bound beside a search through all minutes.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;
use crate::time::Window;

const NOW: Timestamp = Timestamp(1_000);
const GPUS: usize = 4;

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    // Some began before now; each is on some GPUs for a while.
    let claim = (990u64..1_030, 1u64..15, 1u64..1 << GPUS).prop_map(|(from, length, gpus)| {
        let from = Timestamp(from);
        Claim { from, until: Timestamp((from.0 + length).max(NOW.0 + 1)), gpus }
    });
    prop::collection::vec(claim, 0..8)
}

/// The first time at which that many of the GPUs are free for that length.
fn searched(claims: &[Claim], gpus: GpuSet, count: u32, length: Millis) -> Timestamp {
    let free_from = |at: &Timestamp| {
        let window = Window { starts_at: *at, ends_at: *at + length };
        let in_the_way = claims.iter().filter(|claim| claim.overlaps(&window));
        let free = in_the_way.fold(gpus, |free, claim| free & !claim.gpus);
        free.count_ones() >= count
    };
    (NOW.0..).map(Timestamp).find(free_from).unwrap()
}

proptest! {
    #[test]
    fn no_start_is_before_the_bound(
        mut claims in claims(),
        meant in 1u64..1 << GPUS,
        count in 0u32..4,
        length in 1u64..40,
    ) {
        claims.sort_unstable();
        let earliest = Earliest::of(&claims, (1 << GPUS) - 1, NOW);
        let bound = earliest.start(meant, count, Millis(length));
        if meant.count_ones() < count {
            prop_assert_eq!(bound, None);
            return Ok(());
        }
        prop_assert!(bound.unwrap() <= searched(&claims, meant, count, Millis(length)));
    }
}

#[test]
fn a_long_job_starts_behind_the_last_claim_and_a_short_one_behind_those_of_now() {
    let claim = |from, until, gpus| Claim { from: Timestamp(from), until: Timestamp(until), gpus };
    let claims = [claim(990, 1_010, 0b01), claim(1_020, 1_050, 0b11)];
    let earliest = Earliest::of(&claims, 0b11, NOW);
    let start = |count, length| earliest.start(0b11, count, Millis(length)).map(|at| at.0);
    assert_eq!((start(1, 20), start(2, 20)), (Some(1_000), Some(1_010)));
    assert_eq!((start(1, 21), start(2, 21)), (Some(1_050), Some(1_050)));
    assert_eq!(start(3, 1), None);
}
