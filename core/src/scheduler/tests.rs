//! Tests of the scheduler: stories of small fleets, told through `Fsm::apply`.

#![allow(clippy::unwrap_used)]

use story::{Story, expect, length};

mod large;
mod order;
mod properties;
mod reasons;
mod stale;
pub(crate) mod story;
mod week;
mod without_gpus;

#[test]
fn jobs_are_served_in_order_and_packed() {
    expect(
        "node titan01 titan-x*4 pairs=0-1,2-3
         node titan02 v100*2
         run job-a ada 1 4h
         run job-b bob v100:1 8h
         run job-c cyd 2 2h
         run job-d dan titanx:1 2h
         run job-e eve 1@titan01 2h
         place",
        "job-a -> titan02:0, 8 cores, 32.0 GiB
         job-b -> titan02:1, 8 cores, 32.0 GiB
         job-c -> titan01:0 titan01:1, 8 cores, 32.0 GiB
         job-d -> titan01:2, 4 cores, 16.0 GiB
         job-e -> titan01:3, 4 cores, 16.0 GiB",
    );
}

#[test]
fn whole_nodes_stay_free_for_those_who_need_them() {
    expect(
        "node titan01 titan-x*4
         node titan02 titan-x*4
         run job-a ada 1 4h
         run job-b bob 1 4h
         run job-c cyd 2 4h
         run job-d dan 4 4h
         place",
        "job-a -> titan01:0, 4 cores, 16.0 GiB
         job-b -> titan01:1, 4 cores, 16.0 GiB
         job-c -> titan01:2 titan01:3, 8 cores, 32.0 GiB
         job-d -> titan02:0 titan02:1 titan02:2 titan02:3, 16 cores, 64.0 GiB",
    );
}

#[test]
fn shares_follow_gpus_unless_the_job_says_otherwise() {
    expect(
        "node titan01 titan-x*3 cores=16 gib=64
         run job-a ada 1 4h
         run job-b ada 1 4h cpu=2 gib=8
         run job-c ada 0 4h
         run job-d ada 0 4h cpu=3 gib=1
         run job-e ada 1 4h
         place",
        "job-a -> titan01:0, 5.333 cores, 21.3 GiB
         job-b -> titan01:1, 2 cores, 8.0 GiB
         job-c -> titan01, 1 cores, 4.0 GiB
         job-d -> titan01, 3 cores, 1.0 GiB
         job-e -> titan01:2, 4.667 cores, 21.3 GiB",
    );
}

#[test]
fn jobs_without_a_gpu_leave_gpu_nodes_alone() {
    expect(
        "node titan01 titan-x*2
         node titan02 none cores=2
         node titan03 titan-x*4
         run job-a ada 0 1h
         run job-b ada 0 1h
         run job-c ada 0 1h
         place",
        "job-a -> titan02, 1 cores, 32.0 GiB
         job-b -> titan02, 1 cores, 32.0 GiB
         job-c -> titan01, 1 cores, 4.0 GiB",
    );
}

#[test]
fn memory_is_never_given_twice() {
    expect(
        "node titan01 titan-x*3 gib=64
         run job-a ada 1 1h gib=40
         run job-b ada 1 1h gib=30
         run job-c ada 1 1h gib=20
         run job-d ada 1 1h gib=10
         place",
        "job-a -> titan01:0, 5.333 cores, 40.0 GiB
         job-c -> titan01:1, 5.333 cores, 20.0 GiB
         job-b waits, place 2: waits for 30 GiB of memory on titan01, 24 GiB are free [+1h]
         job-d waits, place 4: waits for 10 GiB of memory on titan01, 4 GiB are free [+1h]",
    );
}

#[test]
fn a_reservation_is_respected_ahead_of_time() {
    // Stop graces count: job-b is gone exactly when bob's time begins, job-c would not be.
    expect(
        "node titan01 titan-x*3
         reserve res-x bob 3 +20h +30h
         run job-a ada 1 24h
         run job-b ada 2 20h grace=0s
         run job-c ada 1 20h grace=1m
         run job-d bob 1 24h
         place
         at +10h
         run job-e ada 1 8h
         plan",
        "res-x: titan01:0 titan01:1 titan01:2 Scheduled
         job-b -> titan01:0 titan01:1, 10.666 cores, 42.7 GiB
         job-a waits, place 1: starts now with -t 19h: after that, titan01:0 is promised to bob (res-x) [+1d6h]
         job-d waits, place 2: starts now with -t 19h: after that, titan01:0 is promised to bob (res-x) [+1d6h]
         job-c waits, place 4: starts now with -t 19h: after that, titan01:2 is promised to bob (res-x) [+1d6h]
         job-e -> titan01:2, 5.333 cores, 21.3 GiB
         job-a waits, place 1: starts now with -t 599m: after that, titan01:2 is promised to bob (res-x) [+1d6h]
         job-d waits, place 2: starts now with -t 599m: after that, titan01:2 is promised to bob (res-x) [+1d6h]
         job-c waits, place 3: waits for 1 GPU: titan01:0,1 are held by job-b (ada), titan01:2 is meant for a job before it [+1d6h]",
    );
}

#[test]
fn a_start_that_takes_long_does_not_reach_into_a_reservation() {
    let (story, job) = Story::with_job(
        "node titan01 titan-x*1
         reserve res-x bob 1 +20h +30h
         run job-a ada 1 8h",
    );
    let line = crate::scheduler::placements(&story.fsm).remove(0);
    assert_eq!(line.job, job);
    let approved = crate::scheduler::tests::story::check(&story.fsm, &line).unwrap();
    assert_eq!(approved.parent, None);
    assert_eq!(approved.ends_by, Some(story::BEGINNING + length("20h") - length("30s")));
}

#[test]
fn ones_own_reservation_is_used_where_the_job_fits_into_it() {
    expect(
        "node titan01 titan-x*2
         node titan02 titan-x*1
         reserve res-x ada 2 +0h +8h
         run job-a ada 1 8h
         run job-b ada 1 9h
         run job-c bob 1 1h
         run job-d ada 1 9h
         run job-e ada 2 2h
         place
         busy titan01:0
         at +8h
         state res-x
         plan",
        "res-x: titan01:0 titan01:1 Active
         job-c -> titan02:0, 16 cores, 64.0 GiB
         job-a -> titan01:0, 8 cores, 32.0 GiB
         job-b waits, place 3: starts now with -t 8h, in your reservation res-x [+1h]
         job-d waits, place 4: starts now with -t 8h, in your reservation res-x [+8h]
         job-e waits, place 5: waits for 2 GPUs on one node: titan01:0,1 are reserved by ada (res-x) [+17h]
         titan01:0 +0ms..+8h res-x ada
         res-x: Ending
         job-b waits, place 1: waits for 1 GPU: titan01:0,1 are being emptied after res-x (ada) [+8h2m]
         job-d waits, place 2: waits for 1 GPU: titan01:0,1 are being emptied after res-x (ada) [+8h2m]
         job-e waits, place 3: waits for 2 GPUs on one node: titan01:0,1 are being emptied after res-x (ada) [+17h2m]",
    );
}

#[test]
fn a_job_may_be_bound_to_a_reservation() {
    expect(
        "node titan01 titan-x*4
         reserve res-x ada 2 +1h +8h
         run job-a ada 1 24h res=res-x
         run job-b ada 1 1h res=res-x
         run job-c ada 1 1h res=res-x
         run job-d bob 1 1h res=res-x
         run job-e ada 3 1h res=res-x
         plan
         at +1h
         place
         plan
         at +2h
         release res-x
         plan",
        "res-x: titan01:0 titan01:1 Scheduled
         job-d: permission denied: only ada, who owns res-x, may do this
         job-e: reservation res-x has 2 of the 3 GPUs
         job-a waits, place 1: its reservation res-x has not begun [+1h]
         job-b waits, place 2: its reservation res-x has not begun [+1h]
         job-c waits, place 3: its reservation res-x has not begun [+1h]
         job-a -> titan01:0, 4 cores, 16.0 GiB
         job-b -> titan01:1, 4 cores, 16.0 GiB
         job-c waits, place 3: titan01:0,1 are meant for a job before it [+2h]
         job-c waits, place 1: titan01:0 is held by job-a (ada), titan01:1 is held by job-b (ada) [+2h]",
    );
}

#[test]
fn nothing_goes_on_gpus_that_are_broken_or_nodes_that_are_closed() {
    expect(
        "node titan01 titan-x*4
         node titan02 titan-x*1
         lost titan01:0
         dirty titan01:1 Xvfb
         degraded titan01:2
         notice titan01:3
         cordon titan02 fans
         run job-a ada 1 1h
         run job-b ada 1 1h
         run job-c ada 0 1h
         place
         uncordon titan02
         silent titan01
         run job-d ada 0 1h
         place
         degraded titan02
         run job-e ada 0 1h
         plan",
        "job-a -> titan01:3, 4 cores, 16.0 GiB
         job-c -> titan01, 1 cores, 4.0 GiB
         job-b waits, place 2: waits for 1 GPU: titan01:3 is meant for a job before it [+1h]
         job-b -> titan02:0, 16 cores, 64.0 GiB
         job-d waits, place 2: waits for 1 core on titan02, 0 are free [+1h]
         job-d waits, place 1: titan01 is unreachable; titan02 is degraded: test
         job-e waits, place 2: titan01 is unreachable; titan02 is degraded: test",
    );
}

#[test]
fn what_waits_behind_the_first_must_not_delay_it() {
    // job-b needs the whole of titan01, which job-a leaves after 4 h and its grace. Of cores there
    // are enough for all.
    expect(
        "node titan01 titan-x*4
         run job-a ada 1 4h
         place
         run job-b bob 4 8h cpu=4 gib=4
         run job-c cyd 1 4h
         run job-d dan 1 5h cpu=1 gib=1
         run job-e eve 1 2h grace=0s
         place",
        "job-a -> titan01:0, 4 cores, 16.0 GiB
         job-c -> titan01:1, 4 cores, 16.0 GiB
         job-e -> titan01:2, 4 cores, 16.0 GiB
         job-b waits, place 1: waits for 4 GPUs on one node: titan01:0 is held by job-a (ada) [+4h]
         job-d waits, place 3: starts now with -t 4h: after that, titan01 is held for job-b, which is ahead in the queue [+12h1m]",
    );
}

#[test]
fn what_the_first_leaves_over_may_be_used_for_longer() {
    // job-b will take two of the three; the third is nobody's, and so are its cores.
    expect(
        "node titan01 titan-x*3
         run job-a ada 2 4h
         place
         run job-b bob 2 8h
         run job-c cyd 0 24h cpu=6
         run job-d dan 1 24h
         run job-e dan 0 24h cpu=1
         place",
        "job-a -> titan01:0 titan01:1, 10.666 cores, 42.7 GiB
         job-d -> titan01:2, 5.333 cores, 21.3 GiB
         job-b waits, place 1: waits for 2 GPUs on one node: titan01:0,1 are held by job-a (ada) [+4h]
         job-c waits, place 2: waits for 6 cores on titan01, 5.334 are free; starts now with -c 5 [+12h1m]
         job-e waits, place 4: waits for 1 core on titan01, 0.001 are free [+12h1m]",
    );
}

#[test]
fn cores_are_kept_for_the_first_too() {
    // job-a leaves 8 of 16 cores at +4h; job-b wants 12 of them then.
    expect(
        "node titan01 titan-x*2
         run job-a ada 1 4h
         place
         run job-b bob 1 4h cpu=12
         run job-c cyd 0 8h cpu=4
         run job-d dan 0 8h cpu=1
         run job-e eve 0 2h cpu=4
         place",
        "job-a -> titan01:0, 8 cores, 32.0 GiB
         job-c -> titan01, 4 cores, 4.0 GiB
         job-e -> titan01, 4 cores, 4.0 GiB
         job-b waits, place 1: waits for 12 cores on titan01, 8 are free; starts now with -c 8 [+4h]
         job-d waits, place 3: starts now with -t 4h: after that, titan01 is held for job-b, which is ahead in the queue [+8h]",
    );
}

#[test]
fn interrupted_work_goes_first() {
    expect(
        "node titan01 titan-x*1
         node titan02 titan-x*1
         run job-a ada 1 4h
         run job-b bob 1 4h
         place
         start job-a
         run job-c cyd 1 4h
         degraded titan01:0
         checkpoint job-a 1
         at +1h
         end job-b
         freed titan02
         checkpoint job-a 2
         end job-a
         plan",
        "job-a -> titan01:0, 16 cores, 64.0 GiB
         job-b -> titan02:0, 16 cores, 64.0 GiB
         job-a keeps running
         job-a evicted (test)
         job-a -> titan02:0, 16 cores, 64.0 GiB
         job-c waits, place 2: waits for 1 GPU: titan02:0 is meant for a job before it [+4h]",
    );
}

#[test]
fn there_must_be_another_place_before_a_job_is_evicted() {
    expect(
        "node titan01 titan-x*2
         node titan02 titan-x*2
         run job-a ada 1 4h
         run job-b ada 1 4h
         run job-c ada 1 4h
         place
         degraded titan01:0
         degraded titan01:1
         elsewhere job-a
         elsewhere job-b
         checkpoint job-b 1
         elsewhere job-a
         checkpoint job-a 1
         elsewhere job-a
         elsewhere job-c",
        "job-a -> titan01:0, 8 cores, 32.0 GiB
         job-b -> titan01:1, 8 cores, 32.0 GiB
         job-c -> titan02:0, 8 cores, 32.0 GiB
         job-a: titan02
         job-b: nowhere
         job-b keeps running
         job-a: titan02
         job-a evicted (test)
         job-a: titan02
         job-c: titan02",
    );
}

#[test]
fn nobody_leaves_for_a_place_that_is_kept_for_an_interrupted_job() {
    expect(
        "node titan01 titan-x*2
         node titan02 titan-x*2
         node titan03 titan-x*2
         run job-i ada 2 4h
         run job-l ada 1 4h
         run job-x ada 1 4h
         run job-y ada 1 1h
         place
         start job-i
         start job-l
         start job-y
         fatal titan01:0
         fatal titan01:1
         end job-i
         freed titan01
         degraded titan02:0
         run job-z cyd 1 30m
         elsewhere job-l
         checkpoint job-l 1
         place
         at +1h
         end job-z
         end job-y
         freed titan03
         elsewhere job-l
         place",
        "job-i -> titan01:0 titan01:1, 16 cores, 64.0 GiB
         job-l -> titan02:0, 8 cores, 32.0 GiB
         job-x -> titan02:1, 8 cores, 32.0 GiB
         job-y -> titan03:0, 8 cores, 32.0 GiB
         job-l: nowhere
         job-l keeps running
         job-z -> titan03:1, 8 cores, 32.0 GiB
         job-i waits, place 1: waits for 2 GPUs on one node: titan03:0 is held by job-y (ada) [+1h]
         job-l: nowhere
         job-i -> titan03:0 titan03:1, 16 cores, 64.0 GiB",
    );
}

#[test]
fn a_job_of_a_reservation_goes_on_within_it_or_not_at_all() {
    expect(
        "node titan01 titan-x*3
         node titan02 titan-x*4
         reserve res-x ada 2@titan01 +0h +8h
         run job-a ada 1 4h res=res-x
         place
         degraded titan01:0
         elsewhere job-a
         run job-b ada 1 1h res=res-x
         place
         elsewhere job-a",
        "res-x: titan01:0 titan01:1 Active
         job-a -> titan01:0, 5.333 cores, 21.3 GiB
         job-a: titan01
         job-b -> titan01:1, 5.333 cores, 21.3 GiB
         job-a: nowhere",
    );
}

#[test]
fn immediate_jobs_start_at_once_or_fail() {
    expect(
        "node titan01 titan-x*2
         run job-a ada 1 4h immediate
         run job-b ada 2 4h immediate
         run job-c ada 1 4h
         run job-d ada 1 4h immediate
         place",
        "job-b: cannot start now: waits for 2 GPUs on one node: titan01:0 is meant for a job before it
         job-d: cannot start now: waits for 1 GPU: titan01:0,1 are meant for a job before it
         job-a -> titan01:0, 8 cores, 32.0 GiB
         job-c -> titan01:1, 8 cores, 32.0 GiB",
    );
}

#[test]
fn one_job_over_several_models_is_the_last_resort() {
    expect(
        "node titan01 titan-x*2+v100*2
         run job-a ada 1 4h
         run job-b ada 2 4h
         run job-c ada 1 4h
         place
         run job-d ada 3 4h
         plan",
        "job-a -> titan01:0, 4 cores, 16.0 GiB
         job-b -> titan01:2 titan01:3, 8 cores, 32.0 GiB
         job-c -> titan01:1, 4 cores, 16.0 GiB
         job-d waits, place 1: waits for 3 GPUs on one node: titan01:0 is held by job-a (ada), titan01:1 is held by job-c (ada), titan01:2,3 are held by job-b (ada) [+4h]",
    );
}
