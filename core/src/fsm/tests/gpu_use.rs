//! What nodes measured of their GPUs: each part of an hour is counted once.

use super::world::{START, World, gpu, job, node, person, plain, res};
use crate::command::{ClusterCommand, Command, Report};
use crate::gpu_use::{GpuUse, MeasuredUse, NodeUse, USE_ROWS_MAX, hour_of};
use crate::id::AllocationId;
use crate::lease::LeaseHolder;
use crate::time::{Millis, Timestamp};
use crate::usage::use_measured_by;

const H: Millis = Millis::hours(1);

/// The first full hour after the beginning of the world.
fn hour(number: u64) -> Timestamp {
    hour_of(START) + Millis(H.0 * (number + 1))
}

fn row(index: u32, measured: Millis) -> GpuUse {
    GpuUse {
        gpu: gpu("titan01", index),
        holder: LeaseHolder::Allocation(AllocationId::parse("alloc-a-1").unwrap()),
        within: None,
        measured_ms: measured,
        busy_ms: Millis(measured.0 / 2),
        occupied_ms: measured,
        utilization: measured.0 * 30,
        memory_peak_bytes: 1 << 30,
    }
}

fn seen(number: u64) -> NodeUse {
    NodeUse { from: hour(number), until: hour(number) + H, rows: vec![row(0, H), row(1, H)] }
}

fn counted(w: &World) -> Vec<&MeasuredUse> {
    w.heard.iter().filter_map(use_measured_by).collect()
}

fn say(w: &mut World, seen: &NodeUse) {
    w.report("titan01", Report::GpuUse(Box::new(seen.clone()))).unwrap();
}

fn world() -> World {
    let mut w = World::with(&["titan01", "titan02"]);
    w.run("a", plain(2), "titan01", &[0, 1]);
    w.pass(Millis::hours(5));
    w.heard.clear();
    w
}

/// A node measured what a reservation with a job in it used.
pub(super) fn measured_in_a_reservation(w: &mut World) {
    let holder = LeaseHolder::Reservation(res("r1"));
    let row = GpuUse {
        gpu: gpu("titan01", 0),
        holder: holder.clone(),
        within: None,
        measured_ms: Millis::secs(30),
        busy_ms: Millis::secs(10),
        occupied_ms: Millis::secs(20),
        utilization: 1_000_000,
        memory_peak_bytes: 1 << 30,
    };
    let attempt = AllocationId::of_attempt(&job("a"), 1);
    let inside =
        GpuUse { holder: LeaseHolder::Allocation(attempt), within: Some(res("r1")), ..row.clone() };
    let (from, until) = (hour_of(w.now - Millis(1)), w.now);
    let seen = NodeUse { from, until, rows: vec![row, inside] };
    w.report("titan01", Report::GpuUse(Box::new(seen))).unwrap();
}

#[test]
fn an_hour_is_counted_once_however_often_it_is_said() {
    let mut w = world();
    for number in [0, 0, 1, 0, 1, 2] {
        say(&mut w, &seen(number));
    }
    let all = counted(&w);
    let hours: Vec<Timestamp> = all.iter().map(|seen| seen.from).collect();
    assert_eq!(hours, [hour(0), hour(1), hour(2)]);
    assert_eq!((all[0].rows[0].model.as_str(), all[0].sums()), ("v100", (2 * H.0, H.0)));
    // Part of an hour that was counted, as after a change of the interval.
    let half = Millis::minutes(30);
    say(&mut w, &NodeUse { from: hour(2) + half, rows: vec![row(0, half)], ..seen(2) });
    assert_eq!(counted(&w).len(), 3);
    let part = |from, until| NodeUse { from, until, rows: vec![row(0, half)] };
    say(&mut w, &part(hour(3), hour(3) + half));
    say(&mut w, &part(hour(3) + half, hour(4)));
    assert_eq!(counted(&w).len(), 5, "parts of an hour follow each other");
    assert_eq!(w.fsm.node(&node("titan01")).unwrap().use_counted, hour(4));
}

#[test]
fn rows_of_gpus_that_are_not_the_nodes_are_left_out() {
    let mut w = world();
    let theirs = GpuUse { gpu: gpu("titan02", 0), ..row(0, H) };
    say(&mut w, &NodeUse { rows: vec![theirs.clone(), row(1, H)], ..seen(0) });
    let all = counted(&w);
    assert_eq!((all.len(), all[0].rows.len()), (1, 1));
    say(&mut w, &NodeUse { rows: vec![theirs], ..seen(1) });
    assert_eq!(counted(&w).len(), 1, "nothing is left to say");
    // Nobody held a GPU.
    say(&mut w, &NodeUse { rows: Vec::new(), ..seen(2) });
    assert_eq!(counted(&w).len(), 1);
}

#[test]
fn what_cannot_have_been_measured_is_refused_with_the_field() {
    let mut w = world();
    let one = |row: GpuUse| NodeUse { rows: vec![row], ..seen(0) };
    let more = Millis(H.0 + 1);
    let at = |from: Timestamp, length| NodeUse { from, until: from + length, ..seen(0) };
    let many = vec![row(0, Millis(1)); USE_ROWS_MAX + 1];
    for (bad, problem) in [
        (at(hour(0), Millis::ZERO), "gpu_use.until"),
        (at(hour(0), more), "same hour"),
        (at(hour(0) + Millis(1), H), "same hour"),
        (at(hour_of(w.now) + H, Millis::minutes(6)), "in the future"),
        (at(Timestamp(0), H), "ago"),
        (one(row(0, more)), "measured_ms"),
        (NodeUse { rows: vec![row(0, H), row(0, Millis(1))], ..seen(0) }, "measured_ms"),
        (one(row(0, Millis(u64::MAX / 100))), "measured_ms"),
        (one(GpuUse { busy_ms: H, ..row(0, Millis(5)) }), "busy_ms"),
        (one(GpuUse { occupied_ms: H, ..row(0, Millis(5)) }), "occupied_ms"),
        (one(GpuUse { utilization: 501, ..row(0, Millis(5)) }), "utilization"),
        (NodeUse { rows: many, ..seen(0) }, "at most 150"),
    ] {
        let said = w.report("titan01", Report::GpuUse(Box::new(bad))).unwrap_err().to_string();
        assert!(said.contains(problem), "{problem}: {said}");
    }
    assert!(counted(&w).is_empty());
    say(&mut w, &seen(0));
    assert_eq!(counted(&w).len(), 1, "what was refused is not counted");
}

#[test]
fn a_clock_that_is_set_back_does_not_make_what_follows_known() {
    let mut w = world();
    say(&mut w, &seen(3));
    w.now = hour(1);
    let reset = Command::Cluster(ClusterCommand::ResetClock { to: hour(1) });
    w.give(person("root"), reset).unwrap();
    w.pass(Millis::hours(4));
    for number in [0, 1, 2] {
        say(&mut w, &seen(number));
    }
    let hours: Vec<Timestamp> = counted(&w).iter().map(|seen| seen.from).collect();
    assert_eq!(hours, [hour(3), hour(1), hour(2)]);
}
