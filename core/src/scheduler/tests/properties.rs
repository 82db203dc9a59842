//! Properties of every plan, over drawn fleets, reservations and queues.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::story::{BEGINNING, Story, check, spec};
use crate::Fsm;
use crate::command::{KeptPlace, Placement};
use crate::id::{JobId, ReservationId};
use crate::job::JobSpec;
use crate::name::{GpuUuid, NodeName};
use crate::reason::Wait;
use crate::reservation::GpuRequest;
use crate::scheduler::{Plan, explain, next, placements, plan, satisfiable};
use crate::time::{Millis, Window};

const OWNERS: [&str; 3] = ["ada", "bob", "cyd"];
const MODELS: [Option<&str>; 4] = [None, None, Some("titan-x"), Some("v100")];

#[derive(Debug, Clone)]
struct DrawnNode {
    titans: u32,
    volts: u32,
    cores: u32,
    gib: u32,
    cordoned: bool,
}

#[derive(Debug, Clone)]
struct DrawnReservation {
    owner: usize,
    model: usize,
    count: u32,
    from: u64,
    hours: u64,
}

#[derive(Debug, Clone)]
struct DrawnJob {
    owner: usize,
    model: usize,
    count: u32,
    hours: u64,
    cores: Option<u64>,
    gib: Option<u64>,
    reservation: Option<usize>,
}

#[derive(Debug, Clone)]
struct Drawn {
    nodes: Vec<DrawnNode>,
    reservations: Vec<DrawnReservation>,
    jobs: Vec<DrawnJob>,
    /// How many of the jobs are planned and placed before the rest comes.
    before: usize,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let node = (0..4_u32, 0..4_u32, 1..17_u32, 1..65_u32, prop::bool::weighted(0.1)).prop_map(
        |(titans, volts, cores, gib, cordoned)| DrawnNode { titans, volts, cores, gib, cordoned },
    );
    let reservation =
        (0..3_usize, 0..4_usize, 1..4_u32, prop_oneof![Just(0_u64), 1..12_u64], 1..24_u64)
            .prop_map(|(owner, model, count, from, hours)| DrawnReservation {
                owner,
                model,
                count,
                from,
                hours,
            });
    let job = (
        (0..3_usize, 0..4_usize, 0..5_u32, 1..24_u64),
        (prop::option::weighted(0.2, 1..17_u64), prop::option::weighted(0.2, 1..65_u64)),
        prop::option::weighted(0.2, 0..6_usize),
    )
        .prop_map(|((owner, model, count, hours), (cores, gib), reservation)| {
            let model = if count == 0 { 0 } else { model };
            DrawnJob { owner, model, count, hours, cores, gib, reservation }
        });
    (
        prop::collection::vec(node, 1..6),
        prop::collection::vec(reservation, 0..6),
        prop::collection::vec(job, 0..20),
        0..10_usize,
    )
        .prop_map(|(nodes, reservations, jobs, before)| Drawn {
            nodes,
            reservations,
            jobs,
            before,
        })
}

fn request(model: usize, count: u32) -> GpuRequest {
    let model = MODELS[model].map(str::to_owned);
    GpuRequest { count, model, ..GpuRequest::default() }
}

fn job_spec(job: &DrawnJob) -> JobSpec {
    JobSpec {
        cpu_millis: job.cores.map(|n| n * 1_000),
        memory_bytes: job.gib.map(|n| n << 30),
        reservation: job.reservation.map(|at| ReservationId::parse(&format!("res-{at}")).unwrap()),
        ..spec(request(job.model, job.count), Millis::hours(job.hours))
    }
}

/// Builds what was drawn; wishes that are refused are left out.
fn build(drawn: &Drawn) -> Story {
    let mut story = Story::new();
    for (at, node) in drawn.nodes.iter().enumerate() {
        let gpus = match (node.titans, node.volts) {
            (0, 0) => "none".to_owned(),
            (n, 0) => format!("titan-x*{n}"),
            (0, n) => format!("v100*{n}"),
            (n, m) => format!("titan-x*{n}+v100*{m}"),
        };
        let (cores, gib) = (format!("cores={}", node.cores), format!("gib={}", node.gib));
        story.join(&format!("titan0{at}"), &[&gpus, &cores, &gib]);
        if node.cordoned {
            story.tell(&format!("cordon titan0{at} drawn"));
        }
    }
    for (at, r) in drawn.reservations.iter().enumerate() {
        let starts_at = BEGINNING + Millis::hours(r.from);
        let window = Window { starts_at, ends_at: starts_at + Millis::hours(r.hours) };
        let gpus = request(r.model, r.count);
        story.reserve(&format!("res-{at}"), OWNERS[r.owner], gpus, window).ok();
    }
    for (at, job) in drawn.jobs.iter().enumerate() {
        if at == drawn.before {
            story.place();
            story.fsm.check_invariants().unwrap();
        }
        story.submit(&format!("job-{at}"), OWNERS[job.owner], job_spec(job)).ok();
    }
    story
}

/// The reservation that a GPU is promised to while a job has it, other than the job's own parent reservation.
fn trespassed<'a>(fsm: &'a Fsm, line: &Placement, gpu: &GpuUuid) -> Option<&'a ReservationId> {
    let job = fsm.job(&line.job).unwrap();
    let starts_at = fsm.now();
    let inside = |id: &ReservationId| {
        let r = fsm.reservation(id).unwrap();
        r.owner == job.owner && r.lease.is_some()
    };
    // Within its reservation a job is stopped at the reservation's end.
    let held = fsm.reservations().find(|r| r.gpus.contains(gpu) && inside(&r.id));
    let limit = starts_at + job.spec.time_limit + job.spec.stop_grace;
    let ends_at = held.map_or(limit, |r| limit.min(r.window.ends_at));
    let window = Window { starts_at, ends_at };
    let open = fsm.reservations().filter(|r| r.is_open() && r.gpus.contains(gpu));
    open.filter(|r| r.window.overlaps(&window)).map(|r| &r.id).find(|id| !inside(id))
}

/// What runs within a reservation was promised before: it may come before the first that waits.
fn is_promised(fsm: &Fsm, line: &Placement) -> bool {
    let bound = fsm.job(&line.job).is_some_and(|job| job.spec.reservation.is_some());
    bound || line.gpus.iter().any(|gpu| fsm.hold(gpu).is_some())
}

/// CPU and memory of each node: what is running, and what the plan adds.
fn usage(fsm: &Fsm, lines: &[Placement]) -> BTreeMap<NodeName, (u64, u64)> {
    let running = fsm.allocations().values().map(|a| (&a.node, a.cpu_millis, a.memory_bytes));
    let planned = lines.iter().map(|line| (&line.node, line.cpu_millis, line.memory_bytes));
    sums(running.chain(planned))
}

fn sums<'a>(
    shares: impl Iterator<Item = (&'a NodeName, u64, u64)>,
) -> BTreeMap<NodeName, (u64, u64)> {
    let mut sums: BTreeMap<NodeName, (u64, u64)> = BTreeMap::new();
    for (node, cpu, memory) in shares {
        let sum = sums.entry(node.clone()).or_default();
        sum.0 += cpu;
        sum.1 += memory;
    }
    sums
}

/// As [`usage`], of jobs without GPUs alone.
fn usage_without_gpus(fsm: &Fsm, lines: &[Placement]) -> BTreeMap<NodeName, (u64, u64)> {
    let running = fsm.allocations().values().filter(|a| a.gpus.is_empty());
    let running = running.map(|a| (&a.node, a.cpu_millis, a.memory_bytes));
    let planned = lines.iter().filter(|line| line.gpus.is_empty());
    sums(running.chain(planned.map(|line| (&line.node, line.cpu_millis, line.memory_bytes))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_gives_nothing_twice_and_respects_reservations(drawn in drawn()) {
        let story = build(&drawn);
        let fsm = &story.fsm;
        let plan = plan(fsm);
        let mut taken = BTreeSet::new();
        for line in &plan.placements {
            let job = fsm.job(&line.job).unwrap();
            prop_assert_eq!(line.gpus.len(), job.spec.gpus.count as usize);
            let node = fsm.node(&line.node).unwrap();
            prop_assert!(node.closed().is_none(), "{} is closed", line.node);
            for gpu in &line.gpus {
                prop_assert!(taken.insert(gpu.clone()), "{gpu} is given twice");
                prop_assert!(node.gpus.contains(gpu), "{gpu} is not of {}", line.node);
                let trespassed = trespassed(fsm, line, gpu);
                prop_assert_eq!(trespassed, None, "{} on {}", line.job, gpu);
                if let Some(hold) = fsm.hold(gpu) {
                    let lease = fsm.lease(&hold.lease).unwrap();
                    prop_assert!(hold.child.is_none() && lease.owner == job.owner);
                }
            }
        }
        for (name, (cpu, memory)) in usage(fsm, &plan.placements) {
            let facts = &fsm.node(&name).unwrap().facts;
            prop_assert!(cpu <= facts.cpu_millis && memory <= facts.memory_bytes, "{name} is over");
        }
        for (name, (cpu, memory)) in usage_without_gpus(fsm, &plan.placements) {
            let node = fsm.node(&name).unwrap();
            let parts = if node.gpus.is_empty() { 1 } else { 2 };
            // Rounding down leaves less than a unit for each GPU.
            let slack = node.gpus.len() as u64;
            prop_assert!(cpu <= node.facts.cpu_millis / parts + slack, "{name} has no cores for GPUs");
            prop_assert!(memory <= node.facts.memory_bytes / parts + slack, "{name} has no memory for GPUs");
        }
        // Each job of the queue is either placed or told why not.
        let queued = fsm.queue().count();
        prop_assert_eq!(queued, plan.placements.len() + plan.waiting.len());
    }

    #[test]
    fn every_line_passes_the_check_and_applies(drawn in drawn()) {
        let mut story = build(&drawn);
        for line in plan(&story.fsm).placements {
            let checked = check(&story.fsm, &line);
            prop_assert!(checked.is_ok(), "{}: {:?}", line.job, checked);
        }
        let promised = plan(&story.fsm).placements.iter().any(|l| is_promised(&story.fsm, l));
        // `place` fails the test where a line is refused after the lines before it.
        story.place();
        story.fsm.check_invariants().map_err(|e| TestCaseError::fail(e.to_string()))?;
        // What is left had no place then and has none now, whatever the estimate of the first was.
        let again = story.place();
        let names: Vec<_> = again.placements.iter().map(|line| &line.job).collect();
        prop_assert!(promised || names.is_empty(), "a second look found room for {:?}", names);
    }

    #[test]
    fn what_starts_is_the_same_with_and_without_the_reasons_of_the_rest(drawn in drawn()) {
        let story = build(&drawn);
        prop_assert_eq!(placements(&story.fsm), plan(&story.fsm).placements);
    }

    #[test]
    fn a_plan_is_the_same_every_time(drawn in drawn()) {
        let (one, other) = (build(&drawn), build(&drawn));
        prop_assert_eq!(plan(&one.fsm), plan(&one.fsm));
        prop_assert_eq!(plan(&one.fsm), plan(&other.fsm));
    }

    #[test]
    fn on_an_idle_fleet_the_first_job_starts(
        drawn in drawn().prop_map(|d| Drawn { reservations: Vec::new(), before: usize::MAX, ..d })
    ) {
        let mut open = drawn.clone();
        open.nodes.iter_mut().for_each(|node| node.cordoned = false);
        open.jobs.iter_mut().for_each(|job| job.reservation = None);
        let story = build(&open);
        let plan = plan(&story.fsm);
        if let Some(first) = story.fsm.queue().next() {
            prop_assert!(satisfiable(&story.fsm, &first.owner, &first.spec).is_ok());
            prop_assert!(
                plan.placements.first().is_some_and(|line| line.job == first.id),
                "{:?}", plan.waiting.get(&first.id)
            );
        }
    }

    #[test]
    fn explanations_agree_with_the_plan(drawn in drawn()) {
        let story = build(&drawn);
        let plan = plan(&story.fsm);
        for (id, waiting) in &plan.waiting {
            let told = explain(&story.fsm, id).unwrap();
            prop_assert_eq!(told.place, waiting.place);
            prop_assert!(!told.verdicts.iter().any(|v| v.obstacle.is_none()), "{id} waits, but {:?}", told);
            prop_assert!(told.earliest.is_none_or(|at| at >= story.fsm.now()));
            let never = told.reason.as_ref().is_some_and(Wait::is_forever);
            prop_assert!(!never || told.earliest.is_none(), "{id}: {:?}", told);
            let reason = waiting.reason.to_string();
            prop_assert!(!reason.is_empty() && !reason.contains("1795"));
        }
        for line in &plan.placements {
            let told = explain(&story.fsm, &line.job).unwrap();
            prop_assert!(told.earliest == Some(story.fsm.now()), "{:?}", told);
        }
    }

    #[test]
    fn who_has_a_place_is_not_delayed_by_those_behind_them(drawn in drawn()) {
        let mut story = build(&drawn);
        let head = plan(&story.fsm);
        let kept = next(&story.fsm).kept;
        let start_in = |plan: &Plan, id: &JobId| plan.waiting.get(id).and_then(|w| w.earliest);
        for kept in &kept {
            prop_assert!(start_in(&head, &kept.job).is_some(), "{} has no start", kept.job);
        }
        if head.placements.iter().any(|line| is_promised(&story.fsm, line)) {
            return Ok(());
        }
        story.place();
        let after = plan(&story.fsm);
        for KeptPlace { job, .. } in &kept {
            let (before, after) = (start_in(&head, job), start_in(&after, job));
            let now = Some(story.fsm.now());
            prop_assert!(after <= before.max(now), "{job}: {:?} became {:?}", before, after);
        }
    }
}

#[test]
fn the_drawn_fleets_are_not_trivial() {
    // The properties above say nothing about plans that never place or never refuse.
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut placed, mut waiting, mut inside, mut refused) = (0, 0, 0, 0);
    for _ in 0..200 {
        let drawn = drawn().new_tree(&mut runner).unwrap().current();
        let story = build(&drawn);
        let plan = plan(&story.fsm);
        placed += plan.placements.len();
        waiting += plan.waiting.len();
        refused += drawn.jobs.len() - story.fsm.jobs().len();
        let held = |line: &&Placement| line.gpus.iter().any(|gpu| story.fsm.hold(gpu).is_some());
        inside += plan.placements.iter().filter(held).count();
    }
    assert!(placed > 200 && waiting > 200 && refused > 200, "{placed} {waiting} {refused}");
    assert!(inside > 10, "{inside} placed within a reservation");
}
