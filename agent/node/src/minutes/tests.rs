use std::time::Duration;

use fleet_core::id::AllocationId;
use proptest::prelude::*;

use super::*;
use crate::measured::{Details, Meter, Moment, Sample, Slot};

const H: Millis = Millis::hours(1);
/// The beginning of an hour.
const HOUR: Timestamp = Timestamp(500_000 * 3_600_000);
const FIRST: u64 = 500_000 * 60;

fn gpu(number: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0{number}")).unwrap()
}

fn attempt(number: u32) -> Holding {
    let id = AllocationId::parse(&format!("alloc-{number}-1")).unwrap();
    Holding { holder: LeaseHolder::Allocation(id), within: None }
}

fn program(uid: u32, name: &str) -> Program {
    Program { uid, name: name.to_owned() }
}

fn sample(number: u32, utilization_percent: u32) -> Sample {
    let details = Details {
        power_milliwatts: Some(1_000 * utilization_percent),
        temperature_celsius: Some(30 + utilization_percent),
        processes: vec![program(number, "python3")],
    };
    Sample {
        gpu: gpu(0),
        holding: Some(attempt(number)),
        utilization_percent,
        occupied: true,
        memory_used_bytes: u64::from(utilization_percent),
        details,
    }
}

fn at(ms: u64) -> Moment {
    Moment { since_boot: Duration::from_millis(ms), fleet: HOUR + Millis(ms) }
}

fn of(samples: Vec<(u64, Sample)>, end: u64) -> Vec<MinuteRow> {
    let (mut meter, mut minutes) = (Meter::resume(H, Vec::new()), Minutes::default());
    for (ms, sample) in samples {
        minutes.add(&meter.look(at(ms), vec![sample]));
    }
    minutes.add(&meter.stop(at(end)));
    minutes.take_all()
}

#[test]
fn a_minute_has_what_its_samples_say_and_is_cut_at_its_end() {
    let rows = of(vec![(50_000, sample(1, 80)), (55_000, sample(1, 20))], 65_000);
    let [first, second] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(
        (first.minute, first.measured_ms, first.busy_ms),
        (FIRST, Millis(10_000), Millis(10_000))
    );
    assert_eq!(first.utilization_percent(), Some(50));
    assert_eq!((first.memory_peak_bytes, first.temperature_peak_celsius), (80, Some(110)));
    assert_eq!(first.power_watts(), Some(50));
    assert_eq!(first.programs, [program(1, "python3")]);
    assert_eq!((second.minute, second.measured_ms), (FIRST + 1, Millis(5_000)));
    assert_eq!((second.utilization_percent(), second.from()), (Some(20), HOUR + MINUTE));
}

#[test]
fn a_gpu_that_nobody_has_leaves_a_row_only_where_a_program_is_on_it() {
    let nobody = Sample { holding: None, ..sample(7, 40) };
    let empty = Sample { details: Details::default(), ..nobody.clone() };
    let rows = of(vec![(0, empty), (5_000, nobody)], 8_000);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&row.holder, row.measured_ms, row.busy_ms), (&None, Millis(3_000), Millis(3_000)));
    assert_eq!(row.programs, [program(7, "python3")]);
}

#[test]
fn a_row_names_few_programs_and_counts_the_others() {
    let many = |number: u32| (0..number).map(|uid| program(uid, &"x".repeat(99)));
    let mut crowded = sample(1, 5);
    crowded.details.processes = many(11).chain(many(11)).collect();
    let rows = of(vec![(0, crowded)], 1_000);
    assert_eq!((rows[0].programs.len(), rows[0].more_programs), (PROGRAMS_MAX, 3));
    assert!(rows[0].programs.iter().all(|one| one.name.len() == NAME_CHARS_MAX));
    assert_eq!(merged(rows.clone()), rows);
}

#[test]
fn a_minute_is_taken_when_no_sample_can_add_to_it() {
    let (mut meter, mut minutes) = (Meter::resume(H, Vec::new()), Minutes::default());
    minutes.add(&meter.look(at(58_000), vec![sample(1, 9)]));
    minutes.add(&meter.look(at(63_000), vec![sample(1, 9)]));
    assert!(minutes.take_finished(HOUR + Millis(74_999)).is_empty());
    assert_eq!(minutes.take_finished(HOUR + Millis(75_000)).len(), 1);
    assert_eq!(minutes.unfinished().count(), 1);
    // The clock was a day ahead, and is right now.
    assert!(minutes.take_finished(Timestamp(HOUR.0 - 24 * H.0)).is_empty());
    assert_eq!(minutes.unfinished().count(), 0);
}

#[test]
fn the_rows_of_two_agents_are_one_and_a_minute_never_has_more_than_its_length() {
    let rows = of(vec![(0, sample(1, 10)), (10_000, sample(1, 30))], 20_000);
    let text = serde_json::to_string(&rows[0]).unwrap();
    let again: MinuteRow = serde_json::from_str(&text).unwrap();
    assert_eq!(again, rows[0]);
    let both = merged(vec![rows[0].clone(), again.clone()]);
    assert_eq!((both.len(), both[0].measured_ms), (1, Millis(40_000)));
    assert_eq!(both[0].utilization_percent(), Some(20));
    let three = merged(vec![rows[0].clone(), again.clone(), again.clone(), again]);
    assert_eq!(three[0].measured_ms, MINUTE, "the fourth does not fit");
    assert_eq!(mean(7, Millis::ZERO), None);
}

/// (holder, measured, busy, occupied, utilisation), added up.
type Sums = BTreeMap<String, (u64, u64, u64, u64)>;

fn sums_of_slots(slots: &[Slot]) -> Sums {
    let mut sums = Sums::new();
    for row in slots.iter().flat_map(|slot| &slot.seen.rows) {
        let sum = sums.entry(format!("{} {:?}", row.gpu, row.holder)).or_default();
        sum.0 += row.measured_ms.0;
        sum.1 += row.busy_ms.0;
        sum.2 += row.occupied_ms.0;
        sum.3 += row.utilization;
    }
    sums
}

fn sums_of_minutes(rows: &[MinuteRow]) -> Sums {
    let mut sums = Sums::new();
    for row in rows {
        let Some(holder) = &row.holder else { continue };
        let sum = sums.entry(format!("{} {holder:?}", row.gpu)).or_default();
        sum.0 += row.measured_ms.0;
        sum.1 += row.busy_ms.0;
        sum.2 += row.occupied_ms.0;
        sum.3 += row.utilization;
    }
    sums
}

proptest! {
    /// Whatever the clocks do: the minutes add up to what the meter reports, and none of a GPU is longer than it is.
    #[test]
    fn minutes_are_the_hours_in_parts(
        steps in prop::collection::vec(
            (
                // Often enough that minutes are full.
                prop_oneof![4 => 0_u64..12_000, 1 => 0_u64..40_000],
                prop_oneof![8 => Just(0_i64), 1 => -30_000_i64..30_000],
                0_u32..4,
                prop_oneof![4 => Just(0_u32), 1 => Just(1_u32)],
                0_u32..3,
                any::<bool>(),
            ),
            1..60,
        ),
        every in prop::sample::select(vec![60_u64, 600, 3_600]),
    ) {
        let mut meter = Meter::resume(Millis::secs(every), Vec::new());
        let (mut minutes, mut slots, mut rows) = (Minutes::default(), Vec::new(), Vec::new());
        let (mut boot, mut fleet) = (0_u64, HOUR.0);
        for (passed, step, number, card, utilization, occupied) in steps {
            boot += passed;
            fleet = (fleet + passed).saturating_add_signed(step);
            let holding = (number > 0).then(|| attempt(number));
            let sample = Sample { gpu: gpu(card), holding, occupied, ..sample(number, utilization) };
            let now = Moment { since_boot: Duration::from_millis(boot), fleet: Timestamp(fleet) };
            minutes.add(&meter.look(now, vec![sample]));
            slots.extend(meter.take_finished(now.fleet));
            rows.extend(minutes.take_finished(now.fleet));
        }
        let now = Moment { since_boot: Duration::from_millis(boot + 3_000), fleet: Timestamp(fleet) };
        minutes.add(&meter.stop(now));
        slots.extend(meter.unfinished().iter().cloned());
        rows.extend(minutes.take_all());
        prop_assert_eq!(sums_of_slots(&slots), sums_of_minutes(&rows));
        let merged = merged(rows.clone());
        prop_assert_eq!(sums_of_minutes(&rows), sums_of_minutes(&merged), "nothing was dropped");
        let mut of_gpu: BTreeMap<(u64, GpuUuid), u64> = BTreeMap::new();
        for row in &merged {
            *of_gpu.entry((row.minute, row.gpu.clone())).or_default() += row.measured_ms.0;
            prop_assert!(row.busy_ms <= row.measured_ms && row.occupied_ms <= row.measured_ms);
        }
        prop_assert!(of_gpu.values().all(|sum| *sum <= MINUTE.0), "{:?}", of_gpu);
    }
}
