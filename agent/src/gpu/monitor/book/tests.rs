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

fn inventory(book: &mut Book, count: u32, indices: &[u32], now: Timestamp) {
    book.begin_inventory();
    book.driver(driver(), count);
    for index in indices {
        book.gpu(info(*index), now);
    }
    book.end_inventory(now);
}

fn presence(book: &Book) -> Vec<(u32, Presence)> {
    book.snapshot(0).gpus.iter().map(|gpu| (gpu.info.index, gpu.presence)).collect()
}

#[test]
fn a_gpu_that_vanishes_is_lost_and_comes_back() {
    let mut book = Book::new(&[], T0);
    inventory(&mut book, 2, &[0, 1], T0);
    inventory(&mut book, 1, &[1], T1);
    assert_eq!(presence(&book), [(0, Presence::Lost), (1, Presence::Present)]);
    assert!(book.wants_retry());
    inventory(&mut book, 2, &[0, 1], T1);
    assert_eq!(presence(&book), [(0, Presence::Present), (1, Presence::Present)]);
    assert!(!book.wants_retry());
}

#[test]
fn a_gpu_known_from_an_earlier_life_is_lost_when_absent() {
    let mut book = Book::new(&[info(0), info(1)], T0);
    assert_eq!(presence(&book), [(0, Presence::Unknown), (1, Presence::Unknown)]);
    inventory(&mut book, 1, &[1], T1);
    assert_eq!(presence(&book), [(0, Presence::Lost), (1, Presence::Present)]);
}

#[test]
fn a_hung_gpu_is_unknown_and_left_out_until_it_is_retried() {
    let mut book = Book::new(&[], T0);
    inventory(&mut book, 2, &[0, 1], T0);
    for _ in 0..HUNG_RETRIES_MAX {
        book.hung(0, "does not answer", T1);
        assert_eq!(book.skipped(), (vec![0], 2));
        inventory(&mut book, 2, &[1], T1);
        assert_eq!(presence(&book), [(0, Presence::Unknown), (1, Presence::Present)]);
        assert!(book.wants_retry());
        book.retry_hung();
        assert_eq!(book.skipped(), (vec![], 2));
    }
    book.hung(0, "does not answer", T1);
    inventory(&mut book, 2, &[1], T1);
    assert!(!book.wants_retry(), "after {HUNG_RETRIES_MAX} retries it is left alone");
    book.forget_hangs();
    assert_eq!(book.skipped(), (vec![], 2));
}

#[test]
fn a_measurement_ends_the_count_of_hangs() {
    let mut book = Book::new(&[], T0);
    inventory(&mut book, 1, &[0], T0);
    book.hung(0, "does not answer", T0);
    book.retry_hung();
    inventory(&mut book, 1, &[0], T1);
    book.sample(&info(0).uuid, measured(), T1);
    assert!(book.hung.is_empty());
    assert_eq!(book.snapshot(0).gpus[0].telemetry.temperature_c, Observed::Value(40));
}

#[test]
fn skips_are_forgotten_when_the_driver_counts_other_gpus() {
    let mut book = Book::new(&[], T0);
    inventory(&mut book, 3, &[0, 1, 2], T0);
    book.hung(2, "does not answer", T0);
    inventory(&mut book, 2, &[0, 1], T1);
    assert_eq!(presence(&book)[2], (2, Presence::Lost));
    assert_eq!(book.skipped().0, Vec::<u32>::new());
}

#[test]
fn a_gpu_that_never_told_its_name_is_a_problem() {
    let mut book = Book::new(&[], T0);
    book.begin_inventory();
    book.driver(driver(), 3);
    book.hung(0, "does not answer", T0);
    book.begin_inventory();
    book.driver(driver(), 3);
    book.gpu_failed(1, false, "no permission".to_owned());
    book.gpu(info(2), T0);
    book.end_inventory(T0);
    assert_eq!(book.snapshot(0).problems, ["GPU 0: does not answer", "GPU 1: no permission"]);
    assert_eq!(presence(&book), [(2, Presence::Present)]);
}

#[test]
fn a_gpu_that_may_not_be_opened_is_unknown_not_lost() {
    let mut book = Book::new(&[info(0), info(1)], T0);
    book.begin_inventory();
    book.driver(driver(), 2);
    book.gpu_failed(0, false, "no permission".to_owned());
    book.gpu_failed(1, true, "lost".to_owned());
    book.end_inventory(T1);
    assert_eq!(presence(&book), [(0, Presence::Unknown), (1, Presence::Lost)]);
}

#[test]
fn without_the_driver_nothing_is_known_but_what_was_lost() {
    let mut book = Book::new(&[], T0);
    inventory(&mut book, 2, &[0, 1], T0);
    book.sample(&info(1).uuid, measured(), T0);
    book.lost(&info(0).uuid, "off the bus", T0);
    book.driver_fails(DriverState::Released, T1);
    assert_eq!(presence(&book), [(0, Presence::Lost), (1, Presence::Unknown)]);
    let snapshot = book.snapshot(0);
    assert!(snapshot.gpus[1].telemetry.temperature_c.is_unknown());
    assert_eq!(snapshot.gpus[1].is_empty(0), None);
    assert_eq!(snapshot.gpus[0].since, T0, "still lost since then");
}

#[test]
fn a_start_that_hangs_halfway_leaves_the_rest_unknown() {
    let mut book = Book::new(&[], T0);
    inventory(&mut book, 3, &[0, 1, 2], T0);
    book.begin_inventory();
    book.driver(driver(), 3);
    book.gpu(info(0), T1);
    book.hung(1, "does not answer", T1);
    book.not_reached(T1);
    assert!(!book.is_open(), "it is shown at once");
    let unknown = |index| (index, Presence::Unknown);
    assert_eq!(presence(&book), [(0, Presence::Present), unknown(1), unknown(2)]);
}
