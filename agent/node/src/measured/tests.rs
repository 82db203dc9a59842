use fleet_core::id::AllocationId;
use proptest::prelude::*;

use super::*;

const H: Millis = Millis::hours(1);
/// The beginning of an hour.
const HOUR: Timestamp = Timestamp(500_000 * 3_600_000);

fn gpu(number: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0{number}")).unwrap()
}

fn attempt(number: u32) -> Holding {
    let holder =
        LeaseHolder::Allocation(AllocationId::parse(&format!("alloc-{number}-1")).unwrap());
    Holding { holder, within: None }
}

fn sample(number: u32, utilization_percent: u32) -> Sample {
    Sample {
        gpu: gpu(0),
        holding: Some(attempt(number)),
        utilization_percent,
        occupied: true,
        memory_used_bytes: u64::from(utilization_percent),
        details: Details::default(),
    }
}

/// That many milliseconds after the beginning of an hour.
fn at(ms: u64) -> Moment {
    Moment { since_boot: Duration::from_millis(ms), fleet: HOUR + Millis(ms) }
}

/// (from, until, holder's number, measured, busy), in milliseconds since the beginning.
fn shown(slots: &[Slot]) -> Vec<(u64, u64, u64, u64)> {
    let of = |slot: &Slot| {
        let from = slot.seen.from.since(HOUR).0;
        let rows = slot.seen.rows.iter();
        rows.map(|row| (from, slot.seen.until.since(HOUR).0, row.measured_ms.0, row.busy_ms.0))
            .collect::<Vec<_>>()
    };
    slots.iter().flat_map(of).collect()
}

fn meter() -> Meter {
    Meter::resume(H, Vec::new())
}

#[test]
fn a_sample_stands_for_the_time_to_the_next() {
    let mut meter = meter();
    for (ms, utilization) in [(0, 50), (5_000, 0), (10_000, 100), (12_000, 0)] {
        meter.look(at(ms), vec![sample(1, utilization)]);
    }
    assert_eq!(shown(meter.unfinished()), [(0, H.0, 12_000, 7_000)]);
    let row = &meter.unfinished()[0].seen.rows[0];
    assert_eq!((row.utilization, row.memory_peak_bytes), (50 * 5_000 + 100 * 2_000, 100));
    meter.stop(at(13_000));
    assert_eq!(shown(meter.unfinished()), [(0, H.0, 13_000, 7_000)]);
}

#[test]
fn a_pause_beyond_fifteen_seconds_is_unknown() {
    let mut meter = meter();
    meter.look(at(0), vec![sample(1, 100)]);
    meter.look(at(14_000), vec![]);
    assert!(meter.unfinished().is_empty(), "the sample still stands");
    meter.look(at(35_000), vec![sample(1, 100)]);
    meter.look(at(40_000), vec![sample(1, 100)]);
    assert_eq!(shown(meter.unfinished()), [(0, H.0, 20_000, 20_000)]);
    // It gives no more samples.
    meter.look(at(60_000), vec![]);
    meter.look(at(90_000), vec![]);
    assert_eq!(shown(meter.unfinished()), [(0, H.0, 35_000, 35_000)]);
}

#[test]
fn nobody_and_somebody_else_are_told_apart() {
    let mut meter = meter();
    let nobody = Sample { holding: None, ..sample(1, 100) };
    meter.look(at(0), vec![nobody]);
    meter.look(at(5_000), vec![sample(1, 100)]);
    meter.look(at(10_000), vec![sample(2, 0)]);
    meter.stop(at(12_000));
    assert_eq!(shown(meter.unfinished()), [(5_000, H.0, 5_000, 5_000), (5_000, H.0, 2_000, 0)]);
}

#[test]
fn an_hour_is_cut_at_its_end_and_taken_when_no_sample_is_open() {
    let mut meter = meter();
    meter.look(at(H.0 - 4_000), vec![sample(1, 100)]);
    assert!(meter.take_finished(HOUR + H).is_empty());
    meter.look(at(H.0 + 3_000), vec![sample(1, 0)]);
    meter.look(at(H.0 + 10_000), vec![sample(1, 0)]);
    let all = [(H.0 - 4_000, H.0, 4_000, 4_000), (H.0, 2 * H.0, 10_000, 3_000)];
    assert_eq!(shown(meter.unfinished()), all);
    assert!(meter.take_finished(HOUR + H + Millis(14_999)).is_empty());
    assert_eq!(shown(&meter.take_finished(HOUR + H + SAMPLE_MAX)), all[..1]);
    assert_eq!(shown(meter.unfinished()), all[1..]);
}

#[test]
fn time_that_steps_back_counts_nothing_twice() {
    let mut meter = meter();
    meter.look(at(0), vec![sample(1, 100)]);
    meter.look(at(10_000), vec![sample(1, 100)]);
    // A minute back: what was counted is not counted again, until it has passed.
    let back = |ms: u64| Moment { fleet: HOUR + Millis(ms - 8_000), ..at(ms) };
    for ms in [15_000, 20_000, 25_000] {
        meter.look(back(ms), vec![sample(1, 100)]);
    }
    // The sample of 10 s stood until 15 s; by the new time 25 s is 17 s.
    assert_eq!(shown(meter.unfinished()), [(0, H.0, 17_000, 17_000)]);
}

#[test]
fn after_a_clock_was_set_back_for_good_it_counts_again_and_drops_the_future() {
    let mut meter = meter();
    meter.look(at(10 * H.0), vec![sample(1, 100)]);
    meter.look(at(10 * H.0 + 5_000), vec![sample(1, 100)]);
    let moment = |ms: u64| Moment { fleet: HOUR + Millis(ms), ..at(10 * H.0 + 5_000 + ms) };
    meter.look(moment(0), vec![sample(1, 100)]);
    meter.look(moment(5_000), vec![sample(1, 100)]);
    assert_eq!(shown(meter.unfinished()), [(0, H.0, 5_000, 5_000)]);
}

#[test]
fn the_next_agent_continues_where_the_last_one_stopped() {
    let mut first = meter();
    first.look(at(0), vec![sample(1, 100)]);
    first.stop(at(10_000));
    let text = serde_json::to_string(first.unfinished()).unwrap();
    let stored: Vec<Slot> = serde_json::from_str(&text).unwrap();
    // The clock of the next one is behind by three seconds at first.
    let mut next = Meter::resume(H, stored);
    next.look(at(7_000), vec![sample(1, 100)]);
    next.stop(at(12_000));
    assert_eq!(shown(next.unfinished()), [(0, H.0, 12_000, 12_000)]);
    // Another interval: what is counted now begins where that ended.
    let quarter = Millis::minutes(15);
    let mut shorter = Meter::resume(quarter, next.unfinished().to_vec());
    shorter.look(at(20_000), vec![sample(1, 0)]);
    shorter.stop(at(30_000));
    assert_eq!(shown(shorter.unfinished()), [(0, H.0, 22_000, 12_000)]);
    shorter.look(at(H.0 + 20_000), vec![sample(1, 0)]);
    shorter.stop(at(H.0 + 30_000));
    assert_eq!(shown(shorter.unfinished())[1], (H.0 + 20_000, H.0 + quarter.0, 10_000, 0));
}

#[test]
fn a_report_begins_with_what_was_measured_first() {
    // Controllers may know the beginning of the hour already: after a step back, or from shorter reports.
    let mut meter = meter();
    let other = |utilization| Sample { gpu: gpu(1), ..sample(2, utilization) };
    meter.look(at(600_000), vec![other(100)]);
    meter.look(at(603_000), vec![sample(1, 100)]);
    // The sample of the one GPU ends first, but began later.
    meter.look(at(605_000), vec![sample(1, 100)]);
    meter.look(at(607_000), vec![sample(1, 100), other(0)]);
    let all = [(600_000, H.0, 4_000, 4_000), (600_000, H.0, 7_000, 7_000)];
    assert_eq!(shown(meter.unfinished()), all);
    // What is taken is over: nothing is counted before its end any more.
    meter.stop(at(608_000));
    assert_eq!(meter.take_finished(HOUR + H + SAMPLE_MAX).len(), 1);
    meter.look(at(700_000), vec![sample(1, 100)]);
    meter.stop(at(705_000));
    assert!(meter.unfinished().is_empty());
}

#[test]
fn a_report_that_is_full_ends_and_the_next_one_begins() {
    let mut meter = meter();
    let jobs = u32::try_from(USE_ROWS_MAX).unwrap() + 10;
    for number in 0..=jobs {
        meter.look(at(u64::from(number) * 1_000), vec![sample(number, 100)]);
    }
    let slots = meter.unfinished();
    assert_eq!(slots.len(), 2);
    assert!(slots[0].seen.until == slots[1].seen.from && slots[1].seen.until == HOUR + H);
    assert!(slots.iter().all(|slot| slot.seen.rows.len() <= USE_ROWS_MAX));
    let measured: u64 = shown(slots).iter().map(|(_, _, measured, _)| measured).sum();
    assert_eq!(measured, u64::from(jobs) * 1_000);
    for slot in slots {
        assert!(
            slot.seen
                .rows
                .iter()
                .all(|row| row.measured_ms <= slot.seen.until.since(slot.seen.from))
        );
    }
}

#[test]
fn nodes_wait_for_different_times_within_a_sixth() {
    let names = (0..1_000).map(|number| format!("titan{number:02}"));
    let pauses: Vec<u64> = names.map(|name| pause_of(&name, H).0).collect();
    assert!(pauses.iter().all(|pause| *pause < Millis::minutes(10).0));
    for tenth in 0..10_u64 {
        let span = tenth * 60_000..(tenth + 1) * 60_000_u64;
        let here = pauses.iter().filter(|pause| span.contains(*pause)).count();
        assert!((50..200).contains(&here), "minute {tenth}: {here}");
    }
    assert_eq!(pause_of("titan01", Millis(1)), Millis::ZERO);
}

proptest! {
    #[test]
    fn many_small_samples_are_one_large_one(
        cuts in prop::collection::btree_set(1_u64..15_000, 0..20),
        begin in 0_u64..2 * H.0,
        utilization in 0_u32..=100,
    ) {
        let (mut small, mut large) = (meter(), meter());
        let ends = [begin, begin + 15_000];
        for ms in ends.into_iter().take(1).chain(cuts.iter().map(|cut| begin + cut)).chain([ends[1]]) {
            small.look(at(ms), vec![sample(1, utilization)]);
        }
        for ms in ends {
            large.look(at(ms), vec![sample(1, utilization)]);
        }
        prop_assert_eq!(small.unfinished(), large.unfinished());
        let measured: u64 = shown(small.unfinished()).iter().map(|(_, _, measured, _)| measured).sum();
        prop_assert_eq!(measured, 15_000);
    }

    /// Whatever the clocks do: no row is longer than its slot or the time that passed, and slots follow each other.
    #[test]
    fn no_moment_counts_twice(
        steps in prop::collection::vec((0_u64..40_000, -30_000_i64..30_000, 1_u32..4), 1..60),
        every in prop::sample::select(vec![1_u64, 60, 600, 3_600]),
    ) {
        let mut meter = Meter::resume(Millis::secs(every), Vec::new());
        let (mut boot, mut fleet, mut stood) = (0_u64, HOUR.0, 0_u64);
        let mut earliest = u64::MAX;
        let mut latest = 0;
        let mut slots = Vec::new();
        for (passed, step, number) in steps {
            boot += passed;
            stood += passed.min(SAMPLE_MAX.0);
            fleet = (fleet + passed).saturating_add_signed(step);
            earliest = earliest.min(fleet);
            latest = latest.max(fleet + SAMPLE_MAX.0);
            let since_boot = Duration::from_millis(boot);
            meter.look(Moment { since_boot, fleet: Timestamp(fleet) }, vec![sample(number, 50)]);
            slots.extend(meter.take_finished(Timestamp(fleet)));
        }
        slots.extend(meter.unfinished().iter().cloned());
        let all: u64 = shown(&slots).iter().map(|(_, _, measured, _)| measured).sum();
        prop_assert!(all <= stood && all <= latest - earliest, "{} of {}", all, stood);
        for slot in &slots {
            let measured: u64 = slot.seen.rows.iter().map(|row| row.measured_ms.0).sum();
            let NodeUse { from, until, .. } = slot.seen;
            prop_assert!(measured > 0 && measured <= until.since(from).0);
            prop_assert_eq!(from.0 / H.0, (until.0 - 1) / H.0);
        }
        let follow = slots.windows(2).all(|two| two[0].seen.until <= two[1].seen.from);
        prop_assert!(follow);
    }
}
