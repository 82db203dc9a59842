//! The picture: given messages, then what is shown.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::gpu::observed::Observed;

const T0: Timestamp = Timestamp(1_000);
const T1: Timestamp = Timestamp(2_000);

fn info(index: u32) -> GpuInfo {
    GpuState::of_tests(index).info
}

fn driver() -> DriverInfo {
    DriverInfo {
        driver_version: Observed::Value("550".to_owned()),
        nvml_version: Observed::NotSupported,
        cuda_version: Observed::NotSupported,
    }
}

fn measured() -> Telemetry {
    Telemetry { temperature_c: Observed::Value(40), ..Telemetry::unknown("") }
}

fn inventory(readings: &mut Readings, count: u32, indices: &[u32], now: Timestamp) {
    readings.begin_inventory();
    readings.driver(driver(), count);
    for index in indices {
        readings.gpu(info(*index), now);
    }
    readings.end_inventory(now, "14:32 CET");
}

fn presence(readings: &Readings) -> Vec<(u32, Presence)> {
    readings.snapshot(0).gpus.iter().map(|gpu| (gpu.info.index, gpu.presence)).collect()
}

#[test]
fn a_gpu_that_vanishes_is_lost_and_comes_back() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 2, &[0, 1], T0);
    inventory(&mut readings, 1, &[1], T1);
    assert_eq!(presence(&readings), [(0, Presence::Lost), (1, Presence::Present)]);
    assert!(readings.wants_retry());
    inventory(&mut readings, 2, &[0, 1], T1);
    assert_eq!(presence(&readings), [(0, Presence::Present), (1, Presence::Present)]);
    assert!(!readings.wants_retry());
}

#[test]
fn a_gpu_known_from_an_earlier_life_is_lost_when_absent() {
    let mut readings = Readings::new(&[info(0), info(1)], T0);
    assert_eq!(presence(&readings), [(0, Presence::Unknown), (1, Presence::Unknown)]);
    inventory(&mut readings, 1, &[1], T1);
    assert_eq!(presence(&readings), [(0, Presence::Lost), (1, Presence::Present)]);
}

#[test]
fn a_hung_gpu_is_unknown_and_left_out_until_it_is_retried() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 2, &[0, 1], T0);
    for _ in 0..HUNG_RETRIES_MAX {
        readings.hung(0, "does not answer", T1);
        assert_eq!(readings.skipped(), (vec![0], 2));
        inventory(&mut readings, 2, &[1], T1);
        assert_eq!(presence(&readings), [(0, Presence::Unknown), (1, Presence::Present)]);
        assert!(readings.wants_retry());
        readings.retry_hung();
        assert_eq!(readings.skipped(), (vec![], 2));
    }
    readings.hung(0, "does not answer", T1);
    inventory(&mut readings, 2, &[1], T1);
    assert!(!readings.wants_retry(), "after {HUNG_RETRIES_MAX} retries it is left alone");
    readings.forget_hangs();
    assert_eq!(readings.skipped(), (vec![], 2));
}

#[test]
fn a_hung_gpu_says_when_it_is_tried_again() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 2, &[0, 1], T0);
    let said = |readings: &Readings| readings.snapshot(0).gpus[0].reason.clone().unwrap();
    readings.hung(0, "does not answer", T1);
    assert_eq!(said(&readings), "does not answer");
    inventory(&mut readings, 2, &[1], T1);
    assert_eq!(said(&readings), "does not answer; tried again at 14:32 CET");
    for _ in 0..HUNG_RETRIES_MAX {
        readings.retry_hung();
        readings.hung(0, "does not answer", T1);
    }
    inventory(&mut readings, 2, &[1], T1);
    assert_eq!(
        said(&readings),
        "does not answer; not tried again until the node is drained and uncordoned, or its agent \
         restarts"
    );
    // One without a name is a problem of the node, and says the same.
    let mut unnamed = Readings::new(&[], T0);
    unnamed.begin_inventory();
    unnamed.driver(driver(), 1);
    unnamed.hung(0, "does not answer", T0);
    inventory(&mut unnamed, 1, &[], T0);
    assert_eq!(unnamed.snapshot(0).problems, ["GPU 0: does not answer; tried again at 14:32 CET"]);
}

#[test]
fn a_measurement_ends_the_count_of_hangs() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 1, &[0], T0);
    readings.hung(0, "does not answer", T0);
    readings.retry_hung();
    inventory(&mut readings, 1, &[0], T1);
    readings.sample(&info(0).uuid, measured(), T1);
    assert!(readings.hung.is_empty());
    assert_eq!(readings.snapshot(0).gpus[0].telemetry.temperature_c, Observed::Value(40));
}

#[test]
fn skips_are_forgotten_when_the_driver_counts_other_gpus() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 3, &[0, 1, 2], T0);
    readings.hung(2, "does not answer", T0);
    inventory(&mut readings, 2, &[0, 1], T1);
    assert_eq!(presence(&readings)[2], (2, Presence::Lost));
    assert_eq!(readings.skipped().0, Vec::<u32>::new());
}

#[test]
fn a_gpu_that_never_told_its_name_is_a_problem() {
    let mut readings = Readings::new(&[], T0);
    readings.begin_inventory();
    readings.driver(driver(), 3);
    readings.hung(0, "does not answer", T0);
    readings.begin_inventory();
    readings.driver(driver(), 3);
    readings.gpu_failed(1, false, "no permission".to_owned());
    readings.gpu(info(2), T0);
    readings.end_inventory(T0, "14:32 CET");
    assert_eq!(
        readings.snapshot(0).problems,
        ["GPU 0: does not answer; tried again at 14:32 CET", "GPU 1: no permission"]
    );
    assert_eq!(presence(&readings), [(2, Presence::Present)]);
}

#[test]
fn a_gpu_that_may_not_be_opened_is_unknown_not_lost() {
    let mut readings = Readings::new(&[info(0), info(1)], T0);
    readings.begin_inventory();
    readings.driver(driver(), 2);
    readings.gpu_failed(0, false, "no permission".to_owned());
    readings.gpu_failed(1, true, "lost".to_owned());
    readings.end_inventory(T1, "14:32 CET");
    assert_eq!(presence(&readings), [(0, Presence::Unknown), (1, Presence::Lost)]);
}

#[test]
fn without_the_driver_nothing_is_known_but_what_was_lost() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 2, &[0, 1], T0);
    readings.sample(&info(1).uuid, measured(), T0);
    readings.lost(&info(0).uuid, "off the bus", T0);
    readings.driver_fails(DriverState::Released, T1);
    assert_eq!(presence(&readings), [(0, Presence::Lost), (1, Presence::Unknown)]);
    let snapshot = readings.snapshot(0);
    assert!(snapshot.gpus[1].telemetry.temperature_c.is_unknown());
    assert_eq!(snapshot.gpus[1].is_empty(0), None);
    assert_eq!(snapshot.gpus[0].since, T0, "still lost since then");
}

#[test]
fn a_start_that_hangs_halfway_leaves_the_rest_unknown() {
    let mut readings = Readings::new(&[], T0);
    inventory(&mut readings, 3, &[0, 1, 2], T0);
    readings.begin_inventory();
    readings.driver(driver(), 3);
    readings.gpu(info(0), T1);
    readings.hung(1, "does not answer", T1);
    readings.not_reached(T1);
    assert!(!readings.is_open(), "it is shown at once");
    let unknown = |index| (index, Presence::Unknown);
    assert_eq!(presence(&readings), [(0, Presence::Present), unknown(1), unknown(2)]);
}
