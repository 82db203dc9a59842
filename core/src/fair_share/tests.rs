//! Tests of how use is counted and fades.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const WEEK: Millis = Millis::days(7);

fn hours(amount: Amount) -> f64 {
    amount.gpu_millis() as f64 / 3_600_000.0
}

fn one_gpu(from: u64, to: u64) -> UseOf {
    UseOf { rate: Rate(1_000), from: Timestamp(from), to: Timestamp(to) }
}

#[test]
fn use_counts_half_after_one_half_life_and_nothing_in_the_end() {
    let hour = Millis::hours(1).0;
    let fresh = one_gpu(0, hour).now(Timestamp(hour), WEEK);
    assert!((hours(fresh) - 1.0).abs() < 0.003, "{}", hours(fresh));
    for (weeks, left) in [(1, 0.5), (2, 0.25), (3, 0.125), (10, 1.0 / 1_024.0)] {
        let later = one_gpu(0, hour).now(Timestamp(hour + weeks * WEEK.0), WEEK);
        assert!((hours(later) - left * hours(fresh)).abs() < 1e-6, "{weeks}: {}", hours(later));
    }
    assert_eq!(one_gpu(0, hour).now(Timestamp(u64::MAX), WEEK), Amount(0));
}

#[test]
fn a_gpu_for_ever_comes_to_its_half_life_over_the_logarithm_of_two() {
    let for_ever = one_gpu(0, Millis::days(4_000).0);
    let most = hours(for_ever.now(for_ever.to, WEEK));
    assert!((most - 168.0 / 2_f64.ln()).abs() < 0.001, "{most}");
    // The largest fleet, the longest half-life: no number is too large.
    let all = UseOf { rate: Rate(100_000_000), ..for_ever };
    assert!(all.now(all.to, HALF_LIFE_MAX).0 < u64::MAX);
}

#[test]
fn another_half_life_counts_from_then_on() {
    let (project, user) = (ProjectName::default_project(), UserName::parse("ada").unwrap());
    let mut share = FairShare::default();
    let hour = Millis::hours(1).0;
    share.charge((&project, &user), one_gpu(0, hour), Timestamp(hour));
    let at = |share: &FairShare, now: u64| {
        let used = share.used().next().unwrap().2;
        hours(used.now(Timestamp(now), share.half_life))
    };
    let before = at(&share, WEEK.0);
    share.set_half_life(Millis::days(1), Timestamp(WEEK.0));
    assert!((at(&share, WEEK.0) - before).abs() < 1e-6);
    assert!((at(&share, WEEK.0 + Millis::days(1).0) - before / 2.0).abs() < 1e-6);
}

#[test]
fn accounts_that_hold_nothing_any_more_are_dropped() {
    let project = ProjectName::default_project();
    let mut share = FairShare::default();
    for at in 0..ACCOUNTS_KEPT {
        let user = UserName::parse(&format!("u{at}")).unwrap();
        share.charge((&project, &user), one_gpu(0, 1_000), Timestamp(1_000));
    }
    let (late, ada) = (Millis::days(900).0, UserName::parse("ada").unwrap());
    share.charge((&project, &ada), one_gpu(late - 10_000, late), Timestamp(late));
    assert_eq!(share.used().count(), 1);
}

proptest! {
    #[test]
    fn many_small_steps_and_one_large_step_agree(
        length in 1_000_000..5_000_000_000_u64,
        steps in 1..2_000_u64,
        gpus in 1..64_u64,
        half_life in HALF_LIFE_MIN.0..HALF_LIFE_MAX.0,
    ) {
        let (rate, half_life) = (Rate(gpus * 1_000), Millis(half_life));
        let mut used = Used::default();
        for step in 0..steps {
            let at = |n: u64| Timestamp(length * n / steps);
            used.add(UseOf { rate, from: at(step), to: at(step + 1) }, at(step + 1), half_life);
        }
        let end = Timestamp(length);
        let at_once = UseOf { rate, from: Timestamp(0), to: end }.now(end, half_life);
        let (small, large) = (used.now(end, half_life).0, at_once.0);
        // Each step is rounded down, by less than two units.
        prop_assert!(small.abs_diff(large) <= 3 * steps + large / 1_000_000_000, "{small} {large}");
    }

    #[test]
    fn it_never_grows_by_itself_and_never_turns_round(
        a in 0..HALF_LIFE_MAX.0 * 4, b in 0..HALF_LIFE_MAX.0 * 4, half_life in HALF_LIFE_MIN.0..HALF_LIFE_MAX.0,
    ) {
        let (sooner, later) = (a.min(b), a.max(b));
        let left = |time| left_after(Millis(time), Millis(half_life));
        prop_assert!(left(later) <= left(sooner) && left(sooner) <= ONE);
        let real = 2_f64.powf(-(sooner as f64) / half_life as f64);
        prop_assert!((left(sooner) as f64 / ONE as f64 - real).abs() < 1e-12);
    }
}

#[test]
fn a_million_steps_of_a_second_agree_with_one() {
    let mut used = Used::default();
    for second in 0..1_000_000 {
        used.add(
            one_gpu(second * 1_000, (second + 1) * 1_000),
            Timestamp((second + 1) * 1_000),
            WEEK,
        );
    }
    let end = Timestamp(1_000_000_000);
    let (small, large) = (hours(used.now(end, WEEK)), hours(one_gpu(0, end.0).now(end, WEEK)));
    assert!((small - large).abs() < 0.001, "{small} {large}");
}
