use proptest::prelude::*;

use super::*;

fn window(from: u64, length: u64) -> Window {
    Window { starts_at: Timestamp(from), ends_at: Timestamp(from + length) }
}

/// Short ones and a few long ones, at any part of an hour.
fn claim() -> impl Strategy<Value = Claim> {
    let length = prop_oneof![6 => 1..3 * HOUR.0, 1 => 1..200 * HOUR.0];
    (0..300 * HOUR.0, length, 1..256_u64).prop_map(|(from, length, gpus)| Claim {
        from: Timestamp(from),
        until: Timestamp(from + length),
        gpus: GpuSet::try_from(gpus).unwrap(),
    })
}

/// By a look at all claims.
fn taken_in(claims: &[Claim], hour: u64) -> Taken {
    let (begins, ends) = (hour * HOUR.0, (hour + 1) * HOUR.0);
    let of = |counts: &dyn Fn(&&Claim) -> bool| {
        claims.iter().filter(counts).fold(0, |set: GpuSet, claim| set | claim.gpus).count_ones()
    };
    Taken {
        whole: of(&|c| c.from.0 <= begins && ends <= c.until.0),
        any: of(&|c| c.from.0 < ends && begins < c.until.0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_near_a_window_is_all_that_is_in_its_way(
        all in prop::collection::vec(claim(), 0..40),
        from in 0..300 * HOUR.0,
        length in 1..50 * HOUR.0,
    ) {
        let claims: Claims = all.iter().copied().collect();
        let window = window(from, length);
        let mut wanted: Vec<Claim> = all.iter().filter(|c| c.overlaps(&window)).copied().collect();
        wanted.sort_unstable();
        prop_assert_eq!(claims.in_the_way(window).copied().collect::<Vec<_>>(), wanted);
        let most = hours(&window).map(|hour| taken_in(&all, hour).any).max();
        prop_assert_eq!(Some(claims.most_taken(&window)), most);
        for hour in hours(&window) {
            prop_assert_eq!(claims.taken_in(hour), taken_in(&all, hour));
        }
        let ended = all.iter().any(|claim| claim.until <= window.starts_at);
        prop_assert_eq!(claims.any_ended(window.starts_at), ended);
    }

    #[test]
    fn one_by_one_is_the_same_as_all_at_once(all in prop::collection::vec(claim(), 0..40)) {
        let mut claims = Claims::default();
        all.iter().for_each(|claim| claims.insert(*claim));
        prop_assert_eq!(claims, all.iter().copied().collect());
    }

    #[test]
    fn the_differences_are_what_only_one_of_them_has(
        both in prop::collection::vec(claim(), 0..20),
        first in prop::collection::vec(claim(), 0..4),
        second in prop::collection::vec(claim(), 0..4),
    ) {
        let of = |own: &[Claim]| both.iter().chain(own).copied().collect::<Claims>();
        let (one, two) = (of(&first), of(&second));
        let only = |one: &Claims, two: &Claims| -> Vec<Claim> {
            one.as_slice().iter().filter(|claim| !two.as_slice().contains(claim)).copied().collect()
        };
        let (gone, new) = one.differences(&two);
        prop_assert_eq!(gone.into_iter().copied().collect::<Vec<_>>(), only(&one, &two));
        prop_assert_eq!(new.into_iter().copied().collect::<Vec<_>>(), only(&two, &one));
    }
}
