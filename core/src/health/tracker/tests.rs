//! Given signals, then conditions.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::health::throttle;
use crate::time::Millis;

const STEP: Millis = Millis::secs(5);

fn gpu(number: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{number:08x}")).unwrap()
}

/// A healthy V100.
fn good() -> Reading {
    Reading {
        sampled_at: Timestamp(0),
        temperature_c: Known::Value(60),
        slowdown_c: Known::Value(87),
        throttle_reasons: Known::Value(throttle::SW_POWER_CAP),
        ecc_corrected: Known::Value(0),
        ecc_uncorrected: Known::Value(0),
        retired_single_bit: Known::Value(0),
        retired_double_bit: Known::Value(0),
        retirement_pending: Known::Value(false),
        remapped_uncorrected: Known::NotApplicable,
        remap_pending: Known::NotApplicable,
        remap_failed: Known::NotApplicable,
        pcie_width: Known::Value(16),
        pcie_width_max: Known::Value(16),
        reset_required: false,
    }
}

/// A tracker and the time, moved on by each step.
struct Story {
    tracker: HealthTracker,
    now: Timestamp,
}

impl Story {
    fn begin() -> Self {
        Self { tracker: HealthTracker::new("boot-1"), now: Timestamp(1_000_000) }
    }

    fn tell(&mut self, signal: Signal) -> &mut Self {
        self.now = self.now + STEP;
        self.tracker.observe(self.now, &signal);
        self
    }

    fn measure(&mut self, times: usize, change: impl Fn(&mut Reading)) -> &mut Self {
        for _ in 0..times {
            let mut reading = good();
            change(&mut reading);
            reading.sampled_at = self.now + STEP;
            self.tell(Signal::Measured { gpu: gpu(1), reading: Box::new(reading) });
        }
        self
    }

    fn xid_on(&mut self, architecture: Architecture, code: u32) -> &mut Self {
        self.tell(Signal::Xid { gpu: gpu(1), architecture, code: Some(code) })
    }

    fn xid(&mut self, code: u32) -> &mut Self {
        self.xid_on(Architecture::Volta, code)
    }

    fn wait(&mut self, length: Millis) -> &mut Self {
        self.now = self.now + length;
        self
    }

    fn since(&self, kind: &str) -> Timestamp {
        self.tracker.conditions().iter().find(|c| c.kind == kind).unwrap().since
    }

    /// `kind severity`, with `?` where the status is Unknown.
    fn holds(&self) -> Vec<String> {
        let conditions = self.tracker.conditions();
        let said = conditions.iter().map(|held| {
            let mark = if held.status == ConditionStatus::Unknown { "?" } else { "" };
            format!("{} {:?}{mark}", held.kind, held.severity)
        });
        said.collect()
    }

    fn worst(&self) -> Option<Severity> {
        self.tracker.conditions().iter().map(|held| held.severity).max()
    }
}

#[track_caller]
fn check(story: &Story, wanted: &[&str]) {
    assert_eq!(story.holds(), wanted);
}

#[test]
fn a_healthy_gpu_has_no_conditions() {
    let mut story = Story::begin();
    check(story.measure(20, |_| {}), &[]);
}

#[test]
fn what_the_card_lacks_is_neither_bad_nor_missing() {
    let mut story = Story::begin();
    story.measure(20, |reading| {
        reading.ecc_corrected = Known::NotApplicable;
        reading.ecc_uncorrected = Known::NotApplicable;
        reading.retired_single_bit = Known::NotApplicable;
        reading.retired_double_bit = Known::NotApplicable;
        reading.retirement_pending = Known::NotApplicable;
    });
    check(&story, &[]);
}

#[test]
fn heat_counts_when_it_lasts() {
    let mut story = Story::begin();
    let hot = |reading: &mut Reading| reading.temperature_c = Known::Value(87);
    check(story.measure(2, hot), &[]);
    check(story.measure(1, hot), &["temperature_high Degraded"]);
    check(story.measure(9, |_| {}), &["temperature_high Degraded"]);
    check(story.measure(1, |_| {}), &[]);
}

#[test]
fn a_single_hot_sample_is_nothing() {
    let mut story = Story::begin();
    for _ in 0..10 {
        story.measure(1, |reading| reading.temperature_c = Known::Value(99)).measure(4, |_| {});
    }
    check(&story, &[]);
}

#[test]
fn heat_below_the_slowdown_is_a_notice_and_degraded_comes_down_to_it() {
    let mut story = Story::begin();
    let warm = |reading: &mut Reading| reading.temperature_c = Known::Value(84);
    check(story.measure(3, warm), &["temperature_high Notice"]);
    story.measure(3, |reading| reading.temperature_c = Known::Value(90));
    check(&story, &["temperature_high Degraded"]);
    check(story.measure(9, warm), &["temperature_high Degraded"]);
    check(story.measure(1, warm), &["temperature_high Notice"]);
    check(story.measure(10, |_| {}), &[]);
}

#[test]
fn cards_that_do_not_tell_their_limit_have_one_assumed() {
    let mut story = Story::begin();
    story.measure(3, |reading| {
        reading.slowdown_c = Known::NotApplicable;
        reading.temperature_c = Known::Value(limits::SLOWDOWN_ASSUMED_C);
    });
    check(&story, &["temperature_high Degraded"]);
}

#[test]
fn throttling_by_heat_is_a_notice_and_the_power_cap_is_not() {
    let mut story = Story::begin();
    story.measure(5, |reading| {
        reading.throttle_reasons = Known::Value(throttle::HW_THERMAL_SLOWDOWN | throttle::GPU_IDLE);
    });
    check(&story, &["throttled Notice"]);
    let reason = &story.tracker.conditions()[0].reason;
    assert_eq!(reason, "clocks lowered: hardware thermal slowdown");
}

#[test]
fn states_the_card_keeps_count_at_once() {
    type Case = (fn(&mut Reading), &'static str);
    let cases: [Case; 8] = [
        (|r| r.retirement_pending = Known::Value(true), "page_retirement_pending Degraded"),
        (|r| r.retired_single_bit = Known::Value(11), "retired_pages Notice"),
        (|r| r.retired_single_bit = Known::Value(63), "retired_pages Degraded"),
        (|r| r.retired_double_bit = Known::Value(16), "retired_pages Degraded"),
        (|r| r.remap_pending = Known::Value(true), "row_remap_pending Degraded"),
        (
            |r| {
                r.remapped_uncorrected = Known::Value(1);
                r.remap_failed = Known::Value(true);
            },
            "remapped_rows Degraded",
        ),
        (|r| r.reset_required = true, "reset_required Degraded"),
        (|r| r.ecc_uncorrected = Known::Value(1), "ecc_uncorrected Degraded"),
    ];
    for (change, wanted) in cases {
        let mut story = Story::begin();
        check(story.measure(1, change), &[wanted]);
    }
    let mut story = Story::begin();
    check(story.measure(1, |r| r.retired_single_bit = Known::Value(10)), &[]);
}

#[test]
fn a_narrow_pcie_link_is_degraded_when_it_stays() {
    let mut story = Story::begin();
    story.measure(3, |reading| reading.pcie_width = Known::Value(8));
    check(&story, &["pcie_width_reduced Degraded"]);
    assert_eq!(story.tracker.conditions()[0].reason, "PCIe x8 of x16");
}

#[test]
fn double_bit_errors_under_running_work_are_fatal_and_stay() {
    let mut story = Story::begin();
    story.measure(1, |_| {}).measure(1, |reading| reading.ecc_uncorrected = Known::Value(1));
    check(&story, &["ecc_uncorrected Fatal"]);
    story.measure(50, |reading| reading.ecc_uncorrected = Known::Value(1));
    check(&story, &["ecc_uncorrected Fatal"]);
    let mut told = Story::begin();
    check(told.tell(Signal::DoubleBitEcc { gpu: gpu(1) }), &["ecc_uncorrected Fatal"]);
}

#[test]
fn corrected_errors_count_by_the_hour() {
    let mut story = Story::begin();
    let count = |count| move |reading: &mut Reading| reading.ecc_corrected = Known::Value(count);
    check(story.measure(1, count(5_000)), &[]);
    check(story.measure(1, count(5_099)), &[]);
    check(story.measure(1, count(5_100)), &["ecc_corrected_rising Notice"]);
    check(story.measure(1, count(6_000)), &["ecc_corrected_rising Degraded"]);
    story.wait(limits::ECC_WINDOW).measure(10, count(6_000));
    check(&story, &[]);
    check(story.measure(3, count(0)), &[]);
}

#[test]
fn xids_are_judged_by_the_table() {
    let cases = [
        (Architecture::Volta, 48, "xid_48 Fatal"),
        (Architecture::Maxwell, 79, "xid_79 Fatal"),
        (Architecture::Volta, 62, "xid_62 Degraded"),
        (Architecture::Volta, 63, "xid_63 Notice"),
        (Architecture::Volta, 13, "xid_13 Notice"),
        (Architecture::Ampere, 95, "xid_95 Fatal"),
        (Architecture::Volta, 95, "xid_95 Notice"),
        (Architecture::Volta, 4_000_000, "xid_4000000 Notice"),
    ];
    for (architecture, code, wanted) in cases {
        let mut story = Story::begin();
        check(story.xid_on(architecture, code), &[wanted]);
    }
}

#[test]
fn xid_45_never_acts_alone() {
    let mut story = Story::begin();
    for _ in 0..50 {
        story.xid(45).wait(Millis::minutes(10));
    }
    check(&story, &[]);
}

#[test]
fn an_xid_without_a_code_is_a_notice() {
    let mut story = Story::begin();
    let signal = Signal::Xid { gpu: gpu(1), architecture: Architecture::Volta, code: None };
    check(story.tell(signal), &["xid_unknown Notice"]);
}

#[test]
fn an_xid_shows_its_number_also_where_nobody_knows_it() {
    for (code, shown) in [
        (999, "XID 999: an error that the driver gives no number"),
        (12_345, "XID 12345: an error this version does not know"),
        (154, "XID 154: GPU recovery action changed"),
    ] {
        let mut story = Story::begin();
        let signal =
            Signal::Xid { gpu: gpu(1), architecture: Architecture::Hopper, code: Some(code) };
        story.tell(signal);
        let conditions = story.tracker.conditions();
        assert_eq!(conditions.len(), 1, "{conditions:?}");
        assert_eq!(conditions[0].reason, shown);
        assert_eq!(conditions[0].severity, Severity::Notice);
    }
}

#[test]
fn repeats_on_one_gpu_escalate_but_a_burst_is_one() {
    let mut story = Story::begin();
    for _ in 0..20 {
        story.xid(31);
    }
    check(&story, &["xid_31 Notice"]);
    for _ in 0..3 {
        story.wait(limits::XID_BURST).xid(31);
    }
    check(&story, &["xid_31 Notice"]);
    check(story.wait(limits::XID_BURST).xid(31), &["xid_31 Degraded"]);
    check(story.wait(Millis::days(3)).measure(20, |_| {}), &["xid_31 Degraded"]);
    let mut device = Story::begin();
    device.xid(32).wait(limits::XID_BURST).xid(32);
    check(&device, &["xid_32 Degraded"]);
}

#[test]
fn repeats_far_apart_do_not_escalate_and_notices_fade() {
    let mut story = Story::begin();
    for _ in 0..10 {
        story.xid(31).wait(limits::XID_WINDOW);
    }
    check(story.measure(1, |_| {}), &[]);
    check(story.xid(31).wait(Millis::hours(23)).measure(1, |_| {}), &["xid_31 Notice"]);
    check(story.wait(Millis::hours(1)).measure(1, |_| {}), &[]);
}

#[test]
fn repeats_on_different_gpus_do_not_add_up() {
    let mut story = Story::begin();
    for number in 0..5 {
        story.wait(limits::XID_BURST);
        let architecture = Architecture::Volta;
        story.tell(Signal::Xid { gpu: gpu(number), architecture, code: Some(31) });
    }
    check(&story, &["xid_31 Notice"; 5]);
}

#[test]
fn sticky_conditions_go_by_decision_reset_or_boot_only() {
    let broken = || {
        let mut story = Story::begin();
        story.xid(48).xid(62).measure(100, |_| {});
        check(&story, &["xid_48 Fatal", "xid_62 Degraded"]);
        story
    };
    let mut cleared = broken();
    let since = cleared.since("xid_48");
    assert!(!cleared.tracker.clear(&gpu(1), "xid_48", since + Millis(1)), "one that came later");
    assert!(cleared.tracker.clear(&gpu(1), "xid_48", since));
    assert!(!cleared.tracker.clear(&gpu(1), "xid_48", since));
    check(&cleared, &["xid_62 Degraded"]);
    let mut reset = broken();
    reset.tracker.gpu_reset(&gpu(2));
    check(&reset, &["xid_48 Fatal", "xid_62 Degraded"]);
    reset.tracker.gpu_reset(&gpu(1));
    check(&reset, &[]);
    let mut booted = broken();
    booted.tracker.booted("boot-1");
    check(&booted, &["xid_48 Fatal", "xid_62 Degraded"]);
    booted.tracker.booted("boot-2");
    check(&booted, &[]);
}

#[test]
fn repeats_are_counted_across_boots() {
    let mut story = Story::begin();
    story.xid(32).wait(limits::XID_BURST);
    story.tracker.booted("boot-2");
    check(story.xid(32), &["xid_32 Degraded"]);
}

#[test]
fn a_lost_gpu_is_fatal_until_somebody_looked() {
    let mut story = Story::begin();
    let lost = Signal::Lost { gpu: gpu(1), reason: "off the bus".to_owned() };
    check(story.measure(3, |_| {}).tell(lost), &["gpu_lost Fatal"]);
    check(story.measure(20, |_| {}), &["gpu_lost Fatal"]);
    let since = story.since("gpu_lost");
    assert!(story.tracker.clear(&gpu(1), "gpu_lost", since));
    check(&story, &[]);
}

#[test]
fn a_silent_driver_is_unknown_then_degraded_then_over() {
    let mut story = Story::begin();
    let silent = || Signal::NotAnswering { gpu: gpu(1), reason: "hangs".to_owned() };
    check(story.tell(silent()), &["not_answering Degraded?"]);
    check(story.wait(Millis::minutes(9)).tell(silent()), &["not_answering Degraded?"]);
    check(story.wait(Millis::minutes(1)).tell(silent()), &["not_answering Degraded"]);
    check(story.tell(silent()), &["not_answering Degraded"]);
    check(story.measure(1, |_| {}), &[]);
}

#[test]
fn a_silent_gpu_does_not_lose_what_was_known_of_it() {
    let mut story = Story::begin();
    story.measure(3, |reading| reading.temperature_c = Known::Value(90));
    story.tell(Signal::NotAnswering { gpu: gpu(1), reason: "hangs".to_owned() });
    check(&story, &["not_answering Degraded?", "temperature_high Degraded"]);
}

#[test]
fn missing_values_are_unknown_and_heal_nothing() {
    let mut story = Story::begin();
    story.measure(3, |reading| reading.temperature_c = Known::Value(90));
    story.measure(50, |reading| reading.temperature_c = Known::Unknown);
    check(&story, &["temperature_high Degraded", "telemetry_missing Notice?"]);
    let missing = &story.tracker.conditions()[1];
    assert_eq!(missing.reason, "not told: temperature_high");
    check(story.measure(10, |_| {}), &[]);
    story.measure(1, |reading| reading.ecc_uncorrected = Known::Unknown);
    check(&story, &["telemetry_missing Notice?"]);
}

#[test]
fn the_node_is_told_of_when_no_gpu_can_be() {
    let mut story = Story::begin();
    story.tell(Signal::DriverSilent { reason: "hangs".to_owned() });
    story.tell(Signal::Unnamed { problems: vec!["GPU 0: hangs".to_owned()] });
    check(&story, &["driver_not_answering Degraded?", "gpu_inventory_incomplete Notice?"]);
    assert!(story.tracker.conditions().iter().all(|held| held.subject == Subject::Node));
    story.tell(Signal::DriverAnswers).tell(Signal::Unnamed { problems: vec![] });
    check(&story, &[]);
}

#[test]
fn a_sample_counts_once() {
    let mut story = Story::begin();
    let hot = Reading { temperature_c: Known::Value(99), sampled_at: Timestamp(9), ..good() };
    for _ in 0..20 {
        story.tell(Signal::Measured { gpu: gpu(1), reading: Box::new(hot) });
    }
    check(&story, &[]);
}

#[test]
fn since_is_when_it_became_what_it_is() {
    let mut story = Story::begin();
    story.xid(31);
    let first = story.now;
    story.wait(limits::XID_BURST).xid(31);
    assert_eq!(story.tracker.conditions()[0].since, first);
    for _ in 0..3 {
        story.wait(limits::XID_BURST).xid(31);
    }
    let held = &story.tracker.conditions()[0];
    assert_eq!((held.severity, held.since), (Severity::Degraded, story.now));
}

#[test]
fn floods_are_bounded() {
    let mut story = Story::begin();
    for code in 0..5_000 {
        story.xid_on(Architecture::Volta, 1_000 + code);
    }
    for number in 0..5_000 {
        story.tell(Signal::Lost { gpu: gpu(number), reason: String::new() });
    }
    assert!(story.tracker.conditions().len() <= CONDITIONS_PER_NODE_MAX);
    assert!(story.tracker.gpus.len() <= GPUS_PER_NODE_MAX);
    let one = &story.tracker.gpus[&gpu(1)];
    assert!(one.held.len() <= limits::XID_CODES_MAX + 3, "{}", one.held.len());
}

#[test]
fn it_survives_being_written_and_read() {
    let mut story = Story::begin();
    story.xid(48).xid(31).measure(2, |reading| reading.temperature_c = Known::Value(90));
    let text = serde_json::to_string(&story.tracker).unwrap();
    let mut again: HealthTracker = serde_json::from_str(&text).unwrap();
    assert_eq!(again, story.tracker);
    again.booted("boot-1");
    story.tracker = again;
    story.measure(1, |reading| reading.temperature_c = Known::Value(90));
    check(&story, &["xid_48 Fatal", "temperature_high Degraded", "xid_31 Notice"]);
}

/// A worse world than before in some respect, or the same.
fn worse(story: &mut Story, reading: &mut Reading, what: u8, amount: u32) {
    let raise = |value: &mut Known<u32>| *value = Known::Value(value.value().unwrap_or(0) + amount);
    match what {
        0 => raise(&mut reading.temperature_c),
        1 => raise(&mut reading.retired_single_bit),
        2 => raise(&mut reading.retired_double_bit),
        3 => reading.retirement_pending = Known::Value(true),
        4 => {
            let count = reading.ecc_corrected.value().unwrap_or(0) + u64::from(amount) * 10;
            reading.ecc_corrected = Known::Value(count);
        }
        5 => {
            let count = reading.ecc_uncorrected.value().unwrap_or(0) + 1;
            reading.ecc_uncorrected = Known::Value(count);
        }
        6 => reading.pcie_width = Known::Value(8),
        7 => reading.throttle_reasons = Known::Value(throttle::HW_SLOWDOWN),
        8 => drop(story.xid(amount * 7 % 130)),
        9 => drop(story.tell(Signal::Lost { gpu: gpu(1), reason: "gone".to_owned() })),
        _ => {}
    }
    let now = *reading;
    story.measure(1, |reading| *reading = Reading { sampled_at: reading.sampled_at, ..now });
}

proptest! {
    #[test]
    fn severity_never_drops_while_signals_worsen(
        steps in prop::collection::vec((0u8..12, 1u32..20), 1..120),
    ) {
        let mut story = Story::begin();
        let mut reading = good();
        let mut worst = None;
        for (what, amount) in steps {
            worse(&mut story, &mut reading, what, amount);
            prop_assert!(story.worst() >= worst, "{worst:?} then {:?}", story.holds());
            worst = story.worst();
        }
    }

    #[test]
    fn the_same_signals_give_the_same_bytes(
        steps in prop::collection::vec((0u8..12, 1u32..20), 1..60),
    ) {
        let tell = || {
            let mut story = Story::begin();
            let mut reading = good();
            for (what, amount) in &steps {
                worse(&mut story, &mut reading, *what, *amount);
            }
            serde_json::to_string(&story.tracker).unwrap()
        };
        prop_assert_eq!(tell(), tell());
    }
}
