mod measured;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::id::{AllocationId, JobId};
use crate::lease::Account;
use crate::name::{ClassName, NodeName, ProjectName};
use crate::time::Timestamp;

fn window(from: u64, until: u64) -> Window {
    Window { starts_at: Timestamp(from), ends_at: Timestamp(until) }
}

fn attempt(job: u64, number: u32) -> LeaseHolder {
    let job = JobId::parse(&format!("job-{job}")).unwrap();
    LeaseHolder::Allocation(AllocationId::of_attempt(&job, number))
}

fn reservation(number: u64) -> ReservationId {
    ReservationId::parse(&format!("res-{number}")).unwrap()
}

/// Of ada's job 1, on two V100 of titan01.
fn stay(from: u64, until: u64) -> Stay {
    Stay {
        holder: attempt(1, 1),
        owner: UserName::parse("ada").unwrap(),
        account: Account {
            project: ProjectName::parse("vision").unwrap(),
            class: Some(ClassName::normal()),
        },
        within: None,
        node: NodeName::parse("titan01").unwrap(),
        models: [("v100".to_owned(), 2)].into(),
        from: Timestamp(from),
        until: Timestamp(until),
        lost: None,
    }
}

fn reserved(number: u64, from: u64, until: u64) -> Stay {
    let account = Account { class: None, ..stay(0, 0).account };
    let holder = LeaseHolder::Reservation(reservation(number));
    Stay { holder, account, ..stay(from, until) }
}

fn rows_of(
    by: UsageBy,
    window: Window,
    owner: Option<&str>,
    stays: &[Stay],
) -> (Vec<(String, Sums)>, Sums) {
    let owner = owner.map(|owner| UserName::parse(owner).unwrap());
    let mut usage = Usage::of(Question { window, by, owner });
    for stay in stays {
        usage.add(stay);
    }
    usage.rows()
}

fn total(stays: &[Stay]) -> Sums {
    rows_of(UsageBy::User, window(0, 1_000), None, stays).1
}

#[test]
fn a_job_outside_counts_its_gpus_for_the_part_in_the_window() {
    for (from, until, held) in [(10, 20, 20), (10, 100, 80), (60, 70, 0), (0, 30, 40), (30, 40, 20)]
    {
        let asked = window(10, 50);
        let (rows, total) = rows_of(UsageBy::User, asked, None, &[stay(from, until)]);
        assert_eq!((total.jobs, total.held()), (held, held), "{from} to {until}");
        assert_eq!(rows.len(), usize::from(held > 0), "nobody is listed who had nothing");
    }
    // It ends as the window begins, or begins as it ends.
    let touching = [stay(0, 10), stay(50, 60)];
    assert_eq!(rows_of(UsageBy::User, window(10, 50), None, &touching).1, Sums::default());
}

#[test]
fn a_job_in_a_reservation_is_held_once() {
    let inside = Stay { within: Some(reservation(1)), ..stay(20, 30) };
    let all = total(&[reserved(1, 10, 50), inside]);
    assert_eq!((all.reserved, all.in_jobs, all.jobs, all.held()), (80, 20, 0, 80));
    assert_eq!((all.job_count, all.reservation_count), (1, 1));
}

#[test]
fn what_was_lost_is_counted_in_the_window_only() {
    let lost = |from, until| Stay { lost: Some(window(from, until)), ..stay(100, 2_000) };
    for (from, until, counted) in [(200, 300, 200), (900, 1_500, 200), (1_000, 1_100, 0)] {
        let all = total(&[lost(from, until)]);
        assert_eq!((all.jobs, all.lost), (1_800, counted), "{from} to {until}");
    }
}

#[test]
fn a_job_is_counted_once_for_each_row_and_once_in_all() {
    let second =
        Stay { holder: attempt(1, 2), node: NodeName::parse("titan02").unwrap(), ..stay(30, 40) };
    let third = Stay { holder: attempt(1, 3), ..second.clone() };
    let (rows, all) = rows_of(UsageBy::Node, window(0, 100), None, &[stay(10, 20), second, third]);
    let counts: Vec<_> = rows.iter().map(|(name, sums)| (name.as_str(), sums.job_count)).collect();
    assert_eq!((counts, all.job_count), (vec![("titan02", 1), ("titan01", 1)], 1));
}

#[test]
fn rows_are_sorted_by_what_was_held_and_then_by_name() {
    let of = |owner: &str, until| Stay { owner: UserName::parse(owner).unwrap(), ..stay(0, until) };
    let stays = [of("eve", 5), of("bob", 9), of("ada", 5)];
    let (rows, _) = rows_of(UsageBy::User, window(0, 100), None, &stays);
    let names: Vec<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["bob", "ada", "eve"]);
    let (rows, all) = rows_of(UsageBy::User, window(0, 100), Some("eve"), &stays);
    assert_eq!((rows.len(), all.held()), (1, 10));
}

#[test]
fn a_stay_counts_by_model_project_and_class() {
    let mixed =
        Stay { models: [("v100".to_owned(), 1), ("a100".to_owned(), 3)].into(), ..stay(0, 10) };
    let stays = [mixed, reserved(1, 0, 10)];
    let held = |by| {
        let (rows, all) = rows_of(by, window(0, 100), None, &stays);
        assert_eq!(all.held(), 60);
        rows.into_iter().map(|(name, sums)| (name, sums.held())).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(held(UsageBy::Model), [("a100".to_owned(), 30), ("v100".to_owned(), 30)].into());
    assert_eq!(held(UsageBy::Project), [("vision".to_owned(), 60)].into());
    assert_eq!(held(UsageBy::Class), [(String::new(), 20), ("normal".to_owned(), 40)].into());
}

fn some_stay() -> impl Strategy<Value = Stay> {
    let times = (0..80_u64, 0..40_u64, 0..40_u64, 0..40_u64);
    let models = proptest::collection::btree_map("[ab]", 1..4_u32, 1..3);
    (times, 0..3_u64, 0..5_u64, 1..3_u32, 0..3_usize, models).prop_map(
        |((from, long, lost_from, lost), kind, number, try_number, owner, models)| {
            let lost_from = from + lost_from.min(long);
            let lost_until = (lost_from + lost).min(from + long);
            let plain = match kind {
                0 => reserved(number, from, from + long),
                1 => stay(from, from + long),
                _ => Stay { within: Some(reservation(number)), ..stay(from, from + long) },
            };
            let is_reserved = matches!(plain.holder, LeaseHolder::Reservation(_));
            let holder =
                if is_reserved { plain.holder.clone() } else { attempt(number, try_number) };
            let lost = Some(window(lost_from, lost_until)).filter(|_| !is_reserved);
            let owner = UserName::parse(["ada", "bob", "eve"][owner]).unwrap();
            Stay { holder, owner, models, lost, ..plain }
        },
    )
}

/// Looks at each second of the window, and asks each stay whether it lasts then.
fn second_by_second(by: UsageBy, asked: Window, stays: &[Stay]) -> BTreeMap<String, Sums> {
    let mut rows: BTreeMap<String, Sums> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for second in asked.starts_at.0..asked.ends_at.0 {
        for stay in stays.iter().filter(|s| s.from.0 <= second && second < s.until.0) {
            for (model, count) in &stay.models {
                let row = match by {
                    UsageBy::User => stay.owner.to_string(),
                    UsageBy::Model => model.clone(),
                    UsageBy::Node | UsageBy::Project | UsageBy::Class => unreachable!(),
                };
                let sums = rows.entry(row.clone()).or_default();
                let lost =
                    stay.lost.is_some_and(|l| l.starts_at.0 <= second && second < l.ends_at.0);
                sums.lost += u64::from(*count) * u64::from(lost);
                let new = seen.insert((row, stay.of().to_owned()));
                if matches!(stay.holder, LeaseHolder::Reservation(_)) {
                    sums.reserved += u64::from(*count);
                    sums.reservation_count += u64::from(new);
                } else {
                    sums.job_count += u64::from(new);
                    match stay.within {
                        Some(_) => sums.in_jobs += u64::from(*count),
                        None => sums.jobs += u64::from(*count),
                    }
                }
            }
        }
    }
    rows
}

proptest! {
    #[test]
    fn the_sums_are_those_of_a_count_second_by_second(
        stays in proptest::collection::vec(some_stay(), 0..12),
        from in 0..100_u64,
        long in 0..60_u64,
        by_model in any::<bool>(),
    ) {
        let by = if by_model { UsageBy::Model } else { UsageBy::User };
        let asked = window(from, from + long);
        let (rows, all) = rows_of(by, asked, None, &stays);
        let counted = second_by_second(by, asked, &stays);
        let held: u64 = counted.values().map(Sums::held).sum();
        prop_assert_eq!(all.held(), held);
        prop_assert_eq!(rows.into_iter().collect::<BTreeMap<_, _>>(), counted);
    }
}
