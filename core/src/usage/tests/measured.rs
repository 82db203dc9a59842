//! What was measured is counted with the stay that it belongs to, and never more than was held.

use super::*;
use crate::gpu_use::{GpuUse, MeasuredUse, UseRow};
use crate::name::GpuUuid;
use crate::time::Millis;
use crate::usage::HourUse;

const H: u64 = Millis::hours(1).0;

/// Of one GPU in the hour that begins at `from`: measured and busy.
fn row(holder: LeaseHolder, within: Option<u64>, (measured, busy): (u64, u64)) -> UseRow {
    UseRow {
        model: "v100".to_owned(),
        seen: GpuUse {
            gpu: GpuUuid::parse("GPU-01").unwrap(),
            holder,
            within: within.map(reservation),
            measured_ms: Millis(measured),
            busy_ms: Millis(busy),
            occupied_ms: Millis(measured),
            utilization: busy * 50,
            memory_peak_bytes: 1,
        },
    }
}

fn hour(number: u64, rows: Vec<UseRow>) -> Vec<HourUse> {
    let (from, until) = (Timestamp(number * H), Timestamp((number + 1) * H));
    HourUse::all_of(&MeasuredUse { node: NodeName::parse("titan01").unwrap(), from, until, rows })
}

fn used(
    by: UsageBy,
    window: Window,
    hours: &[HourUse],
    stays: &[Stay],
) -> (Vec<(String, Sums)>, Sums) {
    let mut usage = Usage::of(Question { window, by, owner: None });
    hours.iter().for_each(|hour| usage.note(hour));
    stays.iter().for_each(|stay| usage.add(stay));
    usage.rows()
}

/// Used, idle and unknown.
fn three(sums: &Sums) -> (u64, u64, u64) {
    (sums.seen.busy, sums.seen.idle(), sums.unknown())
}

#[test]
fn held_is_used_idle_and_unknown_together() {
    // Two GPUs for two hours: one row each in the first hour, one of them in the second.
    let both = vec![row(attempt(1, 1), None, (H, H / 2)), row(attempt(1, 1), None, (H, 0))];
    let mut hours = hour(1, both);
    hours.extend(hour(2, vec![row(attempt(1, 1), None, (H / 4, H / 4))]));
    let sums = used(UsageBy::User, window(0, 9 * H), &hours, &[stay(H, 3 * H)]).1;
    assert_eq!(three(&sums), (H / 2 + H / 4, H + H / 2, H + H / 2 + H / 4));
    assert_eq!(sums.held(), 4 * H);
}

#[test]
fn a_row_is_no_more_than_the_part_of_its_hour_that_was_held() {
    // The agent heard of the end a quarter late.
    let hours = hour(1, vec![row(attempt(1, 1), None, (3 * H, 3 * H))]);
    let sums = used(UsageBy::User, window(0, 9 * H), &hours, &[stay(0, H + H / 2)]).1;
    assert_eq!(three(&sums), (H, 0, 2 * H));
    // What was measured when nobody held it by any stay counts for nobody.
    assert_eq!(
        three(&used(UsageBy::User, window(0, 9 * H), &hours, &[stay(0, H)]).1),
        (0, 0, 2 * H)
    );
    assert_eq!(used(UsageBy::User, window(0, 9 * H), &hours, &[]).1, Sums::default());
}

#[test]
fn a_holder_with_two_stays_in_an_hour_is_counted_once() {
    let hours = hour(1, vec![row(LeaseHolder::Reservation(reservation(7)), None, (H / 2, H / 2))]);
    let quarter = H / 4;
    let stays = [reserved(7, H, H + quarter), reserved(7, H + quarter, 2 * H)];
    let sums = used(UsageBy::User, window(0, 9 * H), &hours, &stays).1;
    assert_eq!(three(&sums), (H / 2, 0, 2 * H - H / 2));
}

#[test]
fn of_an_hour_that_the_window_cuts_the_stay_counts_in_proportion() {
    let hours = hour(1, vec![row(attempt(1, 1), None, (H, H / 2))]);
    for (asked, part) in [
        (window(H + H / 2, 9 * H), 2),
        (window(H + H / 2, H + 3 * H / 4), 4),
        (window(0, H + H / 4), 4),
    ] {
        let sums = used(UsageBy::User, asked, &hours, &[stay(H, 2 * H)]).1;
        assert_eq!((sums.seen.measured, sums.seen.busy), (H / part, H / 2 / part), "{asked:?}");
    }
}

#[test]
fn what_a_job_uses_in_a_reservation_counts_once_and_with_the_reservation() {
    let rows = vec![
        row(LeaseHolder::Reservation(reservation(7)), None, (H / 2, 0)),
        row(attempt(1, 1), Some(7), (H / 2, H / 2)),
        row(attempt(2, 1), None, (H, H)),
    ];
    let inside = Stay {
        within: Some(reservation(7)),
        owner: UserName::parse("bob").unwrap(),
        ..stay(H + H / 2, 2 * H)
    };
    let outside = Stay { holder: attempt(2, 1), ..stay(H, 2 * H) };
    let stays = [inside, reserved(7, H, 2 * H), outside];
    let (rows, total) = used(UsageBy::Class, window(0, 9 * H), &hour(1, rows), &stays);
    assert_eq!(three(&total), (H + H / 2, H / 2, 2 * H));
    let row = |name: &str| three(&rows.iter().find(|(of, _)| of == name).unwrap().1);
    assert_eq!((row(""), row("normal")), ((H / 2, H / 2, H), (H, 0, H)));
}

#[test]
fn rows_of_another_node_or_model_are_not_taken() {
    let hours = hour(1, vec![row(attempt(1, 1), None, (H, H))]);
    let elsewhere = Stay { node: NodeName::parse("titan02").unwrap(), ..stay(H, 2 * H) };
    let other = Stay { models: [("titan-x".to_owned(), 2)].into(), ..stay(H, 2 * H) };
    for stay in [elsewhere, other] {
        for by in UsageBy::ALL {
            let sums = used(*by, window(0, 9 * H), &hours, std::slice::from_ref(&stay)).1;
            assert_eq!(three(&sums), (0, 0, 2 * H));
        }
    }
}

proptest! {
    #[test]
    fn no_row_makes_more_than_was_held(
        rows in prop::collection::vec((0_u64..6, 0_u64..3 * H, 0_u64..3 * H, 1_u32..3), 0..20),
        stays in prop::collection::vec((0_u64..6 * H, 0_u64..3 * H, 1_u32..3), 0..6),
        (from, length) in (0_u64..6 * H, 1_u64..6 * H),
    ) {
        let mut hours = Vec::new();
        for (at, measured, busy, number) in rows {
            let busy = busy.min(measured);
            hours.extend(hour(at, vec![row(attempt(1, number), None, (measured, busy))]));
        }
        hours.sort_by_key(|hour| hour.hour);
        let stays: Vec<Stay> = stays
            .iter()
            .map(|(from, length, number)| Stay { holder: attempt(1, *number), ..stay(*from, from + length) })
            .collect();
        for by in UsageBy::ALL {
            let (rows, total) = used(*by, window(from, from + length), &hours, &stays);
            for sums in rows.iter().map(|(_, sums)| sums).chain([&total]) {
                prop_assert!(sums.seen.measured <= sums.held() && sums.seen.busy <= sums.seen.measured);
                prop_assert!(sums.seen.occupied <= sums.seen.measured);
                prop_assert_eq!(sums.seen.busy + sums.seen.idle() + sums.unknown(), sums.held());
            }
        }
    }
}
