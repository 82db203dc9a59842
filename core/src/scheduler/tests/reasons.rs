//! The reason that a waiting job shows, and what `fleet why` lists node by node.

use super::story::expect;

#[test]
fn each_node_has_its_line() {
    expect(
        "node titan01 titan-x*4
         node titan02 titan-x*1
         node titan03 v100*2 cores=4
         node titan04 titan-x*2
         node titan05 titan-x*2
         node titan06 titan-x*2
         node titan07 titan-x*2
         reserve res-x bob 2@titan01 +0h +8h
         run job-z zoe 1@titan01 2h
         place
         lost titan04:0
         cordon titan05 fans
         reserve res-y cyd 2@titan06 +5h +6h
         reserve res-w cyd 1@titan07 +0h +6h
         run job-a ada titan-x:2 24h cpu=6
         why job-a
         why job-z",
        "res-x: titan01:0 titan01:1 Active
         job-z -> titan01:2, 4 cores, 16.0 GiB
         res-y: titan06:0 titan06:1 Scheduled
         res-w: titan07:0 Active
         job-a, place 1: starts now with -t 299m: after that, titan06:0 is promised to cyd (res-y) [+2h]
           - titan01: titan01:0,1 are reserved by bob (res-x), titan01:2 is held by job-z (zoe)
           - titan02: titan02 has 1 such GPU, it wants 2
           - titan03: titan03 has no such GPU
           - titan04: titan04:0 is lost
           - titan05: titan05 is cordoned by root: fans
           - titan06: starts now with -t 299m: after that, titan06:0 is promised to cyd (res-y)
           - titan07: titan07:0 is reserved by cyd (res-w)
         job-z is not queued",
    );
}

#[test]
fn cores_and_memory_that_no_node_has_are_refused_at_once() {
    expect(
        "node titan01 titan-x*2 cores=8 gib=32
         run job-a ada 1 1h cpu=9
         run job-b ada 1 1h gib=33
         run job-c ada 0 1h cpu=9
         run job-d ada 3 1h
         run job-e ada 0@titan09 1h
         run job-f ada 1 1h cpu=8 gib=32
         plan",
        "job-a: no node with such GPUs has that much CPU and memory: at most 8 cores and 32 GiB
         job-b: no node with such GPUs has that much CPU and memory: at most 8 cores and 32 GiB
         job-c: no node has that much CPU and memory for jobs without GPUs: at most 4 cores and 16 GiB. The rest stays for the node's GPUs. Ask for a GPU (-G 1) or for less (-c, --memory). An admin can change the part: `fleet job defaults`
         job-d: no node has 3 GPUs; the largest, titan01, has 2
         job-e: there is no node \"titan09\"
         job-f -> titan01:0, 8 cores, 32.0 GiB",
    );
}

#[test]
fn a_node_that_cannot_read_the_checkpoint_is_named() {
    expect(
        "node titan01 titan-x*1
         node titan02 titan-x*1
         run job-a ada 1 4h
         place
         cannot-resume job-a no marker
         run job-b bob 1 4h
         place
         freed titan01
         run job-c cyd 1 4h
         why job-a
         place
         cannot-resume job-a no marker here either
         plan",
        "job-a -> titan01:0, 16 cores, 64.0 GiB
         job-a -> titan02:0, 16 cores, 64.0 GiB
         job-b waits, place 2: waits for 1 GPU: titan01:0 is being emptied after job-a (ada) [+2m]
         job-a is not queued
         job-b -> titan01:0, 16 cores, 64.0 GiB
         job-c waits, place 2: waits for 1 GPU: titan01:0 is meant for a job before it [+4h]
         job-a waits, place 1: can never start: not on titan01: no marker; not on titan02: no marker here either; `fleet node uncordon` lets it try again there
         job-c waits, place 2: waits for 1 GPU: titan02:0 is being emptied after job-a (ada) [+2m]",
    );
}

#[test]
fn a_job_ends_with_the_reservation_that_it_waits_for() {
    expect(
        "node titan01 titan-x*2
         reserve res-x ada 2 +0h +4h
         run job-a ada 1 1h res=res-x
         lost titan01:0
         lost titan01:1
         plan
         at +4h
         freed titan01
         plan
         why job-a",
        "res-x: titan01:0 titan01:1 Active
         job-a waits, place 1: titan01:0 is lost; titan01:1 is lost
         job-a is not queued",
    );
}

#[test]
fn a_late_reservation_keeps_its_gpus_from_jobs() {
    // job-a overstays; res-x is promised the GPUs and takes them as soon as they are empty.
    expect(
        "node titan01 titan-x*1
         run job-a ada 1 1h
         place
         start job-a
         reserve res-x bob 1 +2h +4h
         at +2h
         state res-x
         run job-b cyd 1 1h
         run job-c bob 1 1h res=res-x
         plan
         end job-a
         plan
         freed titan01
         state res-x
         plan",
        "job-a -> titan01:0, 16 cores, 64.0 GiB
         res-x: titan01:0 Scheduled
         res-x: Scheduled
         job-b waits, place 1: waits for 1 GPU: titan01:0 is held by job-a (ada) [+4h]
         job-c waits, place 2: its reservation res-x waits: job-a of ada is not released yet [+2h]
         job-b waits, place 1: waits for 1 GPU: titan01:0 is being emptied after job-a (ada) [+4h]
         job-c waits, place 2: its reservation res-x waits: job-a of ada is not released yet [+2h]
         res-x: Active
         job-c -> titan01:0, 16 cores, 64.0 GiB
         job-b waits, place 1: waits for 1 GPU: titan01:0 is reserved by bob (res-x) [+4h]",
    );
}
