//! An index with a fault: it may choose a worse place, and must never give a GPU to two people.

use super::world::{World, plain};
use crate::calendar::{Unleased, choose};
use crate::rejection::Rejection;
use crate::reservation::GpuRequest;
use crate::scheduler;
use crate::time::{Millis, Window};

const HOUR: Millis = Millis::hours(1);

#[test]
fn a_reservation_that_the_index_missed_is_not_given_away() {
    let mut w = World::with(&["titan01"]);
    let gpus = u32::try_from(w.fsm.gpus().len()).unwrap();
    let before = w.fsm.clone();
    w.reserve("ada", "a", gpus, HOUR, HOUR).unwrap();
    w.fsm.plant_derived_of(&before);
    let window = Window { starts_at: w.now + HOUR, ends_at: w.now + HOUR + HOUR };
    let one = GpuRequest { count: 1, ..GpuRequest::default() };
    let chosen = choose(&w.fsm, &one, window, Unleased::Blocks, &[]);
    assert!(matches!(chosen, Err(Rejection::GpusHeld { .. })), "{chosen:?}");
}

#[test]
fn a_job_that_the_index_missed_keeps_its_gpus() {
    let mut w = World::with(&["titan01"]);
    let gpus = u32::try_from(w.fsm.gpus().len()).unwrap();
    let before = w.fsm.clone();
    w.submit("ada", "a", plain(gpus)).unwrap();
    assert_eq!(w.schedule(), 1);
    w.submit("bob", "b", plain(1)).unwrap();
    w.fsm.plant_derived_of(&before);
    let plan = scheduler::placements(&w.fsm);
    assert_eq!(plan.len(), 1, "the plan goes by the index");
    let checked = crate::scheduler::tests::story::check(&w.fsm, &plan[0]);
    assert!(matches!(checked, Err(Rejection::PlanStale { .. })), "{checked:?}");
}
