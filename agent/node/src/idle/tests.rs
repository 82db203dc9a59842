#![allow(clippy::unwrap_used)]
use super::*;

const EVERY: u64 = 5;
const HOUR: u64 = 3_600;
const QUARTER: u64 = 900;

/// What happens on a GPU at a time in seconds: its utilisation, none where the driver gives none.
type Curve<'a> = &'a dyn Fn(u64) -> Option<u32>;

fn gpu(n: usize) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0{n}")).unwrap()
}

fn res(name: &str) -> ReservationId {
    ReservationId::parse(&format!("res-{name}")).unwrap()
}

struct Node {
    watch: Watch,
    rules: IdleRules,
    open: Vec<Open>,
    confirm: BTreeSet<ReservationId>,
    occupied: bool,
    now: u64,
    /// What was reported, and when.
    said: Vec<(u64, ReservationId, IdleSeen)>,
}

impl Node {
    /// With one window of these GPUs.
    fn with(gpus: &[usize]) -> Self {
        let gpus = gpus.iter().map(|n| gpu(*n)).collect();
        Node {
            watch: Watch::default(),
            rules: IdleRules::default(),
            open: vec![Open { reservation: res("a"), gpus, prepares: false }],
            confirm: BTreeSet::new(),
            occupied: false,
            now: 0,
            said: Vec::new(),
        }
    }

    /// Samples until then, each five seconds.
    fn until(&mut self, then: u64, curves: &[(usize, Curve<'_>)]) {
        while self.now < then {
            let sample = |(n, curve): &(usize, Curve<'_>)| {
                Some(Sample {
                    gpu: gpu(*n),
                    holding: None,
                    utilization_percent: curve(self.now)?,
                    occupied: self.occupied,
                    memory_used_bytes: 0,
                    details: crate::measured::Details::default(),
                })
            };
            let samples: Vec<Sample> = curves.iter().filter_map(sample).collect();
            self.look(&samples);
            self.now += EVERY;
        }
    }

    fn look(&mut self, samples: &[Sample]) {
        let (now, open) = (Duration::from_secs(self.now), self.open.clone());
        let news = self.watch.look(now, self.rules, &open, &self.confirm, samples);
        self.said.extend(news.into_iter().map(|(id, seen)| (self.now, id, seen)));
    }

    /// Without what is only said again: each quarter of an hour.
    fn said(&self) -> Vec<(u64, IdleSeen)> {
        let mut said: Vec<(u64, IdleSeen)> = Vec::new();
        let mut last = 0;
        for (at, _, seen) in &self.said {
            let idle = |seen: &IdleSeen| matches!(seen, IdleSeen::Idle { .. });
            let again = said.last().is_some_and(|(_, before)| idle(before)) && idle(seen);
            if !again || at - last != QUARTER {
                said.push((*at, *seen));
            }
            last = *at;
        }
        said
    }
}

fn idle(secs: u64) -> IdleSeen {
    IdleSeen::Idle { for_ms: Millis::secs(secs) }
}

fn still(_: u64) -> Option<u32> {
    Some(0)
}

#[test]
fn a_gpu_that_computes_nothing_is_idle_after_the_time_of_the_rules_and_once() {
    let mut node = Node::with(&[1]);
    node.until(3 * HOUR, &[(1, &still)]);
    assert_eq!(node.said(), [(HOUR, idle(HOUR))]);
    assert_eq!(
        node.watch.standing().collect::<Vec<_>>(),
        [(&res("a"), Standing::Idle { length: Millis::secs(3 * HOUR - EVERY) })]
    );
}

#[test]
fn what_is_idle_is_said_again_for_a_controller_that_forgot_it() {
    let mut node = Node::with(&[1]);
    node.until(HOUR + 2 * QUARTER + 60, &[(1, &still)]);
    let again = [HOUR, HOUR + QUARTER, HOUR + 2 * QUARTER].map(|at| (at, res("a"), idle(at)));
    assert_eq!(node.said, again);
}

#[test]
fn one_that_computes_is_never_idle() {
    let mut node = Node::with(&[1]);
    node.until(9 * HOUR, &[(1, &|_| Some(100))]);
    assert_eq!(node.said(), [(0, IdleSeen::Busy)]);
}

#[test]
fn a_sample_a_minute_keeps_it_busy_and_silent() {
    let mut node = Node::with(&[1]);
    node.until(9 * HOUR, &[(1, &|at| Some(if at % 60 == 0 { 1 } else { 0 }))]);
    assert_eq!(node.said(), [(0, IdleSeen::Busy)]);
}

#[test]
fn it_is_said_once_that_it_is_busy_again() {
    let mut node = Node::with(&[1]);
    let works = |at| Some(if (5_000..5_600).contains(&at) && at % 60 < 20 { 80 } else { 0 });
    node.until(4 * HOUR, &[(1, &works)]);
    let busy = 5_000 + 40;
    let last = 5_595 - 5_595 % 60 + 15;
    let again = (last + EVERY + HOUR, idle(HOUR));
    assert_eq!(node.said(), [(HOUR, idle(HOUR)), (busy, IdleSeen::Busy), again]);
}

#[test]
fn unknown_time_is_not_idle_and_the_count_starts_again_after_it() {
    let gap = |from: u64, length: u64| {
        let mut node = Node::with(&[1]);
        let curve = move |at| (!(from..from + length).contains(&at)).then_some(0);
        node.until(HOUR + from + length + 10, &[(1, &curve)]);
        node.said()
    };
    assert_eq!(gap(1_000, 10), [(HOUR, idle(HOUR))], "one sample stands for 15 seconds");
    assert_eq!(gap(1_000, 20), [(HOUR + 1_020, idle(HOUR))]);
    // Of one that is idle already: it is not known to be any more.
    assert_eq!(
        gap(5_000, 60),
        [(HOUR, idle(HOUR)), (5_015, IdleSeen::Unknown), (HOUR + 5_060, idle(HOUR))]
    );
    // The agent hangs, and the next look comes with a sample.
    let mut node = Node::with(&[1]);
    node.until(1_000, &[(1, &still)]);
    node.now += 30;
    node.until(HOUR + 1_040, &[(1, &still)]);
    assert_eq!(node.said(), [(HOUR + 1_030, idle(HOUR))]);
    // A card that gives no utilisation.
    let mut node = Node::with(&[1]);
    node.until(3 * HOUR, &[(1, &|_| None)]);
    assert_eq!(node.said(), []);
}

#[test]
fn all_of_its_gpus_count_and_each_window_for_itself() {
    let mut node = Node::with(&[1, 2]);
    let second = Open { reservation: res("b"), gpus: vec![gpu(3)], prepares: false };
    node.open.push(second);
    let works = |_| Some(40);
    node.until(HOUR + 60, &[(1, &still), (2, &works), (3, &still)]);
    assert_eq!(node.said, [(0, res("a"), IdleSeen::Busy), (HOUR, res("b"), idle(HOUR))]);
    let mut node = Node::with(&[1, 2]);
    node.until(2 * HOUR, &[(1, &still)]);
    assert_eq!(node.said(), [], "the other one is not measured");
    node.until(3 * HOUR, &[(1, &still), (2, &still)]);
    assert_eq!(node.said(), [(3 * HOUR, idle(HOUR))][..0], "it is from now on");
    node.until(3 * HOUR + 10, &[(1, &still), (2, &still)]);
    assert_eq!(node.said(), [(3 * HOUR, idle(HOUR))]);
}

#[test]
fn a_job_that_is_prepared_is_no_idle_time() {
    let mut node = Node::with(&[1]);
    node.until(1_000, &[(1, &still)]);
    node.open[0].prepares = true;
    node.until(6_000, &[(1, &still)]);
    assert_eq!(node.said(), []);
    node.open[0].prepares = false;
    node.until(2 * HOUR + 6_000, &[(1, &still)]);
    assert_eq!(node.said(), [(HOUR + 6_000, idle(HOUR))]);
    node.open[0].prepares = true;
    node.until(2 * HOUR + 6_010, &[(1, &still)]);
    assert_eq!(node.said()[1..], [(2 * HOUR + 6_000, IdleSeen::Unknown)]);
}

#[test]
fn who_has_just_come_has_a_quarter_of_an_hour() {
    let mut node = Node::with(&[1]);
    node.until(HOUR - 60, &[(1, &still)]);
    node.occupied = true;
    node.until(2 * HOUR, &[(1, &still)]);
    let after = HOUR - 60 + 15 * 60;
    assert_eq!(node.said(), [(after, idle(after))]);
}

#[test]
fn other_rules_count_from_now_on() {
    let mut node = Node::with(&[1]);
    let little = |_| Some(4);
    node.until(HOUR, &[(1, &little)]);
    node.rules.below_percent = 5;
    node.until(2 * HOUR + 10, &[(1, &little)]);
    assert_eq!(node.said(), [(0, IdleSeen::Busy), (2 * HOUR, idle(HOUR))]);
    node.rules.after = Millis::hours(8);
    node.until(3 * HOUR, &[(1, &little)]);
    assert_eq!(node.said()[2..], [(2 * HOUR + 10, IdleSeen::Unknown)]);
    node.rules.after = Millis::ZERO;
    node.until(30 * HOUR, &[(1, &little)]);
    assert_eq!(node.said().len(), 3, "never");
}

#[test]
fn the_controllers_hear_once_more_when_they_ask() {
    let mut node = Node::with(&[1]);
    node.until(HOUR + 60, &[(1, &still)]);
    node.confirm.insert(res("a"));
    node.until(HOUR + 120, &[(1, &still)]);
    assert_eq!(node.said(), [(HOUR, idle(HOUR)), (HOUR + 65, idle(HOUR + 65))]);
    node.confirm.clear();
    node.until(HOUR + 180, &[(1, &still)]);
    node.confirm.insert(res("a"));
    node.until(HOUR + 240, &[(1, &still)]);
    assert_eq!(node.said()[2..], [(HOUR + 185, idle(HOUR + 185))]);
    // What computes is never confirmed.
    let mut node = Node::with(&[1]);
    node.confirm.insert(res("a"));
    node.until(HOUR, &[(1, &|_| Some(3))]);
    assert_eq!(node.said(), [(0, IdleSeen::Busy)]);
}

#[test]
fn a_window_that_is_over_is_forgotten() {
    let mut node = Node::with(&[1]);
    node.until(2 * HOUR, &[(1, &still)]);
    let open = std::mem::take(&mut node.open);
    node.until(2 * HOUR + 10, &[(1, &still)]);
    assert_eq!(node.watch.standing().count(), 0);
    node.open = open;
    node.until(4 * HOUR, &[(1, &still)]);
    assert_eq!(node.said()[1..], [(3 * HOUR + 10, idle(HOUR))]);
}

#[test]
fn who_comes_back_has_a_quarter_of_an_hour() {
    let still: Curve<'_> = &|_| Some(0);
    let mut node = Node::with(&[0]);
    node.until(2 * HOUR, &[(0, still)]);
    assert_eq!(node.said().len(), 1);
    node.occupied = true;
    node.until(2 * HOUR + QUARTER, &[(0, still)]);
    assert_eq!(node.said().last().unwrap().1, IdleSeen::Unknown, "a program came");
    node.until(2 * HOUR + QUARTER + 60, &[(0, still)]);
    assert!(matches!(node.said().last().unwrap().1, IdleSeen::Idle { .. }), "it did nothing");
}

#[test]
fn a_question_is_answered_by_what_is_measured_after_it() {
    let still: Curve<'_> = &|_| Some(0);
    let mut node = Node::with(&[0]);
    node.until(HOUR + 60, &[(0, still)]);
    let before = node.said.len();
    node.confirm.insert(res("a"));
    node.look(&[]);
    assert_eq!(node.said.len(), before, "the last sample is older than the question");
    node.until(HOUR + 70, &[(0, still)]);
    assert_eq!(node.said.len(), before + 1);
}
