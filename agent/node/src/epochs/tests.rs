//! Lower is refused, equal is the same order, what is forgotten is fenced all the same.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::gpu;

fn claim(allocation: &str, index: u64, lease: &str, gpus: &[u32]) -> Claim {
    Claim {
        allocation: AllocationId::parse(allocation).unwrap(),
        epoch: Epoch { incarnation: 1, index },
        lease: Some(LeaseId::parse(lease).unwrap()),
        gpus: gpus.iter().copied().map(gpu).collect(),
    }
}

/// Whether each is new, the same again (`false`), or refused; new ones are remembered.
fn claimed(seen: &mut SeenEpochs, claims: &[Claim]) -> Vec<Result<bool, ClaimError>> {
    let judged = seen.judge(claims);
    judged
        .into_iter()
        .map(|one| {
            let line = one?;
            let new = line.is_some();
            line.into_iter().for_each(|line| seen.take(line));
            Ok(new)
        })
        .collect()
}

#[test]
fn a_lower_epoch_is_refused_for_a_gpu_and_for_an_allocation() {
    let mut seen = SeenEpochs::default();
    let mut one = |claim: Claim| claimed(&mut seen, &[claim]).remove(0);
    assert!(one(claim("alloc-a-1", 5, "lease-1", &[0])).unwrap());
    let lower = one(claim("alloc-b-1", 4, "lease-2", &[0])).unwrap_err();
    assert!(lower.is_stale() && lower.to_string().contains("GPU-0"), "{lower}");
    let lower = one(claim("alloc-a-1", 3, "lease-3", &[1])).unwrap_err();
    assert!(lower.to_string().contains("alloc-a-1"), "{lower}");
    assert!(one(claim("alloc-b-1", 6, "lease-2", &[0])).unwrap());
    one(claim("alloc-a-1", 5, "lease-1", &[0])).unwrap_err();
}

#[test]
fn those_that_wait_together_see_each_other() {
    let mut seen = SeenEpochs::default();
    let same = claim("alloc-a-1", 5, "lease-1", &[0, 1]);
    let rival = claim("alloc-b-1", 5, "lease-2", &[1]);
    let verdicts =
        claimed(&mut seen, &[same.clone(), rival, claim("alloc-c-1", 5, "lease-3", &[2])]);
    let [Ok(true), Err(ClaimError::OtherLease { .. }), Ok(true)] = &verdicts[..] else {
        panic!("{verdicts:?}");
    };
    assert!(!claimed(&mut seen, &[same]).remove(0).unwrap(), "the same order again is not new");
}

#[test]
fn what_is_forgotten_is_fenced_by_the_floor_and_by_its_gpu() {
    let mut seen = SeenEpochs::default();
    let many: Vec<Claim> = (1..=ALLOCATIONS_MAX as u64 + 10)
        .map(|index| claim(&format!("alloc-{index}-1"), index, "lease-1", &[]))
        .collect();
    assert!(claimed(&mut seen, &many).into_iter().all(|one| one.unwrap()));
    claimed(&mut seen, &[claim("alloc-z-1", 9_999_999, "lease-z", &[7])]).remove(0).unwrap();
    seen.shorten();
    assert_eq!(seen.allocations.len(), ALLOCATIONS_MAX);
    let mut again = SeenEpochs::default();
    seen.lines().into_iter().for_each(|line| again.take(line));
    claimed(&mut again, &[claim("alloc-1-1", 1, "lease-1", &[])]).remove(0).unwrap_err();
    claimed(&mut again, &[claim("alloc-y-1", 9_999_998, "lease-y", &[7])]).remove(0).unwrap_err();
}
