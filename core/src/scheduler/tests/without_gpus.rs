//! Jobs without GPUs leave cores and memory for the node's GPUs.

use super::story::{Story, check, expect};
use crate::scheduler::plan;

#[test]
fn work_on_cores_alone_leaves_each_gpu_something_to_work_with() {
    expect(
        "node titan01 titan-x*4 cores=16 gib=64
         run job-ca ada 0 9h cpu=5
         run job-cb bob 0 9h cpu=3
         run job-cc cyd 0 9h
         run job-ga dan 1 4h
         run job-gb eve 2 4h
         run job-gc fay 1 4h
         place",
        "job-ca -> titan01, 5 cores, 4.0 GiB
         job-cb -> titan01, 3 cores, 4.0 GiB
         job-ga -> titan01:0, 2 cores, 16.0 GiB
         job-gb -> titan01:1 titan01:2, 4 cores, 32.0 GiB
         job-gc -> titan01:3, 2 cores, 8.0 GiB
         job-cc waits, place 3: waits for 1 core on titan01, 0 are free for jobs without GPUs [+9h]",
    );
}

#[test]
fn a_gpu_gets_its_whole_portion_where_the_cores_are_free() {
    expect(
        "node titan01 titan-x*4 cores=16 gib=64
         run job-ca ada 0 9h cpu=2
         run job-ga bob 1 4h
         run job-gb bob 1 4h
         run job-gc bob 1 4h
         run job-gd bob 1 4h
         place",
        "job-ca -> titan01, 2 cores, 4.0 GiB
         job-ga -> titan01:0, 4 cores, 16.0 GiB
         job-gb -> titan01:1, 4 cores, 16.0 GiB
         job-gc -> titan01:2, 4 cores, 16.0 GiB
         job-gd -> titan01:3, 2 cores, 12.0 GiB",
    );
}

#[test]
fn memory_is_left_as_cores_are() {
    expect(
        "node titan01 titan-x*2 cores=16 gib=64
         run job-ca ada 0 9h gib=24
         run job-cb ada 0 9h gib=10
         run job-ga bob 1 4h
         run job-gb bob 1 4h
         place",
        "job-ca -> titan01, 1 cores, 24.0 GiB
         job-ga -> titan01:0, 8 cores, 24.0 GiB
         job-gb -> titan01:1, 7 cores, 16.0 GiB
         job-cb waits, place 3: waits for 10 GiB of memory on titan01, 8 GiB are free for jobs without GPUs [+9h]",
    );
}

#[test]
fn what_stays_for_gpus_stays_while_jobs_have_them() {
    // Else a job on cores that starts now would leave nothing for the GPU when its job ends.
    expect(
        "node titan01 titan-x*2 cores=16 gib=64
         run job-ga bob 2 1h cpu=1 gib=1
         run job-ca ada 0 9h cpu=8 gib=1
         run job-cb ada 0 9h cpu=1 gib=1
         place
         why job-cb
         at +30m
         end job-ga
         freed titan01
         run job-gb bob 1 4h
         run job-gc bob 1 4h
         place",
        "job-ga -> titan01:0 titan01:1, 1 cores, 1.0 GiB
         job-ca -> titan01, 8 cores, 1.0 GiB
         job-cb waits, place 3: waits for 1 core on titan01, 0 are free for jobs without GPUs [+9h]
         job-cb, place 1: waits for 1 core on titan01, 0 are free for jobs without GPUs [+9h]
           - titan01: waits for 1 core on titan01, 0 are free for jobs without GPUs
         job-gb -> titan01:0, 4 cores, 32.0 GiB
         job-gc -> titan01:1, 4 cores, 31.0 GiB
         job-cb waits, place 1: waits for 1 core on titan01, 0 are free for jobs without GPUs [+9h30m]",
    );
}

#[test]
fn the_part_is_settable_and_a_node_without_gpus_gives_all_it_has() {
    expect(
        "node titan01 titan-x*2 cores=10 gib=64
         node titan02 none cores=4 gib=16
         run job-ca ada 0@titan01 9h cpu=6
         without-gpus 60
         run job-cb ada 0@titan01 9h cpu=6
         run job-cc ada 0 9h cpu=4 gib=16
         place
         without-gpus 0
         run job-cd ada 0@titan01 9h",
        "job-ca: no node has that much CPU and memory for jobs without GPUs: at most 5 cores and 32 GiB. The rest stays for the node's GPUs. Ask for a GPU (-G 1) or for less (-c, --memory). An admin can change the part: `fleet job defaults`
         job-cb -> titan01, 6 cores, 6.4 GiB
         job-cc -> titan02, 4 cores, 16.0 GiB
         job-cd: no node has that much CPU and memory for jobs without GPUs: at most 0 cores and 0 MiB. The rest stays for the node's GPUs. Ask for a GPU (-G 1) or for less (-c, --memory). An admin can change the part: `fleet job defaults`",
    );
}

#[test]
fn a_queued_job_that_a_new_part_leaves_no_place_says_so() {
    expect(
        "node titan01 titan-x*2 cores=10 gib=64
         run job-ga bob 2 1h cpu=10
         place
         run job-ca ada 0 9h cpu=5
         without-gpus 10
         why job-ca",
        "job-ga -> titan01:0 titan01:1, 10 cores, 64.0 GiB
         job-ca, place 1: can never start: no node has that much CPU and memory for jobs without GPUs: at most 1 core and 6.4 GiB. The rest stays for the node's GPUs. Ask for a GPU (-G 1) or for less (-c, --memory). An admin can change the part: `fleet job defaults` NEVER
           - titan01: titan01 has 1 core for jobs without GPUs, it wants 5 cores",
    );
}

#[test]
fn a_small_machine_runs_small_jobs_without_gpus() {
    expect(
        "node titan01 titan-x*4 cores=1 gib=8
         run job-ca ada 0 9h
         run job-ga bob 4 4h
         place",
        "job-ca -> titan01, 0.5 cores, 4.0 GiB
         job-ga -> titan01:0 titan01:1 titan01:2 titan01:3, 0.5 cores, 4.0 GiB",
    );
}

#[test]
fn the_first_that_waits_for_cores_is_not_held_up_by_later_ones() {
    expect(
        "node titan01 titan-x*2 cores=16 gib=64
         run job-ca ada 0 2h cpu=6 gib=1
         place
         run job-cb bob 0 2h cpu=4 gib=1
         run job-cc ada 0 9h cpu=2 gib=1
         run job-cd ada 0 1h cpu=2 gib=1
         run job-ce ada 0 9h cpu=1 gib=1
         plan",
        "job-ca -> titan01, 6 cores, 1.0 GiB
         job-cc -> titan01, 2 cores, 1.0 GiB
         job-cb waits, place 1: waits for 4 cores on titan01, 2 are free for jobs without GPUs; starts now with -c 2 [+2h]
         job-cd waits, place 3: waits for 2 cores on titan01, 0 are free for jobs without GPUs [+2h]
         job-ce waits, place 4: waits for 1 core on titan01, 0 are free for jobs without GPUs [+3h1m]",
    );
}

#[test]
fn a_line_that_takes_what_stays_for_gpus_is_refused() {
    let mut story = Story::new();
    story.tell(
        "node titan01 titan-x*2 cores=16 gib=64
         run job-ca ada 0 9h cpu=8 gib=1
         run job-ga bob 1 9h",
    );
    let lines = plan(&story.fsm).placements;
    let mut wrong = lines[1].clone();
    for (cores, good) in [(8, true), (4, true), (3, false), (9, false)] {
        wrong.cpu_millis = cores * 1_000;
        assert_eq!(check(&story.fsm, &wrong).is_ok(), good, "{cores} cores for a GPU");
    }
    let late = lines[0].clone();
    story.tell("without-gpus 40");
    let said = check(&story.fsm, &late).unwrap_err().to_string();
    assert!(said.ends_with("titan01 has not that much CPU and memory free"), "{said}");
}
