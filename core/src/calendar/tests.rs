//! Tests of the calendar: stories of small fleets, told through `Fsm::apply`.

#![allow(clippy::unwrap_used)]

pub(crate) mod places;

use super::free_near;
use crate::gpu::Gpu;
use crate::name::NodeName;
use crate::scheduler::tests::story::{BEGINNING, Story, expect};
use crate::state::wish::said;
use crate::time::{Millis, Window};

#[test]
fn whole_nodes_are_kept_free() {
    expect(
        "node titan01 titan-x*4
         node titan02 titan-x*4
         node titan03 titan-x*2
         reserve res-a ada 1 +0h +8h
         reserve res-b bob 1 +0h +8h
         reserve res-c cyd 1 +0h +8h
         reserve res-d dan 3 +0h +8h
         reserve res-e eve 4 +0h +8h",
        "res-a: titan03:0 Active
         res-b: titan03:1 Active
         res-c: titan01:0 Active
         res-d: titan01:1 titan01:2 titan01:3 Active
         res-e: titan02:0 titan02:1 titan02:2 titan02:3 Active",
    );
}

#[test]
fn the_closest_gpus_are_taken_together() {
    expect(
        "node titan01 v100*4 pairs=0-2,1-3
         reserve res-a ada 2 +0h +8h
         reserve res-b bob 2 +0h +8h",
        "res-a: titan01:0 titan01:2 Active
         res-b: titan01:1 titan01:3 Active",
    );
}

#[test]
fn a_wish_is_met_to_the_letter() {
    expect(
        "node titan01 titan-x*2
         node titan02 titan-x*1+v100*2
         reserve res-a ada v100:1 +0h +1h
         reserve res-b ada Titan_X:1@titan02 +0h +1h
         reserve res-c ada titanx:2 +0h +1h
         reserve res-d ada 1>16 +0h +1h
         reserve res-e ada titan01:1 +2h +3h
         reserve res-f ada titan02:0+titan02:1 +2h +3h",
        "res-a: titan02:1 Active
         res-b: titan02:0 Active
         res-c: titan01:0 titan01:1 Active
         res-d: titan02:2 Active
         res-e: titan01:1 Scheduled
         res-f: titan02:0 titan02:1 Scheduled",
    );
}

#[test]
fn what_can_never_be_met_is_told_apart() {
    expect(
        "reserve res-a ada 1 +0h +1h
         node titan01 titan-x*4
         node titan02 v100*2
         reserve res-b ada k80:1 +0h +1h
         reserve res-c ada 8 +0h +1h
         reserve res-d ada v100:3 +0h +1h
         reserve res-e ada 1@titan07 +0h +1h
         reserve res-f ada v100:1@titan01 +0h +1h
         reserve res-g ada 3@titan02 +0h +1h
         reserve res-h ada 1>32 +0h +1h
         reserve res-i ada titan01:9 +0h +1h
         reserve res-j ada titan01:0+titan02:0 +0h +1h",
        r#"res-a: no node has joined yet
         res-b: there is no "k80" here; the fleet has titan-x, v100
         res-c: no node has 8 GPUs; the largest, titan01, has 4
         res-d: no node has 3 v100 GPUs; the largest, titan02, has 2
         res-e: there is no node "titan07"
         res-f: titan01 has none of the 1 v100 GPU
         res-g: titan02 has 2 of the 3 GPUs
         res-h: no node has 1 GPU with at least 32 GiB
         res-i: there is no GPU "GPU-746974616e30313a39"
         res-j: the named GPUs are of several nodes: titan01, titan02"#,
    );
}

#[test]
fn a_refusal_names_who_holds_what_and_the_next_slot() {
    expect(
        "node titan01 titan-x*2
         node titan02 titan-x*2
         reserve res-a ada 2@titan01 +0h +8h
         reserve res-b bob 1@titan02 +2h +4h
         reserve res-c cyd 2 +0h +3h
         reserve res-d dan 2 +3h +6h
         reserve res-e eve 2 +0h +2h",
        "res-a: titan01:0 titan01:1 Active
         res-b: titan02:0 Scheduled
         res-c: 2 GPUs on one node: held
           titan02:0 bob res-b until +4h
           titan01:0 ada res-a until +8h
           titan01:1 ada res-a until +8h
           next: +4h titan02:0 titan02:1
         res-d: 2 GPUs on one node: held
           titan02:0 bob res-b until +4h
           titan01:0 ada res-a until +8h
           titan01:1 ada res-a until +8h
           next: +4h titan02:0 titan02:1
         res-e: titan02:0 titan02:1 Active",
    );
}

#[test]
fn windows_that_touch_do_not_collide() {
    expect(
        "node titan01 titan-x*1
         reserve res-a ada 1 +1h +2h
         reserve res-b bob 1 +2h +3h
         reserve res-c cyd 1 +0h +1h
         reserve res-d dan 1 +0h +4h",
        "res-a: titan01:0 Scheduled
         res-b: titan01:0 Scheduled
         res-c: titan01:0 Active
         res-d: 1 GPU: held
           titan01:0 cyd res-c until +1h
           titan01:0 ada res-a until +2h
           titan01:0 bob res-b until +3h
           next: +3h titan01:0",
    );
}

#[test]
fn a_gap_that_is_long_enough_is_found() {
    expect(
        "node titan01 titan-x*1
         reserve res-a ada 1 +0h +1h
         reserve res-b ada 1 +2h +4h
         reserve res-c ada 1 +7h +9h
         reserve res-d bob 1 +0h +3h
         reserve res-e bob 1 +0h +1h
         reserve res-f bob 1 +8h +12h",
        "res-a: titan01:0 Active
         res-b: titan01:0 Scheduled
         res-c: titan01:0 Scheduled
         res-d: 1 GPU: held
           titan01:0 ada res-a until +1h
           titan01:0 ada res-b until +4h
           next: +4h titan01:0
         res-e: 1 GPU: held
           titan01:0 ada res-a until +1h
           next: +1h titan01:0
         res-f: 1 GPU: held
           titan01:0 ada res-c until +9h
           next: +9h titan01:0",
    );
}

#[test]
fn jobs_hold_their_gpus_until_their_limit_and_grace() {
    expect(
        "node titan01 titan-x*1
         run job-a ada 1 4h grace=30m
         place
         busy titan01:0
         at +1h
         busy titan01:0
         start job-a
         at +2h
         busy titan01:0
         reserve res-b bob 1 +2h +3h
         reserve res-c bob 1 +5h +6h
         at +5h
         busy titan01:0",
        "job-a -> titan01:0, 16 cores, 64.0 GiB
         titan01:0 +0ms..+4h30m job-a ada
         titan01:0 +0ms..+5h30m job-a ada
         titan01:0 +0ms..+5h30m job-a ada
         res-b: 1 GPU: held
           titan01:0 ada job-a until +5h30m
           next: +5h30m titan01:0
         res-c: 1 GPU: held
           titan01:0 ada job-a until +5h30m
           next: +5h30m titan01:0
         titan01:0 +0ms..+5h30m job-a ada",
    );
}

/// A lease outlives its end until the node has proven the GPU empty: it is still there, nobody
/// knows for how long, and the next user is promised the GPU but does not get it yet.
#[test]
fn a_gpu_that_is_being_emptied_is_a_second_choice() {
    expect(
        "node titan01 titan-x*2
         reserve res-a ada titan01:0 +0h +8h
         at +1h
         release res-a
         busy titan01:0
         reserve res-b bob 1 +1h +2h
         reserve res-c cyd 1 +1h +2h
         freed titan01
         state res-c",
        "res-a: titan01:0 Active
         titan01:0 +0ms..+1h2m res-a ada, being emptied
         res-b: titan01:1 Active
         res-c: titan01:0 Scheduled
         res-c: Active",
    );
}

#[test]
fn a_gpu_that_does_not_come_free_is_not_promised_at_once() {
    expect(
        "node titan01 titan-x*1
         run job-a ada 1 8h
         place
         end job-a
         at +1h
         busy titan01:0
         reserve res-b bob 1 +1h +2h
         reserve res-c bob 1 +2h +3h",
        "job-a -> titan01:0, 16 cores, 64.0 GiB
         titan01:0 +0ms..+1h10m alloc-a-1 ada
         res-b: 1 GPU: held
           titan01:0 ada alloc-a-1 until +1h10m
           next: +1h10m titan01:0
         res-c: titan01:0 Scheduled",
    );
}

#[test]
fn broken_gpus_and_closed_nodes_are_passed_over() {
    expect(
        "node titan01 titan-x*4
         node titan02 titan-x*1
         node titan03 titan-x*1
         node titan04 titan-x*1
         lost titan01:0
         unknown titan01:1
         dirty titan01:2 python3 of mia
         notice titan01:3
         reserve res-a ada 1@titan01 +0h +1h
         reserve res-b ada 1@titan01 +0h +1h
         reserve res-g ada titan01:2 +1h +2h
         cordon titan02 fans
         reserve res-c ada 1@titan02 +5h +6h
         silent titan03
         reserve res-d ada 1@titan03 +0h +1h
         reserve res-e ada 1@titan03 +1h +2h
         degraded titan04
         reserve res-f ada 1@titan04 +1h +2h",
        "res-a: titan01:3 Active
         res-b: 1 GPU on titan01 (titan01:0 is lost; titan01:1 does not answer; titan01:2 is in use without a lease: python3 of mia): held
           titan01:3 ada res-a until +1h
           next: +10m titan01:2
         res-g: titan01:2 Scheduled
         res-c: 1 GPU on titan02 (titan02 is cordoned by root: fans): held
         res-d: 1 GPU on titan03 (titan03 is unreachable): held
           next: +10m titan03:0
         res-e: titan03:0 Scheduled
         res-f: 1 GPU on titan04 (titan04:0 is unhealthy: pages): held",
    );
}

#[test]
fn an_extension_stops_at_the_next_promise() {
    expect(
        "node titan01 titan-x*2
         reserve res-a ada 2 +0h +4h
         extend res-a +6h
         reserve res-b bob titan01:1 +8h +9h
         extend res-a +8h
         extend res-a +10h
         reserve res-c cyd titan01:0 +8h +12h
         extend res-a +10h",
        "res-a: titan01:0 titan01:1 Active
         res-b: titan01:1 Scheduled
         extend: titan01:1 for 2h longer (it cannot be extended at all): held
           titan01:1 bob res-b until +9h
         res-c: titan01:0 Scheduled
         extend: titan01:0, titan01:1 for 2h longer (it cannot be extended at all): held
           titan01:1 bob res-b until +9h
           titan01:0 cyd res-c until +12h",
    );
    expect(
        "node titan01 titan-x*1
         reserve res-a ada 1 +0h +4h
         reserve res-b bob 1 +7h +9h
         extend res-a +8h
         extend res-a +7h
         extend res-a +5h",
        "res-a: titan01:0 Active
         res-b: titan01:0 Scheduled
         extend: titan01:0 for 4h longer (at most 3h longer): held
           titan01:0 bob res-b until +9h",
    );
    // Its end has come, nobody has acted on it yet: its own overdue lease is not in its way.
    expect(
        "node titan01 titan-x*1
         reserve res-a ada 1 +0h +4h
         clock +4h
         extend res-a +5h
         at +4h
         state res-a",
        "res-a: titan01:0 Active
         res-a: Active",
    );
}

#[test]
fn free_gpus_that_nobody_was_promised_are_named_the_nearest_kin_first() {
    let mut story = Story::new();
    story.tell(
        "node titan01 v100*1+titan-x*1
         node titan02 titan-x*3
         node titan03 a100*1
         node titan04 v100*2
         reserve res-a ada titan02:0 +0h +1h
         reserve res-b bob titan02:1 +3h +4h
         reserve res-c bob titan02:2 +8h +9h",
    );
    let near = |near: &str, hours, free: fn(&Gpu) -> bool| {
        let window = Window { starts_at: BEGINNING, ends_at: BEGINNING + Millis::hours(hours) };
        let found = free_near(&story.fsm, &NodeName::parse(near).unwrap(), window, free);
        found.into_iter().map(said).collect::<Vec<_>>().join(" ")
    };
    let all = |_: &Gpu| true;
    assert_eq!(
        near("titan04", 8, all),
        "titan04:0 titan04:1 titan01:0 titan01:1 titan02:2 titan03:0"
    );
    assert_eq!(
        near("titan01", 2, all),
        "titan01:0 titan01:1 titan02:1 titan02:2 titan04:0 titan04:1 titan03:0"
    );
    assert_eq!(near("titan04", 8, |gpu| gpu.index == 1), "titan04:1 titan01:1");
}
