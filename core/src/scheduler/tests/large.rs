//! A large fleet with a long queue. What is planned is checked; how long it took is printed, never
//! asserted: `cargo test --release -p fleet-core large -- --nocapture`.

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it measures the core")]

use std::time::Instant;

use super::story::{BEGINNING, Story, check, spec};
use crate::reservation::GpuRequest;
use crate::scheduler::{PLACEMENTS_MAX, placements, plan};
use crate::time::{Millis, Window};

/// Without optimisation a tenth is enough to see that it is right.
const SCALE: u32 = if cfg!(debug_assertions) { 1 } else { 10 };
const NODES: u32 = 50 * SCALE;
const JOBS: u32 = 500 * SCALE;

fn fleet() -> Story {
    let mut story = Story::new();
    for at in 0..NODES {
        let model = if at % 4 == 0 { "v100*8" } else { "titan-x*8" };
        let pairs = "pairs=0-1,2-3,4-5,6-7,0-2,1-3,4-6,5-7";
        story.join(&format!("titan{at:03}"), &[model, pairs, "cores=64", "gib=512"]);
    }
    story
}

/// Every job differs from every other where `distinct`, so that nothing is answered from memory.
fn queue(story: &mut Story, distinct: bool) {
    for at in 0..JOBS {
        let count = [1, 1, 2, 1, 4, 1, 8, 2][at as usize % 8];
        let model = [None, Some("v100"), Some("titan-x")][at as usize % 3].map(str::to_owned);
        let gpus = GpuRequest { count, model, ..GpuRequest::default() };
        let hours = Millis::hours(1 + u64::from(at % 24));
        let extra = if distinct { Millis::secs(u64::from(at)) } else { Millis::ZERO };
        let owner = format!("user{}", at % 50);
        story.submit(&format!("job-{at}"), &owner, spec(gpus, hours + extra)).unwrap();
    }
}

fn measured<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.1} ms", start.elapsed().as_secs_f64() * 1_000.0);
    result
}

#[test]
fn a_large_fleet_is_planned() {
    for distinct in [false, true] {
        let kind = if distinct { "all different" } else { "alike" };
        let mut story = fleet();
        queue(&mut story, distinct);
        let mut placed = 0;
        loop {
            let left = story.fsm.queue().count();
            let what = format!("plan of {left} jobs ({kind}), {NODES} nodes, {placed} running");
            let plan = measured(&what, || plan(&story.fsm));
            let alone = measured("  its placements alone", || placements(&story.fsm));
            assert_eq!(alone, plan.placements);
            assert!(plan.placements.len() <= PLACEMENTS_MAX);
            assert_eq!(plan.placements.len() + plan.waiting.len(), left);
            let before = placed;
            placed += plan.placements.len();
            let lines = plan.placements.len();
            measured(&format!("  applying its {lines} lines"), || story.place());
            if placed == before {
                break;
            }
        }
        let held: usize = story.fsm.allocations().values().map(|a| a.gpus.len()).sum();
        assert!(held as u32 > NODES * 8 * 9 / 10, "only {held} GPUs are in use");
        story.fsm.check_invariants().unwrap();
    }
}

#[test]
fn a_full_calendar_is_searched() {
    let mut story = fleet();
    let window = |at: u64, hours: u64| {
        let starts_at = BEGINNING + Millis::hours(at);
        Window { starts_at, ends_at: starts_at + Millis::hours(hours) }
    };
    let gpus = |count| GpuRequest { count, ..GpuRequest::default() };
    let total = NODES * 4;
    measured(&format!("{total} reservations of 2 GPUs"), || {
        for at in 0..total {
            let wish = window(0, 8);
            story.reserve(&format!("res-{at}"), "ada", gpus(2), wish).unwrap();
        }
    });
    let refusal = measured("a refusal with its next slot", || {
        story.reserve("res-x", "bob", gpus(8), window(0, 8))
    });
    let Err(crate::Rejection::GpusHeld { next: Some(next), .. }) = refusal else {
        panic!("{refusal:?}")
    };
    assert_eq!(next.starts_at, BEGINNING + Millis::hours(8));
    queue(&mut story, false);
    let plan =
        measured(&format!("plan of {JOBS} jobs with every GPU reserved"), || plan(&story.fsm));
    assert_eq!(plan.placements.len(), 0);
    assert_eq!(plan.waiting.len(), JOBS as usize);
    let line = crate::command::Placement {
        job: plan.waiting.keys().next().unwrap().clone(),
        node: next.node,
        gpus: next.gpus,
        cpu_millis: 1,
        memory_bytes: 1,
    };
    measured("one check", || check(&story.fsm, &line)).unwrap_err();
}
